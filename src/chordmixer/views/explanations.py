"""Show explanations on a page: for each record a chart by position, its strongest regions, its letters in colour."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from chordmixer.config import check_numbers
from chordmixer.training.explanation import Explanation, runs
from chordmixer.views import charts, metrics, page
from chordmixer.views.page import Html, tag
from chordmixer.views.plots import full_colour, strongest
from chordmixer.views.tables import ReportTable

MAX_COLUMNS = 300  # maximum number of columns of a chart; with more positions each shows the strongest of several
MAX_LETTERS = 2_000  # maximum number of letters shown of a record, around its strongest position
MAX_REGIONS = 5  # maximum number of regions in the table
MAX_REPORT_LETTERS = 600  # the same in a report
REGION_SHARE, REGION_GAP = 0.3, 2
"""Minimum share of the strongest value in a region, and maximum number of consecutive weak positions in it."""
SIGNIFICANT_DIGITS = 5
SHADES = 8
POSITIVE, NEGATIVE = "184,74,0", "0,87,168"
"""Orange and blue, which colour-blind readers can distinguish; drawn transparent, for light and dark pages."""
MEANING = (
    "Orange: hiding this part lowers the log-odds of the predicted class, or the predicted number. Blue: hiding it "
    "raises them. This shows what the model uses, which need not be the biological cause."
)


@dataclass(frozen=True)
class Picture:
    """The contents of a page on one explanation."""

    id: str
    said: tuple[str, ...]  # sentences on the prediction
    unit: str  # what the values are
    edges: tuple[int, ...]  # where stretches of equal values start and end, from 0, in letters or samples
    heights: tuple[float, ...]  # the value of each stretch
    letters: str | None = None  # one letter per position; None: a series
    samples: tuple[float, ...] | None = None  # the first channel of a series

    def __post_init__(self) -> None:
        check_numbers(self)
        length = len(self.letters or "") if self.samples is None else len(self.samples)
        if not self.heights or len(self.edges) != len(self.heights) + 1 or min(np.diff(self.edges)) < 1:
            raise ValueError(f"{len(self.edges)} edges do not rise around {len(self.heights)} heights")
        if (self.edges[0], self.edges[-1]) != (0, length):
            raise ValueError(f"edges from {self.edges[0]} to {self.edges[-1]} do not fit {length} letters or samples")

    @property
    def values(self) -> ndarray:
        """One value per position."""
        return np.repeat(np.array(self.heights), np.diff(self.edges))

    @staticmethod
    def of(explanation: Explanation, *said: str) -> Picture:
        """Build a picture of an explanation; `said` are further sentences on the prediction."""
        answer, *others = sentences(explanation)
        values = _rounded(explanation.by_letter)
        cuts = runs(values)
        samples = None
        if isinstance(explanation.sequence, ndarray):
            samples = tuple(_rounded(explanation.sequence.reshape(len(values), -1)[:, 0]).tolist())
        return Picture(
            id=explanation.entry.id,
            said=(answer, *said, *others),
            unit="drop in the number" if explanation.explained is None else "drop in log-odds",
            edges=tuple(cuts.tolist()),
            heights=tuple(values[cuts[:-1]].tolist()),
            letters=explanation.letters,
            samples=samples,
        )


@dataclass(frozen=True)
class Explained:
    """The explanations.json of a run: some records of its test part."""

    records: tuple[Picture, ...]
    said: tuple[str, ...]  # how they were explained, and what was left out
    format: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, format=(1, 1))


def sentences(result: Explanation) -> Iterator[str]:
    """Sentences on the prediction, on the class explained, and on how much depends on the strongest part."""
    score = "the number" if result.explained is None else "the log-odds"
    if result.explained is None:
        yield f"Prediction: {metrics.number(result.score)}."
    else:
        other = "" if result.explained == result.answer else f" Explained: {page.short(result.explained, 60)}."
        answer = page.short(result.answer, 60)
        yield f"Prediction: {answer}.{other} Probability {result.probability:.3f}, log-odds {result.score:+.2f}."
    peak = float(
        result.values[np.abs(result.values).argmax() if result.explained is None else result.values.argmax()]
    )
    if peak > 0 or (peak and result.explained is None):
        verb = "lowers" if peak > 0 else "raises"
        yield f"Hiding the strongest part {verb} {score} by {abs(peak):.3g}."
    else:
        yield f"Hiding a single part never lowers {score}: the prediction depends on many parts at once, or on none."


def _rounded(values: ndarray) -> ndarray:
    return np.array([float(f"{value:.{SIGNIFICANT_DIGITS}g}") for value in values.tolist()])


# --- On the page ---


def document(title: str, method: str, pictures: Sequence[Picture], omitted: int = 0) -> Html:
    """Build the page of `explain`; `omitted` is the number of records that are not shown on it."""
    rest = f"{omitted:,} more records are not shown: a .tsv or .bedgraph file has all." if omitted else ""
    named = [(page.short(picture.id, 80), drawn(picture)) for picture in pictures]
    sections = [page.section(f"record-{i}", name, shown) for i, (name, shown) in enumerate(named, 1)]
    links = page.contents(sections, "Records") if len(sections) > 1 else ""
    lines = [tag("p", line) for line in (method, MEANING, rest) if line]
    return page.document(title, tag("main", tag("h1", title), *lines, links, *sections))


def explanations_section(folder: Path, explained: Explained) -> page.Section:
    """Build the section of a report that explains a few test records."""
    parts = [
        tag("div", tag("h3", page.short(record.id, 80)), drawn(record, MAX_REPORT_LETTERS), class_="record")
        for record in explained.records
    ]
    said = " ".join(page.short(line, 400) for line in explained.said)
    command = tag("code", f"chordmixer explain {shlex.quote(str(folder))} FILES -o why.html")
    lead = tag("p", f"{'Some' if parts else 'No'} test records. {said}")
    other = tag("p", "To explain other records: ", command, ".")
    return page.section("explanations", "Explanations", lead, tag("p", MEANING), *parts, other)


def drawn(picture: Picture, letters: int = MAX_LETTERS) -> Html:
    """Show a record: its chart, its strongest regions and at most `letters` letters."""
    values = picture.values
    full = full_colour(values)
    chart = _bars(values, picture.unit) if picture.samples is None else _recording(picture, full)
    text = [] if picture.letters is None else _text(picture.letters, values, full, letters)
    said = tag("p", " ".join(page.short(line) for line in picture.said))
    return page.join([said, page.figures(tag("figure", chart), _table(picture)), *text])


class Region(NamedTuple):
    """A stretch of strong values; positions count from 0."""

    start: int
    stop: int
    value: float  # the value that is farthest from zero


def strongest_regions(values: ndarray) -> list[Region]:
    """Find the regions with the strongest values, sorted by strength.

    >>> strongest_regions(np.array([0.0, 3, 0, 4, 0.5, -2, 0]))
    [Region(start=1, stop=4, value=4.0), Region(start=5, stop=6, value=-2.0)]
    """
    sizes = np.abs(values)
    signs = np.where(sizes >= REGION_SHARE * max(float(sizes.max()), 1e-12), np.sign(values), 0)
    spans: list[tuple[int, int]] = []
    for start, stop in pairwise(runs(signs).tolist()):
        if signs[start] and spans and start - spans[-1][1] <= REGION_GAP and signs[start] == signs[spans[-1][0]]:
            spans[-1] = (spans[-1][0], stop)
        elif signs[start]:
            spans.append((start, stop))
    regions = [Region(a, b, float(values[a:b][sizes[a:b].argmax()])) for a, b in spans]
    return sorted(regions, key=lambda region: -abs(region.value))[:MAX_REGIONS]


def _table(picture: Picture) -> Html:
    regions = strongest_regions(picture.values)
    if not regions:
        return page.join([])
    rows = []
    for start, stop, value in regions:
        where = f"{start + 1:,}" if stop - start == 1 else f"{start + 1:,} to {stop:,}"
        text = [] if picture.letters is None else [tag("code", page.short(picture.letters[start:stop], 24))]
        rows.append((where, *text, f"{value:+.3g}"))
    head = ("position", *([] if picture.letters is None else ["letters"]), picture.unit)
    grid = ReportTable(head, rows, "strongest regions", words=(0, 1) if picture.letters else (0,))
    return tag("div", tag("h3", "Strongest regions"), grid.html())


def _text(text: str, values: ndarray, full: float, max_letters: int) -> Iterator[Html]:
    """The letters in colour; for a long record only those around the strongest value."""
    first = max(0, min(int(np.abs(values).argmax()) - max_letters // 2, len(text) - max_letters))
    last = min(first + max_letters, len(text))
    if last - first < len(text):
        where = f"Letters {first + 1:,} to {last:,} of {len(text):,}, around the strongest position:"
        yield tag("p", where, class_="quiet")
    yield tag("pre", *_spans(text[first:last], values[first:last], full, first))


def _spans(text: str, values: ndarray, full: float, first: int) -> Iterator[Html | str]:
    """Elements of consecutive letters with the same shade."""
    shown = text.replace("\r\n", " \n").replace("\r", "\n")  # of the same length
    shades = np.clip(np.rint(values / full * SHADES), -SHADES, SHADES).astype(int)
    for a, b in pairwise(runs(shades).tolist()):
        if not shades[a]:
            yield shown[a:b]
            continue
        colour = f"background:rgba({POSITIVE if shades[a] > 0 else NEGATIVE},{0.6 * abs(shades[a]) / SHADES:.2f})"
        peak = values[a:b][np.abs(values[a:b]).argmax()]
        yield tag("span", shown[a:b], style=colour, title=f"{first + a + 1:,} to {first + b:,}: {peak:+.3g}")


# --- Charts ---


def _positions(length: int) -> charts.Axis:
    """An axis from the first to the last position, with a margin of half a position at both ends."""
    ticks = charts.linear([1, max(length, 2)], "").ticks
    inside = tuple(
        (position, name) for position, name in ticks if 1 <= position <= length and position == int(position)
    )
    return charts.Axis(0.5, length + 0.5, "position", inside)


def _columns(values: ndarray) -> Iterator[tuple[int, int, float]]:
    """Start, stop and value of at most `MAX_COLUMNS` intervals of equal value."""
    heights = strongest(values, MAX_COLUMNS)
    width = -(-len(values) // MAX_COLUMNS)
    for a, b in pairwise(runs(heights).tolist()):
        yield a * width, min(b * width, len(values)), float(heights[a])


def _bars(values: ndarray, unit: str) -> Html:
    plot = charts.Plot(_positions(len(values)), charts.linear([0.0, *values[runs(values)[:-1]].tolist()], unit), 180)
    zero = plot.y(0.0)
    drawn: dict[bool, list[str]] = {True: [], False: []}
    for start, stop, height in _columns(values):
        if height:
            left, right = plot.x(start + 0.5), plot.x(stop + 0.5)
            drawn[height > 0].append(f"M{left:.1f} {zero:.1f}V{plot.y(height):.1f}H{right:.1f}V{zero:.1f}z")
    for positive, paths in drawn.items():
        if paths:
            plot.marks.append(tag("path", d="".join(paths), class_="f1" if positive else "f0"))
    plot.across(0.0)
    return plot.svg("Values by position", f"The {unit} when a part of the record is hidden")


def _recording(picture: Picture, full: float) -> Html:
    """Plot the series over bands in the colour of the values."""
    samples, values = np.array(picture.samples), picture.values
    plot = charts.Plot(_positions(len(values)), charts.linear(samples.tolist(), "recording"), 200)
    full_height = {"y": f"{plot.top:.1f}", "height": f"{plot.bottom - plot.top:.1f}"}
    for start, stop, height in _columns(values):
        shade = 0.6 * min(abs(height) / full, 1.0)
        if shade >= 0.02:
            left, right = plot.x(start + 0.5), plot.x(stop + 0.5)
            box = {"x": f"{left:.1f}", "width": f"{right - left:.1f}", "fill_opacity": f"{shade:.2f}"}
            plot.marks.append(tag("rect", **box, **full_height, class_="f1" if height > 0 else "f0"))
    plot.line(_outline(samples), 5, solid=True)
    description = f"The first channel; colours are the {picture.unit} when that part is hidden"
    return plot.svg("The recording, coloured by importance", description)


def _outline(samples: ndarray) -> Iterator[tuple[float, float]]:
    """Points of every sample; for a long series the minimum and maximum of groups of samples."""
    size = -(-len(samples) // (2 * MAX_COLUMNS))
    for start in range(0, len(samples), size):
        group = samples[start : start + size]
        ends = [group.min()] if size == 1 else [group.min(), group.max()]
        yield from ((start + (len(group) + 1) / 2, float(end)) for end in ends)
