"""Metrics as formulas on arrays: fast, since every bootstrap sample of every length bin asks for them.

Where a number is not defined, such as an area with one class alone, it is NaN.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray


def areas(scores: ndarray, positive: ndarray) -> tuple[ndarray, ndarray]:
    """ROC-AUC, ties counting half, and average precision of each row of scores.

    >>> roc, precision = areas(np.array([[0.9, 0.8, 0.3]]), np.array([[True, False, True]]))
    >>> roc.tolist(), precision.round(3).tolist()
    ([0.5], [0.833])
    """
    order = np.argsort(-scores, axis=1)
    ranked = np.take_along_axis(scores, order, axis=1)
    hits = np.cumsum(np.take_along_axis(positive, order, axis=1), axis=1, dtype=np.int64)
    places = np.arange(1, scores.shape[1] + 1)
    before = np.zeros((len(scores), places[-1] + 1), np.int64)
    before[:, 1:] = hits
    misses_before = np.append(0, places) - before
    if (tied := ranked[:, 1:] == ranked[:, :-1]).any():  # a run of ties counts as one step, at its last place
        for count in (before, misses_before):
            count[:, 1:-1][tied] = 0
            np.maximum.accumulate(count, axis=1, out=count)
    gained, missed = np.diff(before, axis=1), np.diff(misses_before, axis=1)
    positives, negatives = before[:, -1], misses_before[:, -1]
    above = (missed * (before[:, :-1] + before[:, 1:])).sum(axis=1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return above / (positives * negatives), (gained * before[:, 1:] / places).sum(axis=1) / positives


def log_odds(outputs: ndarray) -> ndarray:
    """Of each class against the rest: ranks like its probability, without rounding to 0 or 1."""
    if outputs.shape[1] == 2:
        return (outputs - outputs[:, ::-1]).astype(np.float64)
    rows, top = np.arange(len(outputs)), outputs.argmax(axis=1)
    shifted = outputs - outputs[rows, top, None].astype(np.float64)
    others = shifted.copy()
    others[rows, top] = -np.inf
    second = others.max(axis=1)
    each = np.exp(others)
    odds = shifted - np.log1p(each.sum(axis=1, keepdims=True) - each)
    odds[rows, top] = -second - np.log(np.exp(others - second[:, None]).sum(axis=1))
    return odds


def log_loss(outputs: ndarray, targets: ndarray) -> float:
    """The mean of -log probability of the true class."""
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    return float((np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), targets]).mean())


def confusion(answers: ndarray, targets: ndarray, classes: int) -> ndarray:
    """How often each true class (row) got each answer (column)."""
    return np.bincount(targets * classes + answers, minlength=classes * classes).reshape(classes, classes)


def of_confusion(table: ndarray) -> dict[str, float]:
    """Balanced accuracy, F1 as a mean over classes, and Matthews' correlation.

    >>> of_confusion(np.array([[3, 1], [0, 4]]))["balanced_accuracy"]
    0.875
    """
    table = table.astype(np.float64)
    hits, true, answered, total = np.diagonal(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    seen, either = true > 0, true + answered > 0
    spread = (total**2 - (answered**2).sum()) * (total**2 - (true**2).sum())
    return {
        "balanced_accuracy": float((hits[seen] / true[seen]).mean()),
        "f1_macro": float((2 * hits[either] / (true + answered)[either]).mean()),
        "mcc": float((hits.sum() * total - answered @ true) / np.sqrt(spread)) if spread > 0 else 0.0,
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
    """Correlation of the ranks, equal values sharing the mean of theirs, where both vary.

    >>> spearman(np.array([1.0, 10.0, 100.0, 100.0]), np.array([1.0, 2.0, 3.0, 3.0]))
    1.0
    """
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


def mean_of_known(values: ndarray) -> float:
    """The mean of those that are not NaN, if any.

    >>> mean_of_known(np.array([0.5, float("nan"), 1.0]))
    0.75
    """
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
