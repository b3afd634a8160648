"""The data of a run: sources, the account of records, lengths, classes, splits and what crosses them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy import ndarray

from chordmixer.data.inspection import Inspection, TargetSummary, length_histogram
from chordmixer.views import axes, charts, metrics
from chordmixer.views.inspection import spread_of
from chordmixer.views.page import Html, figure, figures, items, join, section, short, table, tag
from chordmixer.views.runs import DataSeen, Run

CLASSES = 12
"""That have a bar of their own."""
SOURCES = 20
METHODS = {
    "given": "as a column of the data says",
    "random": "at random; copies of a record stay together",
    "grouped": "by group: records of one group are never in two parts",
    "similarity": "by similarity: near-copies are never in two parts",
}


def chapter(run: Run) -> Html:
    if run.data is None:
        said = (
            f"The run's folder has no data.json: the task {run.task!r} makes its own sequences, or the run is older."
        )
        lengths = run.predictions.lengths if run.predictions else None
        shown = _test_lengths(lengths) if lengths is not None and len(lengths) else ""
        return section("data", "Data", tag("p", said), shown)
    seen = run.data.inspection
    drawn = [*_pictures(seen)] if seen else []
    return section("data", "Data", *_facts(run.data), figures(*drawn) if drawn else "", *_parts(run, run.data))


def _facts(data: DataSeen) -> Iterator[Html]:
    if data.sources:
        names = [tag("code", short(source)) for source in data.sources[:SOURCES]]
        more = [f" and {len(data.sources) - SOURCES:,} more"] if len(data.sources) > SOURCES else []
        yield tag("p", "Read from ", join([part for name in names for part in (", ", name)][1:] + more), ".")
    seen = data.inspection
    if seen:
        said = f"{seen.records:,} records of {seen.tokens:,} tokens in total, read as {seen.tokenizer}."
        extras = [f"{seen.gc:.1%} of the bases are G or C." if seen.gc is not None else ""]
        if seen.ambiguous is not None:
            extras.append(f"{seen.ambiguous:.2%} of the tokens are ambiguous or unknown.")
        yield tag("p", " ".join([said, *filter(None, extras)]))
    account = data.account or (seen.account if seen else None)
    if account:
        yield items(short(line, 400) for line in account.lines())


def _pictures(seen: Inspection) -> Iterator[Html]:
    yield _lengths(seen.edges, seen.histogram, seen.percentiles[50], "all records")
    if seen.classes:
        yield _classes(seen.classes)
    if seen.targets:
        yield _targets(seen.targets)


def _test_lengths(lengths: ndarray) -> Html:
    edges, counts = length_histogram(lengths)
    return figures(_lengths(edges, counts, int(np.median(lengths)), "test records"))


def _lengths(edges: list[int], counts: list[int], median: int, which: str) -> Html:
    x, y = axes.logarithmic(edges, "length in tokens"), axes.linear([0, *counts], "records")
    plot = charts.Plot(x, y, height=220)
    plot.bars(edges, counts)
    plot.across(median, standing=True)
    told = f"{which} from {edges[0]:,} to {edges[-1] - 1:,} tokens, median {median:,}"
    rows = [
        (f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}", f"{count:,}")
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    ]
    return figure(
        "Lengths",
        plot.svg("Histogram of lengths", told),
        f"Lengths of {told} (dashed).",
        numbers=table(("tokens", "records"), rows, name="lengths"),
    )


def _classes(classes: dict[str, int]) -> Html:
    """The largest with a bar each, the rest in one."""
    total, named = sum(classes.values()), list(classes.items())
    bars = named[:CLASSES]
    if len(named) > CLASSES:
        bars.append((f"{len(named) - CLASSES:,} more", sum(count for _, count in named[CLASSES:])))
    told = f"{len(named):,} classes, the largest with {named[0][1] / total:.1%} of the records"
    rows = [(short(name), f"{count:,}", f"{count / total:.1%}") for name, count in named]
    return figure(
        "Classes",
        charts.shares([name for name, _ in bars], [count for _, count in bars], "Records of each class", told),
        f"Records of each label: {told}.",
        numbers=table(("class", "records", "share"), rows, name="classes"),
    )


def _targets(targets: TargetSummary) -> Html:
    """The histogram of the numbers to predict, and what they come to."""
    edges, counts = list(targets.edges), list(targets.histogram)
    if edges[0] == edges[-1]:  # one value, which has no width to draw
        edges = [edges[0] - 0.5, edges[0] + 0.5]
    plot = charts.Plot(axes.linear(edges, "target"), axes.linear([0, *counts], "records"), height=220)
    plot.bars(edges, counts)
    plot.across(targets.quartiles[2], standing=True)
    said = spread_of(targets)
    rows = [
        (f"{metrics.number(low)} to {metrics.number(high)}", f"{count:,}")
        for (low, high), count in zip(pairwise(edges), counts, strict=True)
    ]
    return figure(
        "Targets",
        plot.svg("Histogram of targets", "; ".join(said)),
        f"The numbers to predict: {'; '.join(said)}. Dashed: the median.",
        numbers=table(("target", "records"), rows, name="targets"),
    )


def _parts(run: Run, data: DataSeen) -> Iterator[Html]:
    """The split, and what it leaks."""
    sizes = {str(part): int(size) for part, size in (data.split.get("sizes") or {}).items()}
    if sizes:
        method = str(data.split.get("method", ""))
        yield tag("h3", "Split")
        yield tag("p", f"Records were shared out {METHODS.get(method, method)}.")
        if run.ensemble and run.ensemble.kind == "folds":
            yield tag(
                "p",
                f"Those of training and validation were divided together into {run.ensemble.size} folds in the same "
                "way: each member validates on one of them and trains on the others.",
            )
        total = max(sum(sizes.values()), 1)
        rows = [(part, f"{size:,}", f"{size / total:.1%}") for part, size in sizes.items()]
        yield table(("part", "records", "share"), rows, name="split")
    twice = data.inspection.duplicates if data.inspection else None
    if twice:
        kinds = [f"{twice.exact:,} exact"]
        if twice.reverse_complement is not None:
            kinds.append(f"{twice.reverse_complement:,} reverse complement")
        across = "targets" if data.inspection and data.inspection.targets else "labels"
        yield tag("p", f"Duplicates among all records: {', '.join(kinds)}; {twice.across_labels:,} across {across}.")
    if data.leakage:
        yield tag("h3", "Leakage")
        yield items(short(line, 400) for part, leak in data.leakage.items() for line in leak.lines(part))
        if not data.near:
            yield tag(
                "p", "Near-copies were not looked for: the data are series, or too large to compare all records."
            )
    else:
        yield tag("p", "The run does not say whether copies cross the parts (data.json has no leakage).")
