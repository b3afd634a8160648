"""Tokenizers of biological letters: nucleotides, amino acids, and words of nucleotides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy import ndarray

from chordmixer.data.tokenizers import OnBad, Tokenizer, as_letters, byte_names, character, count_bytes

BAD = 255
"""The id of a character outside the alphabet."""


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
            raise ValueError(f"{character(sequence, at)} is not {self.NOUN}: {self._cure(letters[at])}")
        return np.frombuffer(ids, np.uint8)

    def decode(self, ids: ndarray) -> str:
        letters: bytes = np.frombuffer(self.alphabet.encode(), np.uint8)[ids].tobytes()
        return letters.decode()

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        try:
            letters = b"".join(sequences)  # type: ignore[arg-type]  # all bytes, as a rule
        except TypeError:
            letters = b"".join(as_letters(s, self.name) for s in sequences)
        return byte_names(count_bytes(letters))

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

    def _cure(self, byte: int) -> str:
        first = "take the gaps out of the alignment" if byte in b"-." else "fix the record"
        return f"{first}, or have such characters taken as {self.UNKNOWN} with --on-bad unknown"


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
