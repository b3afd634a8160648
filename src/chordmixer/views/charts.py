"""Charts as inline SVG: axes; a plot with lines, dots, bars and error bars; a heat map; horizontal bars.

All charts are 360 units wide: the width of a phone, on which letters are readable; wider screens enlarge them.
Series differ in colour, dashes and marker, never in colour alone. NaN and infinite values are omitted, and
interrupt a line.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from numpy import ndarray

from chordmixer.views.page import Html, tag

Ticks = tuple[tuple[float, str], ...]

Point = tuple[float, float]

FONT = 12  # size of all letters in a chart
WIDTH = 360
SERIES = 8  # number of colours
DASHES = (None, "7 3", "2 2", "9 3 2 3", "12 3", "4 2", "1 3", "6 2 2 2 2 2")
DARK_SHARE = 0.65  # shade above which the label of a cell has the colour of the page
MAX_NAME_WIDTH = 140  # maximum width of the names along a vertical axis


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, linear or logarithmic."""

    low: float
    high: float
    title: str
    ticks: Ticks
    log: bool = False

    def share(self, value: float) -> float:
        """The relative position of a value: 0 at the low end, 1 at the high one; NaN if it is undefined.

        >>> Axis(1, 100, "", (), log=True).share(10)
        0.5
        """
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


def linear(values: Iterable[float], title: str, within: tuple[float, float] = (-math.inf, math.inf)) -> Axis:
    """A linear axis with round ends around the values, but not beyond `within`.

    >>> axis = linear([0.62, 0.97], "accuracy")
    >>> axis.low, axis.high, [label for _, label in axis.ticks]
    (0.6, 1.0, ['0.6', '0.7', '0.8', '0.9', '1.0'])
    """
    finite = [*filter(math.isfinite, values)] or [*filter(math.isfinite, within)] or [0.0, 1.0]
    low, high = float(min(finite)), float(max(finite))
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        margin = abs(low) / 2 or 0.5
        low, high = max(low - margin, within[0]), min(high + margin, within[1])
    step = _step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    positions = [float(f"{k * step:.12g}") for k in range(first, last + 1)]
    low, high = max(positions[0], within[0]), min(positions[-1], within[1])
    inside = [p for p in positions if low - 1e-9 * step <= p <= high + 1e-9 * step]
    return Axis(low, high, title, tuple((p, tick_label(p, step)) for p in inside))


def logarithmic(values: Iterable[float], title: str) -> Axis:
    """A logarithmic axis over the positive values, with ticks at 1, 2 and 5 times powers of ten where these fit.

    >>> [label for _, label in logarithmic([30, 40_000], "length").ticks]
    ['100', '1k', '10k']
    """
    positive = [v for v in map(float, values) if math.isfinite(v) and v > 0] or [1.0, 10.0]
    low, high = min(positive), max(positive)
    if low == high:
        low, high = low / 2, high * 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), range(1, 10)):
        positions = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(positions) >= 3:
            break
    else:
        positions = [low, high]
    positions = positions[:: math.ceil(len(positions) / 7)]
    return Axis(low, high, title, tuple((p, compact(p)) for p in positions), log=True)


def categories(names: Sequence[str], title: str) -> Axis:
    """An axis with the names at 0, 1, 2, ..., and a margin of half a step at both ends."""
    return Axis(-0.5, max(len(names), 1) - 0.5, title, tuple((float(i), name) for i, name in enumerate(names)))


def _step(rough: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))


def tick_label(value: float, step: float) -> str:
    """Format a tick with as many decimals as the step needs.

    >>> tick_label(0.1 + 0.2, 0.1), tick_label(20_000, 10_000), tick_label(-0.0, 0.5), tick_label(2e-6, 1e-6)
    ('0.3', '20k', '0.0', '2e-06')
    """
    if abs(value) < step / 1000:
        value = 0.0
    if step >= 1000:
        return compact(value)
    if step < 1e-4:
        return f"{value:.{max(0, _order(value) - _order(step))}e}" if value else "0"
    return f"{value:,.{max(0, -_order(step))}f}"


def _order(value: float) -> int:
    return math.floor(math.log10(abs(value)) + 1e-9) if value else 0


def compact(value: float) -> str:
    """Format a number with at most four digits.

    >>> compact(950), compact(1500), compact(2e6), compact(0.05)
    ('950', '1.5k', '2M', '0.05')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def text_width(words: str) -> float:
    """An upper estimate of the width of text in a chart, for any font."""
    return FONT * sum(map(_letter_width, words))


def _letter_width(letter: str) -> float:
    if letter in "iIl.,:;'|!fjtr()[] ":
        return 0.36
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    return 0.92 if letter in "MWmw@%" else 0.72 if letter.isupper() else 0.6


def fitted(words: str, width: float) -> str:
    """Cut a text to a width.

    >>> fitted("Cyprinidae", 100), fitted("Cyprinidae", 40)
    ('Cyprinidae', 'Cypri…')
    """
    if text_width(words) <= width:
        return words
    while words and text_width(words + "…") > width:
        words = words[:-1]
    return words + "…"


def labels_that_fit(positions: Sequence[float], labels: Sequence[str], gap: float = 6) -> list[int]:
    """Indices of labels, centred at these positions, that fit in a row: every n-th, counted from the last.

    >>> labels_that_fit([0, 10, 20, 30], ["100", "200", "300", "400"])
    [0, 3]
    """
    for stride in range(1, len(positions) + 1):
        indices = [*range(len(positions) - 1, -1, -stride)][::-1]
        ends = [(positions[i] - text_width(labels[i]) / 2, positions[i] + text_width(labels[i]) / 2) for i in indices]
        if all(ends[k][1] + gap <= ends[k + 1][0] for k in range(len(ends) - 1)):
            return indices
    return []


# --- Charts ---


class Plot:
    """A frame with two axes, and the marks in it."""

    def __init__(self, x: Axis, y: Axis, height: int = 240) -> None:
        self.x_axis, self.y_axis, self.height = x, y, height
        names = [fitted(label, MAX_NAME_WIDTH) for _, label in y.ticks]
        self.left = 11 + max(map(text_width, names), default=0)
        self.right = WIDTH - max(10.0, *(text_width(label) / 2 + 1 for _, label in x.ticks[-1:]), 0)
        self.top, self.bottom = (22 if y.title else 8), height - (40 if x.title else 22)
        self.marks: list[Html] = []

    def x(self, value: float) -> float:
        return self.left + self.x_axis.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.y_axis.share(value) * (self.bottom - self.top)

    def line(self, points: Iterable[Point], series: int = 0, *, faint: bool = False, solid: bool = False) -> None:
        """Draw a line through the points, dashed unless `solid`; a single point between gaps becomes a dot."""
        kind = f"line c{series % SERIES}" + (" faint" if faint else "")
        dash = None if faint or solid else DASHES[series % SERIES]
        for run in self._runs(points):
            if len(run) == 1:
                self.marks.append(_marker(*run[0], series, 2))
            else:
                self.marks.append(tag("path", d=_path(run), class_=kind, stroke_dasharray=dash))

    def dots(self, points: Iterable[Point], series: int = 0, size: float = 3.5) -> None:
        self.marks += [_marker(x, y, series, size) for run in self._runs(points) for x, y in run]

    def errors(
        self, rows: Iterable[tuple[float, float, float]], series: int = 0, *, horizontal: bool = False, cap: float = 3
    ) -> None:
        """Draw error bars from rows of position on the other axis, low and high."""
        along, across = (self.x, self.y) if horizontal else (self.y, self.x)
        for position, low, high in rows:
            a, b, c = along(low), along(high), across(position)
            if not math.isfinite(a + b + c):
                continue
            if horizontal:
                path = f"M{_n(a)} {_n(c)}H{_n(b)}M{_n(a)} {_n(c - cap)}v{2 * cap}M{_n(b)} {_n(c - cap)}v{2 * cap}"
            else:
                path = f"M{_n(c)} {_n(a)}V{_n(b)}M{_n(c - cap)} {_n(a)}h{2 * cap}M{_n(c - cap)} {_n(b)}h{2 * cap}"
            self.marks.append(tag("path", d=path, class_=f"error c{series % SERIES}"))

    def bars(self, edges: Sequence[float], heights: Sequence[float], series: int = 0) -> None:
        """Draw vertical bars between the edges, from the lower end of the axis."""
        for (start, end), height in zip(pairwise(edges), heights, strict=True):
            left, right, top = self.x(start), self.x(end), self.y(height)
            if math.isfinite(left + right + top) and height > self.y_axis.low:
                width = max(right - left - 1, 0.5)
                self.marks.append(_rect(left + 0.5, top, width, self.bottom - top, f"f{series % SERIES}"))

    def squares(self, x_edges: Sequence[float], y_edges: Sequence[float], counts: ndarray) -> None:
        """Draw a 2D histogram, shaded by counts, with edges in x (rows of `counts`) and in y (columns)."""
        most = max(float(counts.max(initial=0)), 1)
        for i, j in zip(*counts.nonzero(), strict=True):
            left, right = self.x(x_edges[i]), self.x(x_edges[i + 1])
            low, high = self.y(y_edges[j]), self.y(y_edges[j + 1])
            shade = 0.15 + 0.85 * math.log1p(float(counts[i, j])) / math.log1p(most)
            self.marks.append(_rect(left, high, right - left, low - high, "heat", fill_opacity=f"{shade:.2f}"))

    def rule(self, *points: Point) -> None:
        """Draw a dashed reference line through these points."""
        self.marks.append(tag("path", d=_path((self.x(x), self.y(y)) for x, y in points), class_="rule"))

    def across(self, value: float, *, vertical: bool = False) -> None:
        """Draw a reference line across the whole frame, at a value of y, or of x if `vertical`."""
        axis, other = (self.x_axis, self.y_axis) if vertical else (self.y_axis, self.x_axis)
        if math.isfinite(axis.share(value)):
            self.rule(*((value, end) if vertical else (end, value) for end in (other.low, other.high)))

    def svg(self, title: str, description: str) -> Html:
        """The finished chart; `title` and `description` are for screen readers."""
        middle = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        marks = self.marks or [_text(*middle, "no data", "tick", "middle")]
        return _svg(self.height, title, description, *self._frame(), *marks)

    def _runs(self, points: Iterable[Point]) -> Iterator[list[Point]]:
        """Sequences of points without a gap, in units of the chart."""
        placed = [(self.x(x), self.y(y)) for x, y in points]
        for is_finite, run in groupby(placed, lambda p: math.isfinite(p[0] + p[1])):
            if is_finite:
                yield list(run)

    def _frame(self) -> Iterator[Html]:
        middle = (self.left + self.right) / 2
        x_ticks = [(self.x(value), label) for value, label in self.x_axis.ticks]
        y_ticks = [(self.y(value), label) for value, label in self.y_axis.ticks]
        for y, _ in y_ticks:
            yield tag("path", d=f"M{_n(self.left)} {_n(y)}H{_n(self.right)}", class_="grid")
        yield _rect(self.left, self.top, self.right - self.left, self.bottom - self.top, "frame")
        for y, label in y_ticks:
            name = fitted(label, MAX_NAME_WIDTH)
            yield _text(self.left - 8, y + 4, name, "tick", "end", label if name != label else None)
        for i in labels_that_fit([x for x, _ in x_ticks], [label for _, label in x_ticks]):
            x, label = x_ticks[i]
            yield tag("path", d=f"M{_n(x)} {_n(self.bottom)}v4", class_="frame")
            half = text_width(label) / 2
            yield _text(min(max(x, half), WIDTH - half), self.bottom + 17, label, "tick", "middle")
        if self.x_axis.title:
            half = min(middle, WIDTH - middle)
            yield _text(middle, self.height - 6, fitted(self.x_axis.title, 2 * half), None, "middle")
        if self.y_axis.title:
            yield _text(1, 12, fitted(self.y_axis.title, WIDTH - 2), None, None)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    shares: ndarray,
    labels: Sequence[Sequence[str]],
    title: str,
    description: str,
    titles: tuple[str, str],
) -> Html:
    """Draw a cell for each row and column, shaded by its share (0 to 1), with its label if all labels fit.

    Columns have names if all fit, else the numbers of the rows' names. `titles` are those of rows and columns.
    """
    side, over = _names(rows, columns)
    left, width = _cell_layout(side, len(columns))
    height, top = min(max(width, FONT + 3), 64), 38
    fits = all(text_width(label) <= width - 2 for line in labels for label in line)
    middles = [left + (j + 0.5) * width for j in range(len(columns))]
    parts = [_text(1, 12, fitted(f"{titles[0]} ↓   {titles[1]} →", WIDTH - 2), None, None)]
    parts += [
        _text(middles[j], top - 6, over[j], "tick", "middle", columns[j])
        for j in labels_that_fit(middles, over, gap=2)
    ]
    for i, name in enumerate(side):
        y, baseline = top + i * height, top + (i + 0.5) * height + 4
        parts.append(_text(left - 6, baseline, fitted(name, left - 8), "tick", "end", rows[i]))
        for j, value in enumerate(shares[i].tolist()):
            share = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
            cell = (left + j * width + 0.5, y + 0.5, width - 1, height - 1)
            parts.append(_rect(*cell, "heat", fill_opacity=f"{share:.3f}"))
            if fits:
                parts.append(
                    _text(middles[j], baseline, labels[i][j], "over" if share > DARK_SHARE else None, "middle")
                )
    parts.append(_rect(left, top, width * len(columns), height * len(rows), "frame"))
    return _svg(math.ceil(top + height * len(rows) + 2), title, description, *parts)


def _names(rows: Sequence[str], columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Labels of the rows and of the columns: names if all fit above their columns, else numbers."""
    _, width = _cell_layout(rows, len(columns))
    if all(text_width(name) <= width - 4 for name in columns):
        return list(rows), list(columns)
    return [f"{i} {row}" for i, row in enumerate(rows, 1)], [str(j) for j in range(1, len(columns) + 1)]


def _cell_layout(names: Sequence[str], columns: int) -> tuple[float, float]:
    """The left edge of the cells, to the right of these names, and their width."""
    left = min(max(map(text_width, names), default=0) + 8, MAX_NAME_WIDTH)
    return left, min((WIDTH - left - 2) / max(columns, 1), 110)


def horizontal_bars(names: Sequence[str], counts: Sequence[float], title: str, description: str) -> Html:
    """Draw horizontal bars, each between its name and its count."""
    labels = [f"{count:,}" for count in counts]
    left = min(max(map(text_width, names), default=0), MAX_NAME_WIDTH) + 8
    available = WIDTH - left - max(map(text_width, labels), default=0) - 8
    most = max([*counts, 1])
    parts = []
    for i, (name, count, label) in enumerate(zip(names, counts, labels, strict=True)):
        y, width = 22 * i + 4, max(available * count / most, 1 if count else 0)
        parts.append(_text(left - 6, y + 13, fitted(name, left - 6), "tick", "end", name))
        parts.append(_rect(left, y, width, 16, "f0"))
        parts.append(_text(left + width + 5, y + 13, label, None, None))
    return _svg(22 * max(len(names), 1) + 6, title, description, *parts)


def legend(names: Iterable[tuple[str, int | None]], *, markers: bool = True) -> Html:
    """Build a legend from the names of series, each with its number, or None for a reference line."""
    return tag("ul", *(tag("li", _sample(series, markers), name) for name, series in names), class_="legend")


def _sample(series: int | None, markers: bool) -> Html:
    kind, dash = ("rule", None) if series is None else (f"line c{series % SERIES}", DASHES[series % SERIES])
    line = tag("path", d="M1 6H27", class_=kind, stroke_dasharray=dash)
    dot = _marker(14, 6, series, 3.5) if markers and series is not None else ""
    return tag("svg", line, dot, viewBox="0 0 28 12", aria_hidden="true")


def _marker(x: float, y: float, series: int, size: float) -> Html:
    """The marker of a series: circle, square, triangle or diamond, in a cycle."""
    kind, r = f"f{series % SERIES}", size
    if series % 4 == 0:
        return tag("circle", cx=_n(x), cy=_n(y), r=_n(r), class_=kind)
    shapes = (
        f"M{_n(x - r)} {_n(y - r)}h{_n(2 * r)}v{_n(2 * r)}h{_n(-2 * r)}z",
        f"M{_n(x)} {_n(y - r - 1)}l{_n(r + 1)} {_n(2 * r)}h{_n(-2 * r - 2)}z",
        f"M{_n(x)} {_n(y - r - 1)}l{_n(r + 1)} {_n(r + 1)}l{_n(-r - 1)} {_n(r + 1)}l{_n(-r - 1)} {_n(-r - 1)}z",
    )
    return tag("path", d=shapes[series % 4 - 1], class_=kind)


def _text(
    x: float, y: float, text: str, class_: str | None, anchor: str | None, full_text: str | None = None
) -> Html:
    """Draw text; `full_text` is shown on hover if it differs."""
    title = tag("title", full_text) if full_text is not None and full_text != text else ""
    return tag("text", title, text, x=_n(x), y=_n(y), class_=class_, text_anchor=anchor)


def _svg(height: int, title: str, description: str, *parts: Html) -> Html:
    descriptions = (tag("title", title), tag("desc", description))
    return tag("svg", *descriptions, *parts, viewBox=f"0 0 {WIDTH} {height}", role="img", class_="chart")


def _rect(x: float, y: float, width: float, height: float, class_: str, **others: str) -> Html:
    size = {"x": _n(x), "y": _n(y), "width": _n(width), "height": _n(height)}
    return tag("rect", **size, class_=class_, **others)


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _n(value: float) -> str:
    """Format a coordinate, to a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0")
