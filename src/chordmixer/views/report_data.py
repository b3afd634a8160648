"""Sections of a report on the data, the training and the settings of a model."""

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

MAX_CLASSES = 12  # maximum number of classes with a bar of their own
MAX_SOURCES = 20  # maximum number of files in a list
METHODS = {
    "given": "by a column of the data",
    "random": "at random; copies of a record stay together",
    "grouped": "by group: records of one group are never in two parts",
    "similarity": "by similarity: near-copies are never in two parts",
}
MAX_POINTS = 300  # maximum number of points of a training curve
MAX_ROWS = 40  # maximum number of rows of a table of a curve
SMOOTHING = 20  # the running mean is over 1 / 20 of all points
PARTS = {"data": "Data", "model": "Model", "training": "Training"}

Points = list[tuple[float, float]]


# --- Data ---


def data_section(run: Run) -> Section:
    """Build the section on sources, records, lengths, classes or targets, split and leakage."""
    if run.data is None:
        reason = f"The run folder has no data.json: the task {run.task!r} generates its data, or the run is older."
        plots = []
        if run.predictions and len(lengths := run.predictions.lengths):
            plots.append(_lengths(*length_histogram(lengths), int(np.median(lengths)), "test records"))
        return section("data", "Data", tag("p", reason), figures(*plots))
    summary = run.data.inspection
    histograms = figures(*_histograms(summary)) if summary else ""
    return section("data", "Data", *_facts(run.data), histograms, *_split(run, run.data))


def _facts(data: RunData) -> Iterator[Html]:
    if data.sources:
        names = [tag("code", short(source)) for source in data.sources[:MAX_SOURCES]]
        more = [f" and {len(data.sources) - MAX_SOURCES:,} more"] if len(data.sources) > MAX_SOURCES else []
        yield tag("p", "Read from ", join([part for name in names for part in (", ", name)][1:] + more), ".")
    facts = data.inspection
    if facts:
        lines = [f"{facts.records:,} records of {facts.tokens:,} tokens in total, tokenized as {facts.tokenizer}."]
        lines += [f"{facts.gc:.1%} of the bases are G or C."] if facts.gc is not None else []
        lines += (
            [f"{facts.ambiguous:.2%} of the tokens are ambiguous or unknown."] if facts.ambiguous is not None else []
        )
        yield tag("p", " ".join(lines))
    account = data.account or (facts.account if facts else None)
    if account:
        yield items(short(line, 400) for line in account.lines())


def _histograms(inspection: Inspection) -> Iterator[Html]:
    yield _lengths(inspection.edges, inspection.histogram, inspection.percentiles[50], "all records")
    if inspection.classes:
        yield _classes(inspection.classes)
    if inspection.targets:
        yield _targets(inspection.targets)


def _lengths(edges: list[int], counts: list[int], median: int, subset: str) -> Html:
    text = f"{subset} from {edges[0]:,} to {edges[-1] - 1:,} tokens, median {median:,}"
    plot = _histogram(charts.logarithmic(edges, "length in tokens"), edges, counts, median)
    numbers = ReportTable(("tokens", "records"), _counts(length_spans(edges), counts), "lengths").html()
    return figure("Lengths", plot.svg("Histogram of lengths", text), f"Lengths of {text} (dashed).", numbers=numbers)


def _histogram(axis: charts.Axis, edges: Sequence[float], counts: list[int], median: float) -> charts.Plot:
    plot = charts.Plot(axis, charts.linear([0, *counts], "records"), height=220)
    plot.bars(edges, counts)
    plot.across(median, vertical=True)
    return plot


def _counts(names: Iterable[str], counts: Sequence[int]) -> list[tuple[str, str]]:
    return [(name, f"{count:,}") for name, count in zip(names, counts, strict=True)]


def _classes(classes: dict[str, int]) -> Html:
    """Plot a bar for each of the largest classes, and one for the rest."""
    total, counted = sum(classes.values()), list(classes.items())
    bars = counted[:MAX_CLASSES]
    if len(counted) > MAX_CLASSES:
        bars.append((f"{len(counted) - MAX_CLASSES:,} more", sum(count for _, count in counted[MAX_CLASSES:])))
    description = f"{len(counted):,} classes, the largest with {counted[0][1] / total:.1%} of the records"
    rows = [(short(name), f"{count:,}", f"{count / total:.1%}") for name, count in counted]
    names, counts = zip(*bars, strict=True)
    drawn = charts.horizontal_bars(names, counts, "Records of each class", description)
    numbers = ReportTable(("class", "records", "share"), rows, "classes").html()
    return figure("Classes", drawn, f"Records of each class: {description}.", numbers=numbers)


def _targets(targets: TargetSummary) -> Html:
    edges, counts = list(targets.edges), list(targets.histogram)
    if edges[0] == edges[-1]:  # a single value: give it a width
        edges = [edges[0] - 0.5, edges[0] + 0.5]
    plot = _histogram(charts.linear(edges, "target"), edges, counts, targets.quartiles[2])
    summary = "; ".join(target_lines(targets))
    spans = (f"{metrics.number(low)} to {metrics.number(high)}" for low, high in pairwise(edges))
    numbers = ReportTable(("target", "records"), _counts(spans, counts), "targets").html()
    caption = f"Targets: {summary}. Dashed: the median."
    return figure("Targets", plot.svg("Histogram of targets", summary), caption, numbers=numbers)


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
    duplicates = data.inspection.duplicates if data.inspection else None
    if duplicates:
        kinds = f"{duplicates.exact:,} exact"
        if duplicates.reverse_complement is not None:
            kinds += f", {duplicates.reverse_complement:,} reverse complement"
        across = "targets" if data.inspection and data.inspection.targets else "labels"
        yield tag("p", f"Duplicates among all records: {kinds}; {duplicates.across_labels:,} across {across}.")
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
    """Build the section with the losses and the validation metric over the steps."""
    training = _points(run, "training", "loss")
    validation = _points(run, "validation", "loss")
    if not training and not validation:
        return section("training", "Training", tag("p", "The run has no metrics.jsonl: there are no curves to show."))
    plots = [_losses(training, validation)]
    rows = [row for row in run.journal if row.get("split") == "validation"]
    keys = [key for key in (rows[0] if rows else {}) if key in metrics.NAMES]
    metric = run.test.headline if run.test else next(iter(keys), "")
    if metric and (scored := _points(run, "validation", metric)):
        plots.append(_validation_metric(metric, scored))
    return section("training", "Training", tag("p", _kept_weights(run, validation)), figures(*plots))


def _points(run: Run, split: str, key: str) -> Points:
    rows = [row for row in run.journal if row.get("split") == split and key in row]
    return [(float(row["step"]), float(row[key])) for row in rows]


def _kept_weights(run: Run, validation: Points) -> str:
    last = max((int(row.get("step", 0)) for row in run.journal), default=0)
    losses = [(loss, step) for step, loss in validation if math.isfinite(loss)]
    if not losses:
        return f"{last:,} steps, without a validation."
    metric = run.test.headline if run.test else ""
    scored = dict(_points(run, "validation", metric))
    if isinstance(run.target, Classification | MultiLabel) and scored:
        value, loss, step = max((scored.get(at_step, -math.inf), -loss, at_step) for loss, at_step in losses)
        why = f"which had the highest validation {metrics.name(metric)} ({metrics.number(value)}; loss {-loss:.4g})"
    else:
        loss, step = min(losses)
        why = f"which had the lowest validation loss ({loss:.4g})"
    count = f"{len(validation):,} validation" + ("s" if len(validation) > 1 else "")
    trials = f" Before that, {run.trials.line()}." if run.trials else ""
    return f"{last:,} steps and {count}. The weights kept are those of step {step:,.0f}, {why}.{trials}"


def _losses(training: Points, validation: Points) -> Html:
    steps, losses = (np.array([point[i] for point in training], dtype=np.float64) for i in (0, 1))
    window = max(1, len(losses) // SMOOTHING)
    raw, smooth = (_thinned(steps, values) for values in (losses, smoothed(losses, window)))
    x = charts.linear([0, *(step for step, _ in training + validation)], "step")
    plot = charts.Plot(x, _loss_axis([loss for _, loss in raw + validation]))
    plot.line(raw, 0, faint=True)
    plot.line(smooth, 0)
    plot.line(validation, 1)
    plot.dots(validation, 1, 2.5)
    label = f"Training loss as a running mean over {window:,} points" if window > 1 else "Training loss"
    thin_line = "single points" if len(losses) <= MAX_POINTS else "means of neighbours"
    caption = f"{label} (thin: {thin_line}), and validation loss."
    numbers = [
        ReportTable(("step", name), [(f"{s:,.0f}", f"{v:.4g}") for s, v in _some(points)], name).html()
        for name, points in (("smoothed training loss", smooth), ("validation loss", validation))
    ]
    kinds = (("training", training), ("validation", validation))
    legend = charts.legend([(name, k) for k, (name, points) in enumerate(kinds) if points], markers=False)
    return figure("Loss", plot.svg("Loss over the steps", caption), caption, legend, join(numbers))


def _loss_axis(values: Sequence[float]) -> charts.Axis:
    """Axis of losses, logarithmic if they fall by more than a factor of 100."""
    finite = [v for v in values if math.isfinite(v)]
    if finite and min(finite) > 0 and max(finite) > 100 * min(finite):
        return charts.logarithmic(finite, "loss (logarithmic)")
    return charts.linear(finite, "loss")


def _validation_metric(metric: str, scored: Points) -> Html:
    name = metrics.name(metric)
    values = [value for _, value in scored]
    x = charts.linear([0, *(step for step, _ in scored)], "step")
    plot = charts.Plot(x, charts.linear(values, name, metrics.within(metric)))
    plot.line(scored, 1)
    plot.dots(scored, 1, 2.5)
    finite = [v for v in values if math.isfinite(v)]
    best = f"; {metrics.number(max(finite))} at best" if finite else ""
    caption = f"{metrics.title(metric)} on the validation records over the steps{best}."
    rows = [(f"{step:,.0f}", metrics.number(value)) for step, value in _some(scored)]
    title = f"Validation {name}"
    numbers = ReportTable(("step", name), rows, title).html()
    return figure(title, plot.svg(f"{title} over the steps", caption), caption, numbers=numbers)


def smoothed(values: ndarray, window: int) -> ndarray:
    """Running mean over `window` values around each value; fewer at the ends.

    >>> smoothed(np.array([0.0, 3.0, 6.0]), 3).tolist()
    [1.5, 3.0, 4.5]
    """
    sums = np.append(0, np.cumsum(values))
    half, indices = window // 2, np.arange(len(values))
    start, end = np.maximum(indices - half, 0), np.minimum(indices + half + 1, len(values))
    return np.asarray((sums[end] - sums[start]) / (end - start))


def _thinned(x: ndarray, y: ndarray) -> Points:
    """The points, or the means of at most `MAX_POINTS` groups of neighbours."""
    if len(x) > MAX_POINTS:
        groups = np.array_split(np.arange(len(x)), MAX_POINTS)
        x, y = (np.array([values[group].mean() for group in groups]) for values in (x, y))
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _some(points: Points) -> Points:
    """At most `MAX_ROWS` points for a table, including the first and the last."""
    indices = {round(index) for index in np.linspace(0, len(points) - 1, MAX_ROWS)} if points else set()
    return [points[i] for i in sorted(indices)]


# --- Settings and use ---


def settings_section(run: Run) -> Section:
    """Build the section with the commands that use and trained the model, the versions, and all settings."""
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
    """A line on when, for how long and on which device the model was trained."""
    provenance = run.provenance
    if provenance is None:
        return join([])
    time = duration(provenance.seconds) if provenance.complete else f"more than {duration(provenance.seconds)}"
    line = f"Trained on {short(provenance.started, 40)} in {time} on {short(provenance.device, 80)}."
    return tag("p", line, class_="quiet")


def _use(run: Run) -> Iterator[Html]:
    folder = shlex.quote(str(run.folder))
    yield tag("h3", "Use this model")
    if run.output_labels:
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
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    yield tag("p", f"Trained with {versions}." if versions else "The run does not say which versions trained it.")
    if run.output_labels:
        strands = "the mean over both strands" if run.output_labels.both_strands else "of the given strand"
        temperature = "none" if run.output_labels.temperature is None else f"{run.output_labels.temperature:.4g}"
        predicted = f" Predictions: {strands}." if run.output_labels.tokenizer == "dna" else ""
        yield tag("p", f"Tokens: {run.output_labels.tokenizer}.{predicted} Temperature: {temperature}.")


def _settings(settings: object, prefix: str = "") -> Iterator[tuple[Html, str]]:
    """Flatten nested settings to dotted names and values.

    >>> [(str(name), value) for name, value in _settings({"network": {"hidden": 96}})]
    [('<code>network.hidden</code>', '96')]
    """
    pairs: Mapping[str, Any] = settings if isinstance(settings, Mapping) else {"": settings}
    for key, value in pairs.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _settings(value, f"{name}.")
        else:
            yield tag("code", name), short("none" if value is None else value, 400)
