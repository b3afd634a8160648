"""Explanations on a page: for each record a chart by position, its most important regions, its letters in colour."""

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

COLUMNS = 300  # maximum number of places in a chart; in longer records each shows the strongest of several positions
LETTERS = 2_000  # maximum number of letters shown of a record, around its strongest position
REGIONS = 5  # maximum number of regions in the table
REPORTED = 600  # as `LETTERS`, in a report
NEAR, GAP = 0.3, 2
"""Share of the strongest value from which a position belongs to a region, and weak positions inside a region."""
DIGITS = 5
SHADES = 8
FOR, AGAINST = "184,74,0", "0,87,168"
"""Orange and blue, safe for colour-blind readers; transparent, to fit a light and a dark page."""
MEANING = (
    "Orange: hiding this part lowers the log-odds of the predicted class, or the predicted number. Blue: hiding it "
    "raises them. This shows what the model uses, which need not be the biological cause."
)


@dataclass(frozen=True)
class Picture:
    """What a page shows of one explanation."""

    id: str
    said: tuple[str, ...]  # sentences on the prediction
    unit: str  # what the values are
    edges: tuple[int, ...]  # where stretches of equal values start and end, from 0, in letters or samples
    heights: tuple[float, ...]  # the value of each stretch
    letters: str | None = None  # one letter per position; None: a series
    samples: tuple[float, ...] | None = None  # the first channel of a series

    def __post_init__(self) -> None:
        check_numbers(self)
        shown = len(self.letters or "") if self.samples is None else len(self.samples)
        if not self.heights or len(self.edges) != len(self.heights) + 1 or min(np.diff(self.edges)) < 1:
            raise ValueError(f"{len(self.edges)} edges do not rise around {len(self.heights)} heights")
        if (self.edges[0], self.edges[-1]) != (0, shown):
            raise ValueError(f"edges from {self.edges[0]} to {self.edges[-1]} do not fit {shown} letters or samples")

    @property
    def values(self) -> ndarray:
        """One value per position."""
        return np.repeat(np.array(self.heights), np.diff(self.edges))

    @staticmethod
    def of(found: Explanation, *said: str) -> Picture:
        """`said` are further sentences on the prediction."""
        answer, *others = sentences(found)
        values = _rounded(found.by_letter)
        cuts = runs(values)
        samples = None
        if isinstance(found.sequence, ndarray):
            samples = tuple(_rounded(found.sequence.reshape(len(values), -1)[:, 0]).tolist())
        return Picture(
            id=found.entry.id,
            said=(answer, *said, *others),
            unit="drop in the number" if found.explained is None else "drop in log-odds",
            edges=tuple(cuts.tolist()),
            heights=tuple(values[cuts[:-1]].tolist()),
            letters=found.letters,
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


def sentences(found: Explanation) -> Iterator[str]:
    """The prediction, what is explained, and how much of it depends on the strongest part."""
    what = "the number" if found.explained is None else "the log-odds"
    if found.explained is None:
        yield f"Prediction: {metrics.number(found.score)}."
    else:
        other = "" if found.explained == found.answer else f" Explained: {page.short(found.explained, 60)}."
        answer = page.short(found.answer, 60)
        yield f"Prediction: {answer}.{other} Probability {found.probability:.3f}, log-odds {found.score:+.2f}."
    peak = float(found.values[np.abs(found.values).argmax() if found.explained is None else found.values.argmax()])
    if peak > 0 or (peak and found.explained is None):
        how = "lowers" if peak > 0 else "raises"
        yield f"Hiding the strongest part {how} {what} by {abs(peak):.3g}."
    else:
        yield f"Hiding a single part never lowers {what}: the prediction depends on many parts at once, or on none."


def _rounded(values: ndarray) -> ndarray:
    return np.array([float(f"{value:.{DIGITS}g}") for value in values.tolist()])


# --- On the page ---


def document(title: str, method: str, pictures: Sequence[Picture], more: int = 0) -> Html:
    """The page of `explain`; `more` records are not shown on it."""
    rest = f"{more:,} more records are not shown: a .tsv or .bedgraph file has all." if more else ""
    named = [(page.short(picture.id, 80), drawn(picture)) for picture in pictures]
    sections = [page.section(f"record-{i}", name, shown) for i, (name, shown) in enumerate(named, 1)]
    links = page.contents(sections, "Records") if len(sections) > 1 else ""
    lines = [tag("p", line) for line in (method, MEANING, rest) if line]
    return page.document(title, tag("main", tag("h1", title), *lines, links, *sections))


def explanations_section(folder: Path, known: Explained) -> page.Section:
    """The section of a report: a few test records."""
    parts = [
        tag("div", tag("h3", page.short(own.id, 80)), drawn(own, REPORTED), class_="record") for own in known.records
    ]
    said = " ".join(page.short(line, 400) for line in known.said)
    command = tag("code", f"chordmixer explain {shlex.quote(str(folder))} FILES -o why.html")
    lead = tag("p", f"{'Some' if parts else 'No'} test records. {said}")
    other = tag("p", "To explain other records: ", command, ".")
    return page.section("explanations", "Explanations", lead, tag("p", MEANING), *parts, other)


def drawn(picture: Picture, letters: int = LETTERS) -> Html:
    """A record below its name, with at most so many letters."""
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
    """The strongest stretches, the strongest first.

    >>> strongest_regions(np.array([0.0, 3, 0, 4, 0.5, -2, 0]))
    [Region(start=1, stop=4, value=4.0), Region(start=5, stop=6, value=-2.0)]
    """
    sizes = np.abs(values)
    signs = np.where(sizes >= NEAR * max(float(sizes.max()), 1e-12), np.sign(values), 0)
    found: list[tuple[int, int]] = []
    for start, stop in pairwise(runs(signs).tolist()):
        if signs[start] and found and start - found[-1][1] <= GAP and signs[start] == signs[found[-1][0]]:
            found[-1] = (found[-1][0], stop)
        elif signs[start]:
            found.append((start, stop))
    strong = [Region(a, b, float(values[a:b][sizes[a:b].argmax()])) for a, b in found]
    return sorted(strong, key=lambda region: -abs(region.value))[:REGIONS]


def _table(picture: Picture) -> Html:
    found = strongest_regions(picture.values)
    if not found:
        return page.join([])
    rows = []
    for start, stop, value in found:
        where = f"{start + 1:,}" if stop - start == 1 else f"{start + 1:,} to {stop:,}"
        text = [] if picture.letters is None else [tag("code", page.short(picture.letters[start:stop], 24))]
        rows.append((where, *text, f"{value:+.3g}"))
    head = ("position", *([] if picture.letters is None else ["letters"]), picture.unit)
    grid = ReportTable(head, rows, "strongest regions", words=(0, 1) if picture.letters else (0,))
    return tag("div", tag("h3", "Strongest regions"), grid.html())


def _text(text: str, values: ndarray, full: float, most: int) -> Iterator[Html]:
    """The letters in colour; of a long record only those around the strongest value."""
    first = max(0, min(int(np.abs(values).argmax()) - most // 2, len(text) - most))
    last = min(first + most, len(text))
    if last - first < len(text):
        where = f"Letters {first + 1:,} to {last:,} of {len(text):,}, around the strongest position:"
        yield tag("p", where, class_="quiet")
    yield tag("pre", *_spans(text[first:last], values[first:last], full, first))


def _spans(text: str, values: ndarray, full: float, first: int) -> Iterator[Html | str]:
    """Neighbours of one shade are one element."""
    shown = text.replace("\r\n", " \n").replace("\r", "\n")  # as long as before
    shades = np.clip(np.rint(values / full * SHADES), -SHADES, SHADES).astype(int)
    for a, b in pairwise(runs(shades).tolist()):
        if not shades[a]:
            yield shown[a:b]
            continue
        colour = f"background:rgba({FOR if shades[a] > 0 else AGAINST},{0.6 * abs(shades[a]) / SHADES:.2f})"
        peak = values[a:b][np.abs(values[a:b]).argmax()]
        yield tag("span", shown[a:b], style=colour, title=f"{first + a + 1:,} to {first + b:,}: {peak:+.3g}")


# --- Charts ---


def _positions(length: int) -> charts.Axis:
    """An axis from the first to the last position, with half a position of room at both ends."""
    ticks = charts.linear([1, max(length, 2)], "").ticks
    inside = tuple((place, name) for place, name in ticks if 1 <= place <= length and place == int(place))
    return charts.Axis(0.5, length + 0.5, "position", inside)


def _columns(values: ndarray) -> Iterator[tuple[int, int, float]]:
    """Start, stop and value of at most `COLUMNS` stretches."""
    heights = strongest(values, COLUMNS)
    share = -(-len(values) // COLUMNS)
    for a, b in pairwise(runs(heights).tolist()):
        yield a * share, min(b * share, len(values)), float(heights[a])


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
    """The series in front of bands in the colour of the values."""
    samples, values = np.array(picture.samples), picture.values
    plot = charts.Plot(_positions(len(values)), charts.linear(samples.tolist(), "recording"), 200)
    tall = {"y": f"{plot.top:.1f}", "height": f"{plot.bottom - plot.top:.1f}"}
    for start, stop, height in _columns(values):
        shade = 0.6 * min(abs(height) / full, 1.0)
        if shade >= 0.02:
            left, right = plot.x(start + 0.5), plot.x(stop + 0.5)
            place = {"x": f"{left:.1f}", "width": f"{right - left:.1f}", "fill_opacity": f"{shade:.2f}"}
            plot.marks.append(tag("rect", **place, **tall, class_="f1" if height > 0 else "f0"))
    plot.line(_outline(samples), 5, solid=True)
    told = f"The first channel; colours are the {picture.unit} when that part is hidden"
    return plot.svg("The recording, coloured by importance", told)


def _outline(samples: ndarray) -> Iterator[tuple[float, float]]:
    """Every sample, or of a long series the minimum and maximum of neighbours."""
    share = -(-len(samples) // (2 * COLUMNS))
    for start in range(0, len(samples), share):
        own = samples[start : start + share]
        ends = [own.min()] if share == 1 else [own.min(), own.max()]
        yield from ((start + (len(own) + 1) / 2, float(end)) for end in ends)
