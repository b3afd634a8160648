"""Axes and charts: values are drawn where the axes place them; gaps, single points and no data are handled."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.views import charts
from chordmixer.views.charts import (
    WIDTH,
    Axis,
    Plot,
    categories,
    compact,
    fitted,
    labels_that_fit,
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
    assert all(-1e-6 <= axis.share(position) <= 1 + 1e-6 for position, _ in axis.ticks)
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
def test_what_is_fitted_fits(text: str, width: float) -> None:
    assert text_width(fitted(text, width)) <= width


def test_labels_stay_apart_and_the_last_stays() -> None:
    labels = [str(p) for p in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)]
    indices = labels_that_fit([15 * i for i in range(12)], labels)
    assert indices[-1] == 11 and indices == [*range(1, 12, 2)]
    assert labels_that_fit([100 * i for i in range(12)], labels) == [*range(12)]
    assert labels_that_fit([], []) == []


def empty_plot(log: bool = False) -> Plot:
    ticks = ((1.0, "1"), (100.0, "100"))
    return Plot(Axis(1, 100, "x", ticks, log), Axis(0, 10, "y", ((0.0, "0"), (10.0, "10"))))


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [e for e in parse(svg).iter() if name in (e.get("class") or "").split()]


def numbers(path: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?[\d.]+", path)]


def test_corners() -> None:
    plot = empty_plot()
    assert (plot.x(1), plot.x(100)) == (plot.left, plot.right)
    assert (plot.y(0), plot.y(10)) == (plot.bottom, plot.top)
    assert empty_plot(log=True).x(10) == pytest.approx((plot.left + plot.right) / 2)


def test_a_line_passes_its_points() -> None:
    plot = empty_plot()
    plot.line([(1, 0), (100, 10)], 2)
    (line,) = of_class(plot.svg("t", "d"), "line")
    expected = [plot.left, plot.bottom, plot.right, plot.top]
    assert numbers(line.get("d") or "") == pytest.approx(expected, abs=0.06)
    assert "c2" in (line.get("class") or "") and line.get("stroke-dasharray") == charts.DASHES[2]


def test_a_line_breaks_at_a_gap_and_a_lone_point_is_a_dot() -> None:
    plot = empty_plot()
    plot.line([(1, 1), (2, 2), (3, math.nan), (4, 4), (5, math.inf), (6, 6), (7, 7)])
    svg = plot.svg("t", "d")
    assert len(of_class(svg, "line")) == 2 and len(of_class(svg, "f0")) == 1
    assert "nan" not in svg and "inf" not in svg


def test_nothing_is_said_to_be_nothing() -> None:
    plot = Plot(linear([], "x"), linear([], "y"))
    plot.line([])
    plot.dots([(math.nan, 1.0)])
    plot.errors([(1.0, math.nan, 2.0)])
    assert "no data" in plot.svg("t", "d")


def test_error_bars_reach_from_low_to_high() -> None:
    plot = empty_plot()
    plot.errors([(50, 2, 8)], cap=3)
    (bar,) = of_class(plot.svg("t", "d"), "error")
    x, low, high, *_ = numbers(bar.get("d") or "")
    assert [x, low, high] == pytest.approx([plot.x(50), plot.y(2), plot.y(8)], abs=0.06)
    horizontal = empty_plot()
    horizontal.errors([(5, 20, 60)], horizontal=True)
    (bar,) = of_class(horizontal.svg("t", "d"), "error")
    low, y, high, *_ = numbers(bar.get("d") or "")
    assert [low, y, high] == pytest.approx([horizontal.x(20), horizontal.y(5), horizontal.x(60)], abs=0.06)


def test_bars_stand_between_their_edges() -> None:
    plot = Plot(logarithmic([1, 100], "x"), linear([0, 4], "y"))
    plot.bars([1, 10, 100], [4, 0])
    (bar,) = of_class(plot.svg("t", "d"), "f0")
    x, y, width, height = (float(bar.get(key) or "nan") for key in ("x", "y", "width", "height"))
    assert [x - 0.5, x + width + 0.5] == pytest.approx([plot.x(1), plot.x(10)], abs=0.11)
    assert [y, y + height] == pytest.approx([plot.y(4), plot.bottom], abs=0.11)


def test_squares_are_darker_where_there_is_more() -> None:
    plot = empty_plot()
    plot.squares([1, 50, 100], [0, 5, 10], np.array([[1, 0], [0, 9]]))
    few, many = of_class(plot.svg("t", "d"), "heat")
    assert float(few.get("fill-opacity") or 0) < float(many.get("fill-opacity") or 0) == 1.0
    assert float(many.get("y") or 0) == pytest.approx(plot.top, abs=0.06)


def test_a_reference_line_crosses_the_frame() -> None:
    plot = empty_plot()
    plot.across(5)
    plot.across(math.nan)
    (rule,) = of_class(plot.svg("t", "d"), "rule")
    assert numbers(rule.get("d") or "") == pytest.approx([plot.left, plot.y(5), plot.right, plot.y(5)], abs=0.06)


def test_a_chart_is_told_to_those_who_do_not_see_it() -> None:
    svg = empty_plot().svg("Loss <1>", "It falls & falls")
    first, second, *_ = parse(svg)
    assert [first.tag, first.text, second.tag, second.text] == ["title", "Loss <1>", "desc", "It falls & falls"]
    assert parse(svg).get("role") == "img"


def boxes(svg: str) -> list[tuple[str, float, float, float]]:
    """Words, their left and right ends as far as their width is known, and their height."""
    text_boxes = []
    for element in parse(svg).iter("text"):
        text = "".join(element.itertext()) if not len(element) else (element[0].tail or "")
        x, width = float(element.get("x") or 0), text_width(text)
        left = {"middle": x - width / 2, "end": x - width}.get(element.get("text-anchor") or "", x)
        text_boxes.append((text, left, left + width, float(element.get("y") or 0)))
    return text_boxes


@pytest.mark.parametrize("count", [1, 2, 12, 40])
def test_words_stay_inside_and_apart(count: int) -> None:
    names = [f"percentile {i}" for i in range(count)]
    long = ["a name that is much longer than any chart has room for, and longer still"] * 2
    for svg in (
        Plot(categories(names, "x " * 80), linear([1e6, 3e6], "y " * 120)).svg("t", "d"),
        Plot(linear([0, 1e9], "x"), categories(long, "y")).svg("t", "d"),
        charts.horizontal_bars([*names, *long], [10 ** min(k, 9) for k in range(count)] + [1, 2], "t", "d"),
        charts.heat_map(long, long, np.eye(2), [["1", "0"], ["0", "1"]], "t", "d", ("truth", "answer")),
    ):
        text_boxes = boxes(svg)
        assert all(left >= -1 and right <= WIDTH + 1 for _, left, right, _ in text_boxes)
        rows = [(y, left, right) for _, left, right, y in text_boxes]
        for i, (y, left, right) in enumerate(rows):
            assert not any(y == b and left < r - 0.1 and s < right - 0.1 for b, s, r in rows[i + 1 :])


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_heat_map_has_a_cell_for_each_pair(count: int) -> None:
    names = [f"class {i}" for i in range(count)]
    shares = np.eye(count)
    labels = [[f"{v:.0f}" for v in row] for row in shares]
    svg = charts.heat_map(names, names, shares, labels, "t", "d", ("truth", "answer"))
    cells = of_class(svg, "heat")
    assert len(cells) == count**2
    assert [float(c.get("fill-opacity") or 0) for c in cells] == shares.ravel().tolist()
    assert all(float(c.get("x") or 0) + float(c.get("width") or 0) <= WIDTH for c in cells)


def test_columns_are_named_where_names_fit() -> None:
    def shown_texts(names: list[str]) -> set[str]:
        count = len(names)
        labels = [["0"] * count] * count
        return {
            text for text, *_ in boxes(charts.heat_map(names, names, np.eye(count), labels, "t", "d", ("a", "b")))
        }

    assert {"caenorhabditis", "drosophila"} <= shown_texts(["caenorhabditis", "drosophila"])
    assert {"2", "20", "1 class 0", "20 class 19"} <= shown_texts([f"class {k}" for k in range(20)])


def test_a_heat_map_takes_nan_as_nothing() -> None:
    svg = charts.heat_map(["a"], ["a"], np.array([[np.nan]]), [["-"]], "t", "d", ("truth", "answer"))
    assert of_class(svg, "heat")[0].get("fill-opacity") == "0.000"


def test_bars_of_shares_are_as_long_as_their_counts() -> None:
    long, half, none = of_class(charts.horizontal_bars(["a", "b", "c"], [8, 4, 0], "t", "d"), "f0")
    widths = [float(bar.get("width") or 0) for bar in (long, half, none)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2) and widths[2] == 0


def test_more_series_than_colours_begin_again() -> None:
    plot = empty_plot()
    plot.line([(1, 1), (2, 2)], charts.SERIES)
    plot.dots([(1, 1)], charts.SERIES + 1)
    plot.errors([(50, 2, 8)], charts.SERIES)
    svg = plot.svg("t", "d")
    assert f"c{charts.SERIES}" not in svg and len(of_class(svg, "c0")) == 2 and len(of_class(svg, "f1")) == 1


def test_series_differ_in_more_than_colour() -> None:
    samples = charts.legend([(f"s{k}", k) for k in range(charts.SERIES)])
    lines = [(e.get("stroke-dasharray"),) for e in of_class(samples, "line")]
    assert len(set(lines)) == charts.SERIES == len(set(charts.DASHES))
    assert "<path" in charts.legend([("guessing", None)]) and "rule" in charts.legend([("guessing", None)])


def test_names_are_escaped() -> None:
    svg = charts.horizontal_bars(["<script>"], [1], "<b>", "&") + charts.legend([("<script>", 0)])
    assert "<script>" not in svg and "<b>" not in svg
