"""Counts of k-mers as features, some records at a time: all of them, or hashed and weighted by how rare they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.data.kmers import RADIX, chunks, mix, whole, windows

TOKENS, RECORDS = 1_000_000, 4096
"""Of records that are counted at a time, at most."""
BITS = 18
"""Of a hashed feature's number."""
ENTRIES = 40_000_000
"""Of all matrices of a data set, at most: 320 MB sparse. The commonest k-mers make room first, as they say least."""


@dataclass(frozen=True)
class Grams:
    """Which runs of tokens are counted."""

    k: int
    letters: int | None = None
    """Tokens from here on are no letters, and break runs."""

    def __post_init__(self) -> None:
        if not 1 <= self.k <= 31:
            raise ValueError(f"k={self.k} is not a k-mer's length: give 1 to 31")


def kmer_frequencies(sequences: Sequence[ndarray], indices: ndarray, grams: Grams) -> ndarray:
    """A row a record: the share of each of the letters ** k k-mers among its own.

    >>> dna = [np.array([0, 0, 0, 1, 4, 0, 1], dtype=np.uint8)]
    >>> kmer_frequencies(dna, np.array([0]), Grams(2, letters=4))[0, :3].tolist()
    [0.5, 0.5, 0.0]
    """
    size = (grams.letters or 0) ** grams.k
    table = np.zeros((len(indices), size), np.float32)
    for start, rows, codes in _runs(sequences, indices, grams):
        height = min(RECORDS, len(indices) - start)
        counts = np.bincount(rows * size + codes.astype(np.int64), minlength=height * size)
        table[start : start + height] += counts[: height * size].reshape(height, size)
    return table / np.maximum(table.sum(axis=1, keepdims=True), 1)


def gram_counts(sequences: Sequence[ndarray], parts: Mapping[str, ndarray], grams: Grams) -> dict[str, Any]:
    """Sparse TF-IDF of each part, rows of length one; which features stay, and their weights, training says.

    A feature stays when two training records have it, and the rarest stay first until `ENTRIES` are full.
    """
    seen = np.zeros(1 << BITS, np.int64)
    for _, _, features, _ in _hashed(sequences, parts["training"], grams):
        seen += np.bincount(features, minlength=len(seen))
    training = len(parts["training"])
    room = ENTRIES * training / sum(map(len, parts.values()))
    order = np.argsort(seen, kind="stable")
    kept = order[(seen[order] > 1) & (np.cumsum(np.where(seen[order] > 1, seen[order], 0)) <= room)]
    number = np.full(len(seen), -1, np.int32)
    number[np.sort(kept)] = np.arange(len(kept), dtype=np.int32)
    rarity = (np.log((1 + training) / (1 + seen)) + 1).astype(np.float32)
    return {part: _weighted(sequences, own, grams, number, rarity) for part, own in parts.items()}


def _weighted(sequences: Sequence[ndarray], indices: ndarray, grams: Grams, number: ndarray, rarity: ndarray) -> Any:
    from scipy.sparse import csr_matrix

    columns, weights, sizes = [np.empty(0, np.int32)], [np.empty(0, np.float32)], np.zeros(len(indices), np.int64)
    for start, rows, features, counts in _hashed(sequences, indices, grams):
        kept = number[features] >= 0
        rows, features, counts = rows[kept], features[kept], counts[kept]
        weight = (1 + np.log(counts)).astype(np.float32) * rarity[features]
        length = np.sqrt(np.bincount(rows, weights=weight**2))
        columns.append(number[features])
        weights.append((weight / length[rows]).astype(np.float32))
        sizes[start : start + len(length)] += np.bincount(rows)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    shape = len(indices), max(int(number.max()) + 1, 1)
    return csr_matrix((np.concatenate(weights), np.concatenate(columns), offsets), shape=shape)


def _hashed(
    sequences: Sequence[ndarray], indices: ndarray, grams: Grams
) -> Iterator[tuple[int, ndarray, ndarray, ndarray]]:
    """The first record of some, then of each distinct (record, feature): both and their count, by record."""
    for start, rows, codes in _runs(sequences, indices, grams):
        features = (mix(codes) >> np.uint64(64 - BITS)).astype(np.int64)
        keys, counts = np.unique(rows << BITS | features, return_counts=True)
        yield start, keys >> BITS, keys & (1 << BITS) - 1, counts


def _runs(sequences: Sequence[ndarray], indices: ndarray, grams: Grams) -> Iterator[tuple[int, ndarray, ndarray]]:
    """The first record of some, then of every run its record, counted from there, and its code."""
    start = 0
    for chunk in chunks((sequences[i] for i in indices.tolist()), TOKENS, RECORDS):
        lengths, tokens = np.array(list(map(len, chunk))), np.concatenate(chunk).astype(np.uint64)
        if len(tokens) >= grams.k:
            inside = whole(tokens, lengths, grams.k, grams.letters)
            codes = windows(tokens, grams.k, grams.letters or RADIX)
            yield start, np.repeat(np.arange(len(chunk)), lengths)[: len(codes)][inside], codes[inside]
        start += len(chunk)
