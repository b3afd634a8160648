"""Intervals: none of width zero, none from too few records, and paired ones for differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chordmixer.tasks.scores import SHARES
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.intervals import MIN_SUPPORT, Sample, wilson

BINARY = Classification.of_counts(["no", "yes"], [50, 50])
RNG = np.random.default_rng(3)


def outputs(positive: Any) -> np.ndarray:
    """Outputs for two classes from the log-odds of the second."""
    return np.stack([np.zeros(len(positive)), positive], axis=1).astype(np.float32)


def sample(targets: Any, groups: Any = None, resamples: int = 300) -> Sample:
    return Sample(BINARY, np.asarray(targets), None if groups is None else np.asarray(groups), resamples)


def test_no_interval_has_width_zero() -> None:
    """With 20 correct answers, a share of 1 has Wilson's interval, and a score that cannot vary has none."""
    targets = np.repeat([0, 1], 10)
    for answers in (outputs(20.0 * targets - 10), outputs(np.zeros(20))):
        scores = sample(targets).scores(answers)
        assert all(score.low is None or score.low < score.high for score in scores.values())
    exact = sample(targets).scores(outputs(20.0 * targets - 10))
    assert (exact["accuracy"].low, exact["accuracy"].high) == pytest.approx((0.839, 1.0), abs=1e-3)
    assert all((exact[name].low, exact[name].high) == wilson(1.0, 10) for name in SHARES & set(exact) - {"accuracy"})
    assert exact["mcc"].value == 1 and exact["mcc"].low is None


@pytest.mark.parametrize(("positives", "has_interval"), [(1, False), (MIN_SUPPORT - 1, False), (MIN_SUPPORT, True)])
def test_a_rare_class_gives_no_interval(positives: int, has_interval: bool) -> None:
    targets = np.array([0] * 90 + [1] * positives)
    scores = sample(targets).scores(outputs(targets + RNG.normal(size=len(targets))))
    assert {scores[name].low is not None for name in ("roc_auc", "average_precision", "mcc")} == {has_interval}
    assert scores["accuracy"].low is not None and scores["log_loss"].low is not None
    delta = sample(targets).difference("roc_auc", [outputs(targets)], outputs(np.zeros(len(targets))))
    assert (delta.low is not None) == has_interval


def test_few_records_or_groups_give_none() -> None:
    scores = Sample(Regression(), np.arange(9.0), None, 20).scores(np.arange(9.0)[:, None] + RNG.normal(size=(9, 1)))
    assert {score.low for score in scores.values()} == {None}
    targets, answers = np.repeat([0, 1], 50), outputs(RNG.normal(size=100))
    assert {score.low for score in sample(targets, np.arange(100) % 9).scores(answers).values()} == {None}


def test_half_of_several_labels_are_enough() -> None:
    target, labels = MultiLabel(list("abc"), [50, 50, 9], 100), np.zeros((100, 3))
    labels[:50, 0] = labels[20:60, 1] = labels[:2, 2] = 1
    answers = (labels + RNG.normal(size=(100, 3))).astype(np.float32)
    assert Sample(target, labels, None, 50).scores(answers)["roc_auc"].low is not None
    labels[5:, 1] = 0
    labels[:, 1] = labels[:, 2]
    assert Sample(target, labels, None, 50).scores(answers)["roc_auc"].low is None


def test_a_difference_is_paired() -> None:
    """Both models find the same records hard, so that their difference varies less than either score."""
    targets = np.repeat([0, 1], 200)
    base = targets + RNG.normal(size=400)
    model, baseline = outputs(base), outputs(base + RNG.normal(0, 0.5, 400))
    model_score, baseline_score = (sample(targets).scores(o)["roc_auc"] for o in (model, baseline))
    delta = sample(targets).difference("roc_auc", [model], baseline)
    assert model_score.low < baseline_score.high and 0 < delta.low < delta.value < delta.high
    assert delta.value == pytest.approx(model_score.value - baseline_score.value)
    opposite = sample(targets).difference("roc_auc", [baseline], model)
    assert (opposite.low, opposite.high) == pytest.approx((-delta.high, -delta.low))
    mean = sample(targets).difference("roc_auc", [model, baseline], baseline)  # of two seeds the mean
    assert (mean.value, mean.low, mean.high) == pytest.approx((delta.value / 2, delta.low / 2, delta.high / 2))


def test_a_difference_that_never_varies_has_the_width_of_the_scores() -> None:
    targets = np.repeat([0, 1], 20)
    delta = sample(targets).difference("roc_auc", [outputs(targets)], outputs(np.zeros(40)))
    assert (delta.value, delta.low, delta.high) == pytest.approx((0.5, wilson(1.0, 20)[0] - 0.5, 0.5))
    zero = sample(targets).difference("roc_auc", [outputs(targets)], outputs(targets))
    assert (zero.value, zero.low, zero.high) == (0, 0, 0)


def test_whole_groups_are_drawn() -> None:
    """30 groups of ten copies are 30 records, not 300."""
    targets = np.arange(30) % 2
    answers = outputs(targets + RNG.normal(size=30))
    single = sample(targets).scores(answers)["roc_auc"]
    copied = sample(np.repeat(targets, 10), np.repeat(np.arange(30), 10)).scores(np.repeat(answers, 10, axis=0))
    assert (copied["roc_auc"].low, copied["roc_auc"].high) == pytest.approx((single.low, single.high))
    delta = sample(targets, np.arange(30)).difference("roc_auc", [answers], outputs(np.zeros(30)))
    assert delta.over == "groups"


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (1.0, 1), (0.5, 100), (0.97, 10_000)])
def test_wilson_holds_the_share(share: float, count: int) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share <= high <= 1 and 0 < high - low < 2.1 / np.sqrt(count)
