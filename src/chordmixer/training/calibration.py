"""Probabilities that mean what they say: one temperature, fitted on validation outputs, and how far it holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

COLDEST, HOTTEST = 0.05, 20.0


def probabilities(outputs: ndarray, temperature: float = 1.0, *, several: bool = False) -> ndarray:
    """Of each class, or of each label where a record may have several.

    >>> probabilities(np.array([[0.0, 2.0]]), temperature=2.0).round(2).tolist()
    [[0.27, 0.73]]
    """
    scaled = outputs.astype(np.float64) / temperature
    if several:
        return np.exp(-np.logaddexp(0, -scaled))
    odds = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares: ndarray = odds / odds.sum(axis=1, keepdims=True)
    return shares


def temperature(outputs: ndarray, targets: ndarray) -> float:
    """What to divide the outputs by for the lowest log loss on these records.

    Targets are class numbers, or rows of zeros and ones for several labels a record. One record more, of which every
    answer is as likely, is counted in: outputs that are always right then still get a finite temperature.

    >>> outputs = np.array([[0.0, 4.0], [4.0, 0.0]] * 50)
    >>> targets = np.array([1, 0] * 40 + [0, 1] * 10)
    >>> round(temperature(outputs, targets), 1)
    2.9
    """
    if len(outputs) == 0 or not np.isfinite(outputs).all():
        raise ValueError(
            f"{len(outputs)} outputs give no temperature: it takes at least one, and all finite; "
            "validate on other records or train again"
        )
    outputs = outputs.astype(np.float64)
    several = targets.ndim == 2
    answered = (targets * outputs).sum() if several else outputs[np.arange(len(outputs)), targets].sum()
    at_random = outputs.mean(axis=0).sum() / 2 if several else outputs.mean()

    def slope(cold: float) -> float:
        """Of the log loss by the inverse temperature: it only rises, so that its zero is the minimum."""
        expected = (probabilities(outputs, 1 / cold, several=several) * outputs).sum()
        return float((1 + 1 / len(outputs)) * expected - answered - at_random)

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0:
        return HOTTEST if np.ptp(outputs) else 1.0
    if slope(high) <= 0:
        return COLDEST
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(1 / (low * high) ** 0.5)


@dataclass(frozen=True)
class ConfidenceBin:
    """Answers of about the same confidence."""

    records: int
    confidence: float
    """Their mean probability."""
    right: float
    """The share of them that is right."""


def reliability(confidence: ndarray, right: ndarray, bins: int = 15) -> list[ConfidenceBin]:
    """Answers by confidence, in equal steps from 0 to 1; empty bins are left out.

    `confidence` is the probability of what was answered, `right` whether it was so.
    """
    confidence, right = confidence.ravel(), right.ravel()
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        ConfidenceBin(int(own.sum()), float(confidence[own].mean()), float(right[own].mean()))
        for own in (place == k for k in np.unique(place))
    ]


def expected_calibration_error(confidence: ndarray, right: ndarray, bins: int = 15) -> float:
    """How far confidence and the share of right answers are apart, as a mean over the records.

    >>> round(expected_calibration_error(np.array([0.9, 0.9, 0.9, 0.9]), np.array([1, 1, 1, 0])), 2)
    0.15
    """
    rows = reliability(confidence, right, bins)
    return sum(row.records * abs(row.confidence - row.right) for row in rows) / max(len(confidence.ravel()), 1)
