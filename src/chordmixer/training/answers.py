"""What a run's outputs mean: labels, calibrated probabilities, numbers. The labels.json of a run folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy import ndarray

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import calibration

FILE = "labels.json"
FORMAT = 2


@dataclass(frozen=True)
class Answers:
    """How the outputs of a trained model are read.

    >>> import numpy as np
    >>> answers = Answers(Classification.of_counts(["no", "yes"], [30, 10]), "dna", temperature=2.0)
    >>> answers.probabilities(np.array([[0.0, 0.0]])).round(2).tolist()
    [[0.63, 0.37]]
    """

    target: Regression | Classification | MultiLabel
    tokenizer: str
    """Its name; its settings stand in tokenizer.json."""
    temperature: float | None = None
    """Fitted on the validation set's `unweighted` outputs; None: none was fitted."""
    both_strands: bool = False
    """Whether an answer is the mean over the outputs for both strands."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature} is not above 0 and finite: use another copy")

    def unweighted(self, outputs: ndarray) -> ndarray:
        """Outputs without the class weights of the training loss: what a temperature is fitted on."""
        return outputs if isinstance(self.target, Regression) else self.target.unweighted(outputs)

    def probabilities(self, outputs: ndarray) -> ndarray:
        """Calibrated, of each class or label: the model's own outputs without the weights, at the temperature."""
        several = isinstance(self.target, MultiLabel)
        return calibration.probabilities(self.unweighted(outputs), self.temperature or 1.0, several=several)

    def save(self, folder: Path) -> None:
        """Write labels.json."""
        files.write_json(folder / FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """What stands in labels.json."""
        return {"format": FORMAT, **self.to_dict()}

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.to_dict(),
            "temperature": self.temperature,
            "both_strands": self.both_strands,
            "tokenizer": self.tokenizer,
        }

    @staticmethod
    def load(folder: Path) -> Answers:
        """The labels.json of a run folder."""
        path = folder / FILE
        if not path.exists():
            raise ValueError(f"{path} does not exist: give the run folder of a training on files, finished")
        given = files.read_json(path)
        if given.get("format") != FORMAT:
            raise ValueError(f"{path} has format {given.get('format')!r}: this version reads {FORMAT}; train again")
        try:
            own = from_dict(_Written, given, FILE)
            return Answers(target_from(own.target, "target"), own.tokenizer, own.temperature, own.both_strands)
        except ValueError as error:
            raise ValueError(f"{path} is not whole ({error}): use another copy") from None


@dataclass(frozen=True)
class _Written:
    """The objects of labels.json."""

    format: int
    target: dict[str, Any]
    tokenizer: str
    temperature: float | None
    both_strands: bool


@dataclass(frozen=True)
class _Counted:
    """What is written of classes."""

    labels: list[str]
    counts: list[int]


@dataclass(frozen=True)
class _CountedAmong(_Counted):
    """And of labels, of which a record may have several."""

    records: int


def target_from(given: Mapping[str, Any], where: str = "target") -> Regression | Classification | MultiLabel:
    """A target from what its `to_dict` gave; `where` stands in errors.

    >>> target_from(Classification(["no", "yes"], [0, 1, 1]).to_dict()).labels
    ['no', 'yes']
    """
    values = dict(given)
    kind = values.pop("kind", None)
    if kind == "regression":
        return from_dict(Regression, values, where)
    if kind == "classification":
        own = from_dict(_Counted, values, where)
        return Classification.of_counts(own.labels, own.counts)
    if kind == "multi-label":
        among = from_dict(_CountedAmong, values, where)
        return MultiLabel(among.labels, among.counts, among.records)
    known = "regression, classification, multi-label"
    raise ValueError(f"target kind {kind!r} is not known: it is one of {known}; use another copy")
