"""The chapter with ROC and precision-recall curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.evaluation import Predictions
from chordmixer.views import metrics
from chordmixer.views.chapters import ranking
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def shown(make_run: Make, kind: str) -> tuple[str, Run]:
    run = Run.load(make_run(kind))
    assert isinstance(run.target, Classification | MultiLabel) and run.predictions is not None
    return ranking.chapter(run.target, run.predictions), run


def test_two_classes_have_one_curve_with_the_area_of_the_scores(make_run: Make) -> None:
    page, run = shown(make_run, "two")
    assert run.test is not None
    assert f"exon: ROC-AUC {metrics.number(run.test.scores['roc_auc'].value)}" in page
    assert f"exon: average precision {metrics.number(run.test.scores['average_precision'].value)}" in page
    assert page.count('class="line c0"') == 4 and "line c1" not in page  # two curves, two samples in the legends


def test_several_have_a_curve_each_and_many_their_mean(make_run: Make) -> None:
    page, _ = shown(make_run, "five")
    assert page.count("line c4") == 4 and "each against the rest" in page and "&lt;b&gt;Gobiidae" in page
    page, run = shown(make_run, "many")
    assert run.test is not None and "the mean over 24, each against the rest" in page and "line c1" not in page
    assert f"mean over all: ROC-AUC {metrics.number(run.test.scores['roc_auc'].value)}" in page


def test_labels_have_curves(make_run: Make) -> None:
    page, _ = shown(make_run, "labels")
    assert page.count("line c4") == 4


def test_one_class_alone_has_no_curve() -> None:
    rows = Predictions(["a", "b"], np.array([3, 4]), np.array([1, 1]), np.eye(2, dtype=np.float32))
    page = ranking.chapter(Classification.of_counts(["no", "yes"], [1, 1]), rows)
    assert "one class alone: there is nothing to rank" in page
