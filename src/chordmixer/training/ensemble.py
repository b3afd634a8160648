"""Ensembles: networks of the folds of a cross-validation, or of several seeds, whose predictions are averaged.

Each member is an ordinary run in RUN/members/0, 1 and so on. RUN/ensemble.json has their number and scores;
RUN/config.json has the settings of the ensemble.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.config import MOST_MEMBERS, check_numbers, from_dict
from chordmixer.tasks.targets import Regression
from chordmixer.training.combination import as_odds, as_outputs
from chordmixer.training.experiment import Experiment
from chordmixer.training.intervals import Score
from chordmixer.training.labels import RecordTarget
from chordmixer.training.run_folder import CONFIG, ENSEMBLE, MEMBERS

FILE, FOLDER = ENSEMBLE, MEMBERS
FORMAT = 1
CROSS_VALIDATION = "cross-validation"
"""Split name of all training and validation records, each predicted by the member that held it out."""

Kind = Literal["folds", "replicates"]


@dataclass(frozen=True)
class EnsembleMember:
    """A trained member, and its scores by the headline metric."""

    number: int
    """Number of the member, which is the name of its folder."""
    answers: str
    """Title of the predictor that it delivers: its network, its baseline, or both."""
    validation: Score
    test: Score


@dataclass(frozen=True)
class Ensemble:
    """The content of ensemble.json."""

    kind: Kind
    size: int
    """Number of members when all are trained."""
    baselines: bool
    """Whether each member is compared with baselines."""
    metric: str
    """The headline metric."""
    members: tuple[EnsembleMember, ...] = ()
    """The trained members."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_numbers(self, size=(2, MOST_MEMBERS), format=(FORMAT, FORMAT))
        if len(self.members) > self.size or any(member.number != k for k, member in enumerate(self.members)):
            raise ValueError(f"members are not numbered 0 to {self.size - 1}")

    @property
    def complete(self) -> bool:
        """Whether all members are trained."""
        return len(self.members) == self.size

    @property
    def held_out(self) -> str:
        """Split name of the records that members held out for validation."""
        return CROSS_VALIDATION if self.kind == "folds" else "validation"

    @property
    def title(self) -> str:
        return f"mean of {self.size} members"

    def spread(self, part: Literal["validation", "test"]) -> tuple[float, float]:
        """Mean and standard deviation of the scores of the trained members; NaN for fewer than two.

        >>> rows = [EnsembleMember(k, "network", Score(value), Score(0.5)) for k, value in enumerate((0.8, 0.9))]
        >>> mean, deviation = Ensemble("folds", 2, True, "roc_auc", tuple(rows)).spread("validation")
        >>> round(mean, 3), round(deviation, 3)
        (0.85, 0.071)
        """
        values = np.array([getattr(member, part).value for member in self.members])
        if len(values) < 2:
            return math.nan, math.nan
        return float(values.mean()), float(values.std(ddof=1))


def kind_and_size(experiment: Experiment) -> tuple[Kind, int] | None:
    """Kind and size of the ensemble of an experiment; None if it has a single network."""
    split: Any = getattr(experiment.data, "split", None)
    folds = split.folds if split is not None and split.fold is None else 0
    replicates = experiment.training.replicates
    if not folds and not replicates:
        return None
    if folds and replicates:
        raise ValueError(f"--folds {folds} and --replicates {replicates} are two ways to choose members: give one")
    option = "--folds" if folds else "--replicates"
    if experiment.task != "files":
        raise ValueError(f"{option} is for files with labels, and this is a run of {experiment.task}: leave it out")
    return ("folds", folds) if folds else ("replicates", replicates)


def member(experiment: Experiment, number: int) -> Experiment:
    """The experiment of one member."""
    if not experiment.training.replicates:
        return replace(experiment, data=replace(experiment.data, split=replace(experiment.data.split, fold=number)))
    training = replace(experiment.training, replicates=0, seed=experiment.training.seed + number)
    return replace(experiment, training=training)


def folder_of(run: Path, number: int) -> Path:
    return run / FOLDER / str(number)


def read(run: Path) -> Ensemble | None:
    """Read and verify the ensemble.json of a run folder; None if the run has a single network."""
    path, recorded = run / FILE, files.recorded(run)
    if not path.exists() and FILE not in recorded:
        return None
    if not {FILE, CONFIG}.isdisjoint(recorded):
        files.verify(run, [FILE])
    try:
        return from_dict(Ensemble, files.read_json(path), FILE, undefined=True)
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}): use another copy") from None


def finished(run: Path) -> Ensemble | None:
    """Read ensemble.json as `read` does, and refuse an ensemble with untrained members."""
    document = read(run)
    if document is not None and not document.complete:
        raise ValueError(
            f"{run} has {len(document.members)} of {document.size} members: go on with chordmixer train --resume "
            f"{shlex.quote(str(run))}"
        )
    return document


def refuse(run: Path, what: str) -> None:
    """Refuse the folder of an ensemble where a single network is needed."""
    if (document := read(run)) is not None:
        raise ValueError(
            f"{run} has {document.size} networks, and {what} takes one: give a member, {folder_of(run, 0)}"
        )


def mean(target: RecordTarget, outputs: Sequence[tuple[RecordTarget, ndarray]]) -> ndarray:
    """The mean of the members' numbers, or of their log-odds without class weights, as outputs for `target`.

    `outputs` has the target of each member with its outputs: folds differ in class counts and in mean values.

    >>> first, second = Regression(mean=10.0, scale=2.0), Regression(mean=20.0, scale=1.0)
    >>> mean(Regression(), [(first, np.array([[1.0]])), (second, np.array([[-4.0]]))]).tolist()
    [[14.0]]
    """
    rows = [_numbers_or_odds(member_target, each.astype(np.float64)) for member_target, each in outputs]
    average = np.mean(rows, axis=0)
    if isinstance(target, Regression):
        return np.asarray(target.standardised(average), np.float32)
    return as_outputs(target, average).astype(np.float32)


def _numbers_or_odds(target: RecordTarget, outputs: ndarray) -> ndarray:
    return target.values(outputs)[:, None] if isinstance(target, Regression) else as_odds(target, outputs)
