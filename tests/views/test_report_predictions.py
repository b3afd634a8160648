"""Sections of a report on confusion, ROC curves, calibration and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_curve, roc_curve

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.evaluation import Predictions, length_bins
from chordmixer.training.labels import OutputLabels
from chordmixer.views import metrics, report_predictions
from chordmixer.views.report_predictions import (
    Curve,
    calibration_section,
    confusion_section,
    mean_curve,
    precision_recall,
    ranking_section,
    regression_section,
    roc,
)
from chordmixer.views.runs import Run


def predictions_of(truth: list[int], predicted: list[int], count: int) -> Predictions:
    outputs = 9 * np.eye(count, dtype=np.float32)[predicted]
    return Predictions([f"r{i}" for i in range(len(truth))], np.arange(len(truth)) + 5, np.array(truth), outputs)


def test_a_matrix_counts_truth_by_row() -> None:
    even = OutputLabels(Classification.of_counts(["no", "yes"], [5, 5]), "dna")
    html = confusion_section(even, predictions_of([0, 0, 0, 1, 1], [0, 0, 1, 1, 1], 2))
    assert '<th scope="row" class="words">no</th><td>2</td><td>1</td>' in html
    assert '<th scope="row" class="words">yes</th><td>0</td><td>2</td>' in html
    assert "4 of 5 records are on the diagonal" in html and "80.0% of the predictions are correct" in html
    shades = [float(shade) for shade in re.findall(r'fill-opacity="([\d.]+)"', html)]
    assert shades == [0.667, 0.333, 0.0, 1.0]  # of the row
    assert "<td>3</td><td>0.667</td><td>1.000</td><td>0.800</td>" in html


def test_the_confusion_is_that_of_the_scores_on_unequal_classes() -> None:
    """By the weights of the training loss alone, 19 more of the 41 records would be called positive."""
    uneven = OutputLabels(Classification.of_counts(["no", "yes"], [97, 3]), "dna", temperature=1.7)
    truth, positive = np.array([0] * 40 + [1]), np.array([-9.0] * 21 + [2.0] * 19 + [9.0])
    rows = replace(predictions_of([0] * 41, [0] * 41, 2), targets=truth)
    rows = replace(rows, outputs=np.stack([0 * positive, positive], axis=1).astype(np.float32))
    html, score = confusion_section(uneven, rows), uneven.target.metrics(rows.outputs, truth)
    correct = int(re.findall(r"([\d,]+) of 41 records are on the diagonal", html)[0])
    assert correct / 41 == score["accuracy"] == 1.0
    assert re.findall(r"([\d.]+)%", html) == ["100.0"]  # no second rule with another number
    assert (uneven.probabilities(rows.outputs).argmax(axis=1) == uneven.target.decided(rows.outputs)).all()


def test_many_classes_show_the_most_confused() -> None:
    names = [f"c{k}" for k in range(25)]
    many = OutputLabels(Classification.of_counts(names, [3] * 25), "dna")
    html = confusion_section(many, predictions_of([3, 3, 3, 7], [4, 4, 3, 7], 25))
    assert "25 classes are too many for a matrix" in html
    assert '<th scope="row" class="words">c3</th><td class="words">c4</td><td>2</td><td>66.7%</td>' in html


def test_a_class_that_never_occurs_has_dashes() -> None:
    three = OutputLabels(Classification.of_counts(["a", "b", "c"], [3, 3, 3]), "dna")
    html = confusion_section(three, predictions_of([0, 1], [0, 1], 3))
    assert "<td>0</td><td>-</td><td>-</td><td>-</td>" in html


def test_each_label_has_a_row() -> None:
    target = MultiLabel(["x<y", "z"], [5, 5], 10)
    rows = Predictions(["a", "b"], np.array([3, 4]), np.eye(2), np.array([[5, 5], [-5, 5]], dtype=np.float32))
    html = confusion_section(OutputLabels(target, "dna"), rows)
    assert ">x&lt;y</th><td>1</td><td>1.000</td><td>1.000</td><td>1.000</td><td>1.000</td><td>1.000</td>" in html
    assert ">z</th><td>1</td><td>0.500</td><td>0.500</td><td>1.000</td><td>0.500</td><td>0.667</td>" in html


Make = Callable[..., Path]


def ranking(make_run: Make, kind: str) -> tuple[str, Run]:
    run = Run.load(make_run(kind))
    assert isinstance(run.target, Classification | MultiLabel) and run.predictions is not None
    return ranking_section(run.target, run.predictions), run


def test_two_classes_have_one_curve_with_the_area_of_the_scores(make_run: Make) -> None:
    page, run = ranking(make_run, "two")
    assert run.test is not None
    assert f"exon: ROC-AUC {metrics.number(run.test.scores['roc_auc'].value)}" in page
    assert f"exon: average precision {metrics.number(run.test.scores['average_precision'].value)}" in page
    assert page.count('class="line c0"') == 4 and "line c1" not in page  # two curves, two samples in the legends


def test_several_have_a_curve_each_and_many_their_mean(make_run: Make) -> None:
    page, _ = ranking(make_run, "five")
    assert page.count("line c4") == 4 and "each against the rest" in page and "&lt;b&gt;Gobiidae" in page
    page, run = ranking(make_run, "many")
    assert run.test is not None and "the mean over 24, each against the rest" in page and "line c1" not in page
    assert f"mean over all: ROC-AUC {metrics.number(run.test.scores['roc_auc'].value)}" in page


def test_labels_have_curves(make_run: Make) -> None:
    page, _ = ranking(make_run, "labels")
    assert page.count("line c4") == 4


def test_one_class_alone_has_no_curve() -> None:
    rows = Predictions(["a", "b"], np.array([3, 4]), np.array([1, 1]), np.eye(2, dtype=np.float32))
    page = ranking_section(Classification.of_counts(["no", "yes"], [1, 1]), rows)
    assert "have one class: there is nothing to rank" in page


rows = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30)


@given(rows)
def test_roc_is_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*pairs, strict=True))
    curve = roc("", scores.astype(float), positive)
    if positive.all() or not positive.any():
        assert not len(curve.x)
        return
    x, y, _ = roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose([curve.x, curve.y], [x, y])


@given(rows)
def test_precision_and_recall_are_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, positive = (np.array(column) for column in zip(*pairs, strict=True))
    curve = precision_recall("", scores.astype(float), positive)
    if not positive.any():
        assert not len(curve.x)
        return
    precision, recall, _ = precision_recall_curve(positive, scores)
    np.testing.assert_allclose(curve.x[1:], recall[:-1][::-1])
    np.testing.assert_allclose(curve.y[1:], precision[:-1][::-1])


def test_no_records_give_an_empty_curve() -> None:
    for curve in (roc, precision_recall):
        assert not curve("", np.empty(0), np.empty(0, dtype=bool)).points


def test_a_thinned_curve_keeps_its_ends_and_its_shape() -> None:
    x = np.linspace(0, 1, 10_000)
    full = Curve("", x, x**3, 0.5)
    thin = full.thinned(100)
    assert len(thin.x) <= 100 and thin.area == 0.5
    assert [thin.points[0], thin.points[-1]] == [full.points[0], full.points[-1]]
    np.testing.assert_allclose(np.interp(x, thin.x, thin.y), x**3, atol=0.01)
    assert full.thinned(20_000) is full


def test_the_mean_curve_leaves_empty_ones_out() -> None:
    empty = Curve("", np.empty(0), np.empty(0))
    flat = [Curve("", np.array([0.0, 1.0]), np.full(2, height), height) for height in (0.2, 0.6)]
    mean = mean_curve("mean", [*flat, empty])
    assert mean.area == pytest.approx(0.4) and set(mean.y.round(9)) == {0.4}
    assert not len(mean_curve("mean", [empty]).x)
    assert np.isnan(empty.at([0.5])).all()


BALANCED = Classification.of_counts(["no", "yes"], [5, 5])


def equally_sure(correct: int, wrong: int, logit: float) -> Predictions:
    """Predictions with the same confidence, some of them wrong."""
    truth = np.array([1] * correct + [0] * wrong)
    outputs = np.tile(np.array([0, logit], dtype=np.float32), (correct + wrong, 1))
    return Predictions([str(i) for i in range(len(truth))], truth + 5, truth, outputs)


def test_the_error_before_and_after() -> None:
    rows = equally_sure(80, 20, 4.0)
    html = calibration_section(OutputLabels(BALANCED, "dna", temperature=4 / np.log(4)), rows)
    assert "test records: 0.0 percentage points" in html and "; 18.2 without" in html
    assert (
        "after temperature scaling" in html and "before temperature scaling" in html and "does not help" not in html
    )


def test_a_temperature_that_did_not_help_is_said_to() -> None:
    assert "On the test records the scaling does not help." in calibration_section(
        OutputLabels(BALANCED, "dna", 0.2), equally_sure(80, 20, 4.0)
    )


def test_without_a_temperature_it_says_so() -> None:
    html = calibration_section(OutputLabels(BALANCED, "dna"), equally_sure(80, 20, 4.0))
    assert "No temperature was fitted" in html and "after temperature scaling" not in html


def test_class_weights_are_taken_back() -> None:
    """Outputs of zero mean the classes' own shares."""
    uneven = OutputLabels(Classification.of_counts(["no", "yes"], [20, 80]), "dna")
    assert "test records: 0.0 percentage points" in calibration_section(uneven, equally_sure(80, 20, 0.0))


def test_several_labels_are_pooled() -> None:
    target = MultiLabel(["a", "b"], [5, 5], 10)
    rows = Predictions(["r"], np.array([3]), np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]], dtype=np.float32))
    assert "test records: 0.0 percentage points" in calibration_section(OutputLabels(target, "dna"), rows)


def shifted(count: int, error: float) -> Predictions:
    truth = np.linspace(10, 30, count)
    outputs = ((truth + error - 20) / 5)[:, None].astype(np.float32)
    return Predictions([str(i) for i in range(count)], np.arange(count) + 30, truth, outputs)


def test_answers_are_in_the_targets_own_unit() -> None:
    html = regression_section(Regression(mean=20.0, scale=5.0), shifted(100, 2.0))
    assert html.count("<td>2.000</td>") >= 10  # mean absolute errors, and medians by length
    assert "One dot per record; 100 records" in html and "Dashed: zero." in html


def test_many_records_are_counted_in_squares() -> None:
    html = regression_section(Regression(mean=20.0, scale=5.0), shifted(report_predictions.MAX_DOTS + 1, 0.5))
    assert "The shade of a square" in html and html.count('class="heat"') < report_predictions.SQUARES**2


def test_a_tolerance_is_drawn() -> None:
    assert "the 0.04 within which a prediction counts as correct" in regression_section(
        Regression(0.04), shifted(30, 0.0)
    )


@pytest.mark.parametrize("count", [1, 2])
def test_very_few(count: int) -> None:
    html = regression_section(Regression(), shifted(count, 0.0))
    assert "nan" not in html


def test_length_bins_are_those_of_the_scores() -> None:
    """Where several percentiles are one length, the last has the records, here as in the scores."""
    html = regression_section(Regression(), shifted(4, 1.0))
    body = html[html.index('aria-label="errors by length"') :]
    assert re.findall(r'<th scope="row" class="words">(\d+)</th>', body) == ["30", "60", "100"]
    assert [p for p, inside in length_bins(shifted(4, 1.0).lengths) if inside.any()] == [30, 60, 100]
