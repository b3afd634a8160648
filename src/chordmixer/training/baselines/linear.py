"""Linear models on rows of features: logistic regression of classes and labels, ridge regression of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.labels import RecordTarget

NEVER = 1e-12
"""The probability of a class that no training record has."""
WORK = 50_000_000
"""Most records times outputs times steps on standardised features: a thousand classes have fewer steps."""
ABSENT, CERTAIN = -1e4, 20.0
"""Score of a class that no training record has, and log-odds of a label that all have."""
FLAT = 0.01
"""Smallest log-ratio: a feature that all classes share may still have a small weight."""
LEFT_OUT = 2500
"""Training records up to which ridge regression is fitted with each of them left out: the cube of them in time."""
PENALTIES = tuple(10 ** (k / 2) for k in range(-10, 7))
"""Of that regression, to choose from: in units of the mean squared length of a row."""
SHARPNESS = (-2.0, 4.0)
"""Smallest and largest logarithm of the factor that makes log-odds of its scores; before any record it is 1."""
STEPS, DENSE_STEPS, SMALL = 15, 60, 1e-6
"""Of the solver: most steps on sparse and on standardised features, and the relative gain at which it stops."""


@dataclass(frozen=True)
class Linear:
    """Scores that are sums of weighted features."""

    weights: ndarray
    """Shape (features, outputs), float32."""
    offset: ndarray
    """Shape (outputs,), float32."""

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """In the model's layout, class weights included, before `as_outputs`."""
        from scipy.sparse import csr_matrix

        # unlike BLAS, scipy sums a row in the order of its columns, independent of the other rows
        products = csr_matrix(rows, dtype=np.float64) @ self.weights.astype(np.float64)
        return np.asarray(products + self.offset)

    @cached_property
    def certain(self) -> ndarray:
        """Which outputs are the same in all training records."""
        return np.asarray((self.weights == 0).all(axis=0) & (np.abs(self.offset) >= CERTAIN))

    def cooled(self, temperature: float, target: RecordTarget) -> Linear:
        """With the log-odds, without class weights, divided by a temperature."""
        extra = -unweighting(target)
        offset = np.where(self.certain, self.offset, (self.offset - extra) / temperature + extra)
        return Linear((self.weights / temperature).astype(np.float32), offset.astype(np.float32))


def as_outputs(scores: ndarray, target: RecordTarget) -> ndarray:
    """Scores as a model's outputs: log-probabilities of classes, log-odds of labels, or a number.

    >>> as_outputs(np.zeros((1, 2)), Classification(["a", "b"], [0, 1])).round(3).tolist()
    [[-0.6930000185966492, -0.6930000185966492]]
    """
    if isinstance(target, Classification):
        top = scores.max(axis=1, keepdims=True)
        total = np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
        scores = np.maximum(scores - top - total, np.log(NEVER))
    return scores.astype(np.float32)


def fit_linear(
    rows: Any, answers: ndarray, target: RecordTarget, strengths: Sequence[float], ratios: bool = False
) -> Iterator[Linear]:
    """A model for each strength (scikit-learn's C), in their order; each starts from the one before.

    With `ratios`, of classes and labels, the penalty of a weight is divided by the squared logarithm of the ratio of
    the feature's share in its class to that in the others (NB-SVM: Wang and Manning, 2012).
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
        yield _placed(start, problem.columns, answers, target)


def _ridge(rows: Any, answers: ndarray, target: Regression, strength: float) -> Linear:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / strength).fit(rows, target.standardised(answers))
    return Linear(np.reshape(model.coef_, (-1, 1)).astype(np.float32), np.array([model.intercept_], np.float32))


def fit_left_out(rows: ndarray, answers: ndarray, target: Classification | Regression) -> Linear:
    """Ridge regression with the penalty, and for classes the factor from scores to log-odds, that suit training
    records which are left out of the fit one at a time. It needs no validation records.

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
    mean, own = hits.mean(axis=0), rows.astype(np.float64)
    values, vectors = np.linalg.eigh(own @ own.T)
    values = np.maximum(values, 0)
    turned, squares = vectors.T @ (hits - mean), vectors**2
    constant = np.abs(vectors.sum(axis=0)).argmax()  # the mean of all rows, which is no feature
    best: tuple[float, ndarray, float] | None = None
    for penalty in PENALTIES:
        inverse = 1 / (values + penalty * max(float(values.mean()), 1e-9))
        inverse[constant] = 0
        dual = vectors @ (inverse[:, None] * turned)
        left_out = hits - dual / np.maximum(squares @ inverse, 1e-12)[:, None]
        loss, factor = _left_out_loss(left_out, hits, target)
        if best is None or loss < best[0]:
            best = loss, dual, factor
    assert best is not None, "there are penalties"
    _, dual, factor = best
    weights, offset = factor * own.T @ dual, factor * mean
    if isinstance(target, Regression):
        return Linear(weights.astype(np.float32), offset.astype(np.float32))
    placed = np.zeros((rows.shape[1], target.outputs), np.float32)
    shifted = np.full(target.outputs, ABSENT, np.float32)
    placed[:, known], shifted[known] = weights, offset - unweighting(target)[known]
    return Linear(placed, shifted)


def _left_out_loss(scores: ndarray, hits: ndarray, target: RecordTarget) -> tuple[float, float]:
    """The mean loss of records that were left out, and the factor of their scores."""
    from scipy.optimize import minimize_scalar

    if isinstance(target, Regression) or hits.shape[1] == 1:
        return float(((scores - hits) ** 2).mean()), 1.0

    def loss(log_factor: float) -> float:
        losses, _ = _softmax_loss(np.exp(log_factor) * scores, hits)
        return float(losses.mean() + log_factor**2 / (2 * len(hits)))

    found = minimize_scalar(loss, bounds=SHARPNESS, method="bounded")
    return float(found.fun), float(np.exp(found.x))


def _fitted_outputs(answers: ndarray, target: Classification | MultiLabel) -> tuple[ndarray, ndarray, ndarray, bool]:
    """Outputs that need a fit; the targets and weights of each record; and whether the outputs exclude each other.
    Two classes are one output."""
    if isinstance(target, Classification):
        known = np.unique(answers)
        own = target.weights.numpy().astype(np.float64)[answers][:, None]
        if len(known) <= 2:
            known = known[1:]
        return known, (answers[:, None] == known).astype(np.float64), own, len(known) > 1
    hits = (answers > 0.5).astype(np.float64)
    columns = np.flatnonzero((hits.min(axis=0) == 0) & (hits.max(axis=0) == 1))
    positive, negative = target.positive.numpy()[columns], target.negative.numpy()[columns]
    hits = hits[:, columns]
    return columns, hits, np.where(hits > 0, positive, negative).astype(np.float64), False


def _placed(fitted: ndarray, columns: ndarray, answers: ndarray, target: Classification | MultiLabel) -> Linear:
    """The fitted weights in their columns among all outputs; the other outputs are certain."""
    weights = np.zeros((len(fitted) - 1, target.outputs), np.float32)
    if isinstance(target, Classification):
        offset = np.full(target.outputs, ABSENT, np.float32)
        offset[np.unique(answers)] = 0
    else:
        offset = np.where(answers.max(axis=0) > 0.5, CERTAIN, -CERTAIN).astype(np.float32)
    weights[:, columns], offset[columns] = fitted[:-1], fitted[-1]
    return Linear(weights, offset)


@dataclass(frozen=True)
class _Problem:
    """A logistic regression without its strength."""

    rows: Any
    transposed: Any
    """The transposed rows."""
    columns: ndarray
    """Outputs that need a fit."""
    hits: ndarray
    """The targets of each record for these."""
    weights: ndarray
    """The weights of each record."""
    softmax: bool
    """Whether they exclude each other."""
    ratios: bool
    """Whether the penalty follows the ratio of each feature's shares (NB-SVM)."""

    @classmethod
    def of(cls, rows: Any, answers: ndarray, target: Classification | MultiLabel, ratios: bool) -> _Problem:
        from scipy.sparse import issparse

        return cls(rows, rows.T.tocsr() if issparse(rows) else rows.T, *_fitted_outputs(answers, target), ratios)

    @cached_property
    def stiffness(self) -> ndarray:
        """The factor of the penalty of each weight; 0 for the offset."""
        shape = self.rows.shape[1], len(self.columns)
        own = 1 / _ratios(self.transposed, self.hits) ** 2 if self.ratios else np.ones(shape)
        return np.concatenate([own, np.zeros((1, shape[1]))])

    @cached_property
    def curvature(self) -> ndarray:
        return _curvature(self.rows, self.hits, self.weights) / self.total

    @cached_property
    def total(self) -> float:
        """Weight of all records."""
        sums = np.broadcast_to(self.weights, self.hits.shape).sum()
        return float(sums / (1 if self.softmax else self.hits.shape[1]))

    def solved(self, strength: float, start: ndarray) -> ndarray:
        """Weights, with the offset as the last row, after some steps of L-BFGS on the penalised log loss.

        Each weight is scaled by its own curvature, so that ten steps do what a hundred do without.
        """
        from scipy.optimize import minimize
        from scipy.sparse import issparse

        penalty = self.stiffness / (strength * self.total)
        unit = 1 / np.sqrt(self.curvature + penalty)

        def loss(flat: ndarray) -> tuple[float, ndarray]:
            value, slope = self._loss(unit * flat.reshape(start.shape), penalty)
            return value, (unit * slope).ravel()

        steps = STEPS if issparse(self.rows) else max(5, min(DENSE_STEPS, WORK // self.hits.size))
        options = {"maxiter": steps, "gtol": 0.0, "ftol": SMALL, "maxcor": 6}
        found = minimize(loss, (start / unit).ravel(), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(unit * found.x.reshape(start.shape))

    def _loss(self, own: ndarray, penalty: ndarray) -> tuple[float, ndarray]:
        odds = np.asarray(self.rows @ own[:-1].astype(np.float32), dtype=np.float64) + own[-1]
        losses, errors = _softmax_loss(odds, self.hits) if self.softmax else _sigmoid_loss(odds, self.hits)
        errors = self.weights * errors / self.total
        slope = np.empty_like(own)
        slope[:-1] = self.transposed @ errors.astype(np.float32)
        slope[-1] = errors.sum(axis=0)
        bent = penalty * own
        return float((self.weights * losses).sum() / self.total + (bent * own).sum() / 2), slope + bent


def _curvature(rows: Any, hits: ndarray, weights: ndarray) -> ndarray:
    """The approximate second derivative of the log loss by each weight and by the offset."""
    from scipy.sparse import csr_matrix, issparse

    heavy = np.broadcast_to(weights, hits.shape).mean(axis=1)
    own = rows if issparse(rows) else csr_matrix(rows)
    squares = heavy[np.repeat(np.arange(own.shape[0]), np.diff(own.indptr))] * own.data.astype(np.float64) ** 2
    columns = np.bincount(own.indices, weights=squares, minlength=own.shape[1])
    shares = hits.mean(axis=0)
    return np.asarray(np.append(columns, heavy.sum())[:, None] * (shares * (1 - shares) + 0.02))


def _ratios(transposed: Any, hits: ndarray) -> ndarray:
    """|log(p / q)| of the share p of each feature in a class or label, and q in all others."""
    present = transposed.astype(bool).astype(np.float64)
    own = present @ hits + 1
    others = present @ (1 - hits) + 1
    logs = np.log(own / own.sum(axis=0)) - np.log(others / others.sum(axis=0))
    return np.asarray(np.maximum(np.abs(logs), FLAT))


def _softmax_loss(odds: ndarray, hits: ndarray) -> tuple[ndarray, ndarray]:
    """A column of log losses, and their slope by the odds."""
    top = odds.max(axis=1, keepdims=True)
    shares = np.exp(odds - top)
    total = shares.sum(axis=1, keepdims=True)
    losses = top + np.log(total) - (odds * hits).sum(axis=1, keepdims=True)
    return losses, shares / total - hits


def _sigmoid_loss(odds: ndarray, hits: ndarray) -> tuple[ndarray, ndarray]:
    losses = np.logaddexp(0, odds) - odds * hits
    return losses, np.exp(-np.logaddexp(0, -odds)) - hits


def unweighting(target: RecordTarget) -> ndarray:
    """The constant that `unweighted` adds to outputs."""
    nothing = np.zeros(target.outputs)
    return nothing if isinstance(target, Regression) else np.asarray(target.unweighted(nothing))
