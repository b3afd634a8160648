"""Counts of k-mers or words as features: shares of all k-mers, or hashed and weighted by rarity (TF-IDF)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.data.features import RADIX, TextWords, chunks, mix, whole, windows

TOKENS, RECORDS = 1_000_000, 4096
"""Of records that are counted at a time, at most."""
BITS = 18
"""Of a hashed feature's number, for each length of k-mers, unless more are asked for."""
ENTRIES = 40_000_000
"""Of the matrices of a data set, at most: 320 MB sparse. The commonest k-mers make room first, as they say least."""


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
    """One row per record: the share of each of the letters ** k k-mers among its own.

    >>> dna = [np.array([0, 0, 0, 1, 4, 0, 1], dtype=np.uint8)]
    >>> kmer_frequencies(dna, np.array([0]), Grams(2, letters=4))[0, :3].tolist()
    [0.5, 0.5, 0.0]
    """
    size = (grams.letters or 0) ** grams.k
    table = np.zeros((len(indices), size), np.float32)
    start = 0
    for chunk in chunks((sequences[i] for i in indices.tolist()), TOKENS, RECORDS):
        rows, codes = _runs(chunk, grams)
        counts = np.bincount(rows * size + codes.astype(np.int64), minlength=len(chunk) * size)
        table[start : start + len(chunk)] = counts.reshape(len(chunk), size)
        start += len(chunk)
    return table / np.maximum(table.sum(axis=1, keepdims=True), 1)


@dataclass(frozen=True)
class TfIdf:
    """Sparse rows of length one: hashed counts of runs of one or several lengths, weighted by how rare each is.

    Runs are of tokens, or of words where these are made first.

    >>> texts = [np.frombuffer(text, np.uint8) for text in (b"aabb", b"abab", b"bbaa")]
    >>> TfIdf.fit(texts, (Grams(1), Grams(2)))(texts).shape
    (3, 6)
    """

    grams: tuple[Grams, ...]
    kept: ndarray
    """Numbers of the hashed features that count, ascending."""
    rarity: ndarray
    """Weight of each."""
    words: TextWords | None = None
    bits: int = BITS
    """Of a feature's number."""

    @classmethod
    def fit(
        cls,
        sequences: Sequence[ndarray],
        grams: Sequence[Grams],
        room: int = ENTRIES,
        words: TextWords | None = None,
        bits: int = BITS,
    ) -> TfIdf:
        """From training records. A feature is kept when two of them have it.

        The rarest are kept first until their matrix has `room` entries.
        """
        raw = cls(tuple(grams), np.empty(0, np.int32), np.empty(0, np.float32), words, bits)
        seen = np.zeros(len(grams) << raw.bits, np.int64)
        for _, _, features, _ in raw._hashed(sequences):
            np.add.at(seen, features, 1)
        order = np.flatnonzero(seen > 1)
        order = order[np.argsort(seen[order], kind="stable")]
        kept = np.sort(order[np.cumsum(seen[order]) <= room])
        rarity = np.log((1 + len(sequences)) / (1 + seen[kept])) + 1
        return replace(raw, kept=kept.astype(np.int32), rarity=rarity.astype(np.float32))

    def limited(self, rows: Any, most: int) -> tuple[TfIdf, Any]:
        """With the `most` common features alone; and rows that were made before, of these, of length one again."""
        from scipy.sparse import diags_array

        chosen = np.sort(np.argsort(self.rarity, kind="stable")[:most])
        own = rows[:, chosen]
        length = np.sqrt(np.asarray(own.multiply(own).sum(axis=1))).ravel()
        scaled = diags_array(1 / np.maximum(length, 1e-9)).astype(np.float32) @ own
        return replace(self, kept=self.kept[chosen], rarity=self.rarity[chosen]), scaled

    def __call__(self, sequences: Sequence[ndarray]) -> Any:
        """A scipy CSR matrix of float32, one row per record, one column per kept feature."""
        from scipy.sparse import csr_matrix

        columns, weights, sizes = [np.empty(0, np.int32)], [np.empty(0, np.float32)], [np.zeros(1, np.int64)]
        for height, rows, features, counts in self._hashed(sequences):
            column = self._number[features]
            kept = column >= 0
            rows, column, counts = rows[kept], column[kept], counts[kept]
            weight = (1 + np.log(counts)).astype(np.float32) * self.rarity[column]
            length = np.sqrt(np.bincount(rows, weights=weight**2, minlength=height))
            columns.append(column)
            weights.append((weight / length[rows]).astype(np.float32))
            sizes.append(np.bincount(rows, minlength=height))
        shape = len(sequences), self.width
        return csr_matrix((np.concatenate(weights), np.concatenate(columns), np.cumsum(np.concatenate(sizes))), shape)

    @property
    def width(self) -> int:
        """Columns, at least one."""
        return max(len(self.kept), 1)

    @cached_property
    def _number(self) -> ndarray:
        """The column of each hashed feature, or -1."""
        number = np.full(len(self.grams) << self.bits, -1, np.int32)
        number[self.kept] = np.arange(len(self.kept), dtype=np.int32)
        return number

    def _hashed(self, sequences: Sequence[ndarray]) -> Iterator[tuple[int, ndarray, ndarray, ndarray]]:
        """The number of some records, then of each distinct (record, feature): both and their count, by record."""
        width = (len(self.grams) - 1).bit_length() + self.bits
        for chunk in chunks(sequences, TOKENS, RECORDS):
            runs, keys = self.words(chunk) if self.words else chunk, []
            for block, own in enumerate(self.grams):
                rows, codes = _runs(runs, own)
                feature = (mix(codes) >> np.uint64(64 - self.bits)).astype(np.int64)
                keys.append(rows << width | block << self.bits | feature)
            distinct, counts = np.unique(np.concatenate(keys), return_counts=True)
            yield len(chunk), distinct >> width, distinct & (1 << width) - 1, counts


def gram_counts(sequences: Sequence[ndarray], parts: Mapping[str, ndarray], grams: Grams) -> dict[str, Any]:
    """The TF-IDF of each part; which features stay, and their weights, training says."""
    training = [sequences[i] for i in parts["training"].tolist()]
    room = ENTRIES * len(training) // max(1, sum(map(len, parts.values())))
    weighted = TfIdf.fit(training, (grams,), room)
    return {part: weighted([sequences[i] for i in own.tolist()]) for part, own in parts.items()}


def _runs(chunk: Sequence[ndarray], grams: Grams) -> tuple[ndarray, ndarray]:
    """Of every run its record, counted from the first, and its code."""
    lengths, tokens = np.array(list(map(len, chunk))), np.concatenate(chunk).astype(np.uint64)
    if len(tokens) < grams.k:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    inside = whole(tokens, lengths, grams.k, grams.letters)
    codes = windows(tokens, grams.k, grams.letters or RADIX)
    return np.repeat(np.arange(len(chunk)), lengths)[: len(codes)][inside], codes[inside]
