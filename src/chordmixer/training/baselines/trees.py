"""Gradient-boosted trees on standardised features: fitted by scikit-learn, kept as arrays, evaluated here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.linear import ABSENT, AnyTarget, unweighting

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

    def scores(self, rows: Any, target: AnyTarget) -> ndarray:
        """In the model's layout, class weights included, before `as_outputs`."""
        total = self._sums(np.asarray(rows, np.float32))
        if isinstance(target, Regression):
            return total
        if len(self.known) > total.shape[1]:
            total = np.concatenate([np.zeros_like(total), total], axis=1)
        scores = np.full((len(total), target.outputs), ABSENT)
        scores[:, self.known] = total / self.temperature
        return scores - unweighting(target)

    def cooled(self, temperature: float, target: AnyTarget) -> Trees:
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
