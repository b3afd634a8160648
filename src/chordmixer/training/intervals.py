"""95 % intervals of scores, and of the difference between a model and a baseline on the same records.

One rule for all. Records are drawn with replacement, whole groups of them where records have groups, and an interval
spans the middle 95 % of a metric over these resamples. Accuracy over single records has Wilson's interval. So has any
share that is 0 or 1 in all resamples, for as many records as the rarer class has: no interval has width zero. Fewer
than `LEAST` records, groups, or records of a class where a metric goes by class, give no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from chordmixer.tasks.scores import BY_CLASS, SHARES
from chordmixer.tasks.targets import Classification, MultiLabel, Target, TokenTarget, resampled

LEAST = 10
"""Records that an interval takes: of both classes where a metric goes by class, of several classes or labels in half
of them; and groups, where whole groups are drawn."""
ENTRIES = 1_000_000
"""Weights that are held at a time."""
SAME = 1e-12
"""Numbers that are nearer are the same."""
Z = 1.959964

Interval = tuple[float, float] | tuple[None, None]


@dataclass(frozen=True)
class Score:
    """A number and its 95 % interval; None: too few records for one, or nothing that varies."""

    value: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            end = getattr(self, name)
            if end is not None and math.isnan(end):  # as files of earlier versions have it
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class Difference:
    """How much more a model has of a metric than a baseline on the same records, with a paired 95 % interval."""

    metric: str
    value: float
    low: float | None
    """None: too few records for an interval."""
    high: float | None
    over: Literal["records", "groups"]
    """What was drawn."""


@dataclass(frozen=True)
class Sample:
    """The records that scores are of, and how they are drawn."""

    target: Target
    targets: ndarray
    groups: ndarray | None
    """The number of each record's group; None: each record is on its own."""
    resamples: int

    def scores(self, outputs: ndarray) -> dict[str, Score]:
        """Every metric with its interval."""
        drawn = self.drawn(outputs)
        return {
            name: Score(value, *self.interval(name, value, drawn[name]))
            for name, value in self.target.metrics(outputs, self.targets).items()
        }

    def difference(self, metric: str, models: Sequence[ndarray], baseline: ndarray) -> Difference:
        """The outputs of a model, or of its runs with several seeds, whose scores are averaged, beside a baseline's.

        Both are scored on the same resamples, so that what makes a resample hard for both cancels out.
        """
        own = np.mean([self.drawn(outputs)[metric] for outputs in models], axis=0)
        value = float(np.mean([self.target.metrics(outputs, self.targets)[metric] for outputs in models]))
        other, theirs = self.drawn(baseline)[metric], self.target.metrics(baseline, self.targets)[metric]
        over: Literal["records", "groups"] = "records" if self.groups is None else "groups"
        if self._support(metric) < LEAST or not math.isfinite(value - theirs):
            return Difference(metric, value - theirs, None, None, over)
        low, high = _middle(own - other)
        if high - low < SAME < abs(value - theirs):  # all resamples agree: as far as the two scores allow
            ours, ends = self.interval(metric, value, own), self.interval(metric, theirs, other)
            low = _known(ours[0], value) - _known(ends[1], theirs)
            high = _known(ours[1], value) - _known(ends[0], theirs)
        return Difference(metric, value - theirs, low, high, over)

    def drawn(self, outputs: ndarray) -> dict[str, ndarray]:
        """Every metric on each resample, the same ones for all outputs."""
        parts = [resampled(self.target, outputs, self.targets, weights) for weights in self._weights()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def interval(self, metric: str, value: float, drawn: ndarray) -> Interval:
        support = self._support(metric)
        if support < LEAST or not math.isfinite(value):
            return None, None
        of_records = metric == "accuracy" and not isinstance(self.target, TokenTarget)
        if of_records and self.groups is None:
            return wilson(value, support)
        low, high = _middle(drawn)
        if high - low > SAME:
            return low, high
        return wilson(value, support) if metric in SHARES and value in (0, 1) else (None, None)

    def _support(self, metric: str) -> int:
        """The records, or groups, that a metric rests on."""
        units = len(self.targets) if self.groups is None else len(np.unique(self.groups))
        if metric not in BY_CLASS or not isinstance(self.target, Classification | MultiLabel):
            return units
        if isinstance(self.target, MultiLabel):
            positive = (self.targets > 0.5).sum(axis=0)
        else:
            positive = np.bincount(self.targets, minlength=self.target.outputs)
        rarer = np.minimum(positive, len(self.targets) - positive)
        if len(rarer) > 2 or isinstance(self.target, MultiLabel):
            rarer = rarer[positive > 0]
        return min(units, int(np.median(rarer)) if len(rarer) else 0)

    def _weights(self) -> Iterator[ndarray]:
        """How often each record is drawn, a row a resample, some rows at a time."""
        codes = None if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        units = len(self.targets) if codes is None else int(codes.max()) + 1
        chance, left = np.random.default_rng(0), self.resamples
        while left:
            rows = min(left, max(1, ENTRIES // len(self.targets)))
            places = chance.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
            counts = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
            yield counts if codes is None else counts[:, codes]
            left -= rows


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share among so many records; it has a width at 0 and 1 too.

    >>> [round(end, 2) for end in wilson(1.0, 10)]
    [0.72, 1.0]
    """
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / (1 + Z * Z / count)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _middle(values: ndarray) -> tuple[float, float]:
    """The middle 95 % of those that are defined: a resample may have one class alone."""
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan, math.nan
    low, high = np.percentile(known, [2.5, 97.5]).tolist()
    return low, high


def _known(end: float | None, value: float) -> float:
    return value if end is None else end
