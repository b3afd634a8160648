"""Sequences as rows of numbers: standardised shares of k-mers, or standardised features of series.

A row depends on its own record alone, so that records may be asked one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from chordmixer.data.features import SeriesFeatures
from chordmixer.training.baselines.counting import Grams, kmer_frequencies

SMALLEST = 1e-9
"""Spread: of a smaller one the column counts as constant."""
LARGEST = 20.0
"""Spreads from the mean at most: a record unlike all of training must not outvote every other feature."""


class Features(Protocol):
    """A function of sequences that training records have fixed."""

    @property
    def width(self) -> int: ...

    def __call__(self, sequences: Sequence[ndarray]) -> Any:
        """One row per record: an array, or a sparse matrix."""
        ...


@dataclass(frozen=True)
class Frequencies:
    """Shares of all k-mers of some lengths, and where asked for the logarithm of the length, standardised.

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
        return sum((own.letters or 0) ** own.k for own in self.grams) + self.length

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
        """Of training series, with their rows: these are what takes the time."""
        raw = SeriesFeatures.fit(sequences)
        rows = np.stack([raw(own) for own in sequences])
        features = cls(raw, _channels(sequences[0]), *_moments(rows))
        return features, _standardised(rows, features.mean, features.spread)

    @property
    def width(self) -> int:
        return len(self.mean)

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
    """Mean and spread of each column; a constant column has spread one."""
    mean, spread = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(spread > SMALLEST, spread, 1).astype(np.float32)


def _standardised(rows: ndarray, mean: ndarray, spread: ndarray) -> ndarray:
    with np.errstate(over="ignore"):  # infinite is as far as the largest
        return np.clip((rows - mean) / spread, -LARGEST, LARGEST).astype(np.float32)
