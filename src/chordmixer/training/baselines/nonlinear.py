"""Nonlinear models on rows of features: kernel ridge regression, nearest neighbours, gradient-boosted trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.linear import ABSENT, CERTAIN, unweighting
from chordmixer.training.labels import RecordTarget

KERNEL_RECORDS = 4096
"""Most training records: the fit takes their square in memory, and their cube in time."""
WIDTHS = (0.1, 0.3, 1.0)
"""Of the kernel, to choose from: in units of one over the number of features."""
PENALTIES = (3.0, 1.0, 0.3)


@dataclass(frozen=True)
class Kernel:
    """A sum of Gaussians, exp(-width * squared distance), one around each training record."""

    centres: ndarray
    """Rows of the training records, float32."""
    heights: ndarray
    """Of each Gaussian, float32."""
    width: float

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """One number per row."""
        from scipy.sparse import csr_matrix

        # unlike BLAS, scipy sums a row in the order of its columns, independent of the other rows
        own = rows.astype(np.float64)
        products = np.asarray(csr_matrix(own) @ self._transposed)
        distances = (own**2).sum(axis=1)[:, None] + (self._transposed**2).sum(axis=0) - 2 * products
        gaussians = csr_matrix(np.exp(-self.width * np.maximum(distances, 0)))
        return np.asarray(gaussians @ self.heights.astype(np.float64))[:, None]

    @cached_property
    def _transposed(self) -> ndarray:
        return np.ascontiguousarray(self.centres.T, dtype=np.float64)


def fit_kernel(
    rows: ndarray,
    answers: ndarray,
    target: Regression,
    widths: Sequence[float] = WIDTHS,
    penalties: Sequence[float] = PENALTIES,
) -> Iterator[Kernel]:
    """A model for each width and penalty.

    >>> rows = np.linspace(-2, 2, 50, dtype=np.float32)[:, None]
    >>> *_, model = fit_kernel(rows, rows[:, 0] ** 2, Regression(), (1.0,), (0.01,))
    >>> model.scores(np.array([[1.5]], np.float32), Regression()).round(1).tolist()
    [[2.3]]
    """
    own = rows.astype(np.float64)
    lengths = (own**2).sum(axis=1)
    distances = np.maximum(lengths[:, None] + lengths - 2 * own @ own.T, 0)
    known = np.asarray(target.standardised(answers), np.float64)
    for width in widths:
        gaussians = np.exp(-width / rows.shape[1] * distances)
        for penalty in penalties:
            heights = np.linalg.solve(gaussians + penalty * np.eye(len(gaussians)), known)
            yield Kernel(rows.astype(np.float32), heights.astype(np.float32), width / rows.shape[1])


NEAREST = 50
"""Training records that vote."""
NEIGHBOUR_ENTRIES = 9_000_000
"""Most entries of the stored matrix: 54 MB. Larger training parts have no neighbours."""
ROWS = 512
"""Records that are compared with the training records at a time."""


@dataclass(frozen=True)
class Neighbours:
    """Votes of the nearest training records, each with the weight exp(sharpness * cosine) - 1."""

    values: ndarray
    """Of the training rows (CSR): stored as float16, compared as float32."""
    columns: ndarray
    offsets: ndarray
    answers: ndarray
    """Targets of the training records: classes, rows of zeros and ones, or standardised numbers."""
    width: int
    sharpness: float
    temperature: float = 1.0

    @classmethod
    def fit(cls, rows: Any, answers: ndarray, target: RecordTarget, sharpness: float) -> Neighbours:
        """From sparse training rows of length one."""
        known = target.standardised(answers).astype(np.float32) if isinstance(target, Regression) else answers
        known = (known > 0.5).astype(np.uint8) if isinstance(target, MultiLabel) else known
        columns, offsets = rows.indices.astype(np.int32), rows.indptr.astype(np.int64)
        return cls(rows.data.astype(np.float16), columns, offsets, known, rows.shape[1], sharpness)

    def sharpened(self, sharpness: float) -> Neighbours:
        return replace(self, sharpness=sharpness)

    def cooled(self, temperature: float, target: RecordTarget) -> Neighbours:
        """With the log-odds divided by a temperature."""
        return replace(self, temperature=self.temperature * temperature)

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """In the model's layout, class weights included, before `as_outputs`."""
        return self.voted(*self.nearest(rows), target)

    def voted(self, near: ndarray, cosines: ndarray, target: RecordTarget) -> ndarray:
        """The scores from the nearest records."""
        scores = self._votes(near, cosines, target)
        if isinstance(target, Regression):
            return scores
        scores = scores / self.temperature - unweighting(target)
        if isinstance(target, MultiLabel):  # what all training records have, or none
            scores[:, self.answers.min(axis=0) == 1] = CERTAIN
            scores[:, self.answers.max(axis=0) == 0] = -CERTAIN
        return np.asarray(scores)

    def _votes(self, near: ndarray, cosines: ndarray, target: RecordTarget) -> ndarray:
        """Log-odds without class weights, or numbers."""
        votes = np.expm1(self.sharpness * cosines.astype(np.float64))
        if isinstance(target, Regression):
            total = (votes * self.answers[near]).sum(axis=1, keepdims=True)
            return np.asarray(total / (1 + votes.sum(axis=1, keepdims=True)))
        if isinstance(target, MultiLabel):
            hits = self.answers[near].astype(np.float64)
            yes = (votes[:, :, None] * hits).sum(axis=1)
            no = (votes[:, :, None] * (1 - hits)).sum(axis=1)
            return np.asarray(np.log(1 + yes) - np.log(1 + no))
        return self._classes(near, votes, target)

    def _classes(self, near: ndarray, votes: ndarray, target: Classification) -> ndarray:
        place = self.answers[near] + np.arange(len(near))[:, None] * target.outputs
        total = np.bincount(place.ravel(), weights=votes.ravel(), minlength=len(near) * target.outputs)
        scores = np.log(total.reshape(len(near), -1) + 1)
        scores[:, self._absent(target)] = ABSENT
        return scores

    def nearest(self, rows: Any) -> tuple[ndarray, ndarray]:
        """The numbers of the `NEAREST` training records of each row and their cosines."""
        count = min(NEAREST, len(self.answers))
        near, cosines = [np.empty((0, count), np.int64)], [np.empty((0, count), np.float32)]
        for start in range(0, rows.shape[0], ROWS):
            alike = (rows[start : start + ROWS] @ self._transposed).toarray()
            near.append(np.sort(np.argpartition(-alike, count - 1, axis=1)[:, :count], axis=1))
            cosines.append(np.take_along_axis(alike, near[-1], axis=1))
        return np.concatenate(near), np.concatenate(cosines)

    def _absent(self, target: Classification) -> ndarray:
        return np.asarray(np.bincount(self.answers, minlength=target.outputs) == 0)

    @cached_property
    def _transposed(self) -> Any:
        """The transposed training rows."""
        from scipy.sparse import csr_matrix

        shape = len(self.offsets) - 1, self.width
        return csr_matrix((self.values.astype(np.float32), self.columns, self.offsets), shape).T.tocsr()


STAGES = (25, 50, 100, 200)
"""Trees of each output, to choose from."""
LEAVES, BINS, RATE, SHARE, PENALTY = 8, 64, 0.1, 0.3, 1.0
"""Of a tree: leaves and thresholds of a feature at most, learning rate, share of the features that a split may take,
and L2 penalty."""
FEWEST = 256
"""Training records: fewer fill no leaves."""
WORK = 3_000_000_000
"""Trees times features times records (and bins of the leaves), at most: about a minute."""


@dataclass(frozen=True)
class Trees:
    """Scores that are sums of leaves' values. Nodes of all trees stand in one array; a leaf is its own child."""

    feature: ndarray
    """Of each node, int32."""
    threshold: ndarray
    """Up to which a record goes left, float64."""
    left: ndarray
    right: ndarray
    """Nodes, int32: behind their parent, or itself."""
    value: ndarray
    """Of each leaf, float32."""
    roots: ndarray
    """Shape (trees, columns), int32."""
    base: ndarray
    """What the trees are added to, of each column, float32."""
    known: ndarray
    """The classes that training has, int64, for each column one; of two classes the one column is the second's. Of
    numbers 0."""
    temperature: float = 1.0

    def scores(self, rows: Any, target: RecordTarget) -> ndarray:
        """In the model's layout, class weights included, before `as_outputs`."""
        total = self._sums(np.asarray(rows, np.float32))
        if isinstance(target, Regression):
            return total
        if len(self.known) > total.shape[1]:
            total = np.concatenate([np.zeros_like(total), total], axis=1)
        scores = np.full((len(total), target.outputs), ABSENT)
        scores[:, self.known] = total / self.temperature
        return np.asarray(scores - unweighting(target))

    def cooled(self, temperature: float, target: RecordTarget) -> Trees:
        """With the log-odds divided by a temperature."""
        return replace(self, temperature=self.temperature * temperature)

    def _sums(self, rows: ndarray) -> ndarray:
        record = np.arange(len(rows))[:, None]
        node, before = np.tile(self.roots.ravel(), (len(rows), 1)), None
        while before is None or (node != before).any():
            before = node
            lower = rows[record, self.feature[node]] <= self.threshold[node]
            node = np.where(lower, self.left[node], self.right[node])
        values = self.value[node].reshape(len(rows), *self.roots.shape)
        total = np.tile(self.base.astype(np.float64), (len(rows), 1))
        for tree in range(len(self.roots)):  # in this order, whatever rows stand beside it
            total += values[:, tree]
        return total


def fit_trees(rows: ndarray, answers: ndarray, target: Regression | Classification) -> Iterator[Trees]:
    """A model of more and more trees, each with those of the one before, as far as `WORK` goes.

    >>> rows = np.linspace(-1, 1, 400, dtype=np.float32)[:, None]
    >>> *_, model = fit_trees(rows, np.abs(rows[:, 0]), Regression())
    >>> model.scores(np.array([[-0.5], [0.0]], np.float32), Regression()).round(1).tolist()
    [[0.5], [0.0]]
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    number = isinstance(target, Regression)
    known = np.zeros(1, np.int64) if number else np.unique(answers).astype(np.int64)
    if len(rows) < FEWEST or (not number and len(known) < 2):
        return
    columns = 1 if number or len(known) == 2 else len(known)
    asked = target.standardised(answers) if isinstance(target, Regression) else answers
    kind = HistGradientBoostingRegressor if number else HistGradientBoostingClassifier
    model = kind(
        learning_rate=RATE,
        max_leaf_nodes=LEAVES,
        max_bins=BINS,
        max_features=SHARE,
        l2_regularization=PENALTY,
        early_stopping=False,
        warm_start=True,
        random_state=0,
    )
    for stage in STAGES:
        if stage * columns * rows.shape[1] * (len(rows) + LEAVES * BINS) > WORK:
            return
        model.set_params(max_iter=stage).fit(rows, asked)
        yield _arrays(model, known)


def _arrays(model: Any, known: ndarray) -> Trees:
    """What scikit-learn keeps to itself, as arrays."""
    trees = [[tree.nodes for tree in of_step] for of_step in model._predictors]
    sizes = np.array([[len(nodes) for nodes in of_step] for of_step in trees])
    roots = (np.cumsum(sizes.ravel()) - sizes.ravel()).reshape(sizes.shape)
    nodes = np.concatenate([nodes for of_step in trees for nodes in of_step])
    own, start = np.arange(len(nodes)), np.repeat(roots.ravel(), sizes.ravel())
    leaf = nodes["is_leaf"].astype(bool)
    return Trees(
        np.where(leaf, 0, nodes["feature_idx"]).astype(np.int32),
        np.where(leaf, 0, nodes["num_threshold"]).astype(np.float64),
        np.where(leaf, own, start + nodes["left"]).astype(np.int32),
        np.where(leaf, own, start + nodes["right"]).astype(np.int32),
        np.where(leaf, nodes["value"], 0).astype(np.float32),
        roots.astype(np.int32),
        np.asarray(model._baseline_prediction, np.float32).ravel(),
        known,
    )
