"""Scores against length: the paper's main form of figure, as a table and as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from chordmixer.training import Evaluation
from chordmixer.training.evaluation import Score
from chordmixer.views import drawing
from chordmixer.views.drawing import COLOURS, MARKERS

ROOM = 0.5
"""Of the way to the next length bin, over which models stand side by side: their bars do not hide each other."""


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


def table(evaluations: Sequence[Evaluation]) -> Table:
    """A row a length bin, a column a model, then all records and guessing."""
    models, first = grouped(evaluations), evaluations[0]
    grid = Table(title=f"{first.task}, {first.split} set: {first.headline} in % by length ({spread(evaluations)})")
    grid.add_column("percentile", justify="right")
    grid.add_column("length", justify="right")
    grid.add_column("records", justify="right")
    for evaluation in models:
        grid.add_column(evaluation.encoder, justify="right")
    for i, row in enumerate(first.by_length):
        scores = [_cell(e.by_length[i].scores[first.headline]) for e in models]
        grid.add_row(str(row.percentile), f"{row.shortest:,} to {row.longest:,}", f"{row.records:,}", *scores)
    grid.add_section()
    overall = [_cell(e.scores[first.headline]) for e in models]
    grid.add_row("all", "", f"{first.records:,}", *overall)
    guess = [f"{100 * e.guessing[first.headline]:.1f}" for e in models]
    grid.add_row("one answer for all", "", f"{first.records:,}", *guess)
    return grid


def plot(evaluations: Sequence[Evaluation], path: Path, title: str = "") -> Path:
    """Headline metric by length percentile, one line a model, guessing as a dashed one; the title is else the task's.

    Bars are 95 % intervals, or from the lowest to the highest of a model's runs with several seeds.
    """

    models, first = grouped(evaluations), evaluations[0]
    figure, axes = drawing.pyplot().subplots(figsize=(8, 5), layout="constrained")
    places = range(len(first.by_length))
    runs = Counter(e.encoder for e in evaluations)
    for number, evaluation in enumerate(models):
        scores = [row.scores[first.headline] for row in evaluation.by_length]
        values = [s.value for s in scores]
        bars = [[max(0.0, s.value - s.low) for s in scores], [max(0.0, s.high - s.value) for s in scores]]
        aside = ROOM * (number - (len(models) - 1) / 2) / max(len(models), 4)
        again, colour = divmod(number, len(COLOURS))
        axes.errorbar(
            [place + aside for place in places],
            values,
            bars,
            color=COLOURS[colour],
            marker=MARKERS[again % len(MARKERS)],
            markersize=5,
            capsize=3,
            label=evaluation.encoder + (f", {runs[evaluation.encoder]} runs" if runs[evaluation.encoder] > 1 else ""),
        )
    axes.axhline(first.guessing[first.headline], color="grey", linestyle="--", label="one answer for all")
    axes.set_xticks(list(places), [f"{row.percentile}\n{row.longest:,}" for row in first.by_length])
    axes.set_xlabel("length percentile, and the longest sequence below it")
    axes.set_ylabel(first.headline)
    axes.set_xlim(-ROOM, len(first.by_length) - 1 + ROOM)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(
        f"{title or first.task}, {first.split} set, {first.records:,} sequences; bars: {spread(evaluations)}",
        fontsize=11,
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return drawing.save(figure, path)


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
    known = [value for value in values if value == value] or [float("nan")]
    return Score(sum(known) / len(known), min(known), max(known))


def _cell(score: Score) -> str:
    if score.value != score.value:  # undefined: an area, where a bin has one class alone
        return "-"
    return f"{100 * score.value:.1f} ({100 * score.low:.0f}-{100 * score.high:.0f})"
