"""How likely a random walk in a Chord network is to end at each position: the paper's appendix on reaching."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy import ndarray

from chordmixer.views import drawing
from chordmixer.views.drawing import COLOURS

LENGTH = 5000
"""The paper's example."""
BINS = 60


@dataclass(frozen=True)
class Walk:
    """A walk on a circle and where it ends."""

    hops: int
    probabilities: ndarray
    """Of each distance from the start, around the circle; they add up to 1."""

    @property
    def length(self) -> int:
        return len(self.probabilities)

    @property
    def mean(self) -> float:
        return float(self.probabilities.mean())

    @property
    def deviation(self) -> float:
        return float(self.probabilities.std())


def reach(length: int = LENGTH, hops: int | None = None) -> Walk:
    """Walk 0, 1, 2, 4, ... positions on, each as likely, `hops` times; None: the paper's ceil(log2 N + 1).

    >>> walked = reach()
    >>> walked.hops, f"{walked.mean:.2e}", f"{walked.deviation:.2e}"
    (14, '2.00e-04', '3.04e-05')
    >>> reach(4, hops=1).probabilities.round(2).tolist()
    [0.33, 0.33, 0.33, 0.0]
    """
    if length < 1:
        raise ValueError(f"length={length} is too small: a circle needs a position; give 1 or more")
    scales = (length - 1).bit_length()
    hops = scales + 1 if hops is None else hops
    if hops < 0:
        raise ValueError(f"hops={hops} is not a number of hops: give 0 or more")
    steps = [0, *(1 << k for k in range(scales))]
    probabilities = np.zeros(length)
    probabilities[0] = 1
    for _ in range(hops):
        probabilities = np.mean([np.roll(probabilities, step) for step in steps], axis=0)
    return Walk(hops, probabilities)


def plot(walked: Walk, path: Path) -> Path:
    """A histogram over all positions, beside the probability that would be the same for all."""

    figure, axes = drawing.pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    low, high = walked.mean - walked.deviation, walked.mean + walked.deviation
    axes.hist(walked.probabilities, _edges(walked.probabilities), color=COLOURS[0])
    axes.axvline(walked.mean, color=COLOURS[1], label=f"mean {walked.mean:.3g} (1 / N: all positions alike)")
    axes.axvspan(low, high, color=COLOURS[1], alpha=0.15, label=f"± deviation {walked.deviation:.3g}")
    axes.ticklabel_format(axis="x", scilimits=(-3, 3))
    axes.set_xlabel(f"probability of being at a position after {walked.hops} hops from one start")
    axes.set_ylabel("positions")
    axes.set_title(f"Random walk in a Chord network of N = {walked.length:,} positions")
    axes.grid(alpha=0.3)
    axes.legend()
    return drawing.save(figure, path)


def _edges(probabilities: ndarray) -> list[float]:
    """Of bins over all values; numbers that differ by rounding alone are one bar in the middle."""
    low, high = float(probabilities.min()), float(probabilities.max())
    room = 0.0 if high - low > 1e-9 * high else high / 2
    edges: list[float] = np.linspace(low - room, high + room, BINS + 1).tolist()
    return edges
