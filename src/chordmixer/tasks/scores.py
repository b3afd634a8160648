"""Metrics as formulas on arrays: fast, since every bootstrap sample of every length bin asks for them.

Where a number is not defined, such as an area with one class alone, it is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

SHARES = {"accuracy", "average_precision", "balanced_accuracy", "f1_macro", "f1_micro", "roc_auc"}
"""Metrics that lie between 0 and 1."""
BY_CLASS = {"average_precision", "balanced_accuracy", "f1_macro", "mcc", "roc_auc"}
"""Metrics that a rare class or label decides as much as a frequent one."""

PAIRS = 4_000_000
"""Pairs of records that are compared at a time."""


def areas(rows: ndarray, positive: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC, ties counting half, and average precision of each row of scores."""
    once = np.ones((1, rows.shape[1]))
    found = [weighted_areas(own, true, once) for own, true in zip(rows, positive, strict=True)]
    return np.array([roc[0] for roc, _ in found]), np.array([precision[0] for _, precision in found])


def weighted_areas(scores: ndarray, positive: ndarray, weights: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC and average precision of the same scores, once for each row of weights: the scores are sorted once.

    A weight is how often a record was drawn.

    >>> scores, positive = np.array([0.9, 0.8, 0.3]), np.array([True, False, True])
    >>> weighted_areas(scores, positive, np.array([[1, 1, 1], [2, 1, 0]]))[0].tolist()
    [0.5, 1.0]
    """
    order = np.argsort(-scores)
    ranked, places = scores[order], np.flatnonzero(positive[order])
    first, last = (np.searchsorted(-ranked, -ranked[places], side=side) for side in ("left", "right"))
    called = np.cumsum(np.take(weights, order, axis=1), axis=1, dtype=np.float64)
    found = np.take(weights, order[places], axis=1).astype(np.float64)
    hits = np.cumsum(found, axis=1)
    positives, negatives = found.sum(axis=1), called[:, -1] - found.sum(axis=1)
    if (last - first > 1).any():  # a run of ties counts as one step
        hits_before, hits = (_before(hits, np.searchsorted(places, ends)) for ends in (first, last))
        before, called = (_before(called, ends) for ends in (first, last))
    else:
        called = called[:, places]
        hits_before, before = hits - found, called - found
    below = negatives[:, None] - (called - hits + before - hits_before) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (found * below).sum(axis=1) / (positives * negatives)
        return roc, (found * hits / np.maximum(called, 1)).sum(axis=1) / positives


def areas_of_many(scores: ndarray, targets: ndarray, weights: ndarray) -> ndarray:
    """ROC-AUC of each class (row) against the rest for each row of weights (column), by comparing pairs of records.

    A record is positive for one class alone, so that all classes together are one matrix product. That is faster than
    to sort the records once per class where classes are many: 1,195 classes of 718 records take a hundredth of the
    time. A row of `scores` is a record, a column a class.

    >>> areas_of_many(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.1]]), np.array([0, 1, 1]), np.ones((1, 3))).tolist()
    [[1.0], [0.75]]
    """
    sums = np.zeros((len(weights), scores.shape[1]))
    rows = max(1, PAIRS // len(targets))
    for start in range(0, len(targets), rows):
        own = targets[start : start + rows]
        others = scores[:, own].T
        mine = scores[np.arange(start, start + len(own)), own][:, None]
        below = np.where(own[:, None] == targets, 0.0, (others < mine) + (others == mine) / 2)
        found = weights[:, start : start + rows] * (weights @ below.T)
        sums += sums_by_class(found, own, scores.shape[1])
    positives = sums_by_class(weights, targets, scores.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums / (positives * (weights.sum(axis=1, keepdims=True) - positives))).T)


def sums_by_class(weights: ndarray, codes: ndarray, classes: int) -> ndarray:
    """The sum of the weights of each class, one row per resample."""
    order = np.argsort(codes, kind="stable")
    present, starts = np.unique(codes[order], return_index=True)
    sums = np.zeros((len(weights), classes))
    sums[:, present] = np.add.reduceat(weights[:, order], starts, axis=1)
    return sums


def _before(sums: ndarray, places: ndarray) -> ndarray:
    """Running sums up to, and without, these columns."""
    return np.where(places > 0, sums[:, places - 1], 0.0) if sums.shape[1] else sums


def log_odds(outputs: ndarray) -> ndarray:
    """Log-odds of each class against the rest: they rank like its probability, without rounding to 0 or 1."""
    if outputs.shape[1] == 2:
        return np.asarray(outputs - outputs[:, ::-1], np.float64)
    rows, top = np.arange(len(outputs)), outputs.argmax(axis=1)
    shifted = outputs - outputs[rows, top, None].astype(np.float64)
    others = shifted.copy()
    others[rows, top] = -np.inf
    second = others.max(axis=1)
    each = np.exp(others)
    odds = shifted - np.log1p(each.sum(axis=1, keepdims=True) - each)
    odds[rows, top] = -second - np.log(np.exp(others - second[:, None]).sum(axis=1))
    return np.asarray(odds)


def log_losses(outputs: ndarray, targets: ndarray) -> ndarray:
    """-log probability of the true class, of each record."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), targets])


def confusion(answers: ndarray, targets: ndarray, classes: int) -> ndarray:
    """How often each true class (row) got each answer (column)."""
    return np.bincount(targets * classes + answers, minlength=classes * classes).reshape(classes, classes)


def of_counts(hits: ndarray, true: ndarray, answered: ndarray) -> dict[str, ndarray]:
    """Balanced accuracy, F1 as a mean over classes, and Matthews' correlation.

    The counts are the hits, records and predictions of each class (last axis).
    """
    hits, true, answered = (counts.astype(np.float64) for counts in (hits, true, answered))
    total, seen, either = true.sum(axis=-1), true > 0, true + answered > 0
    recall = np.divide(hits, true, out=np.zeros_like(hits), where=seen)
    f1 = np.divide(2 * hits, true + answered, out=np.zeros_like(hits), where=either)
    spread = (total**2 - (answered**2).sum(axis=-1)) * (total**2 - (true**2).sum(axis=-1))
    agreement = hits.sum(axis=-1) * total - (answered * true).sum(axis=-1)
    return {
        "balanced_accuracy": recall.sum(axis=-1) / seen.sum(axis=-1),
        "f1_macro": f1.sum(axis=-1) / either.sum(axis=-1),
        "mcc": np.where(spread > 0, agreement / np.sqrt(np.where(spread > 0, spread, 1)), 0.0),
    }


def explained(answers: ndarray, targets: ndarray) -> float:
    """The share of the targets' variance that the answers explain, R^2: one at best, zero for the mean.

    Rounded to what float32 answers carry, so that the mean for all has 0 and not -7e-9.
    """
    variance = targets.var(dtype=np.float64)
    if not variance > 0:
        return float("nan")
    return round(float(1 - ((answers - targets) ** 2).mean(dtype=np.float64) / variance), 7) + 0.0


def pearson(answers: ndarray, targets: ndarray) -> float:
    """Correlation, where both vary."""
    one, other = answers - answers.mean(dtype=np.float64), targets - targets.mean(dtype=np.float64)
    length = np.sqrt((one**2).sum() * (other**2).sum())
    return float((one * other).sum() / length) if length > 0 else float("nan")


def spearman(answers: ndarray, targets: ndarray) -> float:
    """Correlation of the ranks, equal values sharing the mean of theirs, where both vary."""
    return pearson(_ranks(answers), _ranks(targets))


def _ranks(values: ndarray) -> ndarray:
    """From 1, equal values with the mean of theirs; a third faster than by `np.unique`."""
    order = np.argsort(values)
    ranked = values[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    ends = np.append(starts[1:], len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return ranks


def mean_of_known(values: ndarray) -> ndarray:
    """The mean over the last axis of the values that are not NaN, if any."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0).sum(axis=-1) / known.sum(axis=-1))
