"""What every tokenizer is: a sequence in, tokens out, and a word on what was unusual."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy import ndarray

from chordmixer.config import to_dict

FORMAT = 1
"""Of `to_json`."""

PIECE = 1 << 22
"""Bytes that are worked on at a time."""

OnBad = Literal["error", "unknown"]


class Tokenizer(ABC):
    """A frozen class, saved with its run; `dna`, `protein`, `bytes`, `characters`, `kmers` or `numbers`."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def size(self) -> int:
        """Of the vocabulary; of real numbers, their channels."""

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
        """For a person."""

    def census(self, sequences: Sequence[bytes | str | ndarray]) -> Counter[str]:
        """How often each character stands in these, as the file has them."""
        return Counter()

    def notes(self, census: Mapping[str, int]) -> Counter[str]:
        """What was accepted but is worth a line."""
        return Counter()

    def reverse_complement(self, ids: ndarray) -> ndarray:
        """The tokens of the other strand.

        >>> from chordmixer.data.alphabets import Dna
        >>> Dna().decode(Dna().reverse_complement(Dna().encode(b"AACGN")))
        'NCGTT'
        """
        if self.complement is None:
            raise ValueError(
                f"{self.name} tokens have no reverse complement: dna has, and k-mers of stride 1; leave it out"
            )
        return self.complement[ids[::-1]]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "tokenizer": self.name, **to_dict(self)}


def count_bytes(data: bytes | ndarray) -> ndarray:
    """How often each of the 256 bytes stands there; taken by twos, which is three times as fast.

    >>> count_bytes(b"ACA")[[65, 67, 71]].tolist()
    [2, 1, 0]
    """
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
    """The same by character; bytes that are not printable ASCII as their escapes.

    >>> byte_names(count_bytes("aä".encode()))
    Counter({'a': 1, '\\\\xa4': 1, '\\\\xc3': 1})
    """
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
        raise ValueError(
            f"{character(text, error.start)} is half a character: no UTF-8 can stand for it; mend the record"
        ) from None


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
    """How a message names one.

    >>> character(b"AC7T", 2)
    "character '7' at position 3"
    """
    shown = sequence[at] if isinstance(sequence, str) else chr(sequence[at])
    return f"character {shown!a} at position {at + 1:,}"


def _not_numbers(sequence: str | ndarray, tokenizer: str) -> str:
    if not isinstance(sequence, str):
        raise ValueError(f"numbers are not letters or text: the {tokenizer} tokenizer reads those; use `numbers`")
    return sequence
