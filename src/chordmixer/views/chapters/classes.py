"""Which classes are taken for which: a confusion matrix, or the most frequent confusions; and labels one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy import ndarray

from chordmixer.tasks import scores
from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.views import charts, metrics
from chordmixer.views.page import Html, figure, join, section, short, table, tag

MATRIX = 20
"""Classes, at most, that a matrix is drawn for."""
PAIRS = 20
LABELS = 200
"""Labels, at most, with a row of their own."""


def chapter(answers: Answers, predictions: Predictions) -> Html:
    if isinstance(answers.target, MultiLabel):
        return section("classes", "Labels", *_labels(answers.target, predictions))
    assert isinstance(answers.target, Classification)
    given = answers.target.decided(predictions.outputs)
    counts = scores.confusion(given, predictions.targets, answers.target.outputs)
    labels = answers.target.labels
    shown = _matrix(labels, counts) if len(labels) <= MATRIX else _pairs(labels, counts)
    right = (given == predictions.targets).mean()
    said = f"{metrics.DECISION} {right:.1%} of the answers are right: the accuracy of the scores table."
    return section("classes", "Confusion", tag("p", said), shown, tag("h3", "Each class"), _each(labels, counts))


def _matrix(labels: list[str], counts: ndarray) -> Html:
    total = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares, cells = counts / total, [[f"{count:,}" for count in row] for row in counts.tolist()]
    told = f"{counts.trace():,} of {counts.sum():,} records are on the diagonal, where answer and truth agree."
    drawn = charts.heat_map(labels, labels, shares, cells, "Confusion matrix", told, ("truth", "answer"))
    rows = [(short(label, 60), *cells[i]) for i, label in enumerate(labels)]
    head = ("truth \\ answer", *(short(label, 60) for label in labels))
    caption = f"A row a true class, a column an answer; the shade is the share of the row. {told}"
    return figure("Confusion matrix", drawn, caption, numbers=table(head, rows, name="confusion matrix"))


def _pairs(labels: list[str], counts: ndarray) -> Html:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs = [divmod(int(place), len(labels)) for place in order if wrong.flat[place]]
    rows = [
        (short(labels[i], 60), short(labels[j], 60), f"{counts[i, j]:,}", f"{counts[i, j] / counts[i].sum():.1%}")
        for i, j in pairs
    ]
    said = f"{len(labels):,} classes are too many for a matrix; these are the most frequent confusions."
    head = ("truth", "answer", "records", "share of the truth's")
    return join([tag("p", said), table(head, rows, words=(0, 1), name="most frequent confusions")])


def _each(labels: list[str], counts: ndarray) -> Html:
    """Recall, precision and F1 of the largest classes."""
    hits, true, called = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    order = np.argsort(-true, kind="stable")
    rows = [(short(labels[k], 60), f"{true[k]:,}", *_ratios(hits[k], true[k], called[k])) for k in order[:LABELS]]
    more = [tag("p", f"{len(labels) - LABELS:,} smaller classes are left out.")] if len(labels) > LABELS else []
    return join([table(("class", "records", "recall", "precision", "F1"), rows, name="each class"), *more])


def _labels(target: MultiLabel, predictions: Predictions) -> Iterator[Html]:
    true = predictions.targets > 0.5
    given = target.decided(predictions.outputs)
    roc, precision = scores.areas(np.ascontiguousarray(predictions.outputs.T), true.T)
    order = np.argsort(-true.sum(axis=0), kind="stable")[:LABELS]
    yield tag("p", metrics.DECISION)
    head = ("label", "records with it", "ROC-AUC", "average precision", "recall", "precision", "F1")
    rows = []
    for k in order:
        hits, existing, called = ((true & given)[:, k].sum(), true[:, k].sum(), given[:, k].sum())
        areas = [
            metrics.number(float(area[k])) if np.isfinite(area[k]) else metrics.UNDEFINED for area in (roc, precision)
        ]
        rows.append((short(target.labels[k], 60), f"{existing:,}", *areas, *_ratios(hits, existing, called)))
    yield table(head, rows, name="each label")
    if target.outputs > LABELS:
        yield tag("p", f"{target.outputs - LABELS:,} rarer labels are left out.")


def _ratios(hits: int, true: int, called: int) -> Iterator[str]:
    """Recall, precision, F1; a dash where there is nothing to divide by."""
    for part, whole in ((hits, true), (hits, called), (2 * hits, true + called)):
        yield metrics.number(float(part / whole)) if whole else metrics.UNDEFINED
