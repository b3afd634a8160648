"""Axes: places, ticks, widths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.views.axes import (
    Axis,
    apart,
    categories,
    compact,
    fitted,
    linear,
    logarithmic,
    text_width,
    tick_label,
)

finite = st.floats(-1e12, 1e12)


@given(st.lists(finite, min_size=1, max_size=8))
def test_every_value_stands_on_a_linear_axis(values: list[float]) -> None:
    axis = linear(values, "x")
    assert axis.low < axis.high
    assert all(-1e-6 <= axis.share(v) <= 1 + 1e-6 for v in values)
    assert all(-1e-6 <= axis.share(place) <= 1 + 1e-6 for place, _ in axis.ticks)
    assert 2 <= len(axis.ticks) <= 8
    assert len({label for _, label in axis.ticks}) == len(axis.ticks)


@given(st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=8))
def test_every_value_stands_on_a_logarithmic_axis(values: list[float]) -> None:
    axis = logarithmic(values, "x")
    assert all(-1e-9 <= axis.share(v) <= 1 + 1e-9 for v in values)
    assert 2 <= len(axis.ticks) <= 8


@pytest.mark.parametrize("axis", [linear([], ""), logarithmic([], ""), linear([math.nan], ""), categories([], "")])
def test_no_values_still_make_an_axis(axis: Axis) -> None:
    assert axis.low < axis.high and math.isfinite(axis.share((axis.low + axis.high) / 2))


def test_one_value_stands_inside() -> None:
    assert linear([5.0], "").share(5.0) == pytest.approx(0.5)
    assert linear([0.0], "").share(0.0) == pytest.approx(0.5)
    assert logarithmic([100], "").share(100) == pytest.approx(0.5)


def test_an_axis_ends_where_a_metric_does() -> None:
    axis = linear([0.93, 1.0], "accuracy", (0, 1))
    assert axis.high == 1.0 and axis.ticks[-1][1] == "1.00"
    assert linear([1.0], "accuracy", (0, 1)).high == 1.0


def test_what_has_no_place_is_nan() -> None:
    assert math.isnan(logarithmic([1, 10], "").share(0))
    assert math.isnan(linear([0, 1], "").share(math.inf))


def test_categories_stand_at_whole_numbers() -> None:
    axis = categories(["a", "b"], "")
    assert [axis.share(0), axis.share(1)] == [0.25, 0.75]


def test_ticks_are_written_as_their_step_needs() -> None:
    assert [tick_label(v, 0.05) for v in (0.1, 0.15)] == ["0.10", "0.15"]
    assert tick_label(1_500_000, 500_000) == "1.5M"
    assert tick_label(1000, 200) == "1,000"
    assert compact(-2500) == "-2.5k"


def test_a_wide_letter_takes_more_room() -> None:
    assert text_width("il") < text_width("ab") < text_width("MW") < text_width("漢字")


@given(st.text(max_size=30), st.floats(15, 100))
def test_what_is_fitted_fits(words: str, width: float) -> None:
    assert text_width(fitted(words, width)) <= width


def test_labels_stay_apart_and_the_last_stays() -> None:
    labels = [str(p) for p in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)]
    kept = apart([15 * i for i in range(12)], labels)
    assert kept[-1] == 11 and kept == [*range(1, 12, 2)]
    assert apart([100 * i for i in range(12)], labels) == [*range(12)]
    assert apart([], []) == []
