"""The numbers that a data set asks for, summed up: their spread, how many are equal, and a histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

BINS = 16
"""Of the histogram, at most."""
LARGE = 1e150
"""Numbers above it are scaled down first: their squares and sums overflow."""


@dataclass(frozen=True)
class TargetSummary:
    """A column of targets in numbers."""

    records: int
    """With a target."""
    missing: int
    """Records without one."""
    quartiles: tuple[float, float, float, float, float]
    """Lowest, lower quartile, median, upper quartile, highest."""
    mean: float
    deviation: float
    """The standard deviation, of all records and not of a sample."""
    repeated: float
    """Share of the records whose target another record has as well."""
    commonest: float
    """The most frequent target, the lowest of several."""
    commonest_share: float
    """Share of the records that have it."""
    edges: tuple[float, ...]
    """Of the histogram: bin i holds targets from edges[i] up to, and not at, edges[i + 1]; the last one all."""
    histogram: tuple[int, ...]


def summarise_targets(numbers: ndarray) -> TargetSummary | None:
    """Of finite numbers; NaN is a record without a target. None where there is no number.

    >>> summarise_targets(np.array([1.0, 2.0, 2.0, np.nan])).quartiles
    (1.0, 1.5, 2.0, 2.0, 2.0)
    """
    known = numbers[~np.isnan(numbers)].astype(np.float64)
    if not len(known):
        return None
    largest = float(np.abs(known).max())
    scale = largest if largest > LARGE else 1.0
    shares = known / scale
    values, counts = np.unique(known, return_counts=True)
    edges = np.unique(np.linspace(shares.min(), shares.max(), min(BINS, len(values)) + 1))
    edges = edges if len(edges) > 1 else np.repeat(edges, 2)
    lowest, lower, median, upper, highest = (np.percentile(shares, [0, 25, 50, 75, 100]) * scale).tolist()
    return TargetSummary(
        records=len(known),
        missing=len(numbers) - len(known),
        quartiles=(lowest, lower, median, upper, highest),
        mean=float(shares.mean()) * scale,
        deviation=float(shares.std()) * scale,
        repeated=float(counts[counts > 1].sum() / len(known)),
        commonest=float(values[counts.argmax()]),
        commonest_share=float(counts.max() / len(known)),
        edges=tuple((edges * scale).tolist()),
        histogram=tuple(np.histogram(shares, edges)[0].tolist()),
    )
