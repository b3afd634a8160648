"""The chapter on scores: the model beside all baselines, overall and by length."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chordmixer.training.evaluation import Score
from chordmixer.views import metrics
from chordmixer.views.chapters import scores
from chordmixer.views.page import text
from chordmixer.views.report import page
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def test_every_method_has_a_row_with_every_metric(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    shown = scores.chapter(run)
    grid = shown.split("</table>")[0]
    assert re.findall(r'scope="row" class="words">([^<]*)<', grid) == [
        "this model",
        "majority class",
        "length alone",
        "4-mers",
    ]
    assert all(metrics.cell(score).split("<")[0] in grid for score in run.test.scores.values())
    assert grid.index("ROC-AUC") < grid.index("accuracy")
    assert "logistic regression on the frequencies of all 256 4-mers." in shown


def test_no_row_stands_twice(make_run: Make) -> None:
    """A constant baseline is the one answer for all; without one, that has a row."""
    run = Run.load(make_run("two"))
    grid = scores.chapter(run).split("</table>")[0]
    assert "majority class" in grid and scores.GUESSING not in grid
    alone = scores.chapter(replace(run, baselines=run.baselines[1:])).split("</table>")[0]
    assert scores.GUESSING in alone


def test_lengths_are_drawn_of_the_model_and_the_best_baseline(make_run: Make) -> None:
    """More lines with intervals cannot be told apart; the table has all of them."""
    drawn, numbers = scores.chapter(Run.load(make_run("two"))).split("by length</h3>")[1].split("in numbers</h3>")
    assert re.findall(r"</svg>([^<]+)</li>", drawn) == ["this model", "4-mers", scores.GUESSING]
    assert all(name in numbers for name in ("majority class", "length alone", "4-mers"))


def test_the_rules_are_stated_once(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    shown = page(run)
    for rule in (metrics.INTERVALS, metrics.DIFFERENCES, metrics.DECISION):
        assert shown.count(text(rule)) == 1
    assert "10 records of the rarer class" in metrics.INTERVALS


def test_the_best_of_a_column_is_bold_and_less_may_be_better(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    grid = scores.chapter(run).split("</table>")[0]
    rows = [re.sub("<small>.*?</small>", "", row) for row in grid.split("<tr>")[2:]]
    assert rows[0].count("<b>") == len(run.test.scores) and "<b>" not in "".join(rows[1:])


def test_lengths_are_in_a_table_that_is_not_folded(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    grid = scores.chapter(run).split("by length, in numbers")[1]
    assert grid.count('scope="row"') == len(run.test.by_length) and "<details" not in grid
    assert f"{run.test.by_length[0].shortest:,} to {run.test.by_length[0].longest:,}" in grid


def test_undefined_scores_leave_gaps(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    missing = Score(math.nan, math.nan, math.nan)
    first, *rest = run.test.by_length
    test = replace(run.test, by_length=[replace(first, scores={"roc_auc": missing}), *rest])
    shown = scores.chapter(replace(run, test=test, baselines=[]))
    assert "<td>-</td>" in shown and "nan" not in shown
    nothing = replace(test, by_length=[], scores={"roc_auc": missing}, guessing={})
    assert "no data" in scores.chapter(replace(run, test=nothing, baselines=[]))


def test_a_metric_where_values_stand_on_the_chart(make_run: Make) -> None:
    """Dots of the by-length chart stand as high as their values."""
    run = Run.load(make_run("two"))
    assert run.test is not None
    chart = scores.chapter(replace(run, baselines=[])).split("<svg")[2]
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="2.6"', chart)]
    values = [row.scores["roc_auc"].value for row in run.test.by_length]
    known = [v for v in values if math.isfinite(v)]
    assert len(heights) == len(known)
    assert heights.index(min(heights)) == known.index(max(known))
