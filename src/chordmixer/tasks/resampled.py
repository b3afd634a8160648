"""The metrics of a target over many resamples of the same records at once.

A resample is a row of weights: how often each record was drawn. What does not depend on the draw, such as the order
of the scores, is worked out once.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from chordmixer.tasks import scores
from chordmixer.tasks.targets import Classification, MultiLabel, Target


def resampled(target: Target, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
    """What `target.metrics` gives of each resample; NaN where a metric is not defined.

    >>> target, outputs = Classification(["no", "yes"], [0, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    >>> found = resampled(target, outputs, np.array([0, 1, 0]), np.array([[1.0, 1.0, 1.0], [0.0, 3.0, 0.0]]))
    >>> found["accuracy"].round(2).tolist(), found["roc_auc"].tolist()
    ([0.67, 1.0], [0.5, nan])
    """
    if isinstance(target, Classification):
        return _classes(target, outputs, targets, weights)
    if isinstance(target, MultiLabel):
        return _labels(target, outputs, targets, weights)
    drawn = (np.repeat(np.arange(len(row)), row.astype(np.int64)) for row in weights)
    samples = [target.metrics(outputs[rows], targets[rows]) for rows in drawn]
    return {name: np.array([sample[name] for sample in samples]) for name in samples[0]}


def _classes(target: Classification, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
    answers, outputs = target.decided(outputs), target.unweighted(outputs)
    right, total = answers == targets, weights.sum(axis=1)
    classes = range(1, 2) if target.outputs == 2 else range(target.outputs)
    odds = scores.log_odds(outputs)
    roc, precision = _areas(odds.T[classes.start :], np.array([targets == k for k in classes]), weights)
    hits, true, answered = (
        _by_class(own, codes, target.outputs)
        for own, codes in ((weights * right, targets), (weights, targets), (weights, answers))
    )
    return {
        "accuracy": weights @ right / total,
        "roc_auc": scores.means_of_known(roc.T),
        **({"average_precision": precision[0]} if target.outputs == 2 else {}),
        **scores.of_sums(hits, true, answered),
        "log_loss": weights @ scores.log_losses(outputs, targets) / total,
    }


def _labels(target: MultiLabel, outputs: ndarray, targets: ndarray, weights: ndarray) -> dict[str, ndarray]:
    true, answers = targets > 0.5, target.decided(outputs)
    roc, precision = _areas(target.unweighted(outputs).T, true.T, weights)
    hits, answered, existing = weights @ (true & answers), weights @ answers, weights @ true
    both = answered + existing
    return {
        "roc_auc": scores.means_of_known(roc.T),
        "average_precision": scores.means_of_known(precision.T),
        "accuracy": weights @ (true == answers).all(axis=1) / weights.sum(axis=1),
        "f1_micro": 2 * hits.sum(axis=1) / np.maximum(both.sum(axis=1), 1),
        "f1_macro": (2 * hits / np.maximum(both, 1)).mean(axis=1),
    }


def _areas(rows: ndarray, positive: ndarray, weights: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC and average precision, a row a class or label and a column a resample."""
    found = [scores.weighted_areas(own, true, weights) for own, true in zip(rows, positive, strict=True)]
    return np.array([roc for roc, _ in found]), np.array([precision for _, precision in found])


def _by_class(weights: ndarray, codes: ndarray, classes: int) -> ndarray:
    """The sum of the weights of each class, a row a resample."""
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    sums = np.zeros((len(weights), classes))
    sums[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums
