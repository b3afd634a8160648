"""Scores against length: the paper's main form of figure, as a table and as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from rich.table import Table

from chordmixer import files
from chordmixer.training import Evaluation
from chordmixer.training.evaluation import Score

COLOURS = ("#1f5fbf", "#c4501b", "#2f8f4e", "#8a4fb0", "#8c8c1f", "#444444")
"""Readable side by side, in print, and without red against green."""


def table(evaluations: Sequence[Evaluation]) -> Table:
    """A row a length bin, a column a model, then all records and guessing."""
    first = evaluations[0]
    grid = Table(title=f"{first.task}, {first.split} set: {first.headline} in % by length (95 % interval)")
    grid.add_column("percentile", justify="right")
    grid.add_column("length", justify="right")
    grid.add_column("records", justify="right")
    for evaluation in evaluations:
        grid.add_column(evaluation.encoder, justify="right")
    for i, row in enumerate(first.by_length):
        scores = [_cell(e.by_length[i].scores[first.headline]) for e in evaluations]
        grid.add_row(str(row.percentile), f"{row.shortest:,} to {row.longest:,}", f"{row.records:,}", *scores)
    grid.add_section()
    overall = [_cell(e.scores[first.headline]) for e in evaluations]
    grid.add_row("all", "", f"{first.records:,}", *overall)
    guess = [f"{100 * e.guessing[first.headline]:.1f}" for e in evaluations]
    grid.add_row("one answer for all", "", f"{first.records:,}", *guess)
    return grid


def plot(evaluations: Sequence[Evaluation], path: Path) -> Path:
    """Headline metric by length percentile with its intervals, one line a model, guessing as a dashed one."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    first = evaluations[0]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    places = range(len(first.by_length))
    for colour, evaluation in zip(cycle(COLOURS), evaluations, strict=False):
        scores = [row.scores[first.headline] for row in evaluation.by_length]
        values = [s.value for s in scores]
        spread = [[max(0.0, s.value - s.low) for s in scores], [max(0.0, s.high - s.value) for s in scores]]
        axes.errorbar(places, values, spread, color=colour, marker="o", capsize=3, label=evaluation.encoder)
    axes.axhline(first.guessing[first.headline], color="grey", linestyle="--", label="one answer for all")
    axes.set_xticks(list(places), [f"{row.percentile}\n{row.longest:,}" for row in first.by_length])
    axes.set_xlabel("length percentile, and the longest sequence below it")
    axes.set_ylabel(first.headline)
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(f"{first.task}, {first.split} set, {first.records:,} sequences")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150)
    pyplot.close(figure)
    files.write_bytes(path, drawn.getvalue())
    return path


def _cell(score: Score) -> str:
    if score.value != score.value:  # undefined: an area, where a bin has one class alone
        return "-"
    return f"{100 * score.value:.1f} ({100 * score.low:.0f}-{100 * score.high:.0f})"
