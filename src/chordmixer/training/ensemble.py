"""Ensembles: networks of the folds of a cross-validation, or of several seeds, whose predictions are averaged.

Each member is a run like any other, in RUN/members/0, 1 and so on. RUN/ensemble.json has their number and scores;
RUN/config.json is that of the ensemble.
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
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.combination import as_odds, as_outputs
from chordmixer.training.experiment import Experiment
from chordmixer.training.intervals import Score
from chordmixer.training.run_folder import CONFIG, ENSEMBLE, MEMBERS

FILE, FOLDER = ENSEMBLE, MEMBERS
FORMAT = 1
CROSSED = "cross-validation"
"""The name of all records of training and validation, each predicted by the member that held it out."""

Kind = Literal["folds", "replicates"]
Answered = Regression | Classification | MultiLabel


@dataclass(frozen=True)
class EnsembleMember:
    """A trained member, and its scores by the headline metric."""

    number: int
    """The name of its folder."""
    answers: str
    """What predicts: its network, its baseline, or both."""
    validation: Score
    test: Score


@dataclass(frozen=True)
class Ensemble:
    """The ensemble.json of a run folder."""

    kind: Kind
    size: int
    """Number of members once all are trained."""
    baselines: bool
    """Whether each member has baselines."""
    metric: str
    """The headline metric."""
    members: tuple[EnsembleMember, ...] = ()
    """Members that are trained."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_numbers(self, size=(2, MOST_MEMBERS), format=(FORMAT, FORMAT))
        if len(self.members) > self.size or any(own.number != k for k, own in enumerate(self.members)):
            raise ValueError(f"members are not numbered 0 to {self.size - 1}")

    @property
    def whole(self) -> bool:
        return len(self.members) == self.size

    @property
    def held_out(self) -> str:
        """The name of the records that members held out for validation."""
        return CROSSED if self.kind == "folds" else "validation"

    @property
    def title(self) -> str:
        return f"mean of {self.size} members"

    def spread(self, part: Literal["validation", "test"]) -> tuple[float, float]:
        """Mean and standard deviation over the trained members; NaN for fewer than two.

        >>> rows = [EnsembleMember(k, "network", Score(value), Score(0.5)) for k, value in enumerate((0.8, 0.9))]
        >>> mean, deviation = Ensemble("folds", 2, True, "roc_auc", tuple(rows)).spread("validation")
        >>> round(mean, 3), round(deviation, 3)
        (0.85, 0.071)
        """
        values = np.array([getattr(own, part).value for own in self.members])
        if len(values) < 2:
            return math.nan, math.nan
        return float(values.mean()), float(values.std(ddof=1))


def of(experiment: Experiment) -> tuple[Kind, int] | None:
    """Kind and size of the ensemble of an experiment; None: it has one network."""
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
    own = replace(experiment.training, replicates=0, seed=experiment.training.seed + number)
    return replace(experiment, training=own)


def folder_of(run: Path, number: int) -> Path:
    return run / FOLDER / str(number)


def read(run: Path) -> Ensemble | None:
    """The ensemble.json of a run folder, verified; None where the run has one network."""
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
    """The same; an ensemble with untrained members is refused."""
    known = read(run)
    if known is not None and not known.whole:
        raise ValueError(
            f"{run} has {len(known.members)} of {known.size} members: go on with chordmixer train --resume "
            f"{shlex.quote(str(run))}"
        )
    return known


def refuse(run: Path, what: str) -> None:
    """Refuse the folder of an ensemble where one network is needed."""
    if (known := read(run)) is not None:
        raise ValueError(f"{run} has {known.size} networks, and {what} takes one: give a member, {folder_of(run, 0)}")


def mean(target: Answered, answered: Sequence[tuple[Answered, ndarray]]) -> ndarray:
    """The mean over members, in the layout of `target`: of numbers, or of log-odds without class weights.

    Each member has its own target, since folds differ in class counts and in the mean of their numbers.

    >>> one, other = Regression(mean=10.0, scale=2.0), Regression(mean=20.0, scale=1.0)
    >>> mean(Regression(), [(one, np.array([[1.0]])), (other, np.array([[-4.0]]))]).tolist()
    [[14.0]]
    """
    rows = [_plain(own, outputs.astype(np.float64)) for own, outputs in answered]
    total = np.mean(rows, axis=0)
    if isinstance(target, Regression):
        return np.asarray(target.standardised(total), np.float32)
    return as_outputs(target, total).astype(np.float32)


def _plain(target: Answered, outputs: ndarray) -> ndarray:
    return target.values(outputs)[:, None] if isinstance(target, Regression) else as_odds(target, outputs)
