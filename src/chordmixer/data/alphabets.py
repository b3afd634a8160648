"""What a tokenizer is, and those of biological letters: nucleotides, amino acids, and words of nucleotides."""

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
"""Version of `to_json`."""
PIECE = 1 << 22
"""Bytes that are worked on at a time."""
BAD = 255
"""The id of a character outside the alphabet."""

OnBad = Literal["error", "unknown"]


class Tokenizer(ABC):
    """A frozen class, saved with its run; `dna`, `protein`, `bytes`, `characters`, `kmers` or `numbers`."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Size of the vocabulary, or number of channels."""

    @property
    def certain(self) -> int:
        """Ids below this stand for one known thing; those from it on are ambiguous or unknown."""
        return self.size

    @property
    def dtype(self) -> np.dtype:
        """The smallest that holds all ids and that torch knows."""
        return np.dtype(np.uint8 if self.size <= 1 << 8 else np.uint16 if self.size <= 1 << 16 else np.int32)

    @property
    def complement(self) -> ndarray | None:
        """The id that stands opposite each id on the other strand, where there is one."""
        return None

    @abstractmethod
    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        """Tokens, possibly read-only; what has none is a ValueError with position (from 1) and cure."""

    @abstractmethod
    def decode(self, ids: ndarray) -> str:
        """A readable form."""

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        """Counts of each character in these sequences."""
        return Counter()

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        """Accepted irregularities, with their counts."""
        return Counter()

    def reverse_complement(self, ids: ndarray) -> ndarray:
        """The tokens of the other strand."""
        if self.complement is None:
            raise ValueError(
                f"{self.name} tokens have no reverse complement, only dna and k-mers of stride 1: leave it out"
            )
        return np.asarray(self.complement[ids[::-1]])

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "tokenizer": self.name, **to_dict(self)}


def count_bytes(data: bytes | ndarray) -> ndarray:
    """Counts of each of the 256 bytes; counting pairs is three times as fast."""
    values = np.frombuffer(data, np.uint8)
    even = len(values) // 2 * 2
    pairs = np.zeros(1 << 16, dtype=np.int64)
    for start in range(0, even, PIECE):  # numpy widens what it counts to eight bytes each
        pairs += np.bincount(values[start : min(start + PIECE, even)].view(np.uint16), minlength=1 << 16)
    square = pairs.reshape(256, 256)
    counts: ndarray = square.sum(axis=0) + square.sum(axis=1)
    if even < len(values):
        counts[values[-1]] += 1
    return counts


def byte_names(counts: ndarray) -> Counter[str]:
    """Counts by character; bytes that are not printable ASCII as their escapes."""
    return Counter({ascii(chr(byte))[1:-1]: int(counts[byte]) for byte in counts.nonzero()[0]})


def as_letters(sequence: bytes | str | ndarray, tokenizer: str) -> bytes:
    """A byte a character; what no byte can stand for becomes a question mark, which no alphabet has."""
    if isinstance(sequence, bytes):  # first, as most are
        return sequence
    return _not_numbers(sequence, tokenizer).encode("latin-1", "replace")


def as_utf8(sequence: bytes | str | ndarray, tokenizer: str) -> bytes:
    """Bytes as they are, text as UTF-8."""
    if isinstance(sequence, bytes):
        return sequence
    text = _not_numbers(sequence, tokenizer)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{character(text, error.start)} is half a character: fix the record") from None


def as_text(sequence: bytes | str | ndarray, tokenizer: str) -> str:
    """Text as it is, bytes read as UTF-8."""
    if not isinstance(sequence, bytes):
        return _not_numbers(sequence, tokenizer)
    try:
        return sequence.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{character(sequence, error.start)} is not UTF-8: text must be; save the file as UTF-8, or use the "
            "bytes tokenizer"
        ) from None


def character(sequence: bytes | str | ndarray, at: int) -> str:
    """How a message names one."""
    shown = sequence[at] if isinstance(sequence, str) else chr(sequence[at])
    return f"character {shown!a} at position {at + 1:,}"


def _not_numbers(sequence: str | ndarray, tokenizer: str) -> str:
    if not isinstance(sequence, str):
        raise ValueError(f"numbers are not letters or text: the {tokenizer} tokenizer reads those; use `numbers`")
    return sequence


@dataclass(frozen=True)
class _Letters(Tokenizer):
    """Tokens: the plain letters, then the unknown one, then the further letters if each has its own token."""

    others: Literal["unknown", "own"] = "unknown"
    """The alphabet's further letters: taken as the unknown one, or a token each."""
    case: Literal["same", "mask"] = "same"
    """Lower case: the same as upper case, or masked, that is taken as unknown."""
    on_bad: OnBad = "error"
    """Characters that are no letter of the alphabet: an error, or taken as unknown and counted."""

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
        """The id of each of the 256 bytes."""
        unknown = len(self.PLAIN)
        ids = [BAD if self.on_bad == "error" else unknown] * 256
        for letter in self.PLAIN + self.UNKNOWN + self.OTHERS + "".join(self.ALIASES):
            at = self.alphabet.find(self.ALIASES.get(letter, letter))
            ids[ord(letter)] = at if at >= 0 else unknown
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
        """Case, other letters and bad characters.

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
        sums = {line: sum(census[c] for c in found) for line, found in lines.items()}
        return Counter({line: count for line, count in sums.items() if count})


@dataclass(frozen=True)
class Dna(_Letters):
    """Nucleotides, of RNA too: A C G T are 0 to 3, N is 4; U is T.

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
    """Amino acids: the twenty in alphabetic order, then X.

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
    """Words of k nucleotides; one with anything but A, C, G, T in it, or too short, is the last id, unknown.

    >>> Kmers(k=2).encode(b"AACT").tolist(), Kmers(k=2, stride=2).encode(b"TTNAC").tolist()
    ([0, 1, 7], [15, 16, 16])
    """

    k: int
    stride: int = 1
    """1, so that words overlap, or k."""
    case: Literal["same", "mask"] = "same"
    """As for dna."""
    on_bad: OnBad = "error"
    """As for dna; a word with such a character is unknown."""

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
        """Words that follow each other start elsewhere when read from the other end, so they have none."""
        if self.stride > 1:
            return None
        words, turned = np.arange(4**self.k), np.zeros(4**self.k, dtype=np.int64)
        for place in range(self.k):
            turned = turned * 4 + 3 - (words >> 2 * place & 3)
        return np.append(turned, 4**self.k).astype(self.dtype)

    def encode(self, sequence: bytes | str | ndarray) -> ndarray:
        letters = self.letters.encode(sequence)
        words = -(-len(letters) // self.stride) if self.stride > 1 else max(len(letters) - self.k + 1, 1)
        words = words if len(letters) else 0
        whole = np.full(words * self.stride + self.k - self.stride, 4, dtype=np.uint8)
        whole[: len(letters)] = letters
        ids, unknown = np.zeros(words, dtype=np.int32), np.zeros(words, dtype=bool)
        for place in range(self.k):
            column = whole[place :: self.stride][:words]
            ids = (ids << 2) + column
            unknown |= column == 4
        ids[unknown] = self.size - 1
        return ids.astype(self.dtype)

    def decode(self, ids: ndarray) -> str:
        places = 2 * np.arange(self.k)[::-1]
        letters = np.where(ids[:, None] == self.size - 1, 4, ids[:, None].astype(np.int64) >> places & 3)
        return " ".join(self.letters.decode(word) for word in letters)

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        return self.letters.census(sequences)

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        return self.letters.notes(census)
