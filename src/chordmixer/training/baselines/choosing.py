"""Fit candidates on the training part, calibrate their log-odds and choose among them on the validation part."""

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
from chordmixer.training.baselines.features import MAX_ENTRIES, Features, SeriesRows, TfIdf
from chordmixer.training.baselines.linear import (
    ABSENT_SCORE,
    MAX_LEFT_OUT_RECORDS,
    MIN_PROBABILITY,
    Linear,
    as_outputs,
    fit_left_out,
    fit_linear,
    unweighting,
)
from chordmixer.training.baselines.nonlinear import (
    MAX_KERNEL_RECORDS,
    NEAREST,
    Kernel,
    Neighbours,
    Trees,
    fit_kernel,
    fit_trees,
    neighbours_are_affordable,
)
from chordmixer.training.baselines.positions import Positions
from chordmixer.training.baselines.stored import Member
from chordmixer.training.labels import RecordTarget, fit_temperature

DENSE_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
SPARSE_STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4)
"""Candidate strengths (scikit-learn's C) for standardised features, and for sparse rows of norm one."""
SHARPNESSES = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""Candidate values of the sharpness of neighbours and of centroids."""
MAX_WEIGHTS = 1_000_000
"""Maximum number of weights of a linear model; with many outputs it uses only the most frequent features."""
MAX_WORK_FOR_BOTH = 10_000_000
"""Number of entries times outputs up to which text is fitted with and without ratios; above, only with ratios."""
MIN_VALIDATION_RECORDS = 100
"""Minimum number of validation records to choose a strength; with fewer it is chosen by leave-one-out on the training
records."""
FOLDS, MIN_GROUPS = 5, 20
"""Number of folds of the training records that choose where the validation records are few, and the minimum number
of groups for it."""
MAX_FOLDED_TOKENS, MAX_FOLDED_OUTPUTS = 4_000_000, 250_000
"""Maximum number of tokens of these records, and of records times outputs."""
MAX_TREE_COLUMNS = 1500
"""Maximum number of features for trees; of series these are the descriptive ones and some of the convolutions."""
MAX_THREADS = 4
"""Maximum number of threads for trees and dense products."""
MAX_LOGISTIC_WORK = 200_000_000
"""Number of matrix entries times outputs up to which logistic regression is fitted; above, class centroids are."""


@dataclass(frozen=True)
class Data:
    """The sequences of the training and the validation part, and their targets."""

    training: Sequence[ndarray]
    validation: Sequence[ndarray]
    answers: dict[str, ndarray]
    """The targets of the records of each part."""
    target: RecordTarget
    groups: ndarray | None = None
    """The group of each training record, which no fold separates; None: no folds."""

    @property
    def max_entries(self) -> int:
        """Maximum number of entries of a sparse training matrix."""
        return MAX_ENTRIES * len(self.training) // (len(self.training) + len(self.validation))

    @property
    def folds(self) -> ndarray | None:
        """The fold of each training record where the validation records are too few to choose; else None."""
        if self.groups is None or len(self.validation) >= MIN_VALIDATION_RECORDS:
            return None
        count = len(self.training)
        if count > MAX_LEFT_OUT_RECORDS or count * self.target.outputs > MAX_FOLDED_OUTPUTS:
            return None
        if sum(map(len, self.training)) > MAX_FOLDED_TOKENS:
            return None
        names, numbers = np.unique(self.groups, return_inverse=True)
        if len(names) < MIN_GROUPS:
            return None
        return np.asarray(np.random.default_rng(0).permutation(len(names))[numbers] % FOLDS)

    def fold(self, part: ndarray) -> Data:
        """The training records without those of `part`, a mask, which become the validation records."""
        answers = {"training": self.answers["training"][~part], "validation": self.answers["training"][part]}
        records = [
            [record for record, inside in zip(self.training, part, strict=True) if inside == side]
            for side in (False, True)
        ]
        return Data(records[0], records[1], answers, self.target)


Key = tuple[str, str, int]
"""The features and the description of a model, and its number in a series of increasing strength or size."""


@dataclass(frozen=True)
class Choice:
    """A fitted candidate and its results on the validation part."""

    candidate: Candidate
    member: Member
    scores: ndarray
    """Scores of the validation records."""
    outputs: ndarray
    """These scores converted by `as_outputs`."""
    loss: float
    """Mean loss on the records that choose: see `choose`."""
    description: str
    """Description of the model."""
    step: int
    """Number of the model in a series of increasing strength or size."""
    judged: ndarray
    """Outputs for the records that choose."""
    judging: ndarray
    """Targets of these records."""

    @property
    def key(self) -> Key:
        """The same for models that differ only in their training records."""
        return self.candidate.name, self.description, self.step

    @property
    def is_neighbours(self) -> bool:
        return isinstance(self.member.model, Neighbours)

    @property
    def is_trees(self) -> bool:
        return isinstance(self.member.model, Trees)

    @property
    def family(self) -> int:
        """Index of the model family: linear on tokens, on words or on positions; trees; neighbours."""
        if self.is_neighbours or self.is_trees:
            return 4 if self.is_neighbours else 3
        return 2 if self.candidate.positions else int(self.candidate.words is not None)


def choose(candidates: Iterable[Candidate], data: Data, neighbours: bool = True) -> list[Choice]:
    """Choose the best model of each family by its loss; `neighbours` allows neighbours and trees.

    The loss is that of the validation records. A few of them choose by chance: then it is that of the training
    records, each predicted by models that were fitted on the other folds.
    """
    best: dict[int, Choice] = {}
    candidates, folds = list(candidates), data.folds
    with few_threads():
        left_out = None if folds is None else _left_out_outputs(candidates, data, neighbours, folds)
        for candidate in candidates:
            for choice in _fitted_choices(candidate, data, neighbours, whole=left_out is not None):
                if left_out is not None:
                    if choice.key not in left_out:
                        continue
                    choice = _judged_by(choice, left_out[choice.key], data)
                if choice.family not in best or choice.loss < best[choice.family].loss:
                    best[choice.family] = choice
    if not best and left_out is not None:  # no model could be fitted on all folds
        return choose(candidates, replace(data, groups=None), neighbours)
    return [best[family] for family in sorted(best)]


def _judged_by(choice: Choice, left_out: ndarray, data: Data) -> Choice:
    """Calibrate a model and compute its loss by its outputs for the training records, each left out once."""
    target, answers, features = data.target, data.answers["training"], choice.member.features
    model = choice.member.model
    if not isinstance(target, Regression):
        assert not isinstance(model, Kernel), "it predicts numbers"
        odds, known = left_out + unweighting(target), np.ones(len(answers), bool)
        if isinstance(target, Classification):  # a class may be in one fold alone
            known = left_out[np.arange(len(answers)), answers] > np.log(MIN_PROBABILITY) + 1
        temperature = fit_temperature(odds[known], answers[known]) if known.any() else 1.0
        model = model.cooled(temperature, target)
        left_out = as_outputs(odds / temperature - unweighting(target), target)
    scores = model.scores(features(data.validation), target)
    loss = loss_of(left_out, answers, target)
    member, outputs = Member(features, model), as_outputs(scores, target)
    return replace(choice, member=member, scores=scores, outputs=outputs, judged=left_out, judging=answers, loss=loss)


def _left_out_outputs(
    candidates: Sequence[Candidate], data: Data, neighbours: bool, folds: ndarray
) -> dict[Key, ndarray]:
    """Outputs for each training record by models that were fitted without its fold; only models of all folds."""
    found: dict[Key, dict[int, ndarray]] = {}
    for fold in np.unique(folds).tolist():
        part = data.fold(folds == fold)
        for candidate in candidates:
            for choice in _fitted_choices(candidate, part, neighbours, whole=True):
                found.setdefault(choice.key, {})[fold] = choice.outputs
    count = len(np.unique(folds))
    left_out = {}
    for key, outputs in found.items():
        if len(outputs) == count:
            left_out[key] = np.empty((len(folds), data.target.outputs), np.float32)
            for fold, rows in outputs.items():
                left_out[key][folds == fold] = rows
    return left_out


def loss_of(outputs: ndarray, answers: ndarray, target: RecordTarget) -> float:
    """The mean of the target's loss."""
    return float(target.losses(torch.from_numpy(outputs), torch.from_numpy(answers)).mean())


def _fitted_choices(candidate: Candidate, data: Data, neighbours: bool, whole: bool) -> Iterator[Choice]:
    """Fit the models on a candidate, calibrated, until the validation loss rises; `whole`: all, not calibrated."""
    features, rows = candidate.fit(data.training, data.max_entries)
    max_features = MAX_WEIGHTS // data.target.outputs
    if isinstance(features, Positions):
        if features.width <= max_features:
            yield from _linear(candidate, features, rows, data, SPARSE_STRENGTHS, whole)
        return
    if not isinstance(features, TfIdf):
        uses_left_out = (
            neighbours and len(rows) <= MAX_LEFT_OUT_RECORDS and isinstance(data.target, Regression | Classification)
        )
        if uses_left_out:
            yield _left_out(candidate, features, rows, data)
        if not uses_left_out or (len(data.validation) >= MIN_VALIDATION_RECORDS and not whole):
            yield from _linear(candidate, features, rows, data, DENSE_STRENGTHS, whole)
        if isinstance(data.target, Regression) and len(rows) <= MAX_KERNEL_RECORDS:
            yield from _kernel(candidate, features, rows, data, data.target)
        if neighbours and candidate.trees and isinstance(data.target, Regression | Classification):
            yield from _trees(candidate, features, rows, data, data.target, whole)
        return
    if neighbours and candidate.neighbours and neighbours_are_affordable(rows):
        yield from _neighbours(candidate, features, rows, data, whole)
    if features.width > max_features:
        features, rows = features.limited(rows, max_features)
    yield from _linear(candidate, features, rows, data, SPARSE_STRENGTHS, whole)


def _linear(
    candidate: Candidate, features: Features, rows: Any, data: Data, strengths: Sequence[float], whole: bool
) -> Iterator[Choice]:
    """Fit models of increasing strength until the validation loss rises."""
    validation_rows = features(data.validation)
    with one_thread():
        for models, description in _linear_models(candidate, rows, data, strengths):
            lowest = np.inf
            for step, model in enumerate(models):
                if not whole:
                    model = _calibrated(model, model.scores(validation_rows, data.target), data)
                scores = model.scores(validation_rows, data.target)
                choice = _choice(candidate, Member(features, model), scores, data, description, step)
                yield choice
                if choice.loss > lowest and not whole:
                    break
                lowest = choice.loss


def _left_out(candidate: Candidate, features: Features, rows: ndarray, data: Data) -> Choice:
    """Ridge regression with a penalty chosen by leave-one-out on the training records."""
    target = data.target
    assert isinstance(target, Regression | Classification)
    member = Member(features, fit_left_out(rows, data.answers["training"], target))
    scores = member.model.scores(features(data.validation), target)
    return _choice(candidate, member, scores, data, "ridge regression, its penalty chosen by leaving records out, on")


def _linear_models(
    candidate: Candidate, rows: Any, data: Data, strengths: Sequence[float]
) -> Iterator[tuple[Iterator[Linear], str]]:
    """Yield the series of linear models that are affordable, each with its description."""
    target, answers = data.target, data.answers["training"]
    work = (rows.nnz if hasattr(rows, "nnz") else rows.size) * target.outputs
    if isinstance(target, Classification) and work > MAX_LOGISTIC_WORK:
        yield _centroids(rows, answers, target), "similarity to the mean of each class, by"
        return
    with_ratios = candidate.kind == "text" and not candidate.positions and not isinstance(target, Regression)
    if with_ratios:
        description = f"{regression(target)}, penalised by how alike the classes are in each feature (NB-SVM), on"
        yield fit_linear(rows, answers, target, strengths, ratios=True), description
    if not with_ratios or work <= MAX_WORK_FOR_BOTH:
        yield fit_linear(rows, answers, target, strengths), f"{regression(target)} on"


def _kernel(
    candidate: Candidate, features: Features, rows: ndarray, data: Data, target: Regression
) -> Iterator[Choice]:
    validation_rows = features(data.validation)
    for step, model in enumerate(fit_kernel(rows, data.answers["training"], target)):
        scores, description = model.scores(validation_rows, target), "kernel ridge regression on"
        yield _choice(candidate, Member(features, model), scores, data, description, step)


def _trees(
    candidate: Candidate,
    features: Features,
    rows: ndarray,
    data: Data,
    target: Regression | Classification,
    whole: bool,
) -> Iterator[Choice]:
    """Fit increasing numbers of trees until the validation loss rises."""
    validation_rows, lowest = features(data.validation), np.inf
    columns = _tree_columns(features, rows.shape[1])
    for step, model in enumerate(fit_trees(rows[:, columns], data.answers["training"], target)):
        model = replace(model, feature=columns[model.feature].astype(np.int32))
        if not whole:
            model = _calibrated(model, model.scores(validation_rows, target), data)
        description = f"{len(model.roots)} gradient-boosted trees of each output on"
        scores = model.scores(validation_rows, target)
        choice = _choice(candidate, Member(features, model), scores, data, description, step)
        yield choice
        if choice.loss > lowest and not whole:
            return
        lowest = choice.loss


def _tree_columns(features: Features, width: int) -> ndarray:
    """At most `MAX_TREE_COLUMNS` columns; of series the descriptive ones and evenly spaced convolutions."""
    if width <= MAX_TREE_COLUMNS or not isinstance(features, SeriesRows):
        return np.arange(width)
    first = min(features.described, MAX_TREE_COLUMNS)
    return np.unique(
        np.concatenate([np.arange(first), np.linspace(first, width - 1, MAX_TREE_COLUMNS - first).astype(int)])
    )


def _neighbours(candidate: Candidate, features: TfIdf, rows: Any, data: Data, whole: bool) -> Iterator[Choice]:
    """Nearest neighbours with the sharpness of the lowest validation loss; with `whole`, with each."""
    target, choices = data.target, []
    first = Neighbours.fit(rows, data.answers["training"], target, SHARPNESSES[0])
    nearest = first.nearest(features(data.validation))
    description = f"the answers of the {NEAREST} nearest training records by"
    for step, sharpness in enumerate(SHARPNESSES):
        model = first.sharpened(sharpness)
        if not whole:
            model = _calibrated(model, model.voted(*nearest, target), data)
        scores = model.voted(*nearest, target)
        choices.append(_choice(candidate, Member(features, model), scores, data, description, step))
    yield from choices if whole else [min(choices, key=lambda choice: choice.loss)]


def _choice(
    candidate: Candidate, member: Member, scores: ndarray, data: Data, description: str, step: int = 0
) -> Choice:
    outputs = as_outputs(scores, data.target)
    loss = loss_of(outputs, data.answers["validation"], data.target)
    answers, sentence = data.answers["validation"], f"{description} {candidate.sentence}"
    return Choice(candidate, member, scores, outputs, loss, sentence, step, outputs, answers)


def _calibrated(model: Any, scores: ndarray, data: Data) -> Any:
    """Divide log-odds by the temperature that fits the validation part; numbers are left unchanged."""
    target, answers = data.target, data.answers["validation"]
    if isinstance(target, Regression):
        return model
    outputs = as_outputs(scores, target) + unweighting(target)
    known = np.ones(len(answers), bool)
    if isinstance(target, Classification):  # classes without training records do not depend on the temperature
        known = np.isin(answers, data.answers["training"])
    return model.cooled(fit_temperature(outputs[known], answers[known]), target) if known.any() else model


def _centroids(rows: Any, answers: ndarray, target: Classification) -> Iterator[Linear]:
    """Use the normalised mean row of each class as its weights, for each sharpness: fast with many classes."""
    from scipy.sparse import csr_matrix

    shape = target.outputs, len(answers)
    member = csr_matrix((np.ones(len(answers), np.float32), (answers, np.arange(len(answers)))), shape)
    sums = member @ csr_matrix(rows)
    length = np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1))).ravel()
    offset = np.where(np.bincount(answers, minlength=target.outputs) > 0, 0, ABSENT_SCORE).astype(np.float32)
    means = (sums.toarray() / np.maximum(length, 1e-9)[:, None]).T
    for sharpness in SHARPNESSES:
        yield Linear((sharpness * means).astype(np.float32), offset)


def few_threads() -> AbstractContextManager[Any]:
    """Limit BLAS and OpenMP to `MAX_THREADS` each, or to as many as they have if that is fewer.

    More gain little, and where other programs run, all threads of a parallel region wait for the one without a core.
    """
    import threadpoolctl  # type: ignore[import-untyped]

    most: dict[str, int] = {}
    for pool in threadpoolctl.threadpool_info():
        most[pool["user_api"]] = max(most.get(pool["user_api"], 1), pool["num_threads"])
    limits: AbstractContextManager[Any] = threadpoolctl.threadpool_limits(
        {api: min(threads, MAX_THREADS) for api, threads in most.items()}
    )
    return limits


def one_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread: for small products the overhead of more threads exceeds their gain."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def regression(target: RecordTarget) -> str:
    """The name of the linear model for a target."""
    return "ridge regression" if isinstance(target, Regression) else "logistic regression"
