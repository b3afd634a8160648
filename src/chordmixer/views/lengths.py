"""Scores against length: the paper's main form of figure, as a table and as a plot."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from chordmixer.training import Evaluation
from chordmixer.training.intervals import Score
from chordmixer.views import drawing, metrics
from chordmixer.views.axes import compact
from chordmixer.views.drawing import COLOURS

ROOM = 0.5
"""Of the way to the next length bin, over which models stand side by side: their bars do not hide each other."""
LETTERS = 11
"""Of a title, in an inch."""
WIDE = 3
"""Models above which a table has a row for each, not a column: a terminal has room for three."""
MANY = len(COLOURS)
"""Models above which a picture has a panel for each: there are no more colours."""
GUESS = "one answer for all"
PANELS = 4
"""Side by side."""


def grouped(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """One a model: of its runs with several seeds the mean, and the lowest and highest in place of an interval."""
    runs: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        runs.setdefault(evaluation.encoder, []).append(evaluation)
    return [_together(own) if len(own) > 1 else own[0] for own in runs.values()]


def spread(evaluations: Sequence[Evaluation]) -> str:
    """What the numbers beside a score are, in words."""
    counts = set(Counter(e.encoder for e in evaluations).values())
    if counts == {1}:
        return "95 % interval"
    several = f"lowest to highest of {' or '.join(str(n) for n in sorted(counts - {1}))} runs"
    return several if 1 not in counts else f"{several}, 95 % interval of a single one"


def table(evaluations: Sequence[Evaluation], width: int) -> Table:
    """A row a length bin, a column a model, then all records and guessing; of many models a row each.

    Those have as many of the length bins as there is room for in `width` columns of a terminal.
    """
    models, first = grouped(evaluations), evaluations[0]
    metric = metrics.by_length(first.headline)
    named = f"{metric} in %" if _in_percent(metric) else metrics.name(metric)
    title = f"{_records(first)}: {named} by length ({spread(evaluations)})"
    if len(models) > WIDE:
        return _row_a_model(models, title, width)
    grid = Table(title=title)
    grid.add_column("percentile", justify="right")
    grid.add_column("length", justify="right")
    grid.add_column("records", justify="right")
    for evaluation in models:
        grid.add_column(evaluation.encoder, justify="right")
    for i, row in enumerate(first.by_length):
        scores = [_cell(e.by_length[i].scores[metric], metric) for e in models]
        grid.add_row(str(row.percentile), f"{row.shortest:,} to {row.longest:,}", f"{row.records:,}", *scores)
    grid.add_section()
    overall = [_cell(e.scores[metric], metric) for e in models]
    grid.add_row("all", "", f"{first.records:,}", *overall)
    guess = [_shown(e.guessing[metric], metric) for e in models]
    grid.add_row(GUESS, "", f"{first.records:,}", *guess)
    return grid


def _row_a_model(models: Sequence[Evaluation], title: str, width: int) -> Table:
    """As narrow as it gets: no frame, whole per cents by length percentile."""
    metric, bins = metrics.by_length(models[0].headline), models[0].by_length
    longest = [compact(float(f"{row.longest:.2g}")) for row in bins]
    overall = [_cell(model.scores[metric], metric) for model in models]
    names = max(len(name) for name in (GUESS, *(model.encoder for model in models)))
    room = width - names - max(map(len, overall)) - 2
    cells = [[_shown(row.scores[metric].value, metric, 0) for row in model.by_length] for model in models]
    widest = max(len(text) for text in (*longest, *(cell for row in cells for cell in row)))
    shown = _some(len(bins), room // (1 + widest))
    grid = Table(title=title, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column("percentile", no_wrap=True)
    for name in ("all", *(str(bins[i].percentile) for i in shown)):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_row("longest", "", *(longest[i] for i in shown))
    for model, score, row in zip(models, overall, cells, strict=True):
        grid.add_row(model.encoder, score, *(row[i] for i in shown))
    grid.add_row(GUESS, _shown(models[0].guessing[metric], metric))
    return grid


def _records(evaluation: Evaluation) -> str:
    """Which records were scored, at the start of a title."""
    own = evaluation.task == evaluation.split  # files that were named, of a run on files
    return evaluation.task if own else f"{evaluation.task}, {evaluation.split} set"


def _some(count: int, room: int) -> list[int]:
    """As many of `count` numbers as there is room for, evenly, the last always.

    >>> _some(12, 20) == [*range(12)], _some(12, 4), _some(12, 1), _some(12, 0)
    (True, [0, 4, 7, 11], [11], [11])
    """
    if room >= count:
        return [*range(count)]
    return [round(i * (count - 1) / (room - 1)) for i in range(room)] if room > 1 else [count - 1]


# --- The picture ---


def plot(evaluations: Sequence[Evaluation], path: Path, title: str = "") -> Path:
    """Headline metric, or for R² the mean absolute error, by length percentile: one line a model, guessing dashed.

    Without a title, the task's name is one.

    Bars are 95 % intervals, or from the lowest to the highest of a model's runs with several seeds. Many models have
    a panel each, beside the first of them.
    """
    models, first = grouped(evaluations), evaluations[0]
    runs = Counter(e.encoder for e in evaluations)
    names = {e: e + (f", {n} runs" if n > 1 else "") for e, n in runs.items()}
    named = replace(first, task=title) if title else first
    said = f"{_records(named)}, {first.records:,} sequences; bars: {spread(evaluations)}"
    figure = _panels(models, names) if len(models) > MANY else _together_in_one(models, names)
    figure.suptitle(textwrap.fill(said, int(LETTERS * figure.get_figwidth())), fontsize=11)
    return drawing.save(figure, path)


def _together_in_one(models: Sequence[Evaluation], names: Mapping[str, str]) -> Any:
    figure, axes = drawing.pyplot().subplots(figsize=(8, 5), layout="constrained")
    metric = metrics.by_length(models[0].headline)
    for number, model in enumerate(models):
        aside = ROOM * (number - (len(models) - 1) / 2) / max(len(models), 4)
        _line(axes, model, metric, names[model.encoder], aside, COLOURS[number], "o")
    _frame(axes, models[0], [f"{row.percentile}\n{row.longest:,}" for row in models[0].by_length])
    axes.set_xlabel("length percentile, and the longest sequence below it")
    axes.set_ylabel(metrics.name(metric) if metric == "mae" else metric)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _panels(models: Sequence[Evaluation], names: Mapping[str, str]) -> Any:
    """The first model in every panel, with one of the others, the best of them first."""
    first, *others = models
    metric = metrics.by_length(first.headline)
    sign = 1 if metric in metrics.LESS_IS_BETTER else -1
    others.sort(key=lambda model: sign * model.scores[metric].value)
    rows = -(-len(others) // PANELS)
    figure, grid = drawing.pyplot().subplots(
        rows, PANELS, figsize=(2.6 * PANELS, 0.9 + 1.9 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for axes, other in zip(grid.flat, others, strict=False):
        _line(axes, first, metric, names[first.encoder], -ROOM / 6, COLOURS[0], "")
        _line(axes, other, metric, names[other.encoder], ROOM / 6, COLOURS[1], "o")
        _frame(axes, first, [str(row.percentile) for row in first.by_length])
        axes.set_title(f"{names[other.encoder]}: {_labelled(other, metric)}", fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in [*grid.flat][len(others) :]:
        axes.set_visible(False)
    for axes in [*grid.flat][max(0, len(others) - PANELS) : len(others)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("length percentile", fontsize=8)
    figure.supylabel(metric, fontsize=9)
    known = {label: line for line, label in zip(*grid.flat[0].get_legend_handles_labels(), strict=True)}
    own = names[first.encoder]
    shown = {f"{own}: {_labelled(first, metric)}": known[own], GUESS: known[GUESS]}
    figure.legend([*shown.values()], [*shown], loc="outside lower center", ncols=2, frameon=False)
    return figure


def _line(axes: Any, model: Evaluation, metric: str, label: str, aside: float, color: str, marker: str) -> None:
    scores = [row.scores[metric] for row in model.by_length]
    ends = [metrics.ends(s) for s in scores]
    bars = [
        [max(s.value - low, 0.0) for s, (low, _) in zip(scores, ends, strict=True)],
        [max(high - s.value, 0.0) for s, (_, high) in zip(scores, ends, strict=True)],
    ]  # NaN, of which no bar is drawn, stays NaN
    places, values = [place + aside for place in range(len(scores))], [s.value for s in scores]
    axes.errorbar(places, values, bars, color=color, marker=marker, markersize=5, capsize=3, label=label)


def _frame(axes: Any, first: Evaluation, ticks: Sequence[str]) -> None:
    metric = metrics.by_length(first.headline)
    axes.axhline(first.guessing[metric], color="grey", linestyle="--", label=GUESS)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlim(-ROOM, len(ticks) - 1 + ROOM)
    axes.set_ylim(*((-0.02, 1.02) if _in_percent(metric) else (0, None)))
    axes.grid(alpha=0.3)


# --- Several seeds ---


def _together(runs: Sequence[Evaluation]) -> Evaluation:
    """Runs of one model over the same records."""
    first = runs[0]
    bins = {tuple((row.percentile, row.longest, row.records) for row in run.by_length) for run in runs}
    if len(bins) > 1 or len({(run.task, run.split) for run in runs}) > 1:
        raise ValueError(
            f"{len(runs)} evaluations of {first.encoder} are of different records: only runs on the same ones have a "
            "mean; give those"
        )
    return replace(
        first,
        loss=sum(run.loss for run in runs) / len(runs),
        scores=_means([run.scores for run in runs]),
        by_length=[
            replace(row, scores=_means([run.by_length[i].scores for run in runs]))
            for i, row in enumerate(first.by_length)
        ],
    )


def _means(runs: Sequence[Mapping[str, Score]]) -> dict[str, Score]:
    return {name: _mean([scores[name].value for scores in runs]) for name in runs[0]}


def _mean(values: Sequence[float]) -> Score:
    """With the lowest and the highest of those that are defined.

    >>> _mean([0.5, 0.9, float("nan")])
    Score(value=0.7, low=0.5, high=0.9)
    """
    known = [value for value in values if value == value]
    return Score(sum(known) / len(known), min(known), max(known)) if known else Score(float("nan"))


def _in_percent(metric: str) -> bool:
    """Shares are; an error has the target's unit."""
    return metric not in metrics.LESS_IS_BETTER


def _shown(value: float, metric: str, places: int = 1) -> str:
    """
    >>> _shown(0.876, "accuracy"), _shown(0.876, "mae"), _shown(float("nan"), "roc_auc")
    ('87.6', '0.876', '-')
    """
    if value != value:  # undefined: an area, where a bin has one class alone
        return "-"
    return f"{100 * value:.{places}f}" if _in_percent(metric) else metrics.number(value)


def _labelled(model: Evaluation, metric: str) -> str:
    return _shown(model.scores[metric].value, metric) + (" %" if _in_percent(metric) else "")


def _cell(score: Score, metric: str) -> str:
    if score.value != score.value or score.low is None or score.high is None:
        return _shown(score.value, metric)
    ends = [f"{100 * end:.0f}" if _in_percent(metric) else metrics.number(end) for end in (score.low, score.high)]
    return f"{_shown(score.value, metric)} ({'-'.join(ends)})"
