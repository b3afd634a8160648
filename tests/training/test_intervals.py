"""Intervals: none of width zero, none of too few records, and paired ones for differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chordmixer.tasks.scores import SHARES
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.intervals import MIN_SUPPORT, Sample, wilson

TWO = Classification.of_counts(["no", "yes"], [50, 50])
CHANCE = np.random.default_rng(3)


def outputs(positive: Any) -> np.ndarray:
    """Of two classes, by the log-odds of the second."""
    return np.stack([np.zeros(len(positive)), positive], axis=1).astype(np.float32)


def sample(targets: Any, groups: Any = None, resamples: int = 300) -> Sample:
    return Sample(TWO, np.asarray(targets), None if groups is None else np.asarray(groups), resamples)


def test_no_interval_has_width_zero() -> None:
    """20 records answered right: a share of 1 has Wilson's interval; what cannot vary has none."""
    targets = np.repeat([0, 1], 10)
    for answers in (outputs(20.0 * targets - 10), outputs(np.zeros(20))):
        found = sample(targets).scores(answers)
        assert all(score.low is None or score.low < score.high for score in found.values())
    right = sample(targets).scores(outputs(20.0 * targets - 10))
    assert (right["accuracy"].low, right["accuracy"].high) == pytest.approx((0.839, 1.0), abs=1e-3)
    assert all((right[name].low, right[name].high) == wilson(1.0, 10) for name in SHARES & set(right) - {"accuracy"})
    assert right["mcc"].value == 1 and right["mcc"].low is None


@pytest.mark.parametrize(("positives", "known"), [(1, False), (MIN_SUPPORT - 1, False), (MIN_SUPPORT, True)])
def test_a_rare_class_gives_no_interval(positives: int, known: bool) -> None:
    targets = np.array([0] * 90 + [1] * positives)
    found = sample(targets).scores(outputs(targets + CHANCE.normal(size=len(targets))))
    assert {found[name].low is not None for name in ("roc_auc", "average_precision", "mcc")} == {known}
    assert found["accuracy"].low is not None and found["log_loss"].low is not None
    beside = sample(targets).difference("roc_auc", [outputs(targets)], outputs(np.zeros(len(targets))))
    assert (beside.low is not None) == known


def test_few_records_or_groups_give_none() -> None:
    nine = Sample(Regression(), np.arange(9.0), None, 20).scores(np.arange(9.0)[:, None] + CHANCE.normal(size=(9, 1)))
    assert {score.low for score in nine.values()} == {None}
    targets, answers = np.repeat([0, 1], 50), outputs(CHANCE.normal(size=100))
    assert {score.low for score in sample(targets, np.arange(100) % 9).scores(answers).values()} == {None}


def test_half_of_several_labels_are_enough() -> None:
    rare, several = MultiLabel(list("abc"), [50, 50, 9], 100), np.zeros((100, 3))
    several[:50, 0] = several[20:60, 1] = several[:2, 2] = 1
    answers = (several + CHANCE.normal(size=(100, 3))).astype(np.float32)
    assert Sample(rare, several, None, 50).scores(answers)["roc_auc"].low is not None
    several[5:, 1] = 0
    several[:, 1] = several[:, 2]
    assert Sample(rare, several, None, 50).scores(answers)["roc_auc"].low is None


def test_a_difference_is_paired() -> None:
    """Both find the same records hard, so that their difference is known better than either score."""
    targets = np.repeat([0, 1], 200)
    base = targets + CHANCE.normal(size=400)
    model, other = outputs(base), outputs(base + CHANCE.normal(0, 0.5, 400))
    own, theirs = (sample(targets).scores(o)["roc_auc"] for o in (model, other))
    beside = sample(targets).difference("roc_auc", [model], other)
    assert own.low < theirs.high and 0 < beside.low < beside.value < beside.high
    assert beside.value == pytest.approx(own.value - theirs.value)
    back = sample(targets).difference("roc_auc", [other], model)
    assert (back.low, back.high) == pytest.approx((-beside.high, -beside.low))
    both = sample(targets).difference("roc_auc", [model, other], other)  # of two seeds the mean
    assert (both.value, both.low, both.high) == pytest.approx((beside.value / 2, beside.low / 2, beside.high / 2))


def test_a_difference_that_never_varies_has_the_width_of_the_scores() -> None:
    targets = np.repeat([0, 1], 20)
    beside = sample(targets).difference("roc_auc", [outputs(targets)], outputs(np.zeros(40)))
    assert (beside.value, beside.low, beside.high) == pytest.approx((0.5, wilson(1.0, 20)[0] - 0.5, 0.5))
    same = sample(targets).difference("roc_auc", [outputs(targets)], outputs(targets))
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_whole_groups_are_drawn() -> None:
    """30 groups of ten copies are 30 records, not 300."""
    targets = np.arange(30) % 2
    answers = outputs(targets + CHANCE.normal(size=30))
    few = sample(targets).scores(answers)["roc_auc"]
    copied = sample(np.repeat(targets, 10), np.repeat(np.arange(30), 10)).scores(np.repeat(answers, 10, axis=0))
    assert (copied["roc_auc"].low, copied["roc_auc"].high) == pytest.approx((few.low, few.high))
    beside = sample(targets, np.arange(30)).difference("roc_auc", [answers], outputs(np.zeros(30)))
    assert beside.over == "groups"


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (1.0, 1), (0.5, 100), (0.97, 10_000)])
def test_wilson_holds_the_share(share: float, count: int) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share <= high <= 1 and 0 < high - low < 2.1 / np.sqrt(count)
