"""Nonlinear models on rows of features: kernel ridge regression, nearest neighbours, gradient-boosted trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.linear import ABSENT_SCORE, CERTAIN_LOG_ODDS, unweighting
from chordmixer.training.labels import RecordTarget

MAX_KERNEL_RECORDS = 4096
"""Maximum number of training records: the fit takes their square in memory, and their cube in time."""
KERNEL_WIDTHS = (0.1, 0.3, 1.0)
"""Candidate widths of the kernel, in units of one over the number of features."""
KERNEL_PENALTIES = (3.0, 1.0, 0.3)


@dataclass(frozen=True)
class Kernel:
    """A sum of Gaussians, exp(-width * squared distance), one around each training record."""

    centres: ndarray
    """Rows of the training records, float32."""
    heights: ndarray
    """Height of each Gaussian, float32."""
    width: float

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """One number per row."""
        from scipy.sparse import csr_matrix

        # unlike BLAS, scipy sums a row in the order of its columns, independent of the other rows
        x = rows.astype(np.float64)
        products = np.asarray(csr_matrix(x) @ self._transposed)
        distances = (x**2).sum(axis=1)[:, None] + (self._transposed**2).sum(axis=0) - 2 * products
        gaussians = csr_matrix(np.exp(-self.width * np.maximum(distances, 0)))
        return np.asarray(gaussians @ self.heights.astype(np.float64))[:, None]

    @cached_property
    def _transposed(self) -> ndarray:
        return np.ascontiguousarray(self.centres.T, dtype=np.float64)


def fit_kernel(
    rows: ndarray,
    answers: ndarray,
    target: Regression,
    widths: Sequence[float] = KERNEL_WIDTHS,
    penalties: Sequence[float] = KERNEL_PENALTIES,
) -> Iterator[Kernel]:
    """Fit a model for each width and penalty.

    >>> rows = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    >>> *_, model = fit_kernel(rows, rows[:, 0] ** 2, Regression(), (1.0,), (0.01,))
    >>> model.scores(np.array([[1.5]], np.float32), Regression()).round(1).tolist()
    [[2.3]]
    """
    x = rows.astype(np.float64)
    lengths = (x**2).sum(axis=1)
    distances = np.maximum(lengths[:, None] + lengths - 2 * x @ x.T, 0)
    numbers = np.asarray(target.standardised(answers), np.float64)
    for width in widths:
        gaussians = np.exp(-width / rows.shape[1] * distances)
        for penalty in penalties:
            heights = np.linalg.solve(gaussians + penalty * np.eye(len(gaussians)), numbers)
            yield Kernel(rows.astype(np.float32), heights.astype(np.float32), width / rows.shape[1])


NEAREST = 50
"""Number of training records that vote."""
MAX_NEIGHBOUR_ENTRIES = 40_000_000
"""Maximum number of entries of the stored matrix: 240 MB. Larger training parts have no neighbours."""
MAX_NEIGHBOUR_WORK = 500_000
"""Maximum number of products of two entries to compare a record with all training records: about 2 ms. N-grams that
most texts share exceed it sooner than k-mers."""
CHUNK_ROWS = 512
"""Number of records that are compared with the training records at a time."""


def neighbours_are_affordable(rows: Any) -> bool:
    """Whether sparse training rows are few enough to be stored, and to be compared with records like them."""
    if rows.nnz > MAX_NEIGHBOUR_ENTRIES:
        return False
    sharing = np.bincount(rows.indices, minlength=rows.shape[1]).astype(np.float64)
    return bool((sharing**2).sum() <= MAX_NEIGHBOUR_WORK * rows.shape[0])


@dataclass(frozen=True)
class Neighbours:
    """Votes of the nearest training records, each with the weight exp(sharpness * cosine) - 1."""

    values: ndarray
    """Values of the training rows (CSR): stored as float16, compared as float32."""
    columns: ndarray
    offsets: ndarray
    answers: ndarray
    """Targets of the training records: classes, rows of zeros and ones, or standardised numbers."""
    width: int
    sharpness: float
    temperature: float = 1.0

    @classmethod
    def fit(cls, rows: Any, answers: ndarray, target: RecordTarget, sharpness: float) -> Neighbours:
        """Store sparse training rows of norm one and their targets."""
        stored = target.standardised(answers).astype(np.float32) if isinstance(target, Regression) else answers
        stored = (stored > 0.5).astype(np.uint8) if isinstance(target, MultiLabel) else stored
        columns, offsets = rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
        return cls(rows.data.astype(np.float16), columns, offsets, stored, rows.shape[1], sharpness)

    def sharpened(self, sharpness: float) -> Neighbours:
        return replace(self, sharpness=sharpness)

    def cooled(self, temperature: float, target: RecordTarget) -> Neighbours:
        """Divide the log-odds by a temperature."""
        return replace(self, temperature=self.temperature * temperature)

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """Scores of shape (rows, outputs), including class weights; `as_outputs` converts them."""
        return self.voted(*self.nearest(rows), target)

    def voted(self, indices: ndarray, cosines: ndarray, target: RecordTarget) -> ndarray:
        """Scores from the indices and cosines of the nearest records."""
        scores = self._votes(indices, cosines, target)
        if isinstance(target, Regression):
            return scores
        scores = scores / self.temperature - unweighting(target)
        if isinstance(target, MultiLabel):  # labels that all training records have, or none
            scores[:, self.answers.min(axis=0) == 1] = CERTAIN_LOG_ODDS
            scores[:, self.answers.max(axis=0) == 0] = -CERTAIN_LOG_ODDS
        return np.asarray(scores)

    def _votes(self, indices: ndarray, cosines: ndarray, target: RecordTarget) -> ndarray:
        """Log-odds without class weights, or numbers."""
        votes = np.expm1(self.sharpness * cosines.astype(np.float64))
        if isinstance(target, Regression):
            total = (votes * self.answers[indices]).sum(axis=1, keepdims=True)
            return np.asarray(total / (1 + votes.sum(axis=1, keepdims=True)))
        if isinstance(target, MultiLabel):
            hits = self.answers[indices].astype(np.float64)
            yes = (votes[:, :, None] * hits).sum(axis=1)
            no = (votes[:, :, None] * (1 - hits)).sum(axis=1)
            return np.asarray(np.log(1 + yes) - np.log(1 + no))
        return self._classes(indices, votes, target)

    def _classes(self, indices: ndarray, votes: ndarray, target: Classification) -> ndarray:
        cells = self.answers[indices] + np.arange(len(indices))[:, None] * target.outputs
        total = np.bincount(cells.ravel(), weights=votes.ravel(), minlength=len(indices) * target.outputs)
        scores = np.log(total.reshape(len(indices), -1) + 1)
        scores[:, self._absent(target)] = ABSENT_SCORE
        return scores

    def nearest(self, rows: Any) -> tuple[ndarray, ndarray]:
        """Indices of the `NEAREST` training records of each row, and their cosines."""
        count = min(NEAREST, len(self.answers))
        indices, cosines = [np.empty((0, count), np.int64)], [np.empty((0, count), np.float32)]
        for start in range(0, rows.shape[0], CHUNK_ROWS):
            similarities = (rows[start : start + CHUNK_ROWS] @ self._transposed).toarray()
            indices.append(np.sort(np.argpartition(-similarities, count - 1, axis=1)[:, :count], axis=1))
            cosines.append(np.take_along_axis(similarities, indices[-1], axis=1))
        return np.concatenate(indices), np.concatenate(cosines)

    def _absent(self, target: Classification) -> ndarray:
        return np.asarray(np.bincount(self.answers, minlength=target.outputs) == 0)

    @cached_property
    def _transposed(self) -> Any:
        """The transposed training rows."""
        from scipy.sparse import csr_matrix

        shape = len(self.offsets) - 1, self.width
        return csr_matrix((self.values.astype(np.float32), self.columns, self.offsets), shape).T.tocsr()


TREE_COUNTS = (25, 50, 100, 200)
"""Candidate numbers of trees of each output."""
LEAVES, BINS, LEARNING_RATE, FEATURE_SHARE, PENALTY = 8, 64, 0.1, 0.3, 1.0
"""Settings of a tree: maximum number of leaves and of thresholds of a feature, learning rate, share of the features
that are candidates of a split, and L2 penalty."""
MIN_TREE_RECORDS = 256
"""Minimum number of training records: fewer cannot fill the leaves."""
MAX_WORK = 3_000_000_000
"""Maximum of trees times features times records (and bins of the leaves): about a minute."""


@dataclass(frozen=True)
class Trees:
    """Boosted trees. The nodes of all trees are in one array; a leaf is its own child."""

    feature: ndarray
    """Feature that each node compares, int32."""
    threshold: ndarray
    """A record goes left at a node if its feature is at most this, float64."""
    left: ndarray
    right: ndarray
    """Indices of the children, int32: larger than the parent's, or equal for a leaf."""
    value: ndarray
    """Value of each leaf, float32."""
    roots: ndarray
    """Indices of the root nodes, of shape (trees, columns), int32."""
    base: ndarray
    """Score of each column before the first tree, float32."""
    known: ndarray
    """Classes with training records, int64, one for each column; two classes share one column, the score of the
    second. For numbers it is [0]."""
    temperature: float = 1.0

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """Scores of shape (rows, outputs), including class weights; `as_outputs` converts them."""
        total = self._sums(np.asarray(rows, np.float32))
        if isinstance(target, Regression):
            return total
        if len(self.known) > total.shape[1]:
            total = np.concatenate([np.zeros_like(total), total], axis=1)
        scores = np.full((len(total), target.outputs), ABSENT_SCORE)
        scores[:, self.known] = total / self.temperature
        return np.asarray(scores - unweighting(target))

    def cooled(self, temperature: float, target: RecordTarget) -> Trees:
        """Divide the log-odds by a temperature."""
        return replace(self, temperature=self.temperature * temperature)

    def _sums(self, rows: ndarray) -> ndarray:
        record = np.arange(len(rows))[:, None]
        node, previous = np.tile(self.roots.ravel(), (len(rows), 1)), None
        while previous is None or (node != previous).any():
            previous = node
            goes_left = rows[record, self.feature[node]] <= self.threshold[node]
            node = np.where(goes_left, self.left[node], self.right[node])
        values = self.value[node].reshape(len(rows), *self.roots.shape)
        total = np.tile(self.base.astype(np.float64), (len(rows), 1))
        for tree in range(len(self.roots)):  # always in this order, so that other rows do not matter
            total += values[:, tree]
        return total


def fit_trees(rows: ndarray, answers: ndarray, target: Regression | Classification) -> Iterator[Trees]:
    """Fit models with increasing numbers of trees, each an extension of the previous one, up to `MAX_WORK`.

    >>> rows = np.linspace(-1, 1, 400, dtype=np.float32)[:, None]
    >>> *_, model = fit_trees(rows, np.abs(rows[:, 0]), Regression())
    >>> model.scores(np.array([[-0.5], [0.0]], np.float32), Regression()).round(1).tolist()
    [[0.5], [0.0]]
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    is_regression = isinstance(target, Regression)
    known = np.zeros(1, np.int64) if is_regression else np.unique(answers).astype(np.int64)
    if len(rows) < MIN_TREE_RECORDS or (not is_regression and len(known) < 2):
        return
    columns = 1 if is_regression or len(known) == 2 else len(known)
    y = target.standardised(answers) if isinstance(target, Regression) else answers
    estimator = HistGradientBoostingRegressor if is_regression else HistGradientBoostingClassifier
    model = estimator(
        learning_rate=LEARNING_RATE,
        max_leaf_nodes=LEAVES,
        max_bins=BINS,
        max_features=FEATURE_SHARE,
        l2_regularization=PENALTY,
        early_stopping=False,
        warm_start=True,
        random_state=0,
    )
    for count in TREE_COUNTS:
        if count * columns * rows.shape[1] * (len(rows) + LEAVES * BINS) > MAX_WORK:
            return
        model.set_params(max_iter=count).fit(rows, y)
        yield _arrays(model, known)


def _arrays(model: Any, known: ndarray) -> Trees:
    """Read the trees from private attributes of the scikit-learn model."""
    trees = [[tree.nodes for tree in step_trees] for step_trees in model._predictors]
    sizes = np.array([[len(nodes) for nodes in step_trees] for step_trees in trees])
    roots = (np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape)
    nodes = np.concatenate([nodes for step_trees in trees for nodes in step_trees])
    indices, start = np.arange(len(nodes)), np.repeat(roots.ravel(), sizes.ravel())
    is_leaf = nodes["is_leaf"].astype(bool)
    return Trees(
        np.where(is_leaf, 0, nodes["feature_idx"]).astype(np.int32),
        np.where(is_leaf, 0, nodes["num_threshold"]).astype(np.float64),
        np.where(is_leaf, indices, start + nodes["left"]).astype(np.int32),
        np.where(is_leaf, indices, start + nodes["right"]).astype(np.int32),
        np.where(is_leaf, nodes["value"], 0).astype(np.float32),
        roots.astype(np.int32),
        np.asarray(model._baseline_prediction, np.float32).ravel(),
        known,
    )
