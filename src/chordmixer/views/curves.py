"""The points of a report's curves: ROC, precision and recall, smoothed losses; few enough to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

POINTS = 200
"""Of a curve, at most: more than a screen shows."""
GRID = 101


@dataclass(frozen=True)
class Curve:
    """Points in order."""

    name: str
    x: ndarray
    y: ndarray
    area: float = float("nan")
    """ROC-AUC or average precision, where it is such a curve."""

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.x.tolist(), self.y.tolist(), strict=True))

    def thinned(self, most: int = POINTS) -> Curve:
        """Fewer points, evenly along its way; first and last stay."""
        if len(self.x) <= most:
            return self
        steps = np.abs(np.diff(self.x)) + np.abs(np.diff(self.y))
        way = np.append(0, np.cumsum(steps))
        kept = np.unique(np.searchsorted(way, np.linspace(0, way[-1], most)).clip(max=len(way) - 1))
        return Curve(self.name, self.x[kept], self.y[kept], self.area)

    def at(self, places: Sequence[float] | ndarray) -> ndarray:
        """Its height where x first reaches each place, x rising; NaN for an empty curve."""
        if not len(self.x):
            return np.full(len(places), np.nan)
        return np.asarray(self.y[np.searchsorted(self.x, places).clip(max=len(self.x) - 1)])


def roc(name: str, scores: ndarray, positive: ndarray, area: float = float("nan")) -> Curve:
    """Share of negatives called positive (x) against share of positives found (y), from the strictest threshold on.

    >>> roc("", np.array([0.9, 0.8, 0.3]), np.array([True, False, True])).points
    [(0.0, 0.0), (0.0, 0.5), (1.0, 0.5), (1.0, 1.0)]
    """
    hits, called = _thresholds(scores, positive)
    misses = called - hits
    if not len(hits) or not hits[-1] or not misses[-1]:
        return Curve(name, np.empty(0), np.empty(0))
    return Curve(name, np.append(0, misses / misses[-1]), np.append(0, hits / hits[-1]), area)


def precision_recall(name: str, scores: ndarray, positive: ndarray, area: float = float("nan")) -> Curve:
    """Share of positives found (x) against share of those called positive that are (y).

    >>> precision_recall("", np.array([0.9, 0.8, 0.3]), np.array([True, False, True])).points[:2]
    [(0.0, 1.0), (0.5, 1.0)]
    """
    hits, called = _thresholds(scores, positive)
    if not len(hits) or not hits[-1]:
        return Curve(name, np.empty(0), np.empty(0))
    precision = hits / called
    return Curve(name, np.append(0, hits / hits[-1]), np.append(precision[0], precision), area)


def _thresholds(scores: ndarray, positive: ndarray) -> tuple[ndarray, ndarray]:
    """Positives found and records called at every distinct score, from the highest down."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)[: len(scores)]
    return np.cumsum(positive[order])[ends], ends + 1


def mean_curve(name: str, curves: Iterable[Curve]) -> Curve:
    """The mean height over all curves that are not empty, at even steps from 0 to 1."""
    known = [curve for curve in curves if len(curve.x)]
    if not known:
        return Curve(name, np.empty(0), np.empty(0))
    places = np.linspace(0, 1, GRID)
    heights = np.mean([curve.at(places) for curve in known], axis=0)
    return Curve(name, places, heights, float(np.mean([curve.area for curve in known])))


def smoothed(values: ndarray, window: int) -> ndarray:
    """Running mean over `window` values around each, fewer at the ends.

    >>> smoothed(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    sums = np.append(0, np.cumsum(values))
    half, places = window // 2, np.arange(len(values))
    start, end = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return np.asarray((sums[end] - sums[start]) / (end - start))


def grouped(x: ndarray, y: ndarray, most: int) -> tuple[ndarray, ndarray]:
    """Means of at most so many groups of neighbours."""
    if len(x) <= most:
        return x, y
    groups = np.array_split(np.arange(len(x)), most)
    return np.array([x[g].mean() for g in groups]), np.array([y[g].mean() for g in groups])
