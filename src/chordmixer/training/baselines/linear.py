"""Linear models on rows of features: logistic regression for classes and labels, ridge regression for numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.labels import RecordTarget

MIN_PROBABILITY = 1e-12
"""Smallest probability of a class, such as one without training records."""
MAX_WORK = 50_000_000
"""Maximum of records times outputs times steps on standardised features; many classes have fewer steps."""
ABSENT_SCORE, CERTAIN_LOG_ODDS = -1e4, 20.0
"""Score of a class without training records, and log-odds of a label that all training records have."""
MIN_LOG_RATIO = 0.01
"""Smallest absolute log-ratio, so that a feature equally frequent in all classes may still have a small weight."""
MAX_LEFT_OUT_RECORDS = 2500
"""Number of training records up to which leave-one-out ridge regression is fitted: its time grows with the cube."""
PENALTIES = tuple(10 ** (k / 2) for k in range(-10, 7))
"""Candidate penalties of that regression, in units of the mean squared norm of a row."""
LOG_FACTOR_BOUNDS = (-2.0, 4.0)
"""Bounds of the logarithm of the factor from left-out scores to log-odds; its prior is a standard normal."""
SPARSE_STEPS, DENSE_STEPS, TOLERANCE = 15, 60, 1e-6
"""Maximum number of solver steps on sparse and on standardised features, and the relative gain at which it stops."""


@dataclass(frozen=True)
class Linear:
    """A linear model of one or several outputs."""

    weights: ndarray
    """Shape (features, outputs), float32."""
    offset: ndarray
    """Shape (outputs,), float32."""

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """Scores of shape (rows, outputs), including class weights; `as_outputs` converts them."""
        from scipy.sparse import csr_matrix

        # unlike BLAS, scipy sums a row in the order of its columns, independent of the other rows
        products = csr_matrix(rows, dtype=np.float64) @ self.weights.astype(np.float64)
        return np.asarray(products + self.offset)

    @cached_property
    def certain(self) -> ndarray:
        """Mask of the outputs whose target was the same in all training records."""
        return np.asarray((self.weights == 0).all(axis=0) & (np.abs(self.offset) >= CERTAIN_LOG_ODDS))

    def cooled(self, temperature: float, target: RecordTarget) -> Linear:
        """Divide the log-odds, without class weights, by a temperature."""
        extra = -unweighting(target)
        offset = np.where(self.certain, self.offset, (self.offset - extra) / temperature + extra)
        return Linear((self.weights / temperature).astype(np.float32), offset.astype(np.float32))


def as_outputs(scores: ndarray, target: RecordTarget) -> ndarray:
    """Convert scores to a model's outputs: log-probabilities of classes, log-odds of labels, or a number.

    >>> as_outputs(np.zeros((1, 2)), Classification(["a", "b"], [0, 1])).round(3).tolist()
    [[-0.6930000185966492, -0.6930000185966492]]
    """
    if isinstance(target, Classification):
        top = scores.max(axis=1, keepdims=True)
        total = np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
        scores = np.maximum(scores - top - total, np.log(MIN_PROBABILITY))
    return scores.astype(np.float32)


def fit_linear(
    rows: Any, answers: ndarray, target: RecordTarget, strengths: Sequence[float], ratios: bool = False
) -> Iterator[Linear]:
    """Fit a model for each strength (scikit-learn's C), in their order; each starts from the previous solution.

    With `ratios`, for classes and labels, the penalty of a weight is divided by the squared logarithm of the ratio of
    the feature's frequency in its class to that in the others (NB-SVM: Wang and Manning, 2012).
    """
    if isinstance(target, Regression):
        for strength in strengths:
            yield _ridge(rows, answers, target, strength)
        return
    problem = _Problem.of(rows, answers, target, ratios)
    start = np.zeros((rows.shape[1] + 1, len(problem.columns)))
    for strength in strengths:
        if len(problem.columns):
            start = problem.solved(strength, start)
        yield _expanded(start, problem.columns, answers, target)


def _ridge(rows: Any, answers: ndarray, target: Regression, strength: float) -> Linear:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / strength).fit(rows, target.standardised(answers))
    return Linear(np.reshape(model.coef_, (-1, 1)).astype(np.float32), np.array([model.intercept_], np.float32))


def fit_left_out(rows: ndarray, answers: ndarray, target: Classification | Regression) -> Linear:
    """Ridge regression whose penalty is chosen by leave-one-out cross-validation on the training records.

    For classes the factor from scores to log-odds is chosen in the same way. No validation records are needed.

    >>> rows = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    >>> answers = (rows[:, 0] > 0).astype(int)
    >>> target = Classification(["low", "high"], answers)
    >>> fit_left_out(rows, answers, target).scores(np.array([[-0.9], [0.9]]), target).argmax(axis=1).tolist()
    [0, 1]
    """
    known, hits = np.zeros(1, np.int64), np.zeros(())
    if isinstance(target, Regression):
        hits = np.asarray(target.standardised(answers), np.float64)[:, None]
    else:
        known = np.unique(answers)
        hits = (answers[:, None] == known).astype(np.float64)
    mean, x = hits.mean(axis=0), rows.astype(np.float64)
    values, vectors = np.linalg.eigh(x @ x.T)
    values = np.maximum(values, 0)
    projected, squares = vectors.T @ (hits - mean), vectors**2
    constant = np.abs(vectors.sum(axis=0)).argmax()  # the mean of all rows, which is no feature
    best: tuple[float, ndarray, float] | None = None
    for penalty in PENALTIES:
        inverse = 1 / (values + penalty * max(float(values.mean()), 1e-9))
        inverse[constant] = 0
        dual = vectors @ (inverse[:, None] * projected)
        left_out = hits - dual / np.maximum(squares @ inverse, 1e-12)[:, None]
        loss, factor = _left_out_loss(left_out, hits, target)
        if best is None or loss < best[0]:
            best = loss, dual, factor
    assert best is not None, "there are penalties"
    _, dual, factor = best
    weights, offset = factor * x.T @ dual, factor * mean
    if isinstance(target, Regression):
        return Linear(weights.astype(np.float32), offset.astype(np.float32))
    all_weights = np.zeros((rows.shape[1], target.outputs), np.float32)
    all_offsets = np.full(target.outputs, ABSENT_SCORE, np.float32)
    all_weights[:, known], all_offsets[known] = weights, offset - unweighting(target)[known]
    return Linear(all_weights, all_offsets)


def _left_out_loss(scores: ndarray, hits: ndarray, target: RecordTarget) -> tuple[float, float]:
    """The mean leave-one-out loss, and the factor from scores to log-odds."""
    from scipy.optimize import minimize_scalar

    if isinstance(target, Regression) or hits.shape[1] == 1:
        return float(((scores - hits) ** 2).mean()), 1.0

    def loss(log_factor: float) -> float:
        losses, _ = _softmax_loss(np.exp(log_factor) * scores, hits)
        return float(losses.mean() + log_factor**2 / (2 * len(hits)))

    minimum = minimize_scalar(loss, bounds=LOG_FACTOR_BOUNDS, method="bounded")
    return float(minimum.fun), float(np.exp(minimum.x))


def _fitted_outputs(answers: ndarray, target: Classification | MultiLabel) -> tuple[ndarray, ndarray, ndarray, bool]:
    """Outputs that need a fit, targets and weights of each record, and whether the outputs exclude each other.

    Two classes are one output.
    """
    if isinstance(target, Classification):
        known = np.unique(answers)
        weights = target.weights.numpy().astype(np.float64)[answers][:, None]
        if len(known) <= 2:
            known = known[1:]
        return known, (answers[:, None] == known).astype(np.float64), weights, len(known) > 1
    hits = (answers > 0.5).astype(np.float64)
    columns = np.flatnonzero((hits.min(axis=0) == 0) & (hits.max(axis=0) == 1))
    positive, negative = target.positive.numpy()[columns], target.negative.numpy()[columns]
    hits = hits[:, columns]
    return columns, hits, np.where(hits > 0, positive, negative).astype(np.float64), False


def _expanded(fitted: ndarray, columns: ndarray, answers: ndarray, target: Classification | MultiLabel) -> Linear:
    """Expand a fit of some columns to all outputs; the other outputs are certain."""
    weights = np.zeros((len(fitted) - 1, target.outputs), np.float32)
    if isinstance(target, Classification):
        offset = np.full(target.outputs, ABSENT_SCORE, np.float32)
        offset[np.unique(answers)] = 0
    else:
        offset = np.where(answers.max(axis=0) > 0.5, CERTAIN_LOG_ODDS, -CERTAIN_LOG_ODDS).astype(np.float32)
    weights[:, columns], offset[columns] = fitted[:-1], fitted[-1]
    return Linear(weights, offset)


@dataclass(frozen=True)
class _Problem:
    """The data of a logistic regression; `solved` takes its strength."""

    rows: Any
    transposed: Any
    """The transposed rows."""
    columns: ndarray
    """Indices of the outputs that need a fit."""
    hits: ndarray
    """Targets of shape (records, columns): 0 or 1."""
    weights: ndarray
    """Weights of the records, of shape (records, columns or 1)."""
    softmax: bool
    """Whether the outputs exclude each other."""
    ratios: bool
    """Whether the penalty depends on the ratio of each feature's frequencies (NB-SVM)."""

    @classmethod
    def of(cls, rows: Any, answers: ndarray, target: Classification | MultiLabel, ratios: bool) -> _Problem:
        from scipy.sparse import issparse

        return cls(rows, rows.T.tocsr() if issparse(rows) else rows.T, *_fitted_outputs(answers, target), ratios)

    @cached_property
    def penalty_factors(self) -> ndarray:
        """Factor of the penalty of each weight; 0 for the offset."""
        shape = self.rows.shape[1], len(self.columns)
        factors = 1 / _ratios(self.transposed, self.hits) ** 2 if self.ratios else np.ones(shape)
        return np.concatenate([factors, np.zeros((1, shape[1]))])

    @cached_property
    def curvature(self) -> ndarray:
        return _curvature(self.rows, self.hits, self.weights) / self.total

    @cached_property
    def total(self) -> float:
        """Total weight of all records."""
        sums = np.broadcast_to(self.weights, self.hits.shape).sum()
        return float(sums / (1 if self.softmax else self.hits.shape[1]))

    def solved(self, strength: float, start: ndarray) -> ndarray:
        """Minimise the penalised log loss by L-BFGS, and return the weights, with the offset as the last row.

        Each weight is scaled by its curvature, which takes about a tenth of the steps.
        """
        from scipy.optimize import minimize
        from scipy.sparse import issparse

        penalty = self.penalty_factors / (strength * self.total)
        unit = 1 / np.sqrt(self.curvature + penalty)

        def loss(flat: ndarray) -> tuple[float, ndarray]:
            value, gradient = self._loss(unit * flat.reshape(start.shape), penalty)
            return value, (unit * gradient).ravel()

        steps = SPARSE_STEPS if issparse(self.rows) else max(5, min(DENSE_STEPS, MAX_WORK // self.hits.size))
        options = {"maxiter": steps, "gtol": 0.0, "ftol": TOLERANCE, "maxcor": 6}
        solution = minimize(loss, (start / unit).ravel(), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(unit * solution.x.reshape(start.shape))

    def _loss(self, weights: ndarray, penalty: ndarray) -> tuple[float, ndarray]:
        odds = np.asarray(self.rows @ weights[:-1].astype(np.float32), dtype=np.float64) + weights[-1]
        losses, errors = _softmax_loss(odds, self.hits) if self.softmax else _sigmoid_loss(odds, self.hits)
        errors = self.weights * errors / self.total
        gradient = np.empty_like(weights)
        gradient[:-1] = self.transposed @ errors.astype(np.float32)
        gradient[-1] = errors.sum(axis=0)
        decay = penalty * weights
        return float((self.weights * losses).sum() / self.total + (decay * weights).sum() / 2), gradient + decay


def _curvature(rows: Any, hits: ndarray, weights: ndarray) -> ndarray:
    """Approximate second derivative of the log loss with respect to each weight and the offset."""
    from scipy.sparse import csr_matrix, issparse

    weight = np.broadcast_to(weights, hits.shape).mean(axis=1)
    csr = rows if issparse(rows) else csr_matrix(rows)
    squares = weight[np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))] * csr.data.astype(np.float64) ** 2
    columns = np.bincount(csr.indices, weights=squares, minlength=csr.shape[1])
    shares = hits.mean(axis=0)
    return np.asarray(np.append(columns, weight.sum())[:, None] * (shares * (1 - shares) + 0.02))


def _ratios(transposed: Any, hits: ndarray) -> ndarray:
    """|log(p / q)| for the frequency p of each feature in a class or label, and q in all others."""
    present = transposed.astype(bool).astype(np.float64)
    inside = present @ hits + 1
    others = present @ (1 - hits) + 1
    logs = np.log(inside / inside.sum(axis=0)) - np.log(others / others.sum(axis=0))
    return np.asarray(np.maximum(np.abs(logs), MIN_LOG_RATIO))


def _softmax_loss(odds: ndarray, hits: ndarray) -> tuple[ndarray, ndarray]:
    """A column of log losses, and their derivative with respect to the log-odds."""
    top = odds.max(axis=1, keepdims=True)
    shares = np.exp(odds - top)
    total = shares.sum(axis=1, keepdims=True)
    losses = top + np.log(total) - (odds * hits).sum(axis=1, keepdims=True)
    return losses, shares / total - hits


def _sigmoid_loss(odds: ndarray, hits: ndarray) -> tuple[ndarray, ndarray]:
    losses = np.logaddexp(0, odds) - odds * hits
    return losses, np.exp(-np.logaddexp(0, -odds)) - hits


def unweighting(target: RecordTarget) -> ndarray:
    """The constant that `target.unweighted` adds to outputs."""
    zeros = np.zeros(target.outputs)
    return zeros if isinstance(target, Regression) else np.asarray(target.unweighted(zeros))
