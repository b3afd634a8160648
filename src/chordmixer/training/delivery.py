"""The answer that a run delivers: the network's, the baseline's, or both together, as the validation records chose.

combination.json and baseline.safetensors of a run folder. Without them the network answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.config import from_dict
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines import Baseline, FittedBaseline
from chordmixer.training.baselines import load as load_baseline
from chordmixer.training.combination import HEAVIEST, Combination, Using, Weights, combine

FILE, BASELINE = "combination.json", "baseline.safetensors"
FORMAT = 1
FARTHEST = 1e6
"""What may be added to a number, in spreads of the training targets."""
NETWORK = "network alone"
"""What the network is called beside an answer that is not its own."""


@dataclass(frozen=True)
class Delivery:
    """How a run answers."""

    target: Regression | Classification | MultiLabel
    combination: Combination
    baseline: FittedBaseline
    name: str
    """Of the baseline."""
    complement: ndarray | None = None
    """Of DNA where an answer is the mean over both strands."""
    using: Using = "both"

    @property
    def network(self) -> bool:
        """Whether the network is asked at all."""
        return self.using != "baseline"

    @property
    def title(self) -> str:
        return {"network": "network", "baseline": self.name, "both": f"network and {self.name}"}[self.using]

    def outputs(self, network: ndarray | None, sequences: Sequence[ndarray]) -> ndarray:
        """One row per record in the model's layout, from the network's rows and the records' tokens."""
        baseline = None if self.using == "network" else strands(self.baseline, sequences, self.complement)
        return self.combination.outputs(self.target, network, baseline, self.using)

    def contents(self) -> dict[str, bytes]:
        """The two files, by name."""
        own = self.combination
        document = {
            "format": FORMAT,
            "baseline": self.name,
            "using": own.using,
            "weights": own.weights,
            "losses": own.losses,
        }
        return {FILE: files.json_bytes(document), BASELINE: self.baseline.packed()}


def fit(
    target: Regression | Classification | MultiLabel,
    network: ndarray,
    targets: ndarray,
    baseline: Baseline,
    sequences: Sequence[ndarray],
    complement: ndarray | None,
) -> Delivery:
    """From the network's outputs for the validation records, their targets and their tokens."""
    assert baseline.fitted is not None, "the baseline answers new sequences"
    found = combine(target, network, strands(baseline.fitted, sequences, complement), targets)
    return Delivery(target, found, baseline.fitted, baseline.name, complement, found.using)


def strands(baseline: FittedBaseline, sequences: Sequence[ndarray], complement: ndarray | None) -> ndarray:
    """The baseline's outputs, as the mean over both strands where the network's are that too."""
    outputs = baseline.outputs(sequences)
    if complement is None:
        return outputs
    turned = [complement[np.asarray(own)[::-1]].astype(np.asarray(own).dtype) for own in sequences]
    mean: ndarray = (outputs + baseline.outputs(turned)) / 2
    return mean


def load(
    folder: Path,
    target: Regression | Classification | MultiLabel,
    complement: ndarray | None,
    using: Using | None = None,
) -> Delivery | None:
    """What the folder says, or what `using` asks for; None where the network alone answers."""
    if using is not None and using not in get_args(Using):
        raise ValueError(f"--using {using} is not a choice: give one of {', '.join(get_args(Using))}")
    if FILE in files.recorded(folder):
        files.verify(folder, [FILE, BASELINE])
    if not (folder / FILE).exists():
        if using in (None, "network"):
            return None
        raise ValueError(
            f"{folder} keeps no baseline for --using {using}: leave it out, or train again without --no-baselines"
        )
    known = described(folder)
    assert known is not None, "the file is there"
    weights = cast("dict[Using, Weights]", {name: tuple(own) for name, own in known.weights.items()})
    combination = Combination(known.using, weights, cast("dict[Using, float]", known.losses))
    baseline = load_baseline(folder / BASELINE, target)
    return Delivery(target, combination, baseline, known.baseline, complement, using or known.using)


def described(folder: Path) -> Described | None:
    """The combination.json of a run folder; None where it has none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return _read(files.read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}): use another copy") from None


@dataclass(frozen=True)
class Described:
    """The objects of combination.json."""

    format: int
    baseline: str
    using: Using
    weights: dict[str, list[float]]
    losses: dict[str, float]


def _read(given: Mapping[str, Any]) -> Described:
    own = from_dict(Described, given, FILE)
    if own.format != FORMAT:
        raise ValueError(f"format {own.format}, where this version reads {FORMAT}")
    for what, entries in (("weights", own.weights), ("losses", own.losses)):
        if {*entries} != {*get_args(Using)}:
            raise ValueError(f"{what} are of {', '.join(entries) or 'nothing'}, not of {', '.join(get_args(Using))}")
    for name, weights in own.weights.items():
        most = np.array([HEAVIEST * (name != "baseline"), HEAVIEST * (name != "network"), FARTHEST])
        if len(weights) != 3 or min(weights[:2]) < 0 or not (np.abs(weights) <= most).all():
            raise ValueError(f"weights of {name} are {weights[:4]}, not three numbers in their range")
    return own
