"""The chapter on training: the curves of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chordmixer.views.chapters import learning
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def test_steps_and_the_weights_kept(make_run: Make) -> None:
    shown = learning.chapter(Run.load(make_run("two")))
    assert "2,000 steps and 10 validations; the weights kept are those of step 2,000" in shown
    assert "Training loss as a running mean over 10 of its points" in shown
    assert "Validation ROC-AUC" in shown


def test_the_best_step_need_not_be_the_last(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    worse = [*run.journal, {"step": 2200, "split": "validation", "loss": 0.9, "roc_auc": 0.6}]
    assert "2,200 steps and 11 validations; the weights kept are those of step 2,000" in learning.chapter(
        replace(run, journal=worse)
    )


def test_one_point_and_nan(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [
        {"step": 1, "split": "validation", "loss": math.nan, "roc_auc": math.nan},
        {"step": 10, "split": "training", "loss": 0.7},
    ]
    for journal in (rows, rows[:1], rows[1:]):
        shown = learning.chapter(replace(run, journal=journal))
        assert "steps, without a validation" in shown and '"nan' not in shown


def test_a_loss_that_falls_far_has_a_logarithmic_axis(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [{"step": s, "split": "training", "loss": 10.0 ** -(s / 10)} for s in range(10, 60)]
    assert "loss (logarithmic)" in learning.chapter(replace(run, journal=rows))
    assert "loss (logarithmic)" not in learning.chapter(run)


def test_a_long_journal_is_drawn_with_few_points(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [{"step": s, "split": "training", "loss": 1 / (1 + s)} for s in range(20_000)]
    assert len(learning.chapter(replace(run, journal=rows))) < 30_000


def test_without_a_journal_it_says_so(make_run: Make) -> None:
    assert "no metrics.jsonl" in learning.chapter(replace(Run.load(make_run("two")), journal=[]))
