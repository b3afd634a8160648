"""The interface of tokenizers, and tokenizers of biological letters: nucleotides, amino acids and k-mers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy import ndarray

from chordmixer.config import to_dict

FORMAT = 1
"""Version of the format that `to_json` writes."""
PIECE = 1 << 22
"""Bytes that are counted at a time."""
BAD = 255
"""Marks a character outside the alphabet, which is an error."""

OnBad = Literal["error", "unknown"]


class Tokenizer(ABC):
    """A frozen dataclass that converts sequences to token ids, saved with its run."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Size of the vocabulary, or number of channels."""

    @property
    def certain(self) -> int:
        """Number of unambiguous ids: ids below it stand for one known letter, others are ambiguous or unknown."""
        return self.size

    @property
    def dtype(self) -> np.dtype:
        """The smallest integer type that holds all ids and that torch can convert."""
        return np.dtype(np.uint8 if self.size <= 1 << 8 else np.uint16 if self.size <= 1 << 16 else np.int32)

    @property
    def complement(self) -> ndarray | None:
        """The id of each id's complement on the other strand; None if tokens have no complement."""
        return None

    @abstractmethod
    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        """Token ids, possibly read-only. A character without an id is a ValueError with its position (from 1)."""

    @abstractmethod
    def decode(self, ids: ndarray) -> str:
        """Readable text for token ids."""

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        """Counts of each character in the sequences, before tokenization."""
        return Counter()

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        """Counts of accepted irregularities, computed from a census."""
        return Counter()

    def reverse_complement(self, ids: ndarray) -> ndarray:
        """The token ids of the other strand, read in its own direction."""
        if self.complement is None:
            raise ValueError(
                f"{self.name} tokens have no reverse complement, only dna and k-mers of stride 1: leave it out"
            )
        return np.asarray(self.complement[ids[::-1]])

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "tokenizer": self.name, **to_dict(self)}


def count_bytes(data: bytes | ndarray) -> ndarray:
    """Counts of each of the 256 byte values. Bytes are counted in pairs, which is three times as fast."""
    values = np.frombuffer(data, np.uint8)
    even = len(values) // 2 * 2
    pairs = np.zeros(1 << 16, dtype=np.int64)
    for start in range(0, even, PIECE):  # in pieces, since bincount converts its input to int64
        pairs += np.bincount(values[start : min(start + PIECE, even)].view(np.uint16), minlength=1 << 16)
    matrix = pairs.reshape(256, 256)
    counts: ndarray = matrix.sum(axis=0) + matrix.sum(axis=1)
    if even < len(values):
        counts[values[-1]] += 1
    return counts


def byte_names(counts: ndarray) -> Counter[str]:
    """Counts by character. Bytes that are not printable ASCII are named by their escapes."""
    return Counter({ascii(chr(byte))[1:-1]: int(counts[byte]) for byte in counts.nonzero()[0]})


def as_letters(sequence: bytes | str | ndarray, tokenizer: str) -> bytes:
    """Letters as one byte each. Characters beyond Latin-1 become question marks, which no alphabet contains."""
    if isinstance(sequence, bytes):  # first, as most are
        return sequence
    return _checked_text(sequence, tokenizer).encode("latin-1", "replace")


def as_utf8(sequence: bytes | str | ndarray, tokenizer: str) -> bytes:
    """Bytes unchanged, text encoded as UTF-8."""
    if isinstance(sequence, bytes):
        return sequence
    text = _checked_text(sequence, tokenizer)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{character(text, error.start)} is half a character: fix the record") from None


def as_text(sequence: bytes | str | ndarray, tokenizer: str) -> str:
    """Text unchanged, bytes decoded as UTF-8."""
    if not isinstance(sequence, bytes):
        return _checked_text(sequence, tokenizer)
    try:
        return sequence.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{character(sequence, error.start)} is not UTF-8: text must be; save the file as UTF-8, or use the "
            "bytes tokenizer"
        ) from None


def character(sequence: bytes | str | ndarray, at: int) -> str:
    """The character at an index and its position from 1, for error messages."""
    shown = sequence[at] if isinstance(sequence, str) else chr(sequence[at])
    return f"character {shown!a} at position {at + 1:,}"


def _checked_text(sequence: str | ndarray, tokenizer: str) -> str:
    if not isinstance(sequence, str):
        raise ValueError(f"numbers are not letters or text: the {tokenizer} tokenizer reads those; use `numbers`")
    return sequence


@dataclass(frozen=True)
class _Letters(Tokenizer):
    """A tokenizer of single letters. Ids: the plain letters, the unknown letter, then other letters if kept."""

    others: Literal["unknown", "own"] = "unknown"
    """Further letters of the alphabet: read as unknown, or each has a token of its own."""
    case: Literal["same", "mask"] = "same"
    """Lower case: the same as upper case, or masked, that is, read as unknown."""
    on_bad: OnBad = "error"
    """Characters outside the alphabet: an error, or read as unknown and counted."""

    NOUN: ClassVar[str]
    PLAIN: ClassVar[str]
    UNKNOWN: ClassVar[str]
    OTHERS: ClassVar[str]
    ALIASES: ClassVar[Mapping[str, str]] = {}

    @property
    def size(self) -> int:
        return len(self.alphabet)

    @property
    def certain(self) -> int:
        return len(self.PLAIN)

    @property
    def alphabet(self) -> str:
        return self.PLAIN + self.UNKNOWN + (self.OTHERS if self.others == "own" else "")

    @cached_property
    def table(self) -> bytes:
        """The id of each of the 256 byte values, for `bytes.translate`."""
        unknown = len(self.PLAIN)
        ids = [BAD if self.on_bad == "error" else unknown] * 256
        for letter in self.PLAIN + self.UNKNOWN + self.OTHERS + "".join(self.ALIASES):
            index = self.alphabet.find(self.ALIASES.get(letter, letter))
            ids[ord(letter)] = index if index >= 0 else unknown
            if letter.isalpha():
                ids[ord(letter.lower())] = ids[ord(letter)] if self.case == "same" else unknown
        return bytes(ids)

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        letters = as_letters(sequence, self.name)
        ids = letters.translate(self.table)
        at = ids.find(BAD)
        if at >= 0:
            cure = "take the gaps out of the alignment" if letters[at] in b"-." else "fix the record"
            raise ValueError(
                f"{character(sequence, at)} is not {self.NOUN}: {cure}, or have such characters taken as "
                f"{self.UNKNOWN} with --on-bad unknown"
            )
        return np.frombuffer(ids, np.uint8)

    def decode(self, ids: ndarray) -> str:
        letters: bytes = np.frombuffer(self.alphabet.encode(), np.uint8)[ids].tobytes()
        return letters.decode()

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        return byte_names(count_bytes(b"".join(as_letters(s, self.name) for s in sequences)))

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        """Counts of lower-case letters, other letters and bad characters.

        >>> Dna(on_bad="unknown").notes({"A": 5, "a": 2, "U": 1, "R": 3, "n": 1, "7": 4})
        Counter({'bad characters taken as N': 4, 'lower-case letters taken as upper case': 3, \
'letters among RYSWKMBDHV taken as N': 3, 'letters U taken as T': 1, 'letters N': 1})
        """
        known = {*self.PLAIN, self.UNKNOWN, *self.OTHERS, *self.ALIASES}
        how = f"taken as {self.UNKNOWN}"
        lines = {
            f"bad characters {how}": [c for c in census if c.upper() not in known],
            f"lower-case letters {'taken as upper case' if self.case == 'same' else how}": [
                c for c in census if c.islower() and c.upper() in known
            ],
            f"letters among {self.OTHERS} {how if self.others == 'unknown' else 'with a token each'}": [
                c for c in census if c.upper() in {*self.OTHERS}
            ],
            **{
                f"letters {letter} taken as {meant}": [c for c in census if c.upper() == letter]
                for letter, meant in self.ALIASES.items()
            },
            f"letters {self.UNKNOWN}": [c for c in census if c.upper() == self.UNKNOWN],
        }
        sums = {line: sum(census[c] for c in characters) for line, characters in lines.items()}
        return Counter({line: count for line, count in sums.items() if count})


@dataclass(frozen=True)
class Dna(_Letters):
    """Nucleotides of DNA or RNA: A C G T are 0 to 3, N is 4; U is read as T.

    >>> Dna().encode(b"ACGTUNRacgt").tolist(), Dna(others="own", case="mask").encode(b"RYacgt").tolist()
    ([0, 1, 2, 3, 3, 4, 4, 0, 1, 2, 3], [5, 6, 4, 4, 4, 4])
    """

    name = "dna"
    NOUN = "a nucleotide"
    PLAIN = "ACGT"
    UNKNOWN = "N"
    OTHERS = "RYSWKMBDHV"
    ALIASES: ClassVar[Mapping[str, str]] = {"U": "T"}

    @cached_property
    def complement(self) -> ndarray:
        opposite = dict(zip("ACGTNRYSWKMBDHV", "TGCANYRSWMKVHDB", strict=True))
        return np.array([self.alphabet.index(opposite[letter]) for letter in self.alphabet], dtype=np.uint8)


@dataclass(frozen=True)
class Protein(_Letters):
    """Amino acids: the 20 standard ones in alphabetical order, then X.

    >>> Protein().encode(b"ACYX*").tolist(), Protein(others="own").decode(Protein(others="own").encode("MU*"))
    ([0, 1, 19, 20, 20], 'MU*')
    """

    name = "protein"
    NOUN = "an amino acid"
    PLAIN = "ACDEFGHIKLMNPQRSTVWY"
    UNKNOWN = "X"
    OTHERS = "BZJUO*"


@dataclass(frozen=True)
class Kmers(Tokenizer):
    """K-mers of nucleotides. One that is too short or holds a letter other than A, C, G, T is the last id, unknown.

    >>> Kmers(k=2).encode(b"AACT").tolist(), Kmers(k=2, stride=2).encode(b"TTNAC").tolist()
    ([0, 1, 7], [15, 16, 16])
    """

    k: int
    stride: int = 1
    """Letters between starts of k-mers: 1 (overlapping) or k (consecutive)."""
    case: Literal["same", "mask"] = "same"
    """Lower case: the same as upper case, or read as unknown."""
    on_bad: OnBad = "error"
    """Characters outside the alphabet: an error, or the k-mer is unknown and they are counted."""

    name = "kmers"

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 12:
            raise ValueError(f"k={self.k}: words have 1 to 12 letters (4^k + 1 tokens); choose another")
        if self.stride not in (1, self.k):
            raise ValueError(f"stride={self.stride}: words overlap (1) or follow each other (k={self.k}); choose one")

    @cached_property
    def letters(self) -> Dna:
        return Dna(case=self.case, on_bad=self.on_bad)

    @property
    def size(self) -> int:
        return self.certain + 1

    @property
    def certain(self) -> int:
        return 1 << 2 * self.k

    @cached_property
    def complement(self) -> ndarray | None:
        """The reverse complement of each k-mer; None for consecutive k-mers, which start elsewhere on that strand."""
        if self.stride > 1:
            return None
        words, opposite = np.arange(4**self.k), np.zeros(4**self.k, dtype=np.int64)
        for position in range(self.k):
            opposite = opposite * 4 + 3 - (words >> 2 * position & 3)
        return np.append(opposite, 4**self.k).astype(self.dtype)

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        letters = self.letters.encode(sequence)
        words = -(-len(letters) // self.stride) if self.stride > 1 else max(len(letters) - self.k + 1, 1)
        words = words if len(letters) else 0
        padded = np.full(words * self.stride + self.k - self.stride, 4, dtype=np.uint8)
        padded[: len(letters)] = letters
        ids, unknown = np.zeros(words, dtype=np.int32), np.zeros(words, dtype=bool)
        for position in range(self.k):
            column = padded[position :: self.stride][:words]
            ids = (ids << 2) + column
            unknown |= column == 4
        ids[unknown] = self.size - 1
        return ids.astype(self.dtype)

    def decode(self, ids: ndarray) -> str:
        shifts = 2 * np.arange(self.k)[::-1]
        letters = np.where(ids[:, None] == self.size - 1, 4, ids[:, None].astype(np.int64) >> shifts & 3)
        return " ".join(self.letters.decode(word) for word in letters)

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        return self.letters.census(sequences)

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        return self.letters.notes(census)
