"""Sequences as rows of features: k-mer or word counts, and features of series.

A row depends on its own record alone, so that records may be predicted one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from chordmixer.data.features import RADIX, SeriesFeatures, TextWords, chunks, kmer_codes, mix, valid_kmers

TOKENS, RECORDS = 1_000_000, 4096
"""Most tokens and records that are counted at a time."""
BITS = 18
"""Of a hashed feature's number, by default, for each length of k-mers."""
ENTRIES = 40_000_000
"""Most entries of the matrices of a data set: 320 MB sparse. The most frequent k-mers, which say least, go first."""


@dataclass(frozen=True)
class Grams:
    """Which runs of tokens are counted."""

    k: int
    letters: int | None = None
    """Tokens from this number on are not letters, and break runs."""

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
    return np.asarray(table / np.maximum(table.sum(axis=1, keepdims=True), 1))


@dataclass(frozen=True)
class TfIdf:
    """Sparse rows of norm one: hashed counts of runs of tokens, or of words, weighted by rarity.

    >>> texts = [np.frombuffer(text, np.uint8) for text in (b"aabb", b"abab", b"bbaa")]
    >>> TfIdf.fit(texts, (Grams(1), Grams(2)))(texts).shape
    (3, 6)
    """

    grams: tuple[Grams, ...]
    kept: ndarray
    """Numbers of the hashed features that are used, ascending."""
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
        """Keep features of at least two training records, the rarest first, up to `room` entries of their matrix."""
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
        """With the `most` frequent features only; and the same of rows that were made before, again of norm one."""
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
        """In chunks: the number of records; then record, feature and count of each distinct (record, feature)."""
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
    """The TF-IDF of each part, fitted on the training part."""
    training = [sequences[i] for i in parts["training"].tolist()]
    room = ENTRIES * len(training) // max(1, sum(map(len, parts.values())))
    weighted = TfIdf.fit(training, (grams,), room)
    return {part: weighted([sequences[i] for i in own.tolist()]) for part, own in parts.items()}


def _runs(chunk: Sequence[ndarray], grams: Grams) -> tuple[ndarray, ndarray]:
    """The record of every run, counted from the first, and its code."""
    lengths, tokens = np.array(list(map(len, chunk))), np.concatenate(chunk).astype(np.uint64)
    if len(tokens) < grams.k:
        return np.empty(0, np.int64), np.empty(0, np.uint64)
    inside = valid_kmers(tokens, lengths, grams.k, grams.letters)
    codes = kmer_codes(tokens, grams.k, grams.letters or RADIX)
    return np.repeat(np.arange(len(chunk)), lengths)[: len(codes)][inside], codes[inside]


SMALLEST = 1e-9
"""Standard deviation below which a column counts as constant."""
LARGEST = 20.0
"""Largest standardised value: a record unlike all of training must not outvote every other feature."""


class Features(Protocol):
    """A function from sequences to rows, fitted on training records."""

    @property
    def width(self) -> int: ...

    def __call__(self, sequences: Sequence[ndarray]) -> Any:
        """One row per record: an array, or a sparse matrix."""
        ...


@dataclass(frozen=True)
class Frequencies:
    """Standardised frequencies of all k-mers of some lengths, optionally with the logarithm of the length.

    >>> dna = [np.array(letters, dtype=np.uint8) for letters in ([0, 0, 1], [1, 1, 1], [0, 1, 1])]
    >>> Frequencies.fit(dna, (Grams(1, letters=2),), length=True)(dna).shape
    (3, 3)
    """

    grams: tuple[Grams, ...]
    length: bool
    mean: ndarray
    spread: ndarray

    @classmethod
    def fit(cls, sequences: Sequence[ndarray], grams: Sequence[Grams], length: bool = False) -> Frequencies:
        raw = cls(tuple(grams), length, np.zeros(1, np.float32), np.ones(1, np.float32))
        mean, spread = _moments(raw._rows(sequences))
        return replace(raw, mean=mean, spread=spread)

    @property
    def width(self) -> int:
        return int(sum((own.letters or 0) ** own.k for own in self.grams)) + self.length

    def __call__(self, sequences: Sequence[ndarray]) -> ndarray:
        return _standardised(self._rows(sequences), self.mean, self.spread)

    def _rows(self, sequences: Sequence[ndarray]) -> ndarray:
        every = np.arange(len(sequences))
        columns = [kmer_frequencies(sequences, every, own) for own in self.grams]
        if self.length:
            columns.append(np.log(np.maximum([len(own) for own in sequences], 1)).astype(np.float32)[:, None])
        return np.concatenate(columns, axis=1)


@dataclass(frozen=True)
class SeriesRows:
    """Amplitudes, spectrum, autocorrelation and fixed convolutions of a series, standardised."""

    raw: SeriesFeatures
    channels: int
    mean: ndarray
    spread: ndarray

    @classmethod
    def fit(cls, sequences: Sequence[ndarray]) -> tuple[SeriesRows, ndarray]:
        """From training series; also returns their rows, which take the time."""
        raw = SeriesFeatures.fit(sequences)
        rows = np.stack([raw(own) for own in sequences])
        features = cls(raw, _channels(sequences[0]), *_moments(rows))
        return features, _standardised(rows, features.mean, features.spread)

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def described(self) -> int:
        """Features that are not convolutions; they come first."""
        return self.width - self.raw.thresholds.size

    def __call__(self, sequences: Sequence[ndarray]) -> ndarray:
        for own in sequences:
            if _channels(own) != self.channels:
                raise ValueError(
                    f"a series has {_channels(own)} channels: the baseline learned from {self.channels}; give as many"
                )
        rows = np.stack([self.raw(own) for own in sequences]) if len(sequences) else np.empty((0, self.width))
        return _standardised(rows, self.mean, self.spread)


def _channels(series: ndarray) -> int:
    return series.shape[1] if series.ndim == 2 else 1


def _moments(rows: ndarray) -> tuple[ndarray, ndarray]:
    """Mean and standard deviation of each column; 1 for a constant column."""
    mean, spread = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(spread > SMALLEST, spread, 1).astype(np.float32)


def _standardised(rows: ndarray, mean: ndarray, spread: ndarray) -> ndarray:
    with np.errstate(over="ignore"):  # infinite is as far as the largest
        return np.asarray(np.clip((rows - mean) / spread, -LARGEST, LARGEST), np.float32)
