"""Sections of a report on scores, members and the worst errors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import ensemble
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.evaluation import Predictions
from chordmixer.training.intervals import Score
from chordmixer.training.labels import OutputLabels
from chordmixer.views import metrics, report_scores, verdict
from chordmixer.views.page import text
from chordmixer.views.report import page
from chordmixer.views.report_scores import errors_section, members_section, scores_section
from chordmixer.views.runs import Run
from chordmixer.views.tables import CONSTANT, score_cell

Make = Callable[..., Path]


def test_every_method_has_a_row_with_every_metric(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    html = scores_section(run)
    table = html.split("</table>")[0]
    assert re.findall(r'scope="row" class="words">([^<]*)<', table) == [
        "this model",
        "majority class",
        "length alone",
        "4-mers",
    ]
    assert all(score_cell(score).value in table for score in run.test.scores.values())
    assert table.index("ROC-AUC") < table.index("accuracy")
    assert "logistic regression on the frequencies of all 256 4-mers." in html


def test_no_row_stands_twice(make_run: Make) -> None:
    """A constant baseline is the constant prediction; without one, that has a row."""
    run = Run.load(make_run("two"))
    table = scores_section(run).split("</table>")[0]
    assert "majority class" in table and CONSTANT not in table
    other_table = scores_section(replace(run, baselines=run.baselines[1:])).split("</table>")[0]
    assert CONSTANT in other_table


def test_lengths_are_drawn_of_the_model_and_the_best_baseline(make_run: Make) -> None:
    """More lines with intervals cannot be told apart; the table has all of them."""
    chart, table = scores_section(Run.load(make_run("two"))).split("by length</h3>")[1].split("all methods</h3>")
    assert re.findall(r"</svg>([^<]+)</li>", chart) == ["this model", "4-mers", CONSTANT]
    assert all(name in table for name in ("majority class", "length alone", "4-mers"))


def test_the_rules_are_stated_once(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    html = page(run)
    for rule in (metrics.INTERVALS, metrics.DIFFERENCES, metrics.DECISION):
        assert html.count(text(rule)) == 1
    assert "10 records of the rarer class" in metrics.INTERVALS


def test_the_best_of_a_column_is_bold_and_less_may_be_better(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    table = scores_section(run).split("</table>")[0]
    rows = [re.sub("<small>.*?</small>", "", row) for row in table.split("<tr>")[2:]]
    assert rows[0].count("<b>") == len(run.test.scores) and "<b>" not in "".join(rows[1:])


def test_lengths_are_in_a_table_that_is_not_folded(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    table = scores_section(run).split("by length: all methods")[1]
    assert table.count('scope="row"') == len(run.test.by_length) and "<details" not in table
    assert f"{run.test.by_length[0].shortest:,} to {run.test.by_length[0].longest:,}" in table


def test_undefined_scores_leave_gaps(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.test is not None
    missing = Score(math.nan, math.nan, math.nan)
    first, *rest = run.test.by_length
    test = replace(run.test, by_length=[replace(first, scores={"roc_auc": missing}), *rest])
    html = scores_section(replace(run, test=test, baselines=[]))
    assert "<td>-</td>" in html and "nan" not in html
    without_scores = replace(test, by_length=[], scores={"roc_auc": missing}, guessing={})
    assert "no data" in scores_section(replace(run, test=without_scores, baselines=[]))


def test_a_metric_where_values_stand_on_the_chart(make_run: Make) -> None:
    """Dots of the by-length chart stand as high as their values."""
    run = Run.load(make_run("two"))
    assert run.test is not None
    chart = scores_section(replace(run, baselines=[])).split("<svg")[2]
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)" r="2.6"', chart)]
    values = [row.scores["roc_auc"].value for row in run.test.by_length]
    finite = [v for v in values if math.isfinite(v)]
    assert len(heights) == len(finite)
    assert heights.index(min(heights)) == finite.index(max(finite))


def with_members(run: Run, kind: Literal["folds", "replicates"] = "folds") -> Run:
    rows = [EnsembleMember(k, "network and <6-mers>", Score(0.8 + 0.1 * k, 0.7, 1.0), Score(0.75)) for k in range(2)]
    assert run.test is not None
    result = Ensemble(kind, 2, True, "roc_auc", tuple(rows))
    return replace(run, ensemble=result, held_out=replace(run.test, split=result.held_out))


def test_a_row_a_member_then_spread_and_ensemble(make_run: Make) -> None:
    run = with_members(Run.load(make_run("two")))
    assert run.test is not None
    html = members_section(run)
    names = re.findall(r'scope="row" class="words">([^<]*)<', html)
    assert names == ["member 0", "member 1", "mean", "standard deviation", "ensemble"]
    assert "network and &lt;6-mers&gt;" in html and "ROC-AUC, fold held out" in html
    cells = [re.findall("<td[^>]*>(.*?)</td>", row) for row in html.split("<tr>")[2:]]
    assert cells[2][1:] == ["0.850", "0.750"] and cells[3][1:] == ["0.071", "0.000"]
    assert "slightly too good" in html and "members/0" in html
    assert "2-fold cross-validation on" in html and "; mean 0.850 and standard deviation 0.071 over the folds" in html


def test_replicates_share_their_validation_records(make_run: Make) -> None:
    run = with_members(Run.load(make_run("two")), "replicates")
    html = members_section(run)
    assert "ROC-AUC, validation" in html and "over the seeds" in html and "cross-validation" not in html
    assert not any("cross-validation" in line for line in verdict.headline(run))


def test_in_the_report(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert 'id="members"' not in page(run) and 'id="training"' in page(run)
    html = page(with_members(run))
    assert 'href="#members"' in html and 'id="training"' not in html and "into 2 folds" in html


def test_before_any_member_is_trained(make_run: Make) -> None:
    run = with_members(Run.load(make_run("two")))
    assert run.ensemble is not None
    html = page(replace(run, ensemble=replace(run.ensemble, members=()), test=None, held_out=None))
    assert 'id="members"' in html and "undefined" in html and "nan" not in html


def test_scores_that_cannot_be(make_run: Make) -> None:
    folder = make_run("two")
    result = with_members(Run.load(folder)).ensemble
    assert result is not None
    wrong = replace(result.members[0], test=Score(7.0))
    broken = replace(result, members=(wrong, result.members[1]))
    files.write_recorded(folder, {ensemble.FILE: files.json_bytes(to_dict(broken))})
    with pytest.raises(ValueError, match=r"roc_auc=7 cannot be"):
        Run.load(folder)


EVEN = Classification.of_counts(["no", "yes"], [5, 5])


def ids(html: str) -> list[str]:
    return re.findall(r'scope="row" class="words">([^<]*)<', html)


def test_the_most_confident_wrong_answers_come_first() -> None:
    outputs = np.array([[0, 1], [0, 5], [0, 3], [9, 0]], dtype=np.float32)
    rows = Predictions(["a", "b<", "c", "d"], np.array([10, 2_000, 30, 40]), np.array([0, 0, 0, 0]), outputs)
    html = errors_section(OutputLabels(EVEN, "dna"), EVEN, rows)
    assert ids(html) == ["b&lt;", "c", "a"]
    assert '<td class="words">yes</td><td>0.993</td><td class="words">no</td><td>0.007</td><td>2,000</td>' in html
    assert "3 of 4 test records are misclassified; the most confident:" in html


def test_only_so_many_are_shown() -> None:
    count = report_scores.MAX_ERRORS + 5
    rows = Predictions(["x"] * count, np.ones(count, int), np.ones(count, int), np.tile([[2.0, 0.0]], (count, 1)))
    html = errors_section(OutputLabels(EVEN, "dna"), EVEN, rows)
    assert len(ids(html)) == report_scores.MAX_ERRORS and "the 20 most confident:" in html


def test_no_mistake_is_said_to_be_none() -> None:
    rows = Predictions(["a"], np.array([1]), np.array([0]), np.array([[2.0, 0.0]]))
    assert "All test records are classified correctly." in errors_section(OutputLabels(EVEN, "dna"), EVEN, rows)
    target = MultiLabel(["a"], [5], 10)
    labelled_rows = Predictions(["a"], np.array([1]), np.array([[1.0]]), np.array([[2.0]]))
    assert "All labels of the test records are predicted correctly." in errors_section(
        OutputLabels(target, "dna"), target, labelled_rows
    )


def test_wrong_labels_name_record_and_label() -> None:
    target = MultiLabel(["a", "b"], [5, 5], 10)
    outputs = np.array([[5.0, -1.0], [-3.0, -2.0]])
    rows = Predictions(["r1", "r2"], np.array([7, 8]), np.array([[1.0, 1.0], [1.0, 0.0]]), outputs)
    html = errors_section(OutputLabels(target, "dna"), target, rows)
    assert ids(html) == ["r2", "r1"] and "2 of 4 labels are predicted wrongly" in html
    assert '<td class="words">a</td><td>0.047</td><td class="words">yes</td><td>8</td>' in html


def test_numbers_farthest_off() -> None:
    rows = Predictions(["a", "b"], np.array([7, 8]), np.array([1.0, 2.0]), np.array([[1.5], [-2.0]]))
    html = errors_section(None, Regression(), rows)
    assert ids(html) == ["b", "a"] and "<td>2.000</td><td>-2.000</td><td>-4.000</td><td>8</td>" in html


def test_without_labels_it_says_so() -> None:
    rows = Predictions(["a"], np.array([1]), np.array([0]), np.array([[2.0, 0.0]]))
    assert "no labels.json: its errors cannot be named" in errors_section(None, EVEN, rows)
