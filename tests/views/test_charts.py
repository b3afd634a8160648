"""Charts: values land where the axes say, and gaps, single points and nothing at all are drawn as such."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from chordmixer.views import charts
from chordmixer.views.axes import Axis, categories, linear, logarithmic, text_width
from chordmixer.views.charts import WIDTH, Plot


def plain(log: bool = False) -> Plot:
    ticks = ((1.0, "1"), (100.0, "100"))
    return Plot(Axis(1, 100, "x", ticks, log), Axis(0, 10, "y", ((0.0, "0"), (10.0, "10"))))


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [e for e in read(svg).iter() if name in (e.get("class") or "").split()]


def numbers(path: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?[\d.]+", path)]


def test_corners() -> None:
    plot = plain()
    assert (plot.x(1), plot.x(100)) == (plot.left, plot.right)
    assert (plot.y(0), plot.y(10)) == (plot.bottom, plot.top)
    assert plain(log=True).x(10) == pytest.approx((plot.left + plot.right) / 2)


def test_a_line_passes_its_points() -> None:
    plot = plain()
    plot.line([(1, 0), (100, 10)], 2)
    (line,) = of_class(plot.svg("t", "d"), "line")
    places = [plot.left, plot.bottom, plot.right, plot.top]
    assert numbers(line.get("d") or "") == pytest.approx(places, abs=0.06)
    assert "c2" in (line.get("class") or "") and line.get("stroke-dasharray") == charts.DASHES[2]


def test_a_line_breaks_at_a_gap_and_a_lone_point_is_a_dot() -> None:
    plot = plain()
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
    plot = plain()
    plot.errors([(50, 2, 8)], cap=3)
    (bar,) = of_class(plot.svg("t", "d"), "error")
    x, low, high, *_ = numbers(bar.get("d") or "")
    assert [x, low, high] == pytest.approx([plot.x(50), plot.y(2), plot.y(8)], abs=0.06)
    lying = plain()
    lying.errors([(5, 20, 60)], lying=True)
    (bar,) = of_class(lying.svg("t", "d"), "error")
    low, y, high, *_ = numbers(bar.get("d") or "")
    assert [low, y, high] == pytest.approx([lying.x(20), lying.y(5), lying.x(60)], abs=0.06)


def test_bars_stand_between_their_edges() -> None:
    plot = Plot(logarithmic([1, 100], "x"), linear([0, 4], "y"))
    plot.bars([1, 10, 100], [4, 0])
    (bar,) = of_class(plot.svg("t", "d"), "f0")
    x, y, width, height = (float(bar.get(key) or "nan") for key in ("x", "y", "width", "height"))
    assert [x - 0.5, x + width + 0.5] == pytest.approx([plot.x(1), plot.x(10)], abs=0.11)
    assert [y, y + height] == pytest.approx([plot.y(4), plot.bottom], abs=0.11)


def test_squares_are_darker_where_there_is_more() -> None:
    plot = plain()
    plot.squares([1, 50, 100], [0, 5, 10], np.array([[1, 0], [0, 9]]))
    few, many = of_class(plot.svg("t", "d"), "heat")
    assert float(few.get("fill-opacity") or 0) < float(many.get("fill-opacity") or 0) == 1.0
    assert float(many.get("y") or 0) == pytest.approx(plot.top, abs=0.06)


def test_a_reference_line_crosses_the_frame() -> None:
    plot = plain()
    plot.across(5)
    plot.across(math.nan)
    (rule,) = of_class(plot.svg("t", "d"), "rule")
    assert numbers(rule.get("d") or "") == pytest.approx([plot.left, plot.y(5), plot.right, plot.y(5)], abs=0.06)


def test_a_chart_is_told_to_those_who_do_not_see_it() -> None:
    svg = plain().svg("Loss <1>", "It falls & falls")
    first, second, *_ = read(svg)
    assert [first.tag, first.text, second.tag, second.text] == ["title", "Loss <1>", "desc", "It falls & falls"]
    assert read(svg).get("role") == "img"


def boxes(svg: str) -> list[tuple[str, float, float, float]]:
    """Words, their left and right ends as far as their width is known, and their height."""
    found = []
    for element in read(svg).iter("text"):
        words = "".join(element.itertext()) if not len(element) else (element[0].tail or "")
        x, width = float(element.get("x") or 0), text_width(words)
        left = {"middle": x - width / 2, "end": x - width}.get(element.get("text-anchor") or "", x)
        found.append((words, left, left + width, float(element.get("y") or 0)))
    return found


@pytest.mark.parametrize("count", [1, 2, 12, 40])
def test_words_stay_inside_and_apart(count: int) -> None:
    names = [f"percentile {i}" for i in range(count)]
    long = ["a name that is much longer than any chart has room for, and longer still"] * 2
    for svg in (
        Plot(categories(names, "x " * 80), linear([1e6, 3e6], "y " * 120)).svg("t", "d"),
        Plot(linear([0, 1e9], "x"), categories(long, "y")).svg("t", "d"),
        charts.shares([*names, *long], [10 ** min(k, 9) for k in range(count)] + [1, 2], "t", "d"),
        charts.heat_map(long, long, np.eye(2), [["1", "0"], ["0", "1"]], "t", "d", ("truth", "answer")),
    ):
        placed = boxes(svg)
        assert all(left >= -1 and right <= WIDTH + 1 for _, left, right, _ in placed)
        rows = [(y, left, right) for _, left, right, y in placed]
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
    def named(names: list[str]) -> set[str]:
        count = len(names)
        labels = [["0"] * count] * count
        return {
            words for words, *_ in boxes(charts.heat_map(names, names, np.eye(count), labels, "t", "d", ("a", "b")))
        }

    assert {"caenorhabditis", "drosophila"} <= named(["caenorhabditis", "drosophila"])
    assert {"2", "20", "1 class 0", "20 class 19"} <= named([f"class {k}" for k in range(20)])


def test_a_heat_map_takes_nan_as_nothing() -> None:
    svg = charts.heat_map(["a"], ["a"], np.array([[np.nan]]), [["-"]], "t", "d", ("truth", "answer"))
    assert of_class(svg, "heat")[0].get("fill-opacity") == "0.000"


def test_bars_of_shares_are_as_long_as_their_counts() -> None:
    long, half, none = of_class(charts.shares(["a", "b", "c"], [8, 4, 0], "t", "d"), "f0")
    widths = [float(bar.get("width") or 0) for bar in (long, half, none)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2) and widths[2] == 0


def test_more_series_than_colours_begin_again() -> None:
    plot = plain()
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
    svg = charts.shares(["<script>"], [1], "<b>", "&") + charts.legend([("<script>", 0)])
    assert "<script>" not in svg and "<b>" not in svg
