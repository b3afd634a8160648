"""Tables of `chordmixer inspect`: statistics of a data set, and warnings about properties that mislead a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from rich import table as rich_table
from rich.console import Group, RenderableType
from rich.text import Text

from chordmixer.data.inspection import BATCH, Channels, Inspection, TargetSummary
from chordmixer.views import metrics
from chordmixer.views.metrics import counted
from chordmixer.views.page import short
from chordmixer.views.tables import ReportTable

MAX_ROWS, MAX_NAME = 12, 30  # maximum number of rows of a table, and maximum width of a name
BAR_WIDTH = 32  # maximum width of a bar, in characters
LEAKING_AUC = 0.65  # ROC-AUC of a single property above which there is a warning
MAX_IMBALANCE = 10  # ratio of the largest to the smallest class above which there is a warning
MAX_AMBIGUOUS, MAX_EQUAL = 0.05, 0.5  # fractions of tokens, and of equal targets, above which there is a warning


def report(inspection: Inspection) -> Group:
    """The whole report, for a terminal of 80 columns or more."""
    parts: list[RenderableType] = [
        Text(f"{inspection.records:,} records, {inspection.tokens:,} tokens ({inspection.tokenizer})", style="bold"),
        *(Text(f"  {line}") for line in inspection.account.lines()),
        _histogram("lengths", "tokens", length_spans(inspection.edges), inspection.histogram),
        *([_shares("letters", inspection.letters)] if inspection.letters and not inspection.channels else []),
        *([_channels(inspection.channels)] if inspection.channels else []),
        *([_shares("classes", inspection.classes)] if inspection.classes else []),
        *([_targets(inspection.targets)] if inspection.targets else []),
        Text(),
        _facts(inspection),
    ]
    lines = [*warnings(inspection)]
    if lines:
        parts += [Text(), Text("Warnings", style="bold yellow"), _two_columns((("-", line) for line in lines), "")]
    return Group(*parts)


def warnings(inspection: Inspection) -> Iterator[str]:
    """Describe properties of the data that may mislead a model or a reader of its scores, each with a remedy."""
    for name, value in (("length", inspection.length_tells), ("GC content", inspection.gc_tells)):
        if value is not None and value >= LEAKING_AUC:
            yield (
                f"{name} alone predicts the label with ROC-AUC {value:.2f}: a model with this score may use nothing "
                f"else; match the classes in {name}, or compare scores with this one."
            )
    copies = inspection.duplicates
    copy_count = copies.exact + (copies.reverse_complement or 0)
    if copy_count:
        kinds = f"{counted(copies.exact, 'exact duplicate')}"
        if copies.reverse_complement is not None:
            kinds += f" and {counted(copies.reverse_complement, 'reverse complement')} of another record"
        example = " = ".join(copies.examples[0])
        yield (
            f"{kinds} (such as {example}): copies across training and test make scores too high; "
            "remove copies, or keep them together by a split by group or similarity."
        )
    if copies.across_labels:
        noun = _noun(inspection)
        yield (
            f"{counted(copies.across_labels, 'sequence')} under more than one {noun}: no model can separate these; "
            f"correct the {noun}s or leave them out."
        )
    if inspection.ambiguous is not None and inspection.ambiguous > MAX_AMBIGUOUS:
        yield (
            f"{inspection.ambiguous:.1%} of the tokens are ambiguous or unknown: check that "
            f"{inspection.tokenizer} is what these files hold, or leave such records out."
        )
    yield from _warnings_of_classes(inspection)
    if inspection.targets:
        yield from _warnings_of_targets(inspection.targets)


def _noun(inspection: Inspection) -> str:
    """The noun for what is predicted."""
    return "target" if inspection.targets and not inspection.classes else "label"


def _warnings_of_targets(targets: TargetSummary) -> Iterator[str]:
    if targets.missing:
        yield (
            f"{counted(targets.missing, 'record')} without a target (empty or NA): training refuses these; "
            "--on-unmatched reject leaves them out."
        )
    if targets.commonest_share == 1:
        yield f"all targets are {metrics.number(targets.commonest)}: there is nothing to learn."
    elif targets.commonest_share >= MAX_EQUAL:
        yield (
            f"{targets.commonest_share:.0%} of the targets are {metrics.number(targets.commonest)}: a model that "
            "always predicts it has a small error; use R² and the Spearman correlation."
        )


def _warnings_of_classes(inspection: Inspection) -> Iterator[str]:
    if not inspection.classes:
        return
    (most, n_most), (least, n_least) = (list(inspection.classes.items())[i] for i in (0, -1))
    if most == least:
        yield f"class {most} is the only one: a classifier needs two or more."
    elif n_most >= MAX_IMBALANCE * n_least:
        share = 100 * n_most // min(sum(inspection.classes.values()), inspection.records)  # labels overlap
        trap = "the accuracy says little about small classes; see the balanced accuracy and the scores of each class."
        if share >= 50:
            trap = f"always predicting {most} is right for {share}%; use ROC-AUC or the scores of each class."
        yield f"class {most} has {n_most / n_least:,.0f} times the records of {least}: {trap}"
    small = [name for name, count in inspection.classes.items() if count < 3]
    if small:
        shown = ", ".join(small[:3]) + (", ..." if len(small) > 3 else "")
        yield (
            f"{counted(len(small), 'class', 'classes')} of fewer than 3 records ({shown}): training, validation and "
            "test need one each; add records, merge classes, or leave them out with --on-rare reject."
        )
    if inspection.unlabelled:
        yield f"{counted(inspection.unlabelled, 'record')} without a label: --on-unmatched reject leaves them out."


def _histogram(title: str, column: str, spans: Iterable[str], counts: Sequence[int]) -> Group:
    highest = max(counts)
    rows = [
        (span, f"{count:,}", Text(_bar(count / highest), style="blue"))
        for span, count in zip(spans, counts, strict=True)
    ]
    return ReportTable((column, "records", ""), rows, title, words=(2,)).terminal()


def length_spans(edges: Sequence[int]) -> list[str]:
    """The ranges of lengths between edges, as text."""
    return [f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}" for low, high in pairwise(edges)]


def _targets(targets: TargetSummary) -> Group:
    edges = ([metrics.number(low), metrics.number(high)] for low, high in pairwise(targets.edges))
    spans = (low if low == high else f"{low} to {high}" for low, high in edges)
    return _histogram("targets", "", spans, targets.histogram)


def target_lines(targets: TargetSummary) -> list[str]:
    """Describe count, quartiles, mean and repeated values of the targets."""
    names = ("lowest", "25%", "median", "75%", "highest")
    quartiles = zip(names, targets.quartiles, strict=True)
    lines = [
        f"{counted(targets.records, 'record')}, {targets.missing:,} without a target",
        ", ".join(f"{name} {metrics.number(value)}" for name, value in quartiles),
        f"mean {metrics.number(targets.mean)}, standard deviation {metrics.number(targets.deviation)}",
    ]
    if not targets.repeated:
        return [*lines, "no two are equal"]
    commonest = f"{targets.commonest_share:.1%} are {metrics.number(targets.commonest)}"
    return [*lines, f"{targets.repeated:.1%} share their value with another record, {commonest}"]


def _shares(title: str, counts: Mapping[str, int]) -> Group:
    """Table of the most frequent values, with the rest in one row."""
    total, highest = sum(counts.values()), max(counts.values())
    rows: list[Sequence[object]] = [
        (
            short(name if name.strip() else repr(name), MAX_NAME),
            f"{count:,}",
            f"{count / total:.1%}",
            _bar(count / highest),
        )
        for name, count in list(counts.items())[:MAX_ROWS]
    ]
    if len(counts) > MAX_ROWS:
        rest = sum(list(counts.values())[MAX_ROWS:])
        rows.append((f"{len(counts) - MAX_ROWS:,} more", f"{rest:,}", f"{rest / total:.1%}", ""))
    return ReportTable(("", "count", "share", ""), rows, title, words=(3,)).terminal()


def _channels(channels: Channels) -> Group:
    """Table of the range of each channel of series, of many only the first, and the number of missing values."""
    values = zip(channels.least, channels.mean, channels.deviation, channels.most, strict=True)
    rows = [(f"{number}", *(f"{value:.4g}" for value in row)) for number, row in enumerate(values, start=1)]
    if len(rows) > MAX_ROWS:
        rows[MAX_ROWS:] = [(f"{len(rows) - MAX_ROWS:,} more", "", "", "", "")]
    head = ("", "least", "mean", "standard deviation", "most")
    share = channels.missing / channels.numbers
    missing = f"missing numbers: {channels.missing:,} of {channels.numbers:,} ({share:.2%})"
    return Group(ReportTable(head, rows, "channels", words=()).terminal(), Text(missing))


def _facts(inspection: Inspection) -> rich_table.Table:
    """List of the remaining statistics, one per line."""
    duplicates, lengths = inspection.duplicates, inspection.percentiles
    named = {0: "shortest", 50: "median", 100: "longest"}
    spread = [f"{named.get(p, f'{p}%')} {length:,}" for p, length in lengths.items()]
    copies = f"{duplicates.exact:,} exact"
    if duplicates.reverse_complement is not None:
        copies += f", {duplicates.reverse_complement:,} reverse complement"
    if inspection.classes or inspection.targets:
        copies += f"; {counted(duplicates.across_labels, 'sequence')} across {_noun(inspection)}s"
    tells = {"length": inspection.length_tells, "GC content": inspection.gc_tells}
    facts = {
        "targets": "\n".join(target_lines(inspection.targets)) if inspection.targets else None,
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
    return _two_columns(((name, fact) for name, fact in facts.items() if fact), "bold")


def _two_columns(rows: Iterable[tuple[str, str]], style: str) -> rich_table.Table:
    grid = rich_table.Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, Text(text))
    return grid


def _bar(share: float) -> str:
    """A bar of blocks; never empty for a share above zero.

    >>> len(_bar(1.0)), _bar(0.001), _bar(0.0)
    (32, '▏', '')
    """
    eighths: int = max(round(share * BAR_WIDTH * 8), 1) if share else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
