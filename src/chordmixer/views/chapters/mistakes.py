"""The worst mistakes, by id, so that a reader can look at the records themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.views import metrics
from chordmixer.views.page import Html, section, short, table, tag

ROWS = 20


def chapter(
    answers: Answers | None, target: Regression | Classification | MultiLabel, predictions: Predictions
) -> Html:
    if isinstance(target, Regression):
        said, head, rows, words = _far_off(target, predictions)
    elif answers is None:
        said, head, rows, words = "The run has no labels.json: its mistakes cannot be named.", (), [], (0,)
    elif isinstance(target, MultiLabel):
        said, head, rows, words = _wrong_labels(answers, target, predictions)
    else:
        said, head, rows, words = _wrong_classes(answers, target, predictions)
    return section(
        "mistakes",
        "Worst mistakes",
        tag("p", said),
        table(head, rows, words=words, name="worst mistakes") if rows else "",
    )


Found = tuple[str, Sequence[str], list[Sequence[str]], tuple[int, ...]]
"""A sentence, a table's head and rows, and which of its columns are words."""


def _wrong_classes(answers: Answers, target: Classification, predictions: Predictions) -> Found:
    shares = answers.probabilities(predictions.outputs)
    given, truth = target.decided(predictions.outputs), predictions.targets
    wrong = np.flatnonzero(given != truth)
    if not len(wrong):
        return "No test record was answered wrongly.", (), [], (0,)
    order = wrong[np.argsort(-shares[wrong, given[wrong]], kind="stable")][:ROWS]
    rows: list[Sequence[str]] = [
        (
            short(predictions.names[i], 80),
            f"{shares[i, given[i]]:.3f}",
            short(target.labels[given[i]], 60),
            short(target.labels[truth[i]], 60),
            f"{shares[i, truth[i]]:.3f}",
            f"{predictions.lengths[i]:,}",
        )
        for i in order
    ]
    said = (
        f"{len(wrong):,} of {len(truth):,} test records were answered wrongly; {_first(order, wrong)} most confident:"
    )
    return said, ("id", "probability", "answer", "truth", "its probability", "length"), rows, (0, 2, 3)


def _wrong_labels(answers: Answers, target: MultiLabel, predictions: Predictions) -> Found:
    shares, truth = answers.probabilities(predictions.outputs), predictions.targets > 0.5
    distance = np.where(target.decided(predictions.outputs) != truth, np.abs(shares - 0.5), -1)
    wrong = np.flatnonzero(distance.ravel() >= 0)
    if not len(wrong):
        return "No label of a test record was answered wrongly.", (), [], (0,)
    order = wrong[np.argsort(-distance.ravel()[wrong], kind="stable")][:ROWS]
    rows: list[Sequence[str]] = []
    for i, k in (divmod(int(place), target.outputs) for place in order):
        has = "has it" if truth[i, k] else "does not"
        label = short(target.labels[k], 60)
        rows.append(
            (short(predictions.names[i], 80), f"{shares[i, k]:.3f}", label, has, f"{predictions.lengths[i]:,}")
        )
    said = f"{len(wrong):,} of {truth.size:,} labels were answered wrongly; {_first(order, wrong)} most confident:"
    return said, ("id", "probability", "label", "truth", "length"), rows, (0, 2, 3)


def _far_off(target: Regression, predictions: Predictions) -> Found:
    given, truth = target.values(predictions.outputs).astype(np.float64), predictions.targets.astype(np.float64)
    order = np.argsort(-np.abs(given - truth), kind="stable")[:ROWS]
    rows: list[Sequence[str]] = [
        (
            short(predictions.names[i], 80),
            metrics.number(truth[i]),
            metrics.number(given[i]),
            metrics.number(given[i] - truth[i]),
            f"{predictions.lengths[i]:,}",
        )
        for i in order
    ]
    said = f"The {len(order):,} test records whose prediction is farthest off:"
    return said, ("id", "true", "predicted", "difference", "length"), rows, (0,)


def _first(order: np.ndarray, wrong: np.ndarray) -> str:
    return "the" if len(order) == len(wrong) else f"the {len(order):,}"
