"""Sections of a report on what a model was made from: the data, the training, the settings."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.data.inspection import Inspection, TargetSummary, length_histogram
from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.views import charts, metrics
from chordmixer.views.inspection import length_spans, target_lines
from chordmixer.views.metrics import duration
from chordmixer.views.page import Html, Section, details, figure, figures, items, join, section, short, tag
from chordmixer.views.runs import Run, RunData
from chordmixer.views.tables import ReportTable

CLASSES = 12  # classes with a bar of their own
SOURCES = 20
METHODS = {
    "given": "by a column of the data",
    "random": "at random; copies of a record stay together",
    "grouped": "by group: records of one group are never in two parts",
    "similarity": "by similarity: near-copies are never in two parts",
}
DRAWN = 300  # maximum number of points of a training curve
ROWS = 40
SMOOTH = 20  # the running mean is over one n-th of all points
PARTS = {"data": "Data", "model": "Model", "training": "Training"}

Points = list[tuple[float, float]]


# --- Data ---


def data_section(run: Run) -> Section:
    """Sources, records, lengths, classes or targets, split and leakage."""
    if run.data is None:
        said = f"The run folder has no data.json: the task {run.task!r} generates its data, or the run is older."
        shown = []
        if run.predictions and len(lengths := run.predictions.lengths):
            shown.append(_lengths(*length_histogram(lengths), int(np.median(lengths)), "test records"))
        return section("data", "Data", tag("p", said), figures(*shown))
    seen = run.data.inspection
    drawn = figures(*_histograms(seen)) if seen else ""
    return section("data", "Data", *_facts(run.data), drawn, *_split(run, run.data))


def _facts(data: RunData) -> Iterator[Html]:
    if data.sources:
        names = [tag("code", short(source)) for source in data.sources[:SOURCES]]
        more = [f" and {len(data.sources) - SOURCES:,} more"] if len(data.sources) > SOURCES else []
        yield tag("p", "Read from ", join([part for name in names for part in (", ", name)][1:] + more), ".")
    seen = data.inspection
    if seen:
        said = [f"{seen.records:,} records of {seen.tokens:,} tokens in total, tokenized as {seen.tokenizer}."]
        said += [f"{seen.gc:.1%} of the bases are G or C."] if seen.gc is not None else []
        said += (
            [f"{seen.ambiguous:.2%} of the tokens are ambiguous or unknown."] if seen.ambiguous is not None else []
        )
        yield tag("p", " ".join(said))
    account = data.account or (seen.account if seen else None)
    if account:
        yield items(short(line, 400) for line in account.lines())


def _histograms(seen: Inspection) -> Iterator[Html]:
    yield _lengths(seen.edges, seen.histogram, seen.percentiles[50], "all records")
    if seen.classes:
        yield _classes(seen.classes)
    if seen.targets:
        yield _targets(seen.targets)


def _lengths(edges: list[int], counts: list[int], median: int, which: str) -> Html:
    told = f"{which} from {edges[0]:,} to {edges[-1] - 1:,} tokens, median {median:,}"
    plot = _histogram(charts.logarithmic(edges, "length in tokens"), edges, counts, median)
    numbers = ReportTable(("tokens", "records"), _counts(length_spans(edges), counts), "lengths").html()
    return figure("Lengths", plot.svg("Histogram of lengths", told), f"Lengths of {told} (dashed).", numbers=numbers)


def _histogram(axis: charts.Axis, edges: Sequence[float], counts: list[int], middle: float) -> charts.Plot:
    plot = charts.Plot(axis, charts.linear([0, *counts], "records"), height=220)
    plot.bars(edges, counts)
    plot.across(middle, vertical=True)
    return plot


def _counts(names: Iterable[str], counts: Sequence[int]) -> list[tuple[str, str]]:
    return [(name, f"{count:,}") for name, count in zip(names, counts, strict=True)]


def _classes(classes: dict[str, int]) -> Html:
    """A bar for each of the largest classes, and one for the rest."""
    total, named = sum(classes.values()), list(classes.items())
    bars = named[:CLASSES]
    if len(named) > CLASSES:
        bars.append((f"{len(named) - CLASSES:,} more", sum(count for _, count in named[CLASSES:])))
    told = f"{len(named):,} classes, the largest with {named[0][1] / total:.1%} of the records"
    rows = [(short(name), f"{count:,}", f"{count / total:.1%}") for name, count in named]
    names, counts = zip(*bars, strict=True)
    drawn = charts.horizontal_bars(names, counts, "Records of each class", told)
    numbers = ReportTable(("class", "records", "share"), rows, "classes").html()
    return figure("Classes", drawn, f"Records of each class: {told}.", numbers=numbers)


def _targets(targets: TargetSummary) -> Html:
    edges, counts = list(targets.edges), list(targets.histogram)
    if edges[0] == edges[-1]:  # one value, which has no width to draw
        edges = [edges[0] - 0.5, edges[0] + 0.5]
    drawn = _histogram(charts.linear(edges, "target"), edges, counts, targets.quartiles[2])
    said = "; ".join(target_lines(targets))
    spans = (f"{metrics.number(low)} to {metrics.number(high)}" for low, high in pairwise(edges))
    numbers = ReportTable(("target", "records"), _counts(spans, counts), "targets").html()
    caption = f"Targets: {said}. Dashed: the median."
    return figure("Targets", drawn.svg("Histogram of targets", said), caption, numbers=numbers)


def _split(run: Run, data: RunData) -> Iterator[Html]:
    """The split, duplicates and leakage."""
    sizes = {str(part): int(size) for part, size in (data.split.get("sizes") or {}).items()}
    if sizes:
        method = str(data.split.get("method", ""))
        yield tag("h3", "Split")
        yield tag("p", f"Records were split {METHODS.get(method, method)}.")
        if run.ensemble and run.ensemble.kind == "folds":
            said = (
                f"Training and validation records together were split into {run.ensemble.size} folds in the same way"
            )
            yield tag("p", f"{said}: each member validates on one fold and trains on the others.")
        total = max(sum(sizes.values()), 1)
        rows = [(part, f"{size:,}", f"{size / total:.1%}") for part, size in sizes.items()]
        yield ReportTable(("part", "records", "share"), rows, "split").html()
    twice = data.inspection.duplicates if data.inspection else None
    if twice:
        kinds = f"{twice.exact:,} exact"
        if twice.reverse_complement is not None:
            kinds += f", {twice.reverse_complement:,} reverse complement"
        across = "targets" if data.inspection and data.inspection.targets else "labels"
        yield tag("p", f"Duplicates among all records: {kinds}; {twice.across_labels:,} across {across}.")
    if data.leakage:
        yield tag("h3", "Leakage")
        yield items(short(line, 400) for part, leak in data.leakage.items() for line in leak.lines(part))
        if not data.near:
            yield tag(
                "p", "Near-copies were not searched for: the data are series, or too large to compare all pairs."
            )
    else:
        yield tag("p", "The run does not say whether copies cross the parts (data.json has no leakage).")


# --- Training ---


def training_section(run: Run) -> Section:
    """Losses and the validation metric over the steps."""
    training = _points(run, "training", "loss")
    validation = _points(run, "validation", "loss")
    if not training and not validation:
        return section("training", "Training", tag("p", "The run has no metrics.jsonl: there are no curves to show."))
    drawn = [_losses(training, validation)]
    rows = [row for row in run.journal if row.get("split") == "validation"]
    known = [key for key in (rows[0] if rows else {}) if key in metrics.NAMES]
    metric = run.test.headline if run.test else next(iter(known), "")
    if metric and (scored := _points(run, "validation", metric)):
        drawn.append(_validation_metric(metric, scored))
    return section("training", "Training", tag("p", _kept_weights(run, validation)), figures(*drawn))


def _points(run: Run, split: str, key: str) -> Points:
    rows = [row for row in run.journal if row.get("split") == split and key in row]
    return [(float(row["step"]), float(row[key])) for row in rows]


def _kept_weights(run: Run, validation: Points) -> str:
    last = max((int(row.get("step", 0)) for row in run.journal), default=0)
    known = [(loss, step) for step, loss in validation if math.isfinite(loss)]
    if not known:
        return f"{last:,} steps, without a validation."
    metric = run.test.headline if run.test else ""
    scored = dict(_points(run, "validation", metric))
    if isinstance(run.target, Classification | MultiLabel) and scored:
        value, loss, step = max((scored.get(at, -math.inf), -own, at) for own, at in known)
        why = f"which had the highest validation {metrics.name(metric)} ({metrics.number(value)}; loss {-loss:.4g})"
    else:
        loss, step = min(known)
        why = f"which had the lowest validation loss ({loss:.4g})"
    count = f"{len(validation):,} validation" + ("s" if len(validation) > 1 else "")
    trials = f" Before that, {run.trials.line()}." if run.trials else ""
    return f"{last:,} steps and {count}. The weights kept are those of step {step:,.0f}, {why}.{trials}"


def _losses(training: Points, validation: Points) -> Html:
    steps, losses = (np.array([point[i] for point in training], dtype=np.float64) for i in (0, 1))
    window = max(1, len(losses) // SMOOTH)
    raw, smooth = (_thinned(steps, values) for values in (losses, smoothed(losses, window)))
    x = charts.linear([0, *(step for step, _ in training + validation)], "step")
    plot = charts.Plot(x, _loss_axis([loss for _, loss in raw + validation]))
    plot.line(raw, 0, faint=True)
    plot.line(smooth, 0)
    plot.line(validation, 1)
    plot.dots(validation, 1, 2.5)
    told = f"Training loss as a running mean over {window:,} points" if window > 1 else "Training loss"
    thin = "single points" if len(losses) <= DRAWN else "means of neighbours"
    caption = f"{told} (thin: {thin}), and validation loss."
    numbers = [
        ReportTable(("step", name), [(f"{s:,.0f}", f"{v:.4g}") for s, v in _some(points)], name).html()
        for name, points in (("smoothed training loss", smooth), ("validation loss", validation))
    ]
    kinds = (("training", training), ("validation", validation))
    legend = charts.legend([(name, k) for k, (name, points) in enumerate(kinds) if points], markers=False)
    return figure("Loss", plot.svg("Loss over the steps", caption), caption, legend, join(numbers))


def _loss_axis(values: Sequence[float]) -> charts.Axis:
    """Logarithmic where the loss falls by more than a factor of 100."""
    known = [v for v in values if math.isfinite(v)]
    if known and min(known) > 0 and max(known) > 100 * min(known):
        return charts.logarithmic(known, "loss (logarithmic)")
    return charts.linear(known, "loss")


def _validation_metric(metric: str, scored: Points) -> Html:
    name = metrics.name(metric)
    values = [value for _, value in scored]
    x = charts.linear([0, *(step for step, _ in scored)], "step")
    plot = charts.Plot(x, charts.linear(values, name, metrics.within(metric)))
    plot.line(scored, 1)
    plot.dots(scored, 1, 2.5)
    known = [v for v in values if math.isfinite(v)]
    best = f"; {metrics.number(max(known))} at best" if known else ""
    caption = f"{metrics.title(metric)} on the validation records over the steps{best}."
    rows = [(f"{step:,.0f}", metrics.number(value)) for step, value in _some(scored)]
    title = f"Validation {name}"
    numbers = ReportTable(("step", name), rows, title).html()
    return figure(title, plot.svg(f"{title} over the steps", caption), caption, numbers=numbers)


def smoothed(values: ndarray, window: int) -> ndarray:
    """Running mean over `window` values around each, fewer at the ends.

    >>> smoothed(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    sums = np.append(0, np.cumsum(values))
    half, places = window // 2, np.arange(len(values))
    start, end = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return np.asarray((sums[end] - sums[start]) / (end - start))


def _thinned(x: ndarray, y: ndarray) -> Points:
    """The points, or the means of at most `DRAWN` groups of neighbours."""
    if len(x) > DRAWN:
        groups = np.array_split(np.arange(len(x)), DRAWN)
        x, y = (np.array([values[group].mean() for group in groups]) for values in (x, y))
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _some(points: Points) -> Points:
    """Enough points for a table, the first and the last among them."""
    kept = {round(place) for place in np.linspace(0, len(points) - 1, ROWS)} if points else set()
    return [points[i] for i in sorted(kept)]


# --- Settings and use ---


def settings_section(run: Run) -> Section:
    """The command that uses the model, the one that trained it, versions, and every setting."""
    grids = [
        details(
            f"{title} settings",
            ReportTable(("setting", "value"), [*_settings(run.config.get(part))], title, words=(0, 1)).html(),
        )
        for part, title in PARTS.items()
        if run.config.get(part)
    ]
    return section("settings", "Settings and use", *_use(run), *_versions(run), *grids)


def training_line(run: Run) -> Html:
    """When, for how long and on what the model was trained."""
    known = run.provenance
    if known is None:
        return join([])
    took = duration(known.seconds) if known.whole else f"more than {duration(known.seconds)}"
    line = f"Trained on {short(known.started, 40)} in {took} on {short(known.device, 80)}."
    return tag("p", line, class_="quiet")


def _use(run: Run) -> Iterator[Html]:
    folder = shlex.quote(str(run.folder))
    yield tag("h3", "Use this model")
    if run.answers:
        yield tag("pre", tag("code", f"chordmixer predict {folder} FILES -o answers.tsv"))
        yield tag("p", "This writes one row per record of FILES, in their order, with probabilities or a number.")
    else:
        yield tag("pre", tag("code", f"chordmixer evaluate {folder}"))
        yield tag("p", "The run has no labels.json: it can be evaluated on its own task, and not used on files.")
    if run.provenance and run.provenance.command:
        yield tag("h3", "The command that trained it")
        yield tag("pre", tag("code", short(run.provenance.command, 2000)))


def _versions(run: Run) -> Iterator[Html]:
    yield tag("h3", "Versions and settings")
    known = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield tag("p", f"Trained with {known}." if known else "The run does not say which versions trained it.")
    if run.answers:
        strands = "the mean over both strands" if run.answers.both_strands else "of the given strand"
        heat = "none" if run.answers.temperature is None else f"{run.answers.temperature:.4g}"
        predicted = f" Predictions: {strands}." if run.answers.tokenizer == "dna" else ""
        yield tag("p", f"Tokens: {run.answers.tokenizer}.{predicted} Temperature: {heat}.")


def _settings(given: object, prefix: str = "") -> Iterator[tuple[Html, str]]:
    """Nested settings by their dotted names.

    >>> [(str(name), value) for name, value in _settings({"network": {"hidden": 96}})]
    [('<code>network.hidden</code>', '96')]
    """
    pairs: Mapping[str, Any] = given if isinstance(given, Mapping) else {"": given}
    for key, value in pairs.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{name}.")
        else:
            yield tag("code", name), short("none" if value is None else value, 400)
