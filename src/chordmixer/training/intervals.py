"""95 % intervals of scores, and of the difference between a model and a baseline on the same records.

Intervals are bootstrap percentiles: records, or whole groups of records, are drawn with replacement, and the interval
is the middle 95 % of the metric over these resamples. Accuracy over ungrouped records has Wilson's interval. So has a
proportion that is 0 or 1 in all resamples, with the number of records of the rarer class, so that no interval has
width zero. There is no interval for fewer than `MIN_SUPPORT` records or groups, or for metrics by class, for fewer
records of the rarer class.
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

MIN_SUPPORT = 10
"""Minimum number of records, or of groups, for an interval. For metrics by class, this many records of each of two
classes, or in at least half of several classes or labels."""
ENTRIES = 1_000_000
"""Maximum number of resampling weights in memory at a time."""
EQUAL = 1e-12
"""Differences below this count as zero."""
Z = 1.959964

Interval = tuple[float, float] | tuple[None, None]


@dataclass(frozen=True)
class Score:
    """A score and its 95 % interval; None: too few records for an interval, or no variation."""

    value: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            end = getattr(self, name)
            if end is not None and math.isnan(end):  # in files of earlier versions
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class Difference:
    """Metric of a model minus that of a baseline on the same records, with a paired 95 % interval."""

    metric: str
    value: float
    low: float | None
    """Lower end of the interval; None: too few records for one."""
    high: float | None
    over: Literal["records", "groups"]
    """The units that were resampled."""


@dataclass(frozen=True)
class Sample:
    """Targets of the scored records, with their groups for resampling."""

    target: Target
    targets: ndarray
    groups: ndarray | None
    """The number of each record's group; None: records are resampled one by one."""
    resamples: int

    def scores(self, outputs: ndarray) -> dict[str, Score]:
        """Every metric with its interval."""
        drawn = self.drawn(outputs)
        return {
            name: Score(value, *self.interval(name, value, drawn[name]))
            for name, value in self.target.metrics(outputs, self.targets).items()
        }

    def difference(self, metric: str, models: Sequence[ndarray], baseline: ndarray) -> Difference:
        """The difference between a model and a baseline.

        `models` are the outputs of runs with different seeds, whose scores are averaged. Both are scored on the same
        resamples, so that the difficulty of a resample cancels out.
        """
        drawn = np.mean([self.drawn(outputs)[metric] for outputs in models], axis=0)
        value = float(np.mean([self.target.metrics(outputs, self.targets)[metric] for outputs in models]))
        baseline_drawn = self.drawn(baseline)[metric]
        baseline_value = self.target.metrics(baseline, self.targets)[metric]
        over: Literal["records", "groups"] = "records" if self.groups is None else "groups"
        difference = value - baseline_value
        if self._support(metric) < MIN_SUPPORT or not math.isfinite(difference):
            return Difference(metric, difference, None, None, over)
        low, high = _middle(drawn - baseline_drawn)
        if high - low < EQUAL < abs(difference):  # all resamples agree: use the intervals of the two scores
            model_ends = self.interval(metric, value, drawn)
            baseline_ends = self.interval(metric, baseline_value, baseline_drawn)
            low = _or_value(model_ends[0], value) - _or_value(baseline_ends[1], baseline_value)
            high = _or_value(model_ends[1], value) - _or_value(baseline_ends[0], baseline_value)
        return Difference(metric, difference, low, high, over)

    def drawn(self, outputs: ndarray) -> dict[str, ndarray]:
        """Every metric on each resample; the resamples are the same for all outputs."""
        parts = [resampled(self.target, outputs, self.targets, weights) for weights in self._weights()]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def interval(self, metric: str, value: float, drawn: ndarray) -> Interval:
        support = self._support(metric)
        if support < MIN_SUPPORT or not math.isfinite(value):
            return None, None
        of_records = metric == "accuracy" and not isinstance(self.target, TokenTarget)
        if of_records and self.groups is None:
            return wilson(value, support)
        low, high = _middle(drawn)
        if high - low > EQUAL:
            return low, high
        return wilson(value, support) if metric in SHARES and value in (0, 1) else (None, None)

    def _support(self, metric: str) -> int:
        """The number of records or groups that determines whether a metric has an interval."""
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
        """Counts of how often each record is drawn: one row per resample, some rows at a time."""
        codes = None if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        units = len(self.targets) if codes is None else int(codes.max()) + 1
        generator, left = np.random.default_rng(0), self.resamples
        while left:
            rows = min(left, max(1, ENTRIES // len(self.targets)))
            places = generator.integers(units, size=(rows, units)) + units * np.arange(rows)[:, None]
            counts = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
            yield counts if codes is None else counts[:, codes]
            left -= rows


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion of `count` records; its width is above zero at 0 and 1 too.

    >>> [round(end, 2) for end in wilson(1.0, 10)]
    [0.72, 1.0]
    """
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / (1 + Z * Z / count)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _middle(values: ndarray) -> tuple[float, float]:
    """The middle 95 % of the defined values; a metric may be undefined on a resample with a single class."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return math.nan, math.nan
    low, high = np.percentile(defined, [2.5, 97.5]).tolist()
    return low, high


def _or_value(end: float | None, value: float) -> float:
    return value if end is None else end
