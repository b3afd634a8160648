"""What `chordmixer inspect` shows: the numbers of a data set, and in words what may mislead a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from chordmixer.data.inspection import BATCH, Channels, Inspection, TargetSummary
from chordmixer.views import drawing, metrics
from chordmixer.views.drawing import COLOURS

ROWS = 12
"""Of letters and of classes that are shown."""
BAR = 32
TELLS = 0.65
"""ROC-AUC from which on a single number is said to predict the label."""
UNEVEN = 10
"""How many times the smallest class the largest may be before it is said."""
AMBIGUOUS = 0.05
MOST = 0.5
"""Share of equal targets from which on it is said."""


def report(inspection: Inspection) -> Group:
    """Everything, for a terminal of 80 columns or more."""
    parts: list[RenderableType] = [
        Text(f"{inspection.records:,} records, {inspection.tokens:,} tokens ({inspection.tokenizer})", style="bold"),
        *(Text(f"  {line}") for line in inspection.account.lines()),
        _lengths(inspection),
        *([_shares("letters", inspection.letters)] if inspection.letters and not inspection.channels else []),
        *([_channels(inspection.channels)] if inspection.channels else []),
        *([_shares("classes", inspection.classes)] if inspection.classes else []),
        *([_targets(inspection.targets)] if inspection.targets else []),
        _facts(inspection),
    ]
    said = [*warnings(inspection)]
    if said:
        parts += [Text(), Text("Warnings", style="bold yellow"), _list(said)]
    return Group(*parts)


def warnings(inspection: Inspection) -> Iterator[str]:
    """What may mislead a model or whoever reads its scores, with what to do about it."""
    for what, value in (("length", inspection.length_tells), ("GC content", inspection.gc_tells)):
        if value is not None and value >= TELLS:
            yield (
                f"{what} alone predicts the label with ROC-AUC {value:.2f}: a model that scores as much may have "
                f"learnt nothing else; match the classes in {what}, or judge scores against this one."
            )
    twice = inspection.duplicates
    copies = twice.exact + (twice.reverse_complement or 0)
    if copies:
        kinds = f"{_of(twice.exact, 'exact duplicate')}"
        if twice.reverse_complement is not None:
            kinds += f" and {_of(twice.reverse_complement, 'reverse complement')} of another record"
        example = " = ".join(twice.examples[0])
        yield (
            f"{kinds} (such as {example}): a copy in the test set is a question that was in the lesson; "
            "remove copies, or keep them in one split by group or similarity."
        )
    if twice.across_labels:
        noun = _noun(inspection)
        yield (
            f"{_of(twice.across_labels, 'sequence')} under more than one {noun}: no model can tell these apart; "
            f"correct the {noun}s or leave them out."
        )
    if inspection.ambiguous is not None and inspection.ambiguous > AMBIGUOUS:
        yield (
            f"{inspection.ambiguous:.1%} of the tokens are ambiguous or unknown: check that "
            f"{inspection.tokenizer} is what these files hold, or leave such records out."
        )
    yield from _warnings_of_classes(inspection)
    if inspection.targets:
        yield from _warnings_of_targets(inspection.targets)


def _noun(inspection: Inspection) -> str:
    """What the records are asked for."""
    return "target" if inspection.targets and not inspection.classes else "label"


def _warnings_of_targets(targets: TargetSummary) -> Iterator[str]:
    if targets.missing:
        yield (
            f"{_of(targets.missing, 'record')} without a target (empty or NA): training refuses these, or leaves "
            "them out with --on-unmatched reject."
        )
    if targets.commonest_share == 1:
        yield f"all targets are {metrics.number(targets.commonest)}: there is nothing to learn."
    elif targets.commonest_share >= MOST:
        yield (
            f"{targets.commonest_share:.0%} of the targets are {metrics.number(targets.commonest)}: a model that "
            "always predicts it has a small error; read R² and the Spearman correlation."
        )


def _warnings_of_classes(inspection: Inspection) -> Iterator[str]:
    if not inspection.classes:
        return
    (most, many), (least, few) = (list(inspection.classes.items())[i] for i in (0, -1))
    if most == least:
        yield f"{most} is the only class: a classifier needs two or more."
    elif many >= UNEVEN * few:
        yield (
            f"{most} has {many / few:,.0f} times the records of {least}: accuracy will look good on {most} alone; "
            "read ROC-AUC or the scores of each class."
        )
    small = [name for name, count in inspection.classes.items() if count < 3]
    if small:
        shown = ", ".join(small[:3]) + (", ..." if len(small) > 3 else "")
        yield (
            f"{_of(len(small), 'class', 'classes')} of fewer than 3 records ({shown}): training, validation and test "
            "need one each; add records or merge classes."
        )
    if inspection.unlabelled:
        yield f"{_of(inspection.unlabelled, 'record')} without a label: training leaves these out if told to."


def plot(inspection: Inspection, path: Path) -> Path:
    """The histogram of lengths as a picture, on a logarithmic axis, with median and 99th percentile."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    figure, axes = drawing.pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    edges = inspection.edges
    widths = [after - before for before, after in pairwise(edges)]
    axes.bar(edges[:-1], inspection.histogram, widths, align="edge", color=COLOURS[0], edgecolor="white")
    for colour, percentile in zip(COLOURS[1:], (50, 99), strict=False):
        length = inspection.percentiles[percentile]
        name = "median" if percentile == 50 else f"{percentile}th percentile"
        axes.axvline(length, color=colour, linestyle="--", label=f"{name}: {length:,}")
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if edges[-1] < 1000 * edges[0] else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("length in tokens")
    axes.set_ylabel("records")
    axes.set_title(f"{inspection.records:,} records, {inspection.tokens:,} tokens")
    axes.grid(alpha=0.3)
    axes.legend()
    return drawing.save(figure, path)


def _lengths(inspection: Inspection) -> Table:
    grid = _grid("lengths", "tokens", "records", "")
    most = max(inspection.histogram)
    for (low, high), count in zip(pairwise(inspection.edges), inspection.histogram, strict=True):
        span = f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"
        grid.add_row(span, f"{count:,}", Text(_bar(count / most), style="blue"))
    return grid


def _targets(targets: TargetSummary) -> Table:
    grid = _grid("targets", "", "records", "")
    most = max(targets.histogram)
    for (low, high), count in zip(pairwise(targets.edges), targets.histogram, strict=True):
        span = metrics.number(low) if low == high else f"{metrics.number(low)} to {metrics.number(high)}"
        grid.add_row(span, f"{count:,}", Text(_bar(count / most), style="blue"))
    return grid


def spread_of(targets: TargetSummary) -> list[str]:
    """Count, quartiles, mean and equal values of the targets, in words.

    >>> from chordmixer.data.inspection import summarise_targets
    >>> import numpy as np
    >>> print(*spread_of(summarise_targets(np.array([1.0, 2.0, 2.0, 4.0]))), sep="; ")
    4 records, 0 without a target; lowest 1.000, 25% 1.750, median 2.000, 75% 2.500, highest 4.000; mean 2.250, \
standard deviation 1.090; 50.0% share their value with another record, 50.0% are 2.000
    """
    names = ("lowest", "25%", "median", "75%", "highest")
    quartiles = zip(names, targets.quartiles, strict=True)
    lines = [
        f"{_of(targets.records, 'record')}, {targets.missing:,} without a target",
        ", ".join(f"{name} {metrics.number(value)}" for name, value in quartiles),
        f"mean {metrics.number(targets.mean)}, standard deviation {metrics.number(targets.deviation)}",
    ]
    if not targets.repeated:
        return [*lines, "no two are equal"]
    commonest = f"{targets.commonest_share:.1%} are {metrics.number(targets.commonest)}"
    return [*lines, f"{targets.repeated:.1%} share their value with another record, {commonest}"]


def _shares(title: str, counts: Mapping[str, int]) -> Table:
    """The most frequent, and the rest in one row."""
    grid = _grid(title, "", "count", "share", "")
    total, most = sum(counts.values()), max(counts.values())
    for name, count in list(counts.items())[:ROWS]:
        shown = name if name.strip() else repr(name)
        grid.add_row(Text(shown, overflow="ellipsis"), f"{count:,}", f"{count / total:.1%}", Text(_bar(count / most)))
    if len(counts) > ROWS:
        rest = sum(list(counts.values())[ROWS:])
        grid.add_row(f"{len(counts) - ROWS:,} more", f"{rest:,}", f"{rest / total:.1%}", "")
    return grid


def _channels(channels: Channels) -> Group:
    """The range of each channel of series, the first few of many, and the numbers that are missing."""
    grid = _grid("channels", "", "least", "mean", "standard deviation", "most")
    rows = zip(channels.least, channels.mean, channels.deviation, channels.most, strict=True)
    for number, row in list(enumerate(rows, start=1))[:ROWS]:
        grid.add_row(f"{number}", *(f"{value:.4g}" for value in row))
    if len(channels.mean) > ROWS:
        grid.add_row(f"{len(channels.mean) - ROWS:,} more")
    share = channels.missing / channels.numbers
    return Group(grid, Text(f"missing numbers: {channels.missing:,} of {channels.numbers:,} ({share:.2%})"), Text())


def _facts(inspection: Inspection) -> Table:
    """A line each of what is one number or a few."""
    twice, lengths = inspection.duplicates, inspection.percentiles
    named = {0: "shortest", 50: "median", 100: "longest"}
    spread = [f"{named.get(p, f'{p}%')} {length:,}" for p, length in lengths.items()]
    copies = f"{twice.exact:,} exact"
    if twice.reverse_complement is not None:
        copies += f", {twice.reverse_complement:,} reverse complement"
    if inspection.classes or inspection.targets:
        copies += f"; {_of(twice.across_labels, 'sequence')} across {_noun(inspection)}s"
    tells = {"length": inspection.length_tells, "GC content": inspection.gc_tells}
    facts = {
        "targets": "\n".join(spread_of(inspection.targets)) if inspection.targets else None,
        "length percentiles": "\n".join(", ".join(spread[i : i + 3]) for i in range(0, len(spread), 3)),
        "longest records": ", ".join(f"{name} ({length:,})" for name, length in inspection.longest),
        "ambiguous tokens": None if inspection.ambiguous is None else f"{inspection.ambiguous:.2%}",
        "GC content": None if inspection.gc is None else f"{inspection.gc:.1%}",
        "duplicates": copies,
        "predict the label": ", ".join(f"{k} ROC-AUC {v:.2f}" for k, v in tells.items() if v is not None),
        "padding avoided": (
            f"{inspection.padding_in_batch:.0%} of what random batches of {BATCH} would hold, "
            f"{inspection.padding_to_longest:.0%} with every record padded to the longest"
        ),
    }
    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title_justify="left")
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, fact in facts.items():
        if fact:
            grid.add_row(name, Text(fact))
    return grid


def _grid(title: str, *columns: str) -> Table:
    grid = Table(title=title, box=box.SIMPLE, title_justify="left", title_style="bold")
    for column in columns[:-1]:
        grid.add_column(column, justify="right", max_width=30)
    grid.add_column(columns[-1], no_wrap=True)
    return grid


def _list(lines: list[str]) -> Table:
    grid = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("-", Text(line))
    return grid


def _bar(share: float) -> str:
    """At least a sliver for anything that is there.

    >>> len(_bar(1.0)), _bar(0.001), _bar(0.0)
    (32, '▏', '')
    """
    eighths = max(round(share * BAR * 8), 1) if share else 0
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def _of(count: int, one: str, several: str | None = None) -> str:
    """
    >>> _of(1, "record"), _of(1200, "record")
    ('1 record', '1,200 records')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"
