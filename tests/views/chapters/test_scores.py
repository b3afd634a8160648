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
        "one answer for all",
    ]
    assert all(metrics.cell(score).split("<")[0] in grid for score in run.test.scores.values())
    assert grid.index("ROC-AUC") < grid.index("accuracy")
    assert "logistic regression on the frequencies of all 256 4-mers." in shown


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
