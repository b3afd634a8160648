"""Runs of k tokens as numbers, for many records at once: what sketches and plain counts are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy import ndarray

LETTERS = 4
"""Of DNA: tokens 0 to 3 are A, C, G and T, and those from here on are no nucleotides."""
RADIX = 0x9E3779B97F4A7C15
"""Where k-mers of any tokens are made into numbers: odd, so that no token's bits are shifted out."""


def chunks(sequences: Iterable[ndarray], tokens: int, records: int) -> Iterator[list[ndarray]]:
    """Whole records in order, at most so many records and tokens at a time; a longer record comes alone."""
    chunk: list[ndarray] = []
    held = 0
    for sequence in sequences:
        if chunk and (held + len(sequence) > tokens or len(chunk) == records):
            yield chunk
            chunk, held = [], 0
        chunk.append(np.asarray(sequence))
        held += len(sequence)
    if chunk:
        yield chunk


def windows(tokens: ndarray, k: int, radix: int) -> ndarray:
    """Every run of `k` tokens (uint64) as the digits of one number, modulo two to the 64th.

    >>> windows(np.array([1, 2, 3, 4], dtype=np.uint64), 3, radix=10).tolist()
    [123, 234]
    """
    code, width = tokens, 1
    for bit in f"{k:b}"[1:]:
        code = code[:-width] * np.uint64(pow(radix, width, 1 << 64)) + code[width:]
        width *= 2
        if bit == "1":
            code = code[:-1] * np.uint64(radix) + tokens[width:]
            width += 1
    return code


def whole(tokens: ndarray, lengths: ndarray, k: int, letters: int | None) -> ndarray:
    """Which runs of records end to end lie in one record, and hold no token from `letters` on.

    >>> whole(np.array([0, 1, 2, 3, 4, 0, 1]), np.array([3, 4]), 2, letters=4).tolist()
    [True, True, False, False, False, True]
    """
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(tokens))
    inside: ndarray = left[: len(tokens) - k + 1] >= k
    if letters is not None and (bad := tokens >= letters).any():
        seen = np.concatenate([[0], np.cumsum(bad, dtype=np.int32)])
        inside &= seen[k:] == seen[:-k]
    return inside


def mix(z: ndarray) -> ndarray:
    """SplitMix64's finaliser (see `draws`): every bit of a number moves every bit of its hash."""
    z = z + np.uint64(RADIX)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def complement(tokens: ndarray) -> ndarray:
    """The reverse complement of DNA tokens; what is no nucleotide stays.

    >>> complement(np.array([0, 0, 1, 4])).tolist()
    [4, 2, 3, 3]
    """
    back = tokens[::-1]
    return np.where(back < LETTERS, LETTERS - 1 - back, back).astype(tokens.dtype)
