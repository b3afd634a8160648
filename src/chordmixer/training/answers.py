"""What a run's outputs mean: labels, calibrated probabilities, numbers. The labels.json of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy import ndarray

from chordmixer import files
from chordmixer.tasks.targets import Classification, MultiLabel, Regression, from_dict
from chordmixer.training import calibration

FILE = "labels.json"
FORMAT = 1


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

    def unweighted(self, outputs: ndarray) -> ndarray:
        """Outputs without the class weights of the training loss: what a temperature is fitted on."""
        return outputs if isinstance(self.target, Regression) else self.target.unweighted(outputs)

    def probabilities(self, outputs: ndarray) -> ndarray:
        """Calibrated, of each class or label: the model's own outputs without the weights, at the temperature."""
        several = isinstance(self.target, MultiLabel)
        return calibration.probabilities(self.unweighted(outputs), self.temperature or 1.0, several=several)

    def save(self, folder: Path) -> None:
        """Write labels.json."""
        files.write_json(folder / FILE, {"format": FORMAT, **self.to_dict()})

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
            target, temperature = from_dict(given["target"]), given["temperature"]
            return Answers(target, str(given["tokenizer"]), temperature, bool(given["both_strands"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not whole ({error!r}): use another copy") from None
