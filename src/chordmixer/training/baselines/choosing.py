"""Fits candidates on the training part; the validation part chooses among them and calibrates their log-odds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy import ndarray

from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.features import ENTRIES, Features, SeriesRows, TfIdf
from chordmixer.training.baselines.linear import (
    ABSENT,
    LEFT_OUT,
    Linear,
    as_outputs,
    fit_left_out,
    fit_linear,
    unweighting,
)
from chordmixer.training.baselines.nonlinear import (
    KERNEL_RECORDS,
    NEAREST,
    NEIGHBOUR_ENTRIES,
    Neighbours,
    Trees,
    fit_kernel,
    fit_trees,
)
from chordmixer.training.baselines.positions import Positions
from chordmixer.training.baselines.stored import Member
from chordmixer.training.labels import RecordTarget, fit_temperature

DENSE = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SPARSE = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Strengths to choose from, as scikit-learn's C: of standardised features, and of rows of length one."""
SHARPNESS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Of neighbours and of centroids."""
WEIGHTS = 1_000_000
"""Of a linear model, at most: with more outputs it has fewer features, the commonest."""
TWICE = 10_000_000
"""Entries times outputs up to which text is fitted with and without ratios; beyond, with them alone."""
HELD = 100
"""Validation records below which they do not choose a strength: the training records do, each left out in turn."""
TREE_COLUMNS = 1500
"""Features that trees look at: all that come first, and some of the many convolutions of a series."""
WORK = 200_000_000
"""Entries of the training matrix times outputs up to which logistic regression is fitted; beyond, class centroids."""


@dataclass(frozen=True)
class Data:
    """Sequences and answers of the training and the validation part."""

    training: Sequence[ndarray]
    validation: Sequence[ndarray]
    answers: dict[str, ndarray]
    """By part."""
    target: RecordTarget

    @property
    def room(self) -> int:
        """Entries of a sparse training matrix, at most."""
        return ENTRIES * len(self.training) // (len(self.training) + len(self.validation))


@dataclass(frozen=True)
class Choice:
    """A fitted candidate."""

    candidate: Candidate
    member: Member
    scores: ndarray
    """Of the validation part."""
    outputs: ndarray
    """The same as outputs."""
    loss: float
    how: str
    """The model in words."""

    @property
    def near(self) -> bool:
        return isinstance(self.member.model, Neighbours)

    @property
    def grown(self) -> bool:
        return isinstance(self.member.model, Trees)

    @property
    def family(self) -> int:
        """Of which one is chosen: linear models of tokens, of words and of positions, trees, neighbours."""
        if self.near or self.grown:
            return 4 if self.near else 3
        return 2 if self.candidate.positions else int(self.candidate.words is not None)


def choose(candidates: Iterable[Candidate], data: Data, neighbours: bool = True) -> list[Choice]:
    """The best linear model of counts, of words and of positions, the best trees, and the best neighbours where the
    training part is small enough to keep."""
    best: dict[int, Choice] = {}
    for candidate in candidates:
        for choice in _tried(candidate, data, neighbours):
            if choice.family not in best or choice.loss < best[choice.family].loss:
                best[choice.family] = choice
    return [best[family] for family in sorted(best)]


def loss_of(outputs: ndarray, answers: ndarray, target: RecordTarget) -> float:
    """The mean of the target's own loss."""
    return float(target.losses(torch.from_numpy(outputs), torch.from_numpy(answers)).mean())


def _tried(candidate: Candidate, data: Data, neighbours: bool) -> Iterator[Choice]:
    features, rows = candidate.fit(data.training, data.room)
    most = WEIGHTS // data.target.outputs
    if isinstance(features, Positions):
        if features.width <= most:
            yield from _linear(candidate, features, rows, data, SPARSE)
        return
    if not isinstance(features, TfIdf):
        left_out = neighbours and len(rows) <= LEFT_OUT and isinstance(data.target, Regression | Classification)
        if left_out:
            yield _left_out(candidate, features, rows, data)
        if not left_out or len(data.validation) >= HELD:
            yield from _linear(candidate, features, rows, data, DENSE)
        if isinstance(data.target, Regression) and len(rows) <= KERNEL_RECORDS:
            yield from _kernel(candidate, features, rows, data, data.target)
        if neighbours and candidate.trees and isinstance(data.target, Regression | Classification):
            yield from _trees(candidate, features, rows, data, data.target)
        return
    if neighbours and candidate.neighbours and rows.nnz <= NEIGHBOUR_ENTRIES:
        yield _neighbours(candidate, features, rows, data)
    if features.width > most:
        features, rows = features.limited(rows, most)
    yield from _linear(candidate, features, rows, data, SPARSE)


def _linear(
    candidate: Candidate, features: Features, rows: Any, data: Data, strengths: Sequence[float]
) -> Iterator[Choice]:
    """Models from weak to strong, until the validation loss rises."""
    held = features(data.validation)
    with one_thread():
        for models, how in _linear_models(candidate, rows, data, strengths):
            lowest = np.inf
            for model in models:
                model = _calibrated(model, model.scores(held, data.target), data)
                choice = _choice(candidate, Member(features, model), model.scores(held, data.target), data, how)
                yield choice
                if choice.loss > lowest:
                    break
                lowest = choice.loss


def _left_out(candidate: Candidate, features: Features, rows: ndarray, data: Data) -> Choice:
    """Ridge regression that was chosen by the training records alone."""
    target = data.target
    assert isinstance(target, Regression | Classification)
    member = Member(features, fit_left_out(rows, data.answers["training"], target))
    scores = member.model.scores(features(data.validation), target)
    return _choice(candidate, member, scores, data, "ridge regression, its penalty chosen by leaving records out, on")


def _linear_models(
    candidate: Candidate, rows: Any, data: Data, strengths: Sequence[float]
) -> Iterator[tuple[Iterator[Linear], str]]:
    """What can be fitted in the time, and what it is called."""
    target, answers = data.target, data.answers["training"]
    work = (rows.nnz if hasattr(rows, "nnz") else rows.size) * target.outputs
    if isinstance(target, Classification) and work > WORK:
        yield _centroids(rows, answers, target), "similarity to the mean of each class, by"
        return
    with_ratios = candidate.kind == "text" and not candidate.positions and not isinstance(target, Regression)
    if with_ratios:
        how = f"{regression(target)}, penalised by how alike the classes are in each feature (NB-SVM), on"
        yield fit_linear(rows, answers, target, strengths, ratios=True), how
    if not with_ratios or work <= TWICE:
        yield fit_linear(rows, answers, target, strengths), f"{regression(target)} on"


def _kernel(
    candidate: Candidate, features: Features, rows: ndarray, data: Data, target: Regression
) -> Iterator[Choice]:
    held = features(data.validation)
    for model in fit_kernel(rows, data.answers["training"], target):
        how = "kernel ridge regression on"
        yield _choice(candidate, Member(features, model), model.scores(held, target), data, how)


def _trees(
    candidate: Candidate, features: Features, rows: ndarray, data: Data, target: Regression | Classification
) -> Iterator[Choice]:
    """Few trees to many, until the validation loss rises."""
    held, lowest = features(data.validation), np.inf
    columns = _tree_columns(features, rows.shape[1])
    for model in fit_trees(rows[:, columns], data.answers["training"], target):
        model = replace(model, feature=columns[model.feature].astype(np.int32))
        model = _calibrated(model, model.scores(held, target), data)
        how = f"{len(model.roots)} gradient-boosted trees of each output on"
        choice = _choice(candidate, Member(features, model), model.scores(held, target), data, how)
        yield choice
        if choice.loss > lowest:
            return
        lowest = choice.loss


def _tree_columns(features: Features, width: int) -> ndarray:
    """At most `TREE_COLUMNS`; of a series all that describe it, and evenly spaced convolutions."""
    if width <= TREE_COLUMNS or not isinstance(features, SeriesRows):
        return np.arange(width)
    first = min(features.described, TREE_COLUMNS)
    return np.unique(
        np.concatenate([np.arange(first), np.linspace(first, width - 1, TREE_COLUMNS - first).astype(int)])
    )


def _neighbours(candidate: Candidate, features: TfIdf, rows: Any, data: Data) -> Choice:
    """Of the sharpness with the lowest validation loss."""
    target, found = data.target, []
    first = Neighbours.fit(rows, data.answers["training"], target, SHARPNESS[0])
    near = first.nearest(features(data.validation))
    how = f"the answers of the {NEAREST} nearest training records by"
    for sharpness in SHARPNESS:
        model = first.sharpened(sharpness)
        model = _calibrated(model, model.voted(*near, target), data)
        found.append(_choice(candidate, Member(features, model), model.voted(*near, target), data, how))
    return min(found, key=lambda own: own.loss)


def _choice(candidate: Candidate, member: Member, scores: ndarray, data: Data, how: str) -> Choice:
    outputs = as_outputs(scores, data.target)
    loss = loss_of(outputs, data.answers["validation"], data.target)
    return Choice(candidate, member, scores, outputs, loss, f"{how} {candidate.sentence}")


def _calibrated(model: Any, scores: ndarray, data: Data) -> Any:
    """With the temperature that suits the validation part; numbers have none."""
    target, answers = data.target, data.answers["validation"]
    if isinstance(target, Regression):
        return model
    outputs = as_outputs(scores, target) + unweighting(target)
    known = np.ones(len(answers), bool)
    if isinstance(target, Classification):  # a class that training has not is no matter of temperature
        known = np.isin(answers, data.answers["training"])
    return model.cooled(fit_temperature(outputs[known], answers[known]), target) if known.any() else model


def _centroids(rows: Any, answers: ndarray, target: Classification) -> Iterator[Linear]:
    """The mean row of each class, of length one, sharpened more and more: no steps, so for any number of classes."""
    from scipy.sparse import csr_matrix

    shape = target.outputs, len(answers)
    member = csr_matrix((np.ones(len(answers), np.float32), (answers, np.arange(len(answers)))), shape)
    sums = member @ csr_matrix(rows)
    length = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1))).ravel()
    offset = np.where(np.bincount(answers, minlength=target.outputs) > 0, 0, ABSENT).astype(np.float32)
    means = (sums.toarray() / np.maximum(length, 1e-9)[:, None]).T
    for sharpness in SHARPNESS:
        yield Linear((sharpness * means).astype(np.float32), offset)


def one_thread() -> AbstractContextManager[Any]:
    """For products so small that they wait longer for a second thread than it saves."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def regression(target: RecordTarget) -> str:
    """What a linear model for it is called."""
    return "ridge regression" if isinstance(target, Regression) else "logistic regression"
