"""The labels.json of a run folder: what outputs mean, and how they become calibrated probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.tasks.targets import Classification, MultiLabel, Regression

FILE = "labels.json"
FORMAT = 2
COLDEST, HOTTEST = 0.05, 20.0
"""Range of the temperature."""

RecordTarget = Regression | Classification | MultiLabel
"""A target with one prediction per record."""


@dataclass(frozen=True)
class OutputLabels:
    """How the outputs of a trained model are read.

    >>> labels = OutputLabels(Classification.of_counts(["no", "yes"], [30, 10]), "dna", temperature=2.0)
    >>> labels.probabilities(np.array([[0.0, 0.0]])).round(2).tolist()
    [[0.63, 0.37]]
    """

    target: RecordTarget
    tokenizer: str
    """Its name; its settings are in tokenizer.json."""
    temperature: float | None = None
    """Fitted on the `unweighted` outputs of the validation records; None: not fitted."""
    both_strands: bool = False
    """Whether outputs are the mean over both strands."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} is not above 0 and finite: use another copy")

    def unweighted(self, outputs: ndarray) -> ndarray:
        """Outputs without the class weights of the training loss: what a temperature is fitted on."""
        return outputs if isinstance(self.target, Regression) else self.target.unweighted(outputs)

    def probabilities(self, outputs: ndarray) -> ndarray:
        """Calibrated probabilities of each class or label: without class weights, at the temperature."""
        several = isinstance(self.target, MultiLabel)
        return probabilities(self.unweighted(outputs), self.temperature or 1.0, several=several)

    def to_json(self) -> dict[str, Any]:
        """The content of labels.json."""
        return {
            "format": FORMAT,
            "target": self.target.to_dict(),
            "temperature": self.temperature,
            "both_strands": self.both_strands,
            "tokenizer": self.tokenizer,
        }

    def save(self, folder: Path) -> None:
        """Write labels.json."""
        files.write_json(folder / FILE, self.to_json())

    @staticmethod
    def load(folder: Path) -> OutputLabels:
        """Read the labels.json of a run folder."""
        path = folder / FILE
        if not path.exists():
            raise ValueError(f"{path} does not exist: give the run folder of a training on files, finished")
        given = files.read_json(path)
        if given.get("format") != FORMAT:
            raise ValueError(f"{path} has format {given.get('format')!r}: this version reads {FORMAT}; train again")
        try:
            known = from_dict(_LabelsDocument, given, FILE)
            return OutputLabels(target_from(known.target), known.tokenizer, known.temperature, known.both_strands)
        except ValueError as error:
            raise ValueError(f"{path} is not whole ({error}): use another copy") from None


@dataclass(frozen=True)
class _LabelsDocument:
    """The objects of labels.json."""

    format: int
    target: dict[str, Any]
    tokenizer: str
    temperature: float | None
    both_strands: bool


@dataclass(frozen=True)
class _Classes:
    """The settings of a classification."""

    labels: list[str]
    counts: list[int]


@dataclass(frozen=True)
class _Labels(_Classes):
    """The settings of a multi-label target."""

    records: int


def target_from(given: Mapping[str, Any]) -> RecordTarget:
    """A target from its `to_dict`.

    >>> target_from(Classification(["no", "yes"], [0, 1, 1]).to_dict()).labels
    ['no', 'yes']
    """
    values = dict(given)
    kind = values.pop("kind", None)
    if kind == "regression":
        return from_dict(Regression, values, "target")
    if kind == "classification":
        classes = from_dict(_Classes, values, "target")
        return Classification.of_counts(classes.labels, classes.counts)
    if kind == "multi-label":
        several = from_dict(_Labels, values, "target")
        return MultiLabel(several.labels, several.counts, several.records)
    known = "regression, classification, multi-label"
    raise ValueError(f"target kind {kind!r} is not known: it is one of {known}; use another copy")


def label_names(target: MultiLabel, rows: ndarray) -> list[list[str]]:
    """The labels whose columns are true, for each row."""
    return [[target.labels[k] for k in np.flatnonzero(row)] for row in rows]


# --- Calibration ---


def probabilities(outputs: ndarray, temperature: float = 1.0, *, several: bool = False) -> ndarray:
    """Probabilities of each class (softmax), or with `several` of each label (sigmoid).

    >>> probabilities(np.array([[0.0, 2.0]]), temperature=2.0).round(2).tolist()
    [[0.27, 0.73]]
    """
    scaled = outputs.astype(np.float64) / temperature
    if several:
        return np.exp(-np.logaddexp(0, -scaled))
    odds = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def fit_temperature(outputs: ndarray, targets: ndarray) -> float:
    """The divisor of outputs that gives the lowest log loss on these records.

    Targets are class numbers, or rows of zeros and ones for several labels a record. One more record, with all
    answers equally likely, is included: outputs that are always right still get a finite temperature.

    >>> outputs = np.array([[0.0, 4.0], [4.0, 0.0]] * 50)
    >>> targets = np.array([1, 0] * 40 + [0, 1] * 10)
    >>> round(fit_temperature(outputs, targets), 1)
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
        """The derivative of the log loss by the inverse temperature: it only rises, so its zero is the minimum."""
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
    """Predictions of about the same confidence."""

    records: int
    confidence: float
    """Their mean probability."""
    right: float
    """The share of them that is right."""


def reliability(confidence: ndarray, right: ndarray, bins: int = 15) -> list[ConfidenceBin]:
    """Predictions by confidence, in equal steps from 0 to 1; empty bins are left out.

    `confidence` is the probability of what was predicted, `right` whether it is true.
    """
    confidence, right = confidence.ravel(), right.ravel()
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        ConfidenceBin(int(own.sum()), float(confidence[own].mean()), float(right[own].mean()))
        for own in (place == k for k in np.unique(place))
    ]


def expected_calibration_error(confidence: ndarray, right: ndarray, bins: int = 15) -> float:
    """The distance of confidence from the share of right predictions, as a mean over the records.

    >>> round(expected_calibration_error(np.array([0.9, 0.9, 0.9, 0.9]), np.array([1, 1, 1, 0])), 2)
    0.15
    """
    rows = reliability(confidence, right, bins)
    return sum(row.records * abs(row.confidence - row.right) for row in rows) / max(len(confidence.ravel()), 1)
