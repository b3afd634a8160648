"""The labels.json of a run folder: the meaning of outputs, and their calibration to probabilities."""

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
"""Limits of the temperature."""

RecordTarget = Regression | Classification | MultiLabel
"""A target with one prediction per record."""


@dataclass(frozen=True)
class OutputLabels:
    """The meaning of a trained model's outputs.

    >>> labels = OutputLabels(Classification.of_counts(["no", "yes"], [30, 10]), "dna", temperature=2.0)
    >>> labels.probabilities(np.array([[0.0, 0.0]])).round(2).tolist()
    [[0.63, 0.37]]
    """

    target: RecordTarget
    tokenizer: str
    """Name of the tokenizer; its settings are in tokenizer.json."""
    temperature: float | None = None
    """Temperature fitted on the `unweighted` outputs of the validation records; None: not fitted."""
    both_strands: bool = False
    """Whether outputs are the mean over both strands."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} is not above 0 and finite: use another copy")

    def unweighted(self, outputs: ndarray) -> ndarray:
        """Outputs without the class weights of the training loss; a temperature is fitted on these."""
        return outputs if isinstance(self.target, Regression) else self.target.unweighted(outputs)

    def probabilities(self, outputs: ndarray) -> ndarray:
        """Calibrated probabilities of each class or label: without class weights, at the temperature."""
        multi_label = isinstance(self.target, MultiLabel)
        return probabilities(self.unweighted(outputs), self.temperature or 1.0, multi_label=multi_label)

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
        content = files.read_json(path)
        if content.get("format") != FORMAT:
            raise ValueError(f"{path} has format {content.get('format')!r}: this version reads {FORMAT}; train again")
        try:
            document = from_dict(_LabelsDocument, content, FILE)
            target = target_from(document.target)
            return OutputLabels(target, document.tokenizer, document.temperature, document.both_strands)
        except ValueError as error:
            raise ValueError(f"{path} is not whole ({error}): use another copy") from None


@dataclass(frozen=True)
class _LabelsDocument:
    """The fields of labels.json."""

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


def target_from(content: Mapping[str, Any]) -> RecordTarget:
    """Build a target from its `to_dict`.

    >>> target_from(Classification(["no", "yes"], [0, 1, 1]).to_dict()).labels
    ['no', 'yes']
    """
    values = dict(content)
    kind = values.pop("kind", None)
    if kind == "regression":
        return from_dict(Regression, values, "target")
    if kind == "classification":
        classes = from_dict(_Classes, values, "target")
        return Classification.of_counts(classes.labels, classes.counts)
    if kind == "multi-label":
        labels = from_dict(_Labels, values, "target")
        return MultiLabel(labels.labels, labels.counts, labels.records)
    known = "regression, classification, multi-label"
    raise ValueError(f"target kind {kind!r} is not known: it is one of {known}; use another copy")


def label_names(target: MultiLabel, rows: ndarray) -> list[list[str]]:
    """The labels whose columns are true, for each row."""
    return [[target.labels[k] for k in np.flatnonzero(row)] for row in rows]


# --- Calibration ---


def probabilities(outputs: ndarray, temperature: float = 1.0, *, multi_label: bool = False) -> ndarray:
    """Probabilities of each class (softmax), or with `multi_label` of each label (sigmoid).

    >>> probabilities(np.array([[0.0, 2.0]]), temperature=2.0).round(2).tolist()
    [[0.27, 0.73]]
    """
    scaled = outputs.astype(np.float64) / temperature
    if multi_label:
        return np.exp(-np.logaddexp(0, -scaled))
    odds = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def fit_temperature(outputs: ndarray, targets: ndarray) -> float:
    """The temperature, by which outputs are divided, with the lowest log loss on these records.

    Targets are class numbers, or rows of zeros and ones for several labels per record. One more record, for which all
    classes are equally likely, gives outputs that are always right a finite temperature.

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
    multi_label = targets.ndim == 2
    of_targets = (targets * outputs).sum() if multi_label else outputs[np.arange(len(outputs)), targets].sum()
    at_random = outputs.mean(axis=0).sum() / 2 if multi_label else outputs.mean()

    def slope(inverse: float) -> float:
        """The derivative of the log loss by the inverse temperature; it increases, so its zero is the minimum."""
        expected = (probabilities(outputs, 1 / inverse, multi_label=multi_label) * outputs).sum()
        return float((1 + 1 / len(outputs)) * expected - of_targets - at_random)

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
    """Predictions of similar confidence."""

    records: int
    confidence: float
    """Their mean probability."""
    right: float
    """The proportion that is right."""


def reliability(confidence: ndarray, right: ndarray, bins: int = 15) -> list[ConfidenceBin]:
    """Bins of predictions by confidence, of equal width from 0 to 1; empty bins are left out.

    `confidence` is the probability of each prediction, `right` whether the prediction is true.
    """
    confidence, right = confidence.ravel(), right.ravel()
    numbers = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        ConfidenceBin(int(inside.sum()), float(confidence[inside].mean()), float(right[inside].mean()))
        for inside in (numbers == k for k in np.unique(numbers))
    ]


def expected_calibration_error(confidence: ndarray, right: ndarray, bins: int = 15) -> float:
    """The mean over records of the distance between confidence and the proportion of right predictions.

    >>> round(expected_calibration_error(np.array([0.9, 0.9, 0.9, 0.9]), np.array([1, 1, 1, 0])), 2)
    0.15
    """
    rows = reliability(confidence, right, bins)
    return sum(row.records * abs(row.confidence - row.right) for row in rows) / max(len(confidence.ravel()), 1)
