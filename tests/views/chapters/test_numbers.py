"""The chapter on answers that are numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from chordmixer.tasks.targets import Regression
from chordmixer.training.evaluation import Predictions, _length_bins
from chordmixer.views.chapters import numbers


def rows(count: int, error: float) -> Predictions:
    truth = np.linspace(10, 30, count)
    outputs = ((truth + error - 20) / 5)[:, None].astype(np.float32)
    return Predictions([str(i) for i in range(count)], np.arange(count) + 30, truth, outputs)


def test_answers_are_in_the_targets_own_unit() -> None:
    shown = numbers.chapter(Regression(mean=20.0, scale=5.0), rows(100, 2.0))
    assert shown.count("<td>2.000</td>") >= 10  # mean absolute errors, and medians by length
    assert "A dot a record, 100 in all" in shown and "Dashed: zero." in shown


def test_many_records_are_counted_in_squares() -> None:
    shown = numbers.chapter(Regression(mean=20.0, scale=5.0), rows(numbers.DOTS + 1, 0.5))
    assert "Each square is shaded" in shown and shown.count('class="heat"') < numbers.SQUARES**2


def test_a_tolerance_is_drawn() -> None:
    assert "the 0.04 within which an answer counts as right" in numbers.chapter(Regression(0.04), rows(30, 0.0))


@pytest.mark.parametrize("count", [1, 2])
def test_very_few(count: int) -> None:
    shown = numbers.chapter(Regression(), rows(count, 0.0))
    assert "nan" not in shown


def test_length_bins_are_those_of_the_scores() -> None:
    """Of percentiles at one length the last has the records, here and there."""
    shown = numbers.chapter(Regression(), rows(4, 1.0))
    body = shown[shown.index('aria-label="errors by length"') :]
    assert re.findall(r'<th scope="row" class="words">(\d+)</th>', body) == ["30", "60", "100"]
    assert [p for p, inside in _length_bins(rows(4, 1.0).lengths) if inside.any()] == [30, 60, 100]
