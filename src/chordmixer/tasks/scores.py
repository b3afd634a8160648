"""Metrics as formulas on arrays: fast, since they are computed for every bootstrap sample of every length bin.

A metric that is not defined, such as an area under the curve with a single class, is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

SHARES = {"accuracy", "average_precision", "balanced_accuracy", "f1_macro", "f1_micro", "roc_auc"}
"""Metrics that lie between 0 and 1."""
BY_CLASS = {"average_precision", "balanced_accuracy", "f1_macro", "mcc", "roc_auc"}
"""Metrics to which a rare class or label contributes as much as a frequent one."""

MAX_PAIRS = 4_000_000
"""Maximum pairs of records that are compared at a time, which bounds the memory."""


def areas(rows: ndarray, positive: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC, with ties counted half, and average precision of each row of scores."""
    once = np.ones((1, rows.shape[1]))
    pairs = [weighted_areas(scores, true, once) for scores, true in zip(rows, positive, strict=True)]
    return np.array([roc[0] for roc, _ in pairs]), np.array([precision[0] for _, precision in pairs])


def weighted_areas(scores: ndarray, positive: ndarray, weights: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC and average precision of the same scores for each row of weights; the scores are sorted only once.

    A weight is the number of times a record was drawn.

    >>> scores, positive = np.array([0.9, 0.8, 0.3]), np.array([True, False, True])
    >>> weighted_areas(scores, positive, np.array([[1, 1, 1], [2, 1, 0]]))[0].tolist()
    [0.5, 1.0]
    """
    order = np.argsort(-scores)
    ranked, places = scores[order], np.flatnonzero(positive[order])
    first, last = (np.searchsorted(-ranked, -ranked[places], side=side) for side in ("left", "right"))
    predicted = np.cumsum(np.take(weights, order, axis=1), axis=1, dtype=np.float64)
    true_weights = np.take(weights, order[places], axis=1).astype(np.float64)
    hits = np.cumsum(true_weights, axis=1)
    positives, negatives = true_weights.sum(axis=1), predicted[:, -1] - true_weights.sum(axis=1)
    if (last - first > 1).any():  # ties are a single step of the curve
        hits_before, hits = (_sums_before(hits, np.searchsorted(places, ends)) for ends in (first, last))
        before, predicted = (_sums_before(predicted, ends) for ends in (first, last))
    else:
        predicted = predicted[:, places]
        hits_before, before = hits - true_weights, predicted - true_weights
    below = negatives[:, None] - (predicted - hits + before - hits_before) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        roc = (true_weights * below).sum(axis=1) / (positives * negatives)
        return roc, (true_weights * hits / np.maximum(predicted, 1)).sum(axis=1) / positives


def areas_of_many(scores: ndarray, targets: ndarray, weights: ndarray) -> ndarray:
    """ROC-AUC of each class (row) against the rest for each row of weights (column), by comparing pairs of records.

    Each record is positive for one class only, so that all classes together are one matrix product. For many classes
    that is faster than sorting the records once per class: 1,195 classes of 718 records take a hundredth of the time.
    `scores` has a row per record and a column per class.

    >>> areas_of_many(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.1]]), np.array([0, 1, 1]), np.ones((1, 3))).tolist()
    [[1.0], [0.75]]
    """
    sums = np.zeros((len(weights), scores.shape[1]))
    rows = max(1, MAX_PAIRS // len(targets))
    for start in range(0, len(targets), rows):
        classes = targets[start : start + rows]
        others = scores[:, classes].T
        positive = scores[np.arange(start, start + len(classes)), classes][:, None]
        below = np.where(classes[:, None] == targets, 0.0, (others < positive) + (others == positive) / 2)
        wins = weights[:, start : start + rows] * (weights @ below.T)
        sums += sums_by_class(wins, classes, scores.shape[1])
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


def _sums_before(sums: ndarray, places: ndarray) -> ndarray:
    """Cumulative sums before these columns."""
    return np.where(places > 0, sums[:, places - 1], 0.0) if sums.shape[1] else sums


def log_odds(outputs: ndarray) -> ndarray:
    """Log-odds of each class against the rest. They rank like probabilities, but are not rounded to 0 or 1."""
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
    """The negative log probability of the true class of each record."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), targets])


def confusion(predictions: ndarray, targets: ndarray, classes: int) -> ndarray:
    """The confusion matrix: counts by true class (row) and predicted class (column)."""
    return np.bincount(targets * classes + predictions, minlength=classes * classes).reshape(classes, classes)


def of_counts(hits: ndarray, true: ndarray, predicted: ndarray) -> dict[str, ndarray]:
    """Balanced accuracy, macro-averaged F1, and Matthews' correlation coefficient.

    The arguments are the numbers of hits, records and predictions of each class (last axis).
    """
    hits, true, predicted = (counts.astype(np.float64) for counts in (hits, true, predicted))
    total, seen, either = true.sum(axis=-1), true > 0, true + predicted > 0
    recall = np.divide(hits, true, out=np.zeros_like(hits), where=seen)
    f1 = np.divide(2 * hits, true + predicted, out=np.zeros_like(hits), where=either)
    spread = (total**2 - (predicted**2).sum(axis=-1)) * (total**2 - (true**2).sum(axis=-1))
    agreement = hits.sum(axis=-1) * total - (predicted * true).sum(axis=-1)
    return {
        "balanced_accuracy": recall.sum(axis=-1) / seen.sum(axis=-1),
        "f1_macro": f1.sum(axis=-1) / either.sum(axis=-1),
        "mcc": np.where(spread > 0, agreement / np.sqrt(np.where(spread > 0, spread, 1)), 0.0),
    }


def explained(predictions: ndarray, targets: ndarray) -> float:
    """R^2, the share of the targets' variance that predictions explain: 1 at best, 0 for the constant mean.

    It is rounded to float32 precision, so that a constant prediction of the mean has 0 and not -7e-9.
    """
    variance = targets.var(dtype=np.float64)
    if not variance > 0:
        return float("nan")
    return round(float(1 - ((predictions - targets) ** 2).mean(dtype=np.float64) / variance), 7) + 0.0


def pearson(predictions: ndarray, targets: ndarray) -> float:
    """Pearson's correlation; NaN if one of both is constant."""
    x, y = predictions - predictions.mean(dtype=np.float64), targets - targets.mean(dtype=np.float64)
    norm = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / norm) if norm > 0 else float("nan")


def spearman(predictions: ndarray, targets: ndarray) -> float:
    """Spearman's rank correlation; ties have the mean of their ranks; NaN if one of both is constant."""
    return pearson(_ranks(predictions), _ranks(targets))


def _ranks(values: ndarray) -> ndarray:
    """Ranks from 1; ties have the mean of their ranks. A third faster than with `np.unique`."""
    order = np.argsort(values)
    ranked = values[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    ends = np.append(starts[1:], len(values))
    ranks = np.empty(len(values))
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    return ranks


def mean_of_known(values: ndarray) -> ndarray:
    """The mean over the last axis of the values that are not NaN; NaN if all are."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, values, 0).sum(axis=-1) / known.sum(axis=-1))
