"""Output of commands: lines of the first process, and tables of scores with their plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from chordmixer import terminal
from chordmixer.terminal import first_rank, tell

if TYPE_CHECKING:
    from chordmixer.training.evaluation import Evaluation


def print_line(line: str) -> None:
    """Print a line, only in the first process."""
    if first_rank():
        tell(line)


def show_comparison(evaluation: Evaluation, others: list[Evaluation], folder: Path) -> None:
    """Show the scores by length of a model and the best baseline, the headline score of each, and the verdict."""
    from chordmixer.training.results import NETWORKS
    from chordmixer.views import metrics, verdict
    from chordmixer.views.runs import Run

    metric = evaluation.headline
    baselines = [other for other in others if other.encoder not in NETWORKS]
    best = max(baselines, key=lambda other: other.scores[metric].value, default=None)
    show_lengths([evaluation, *([replace(best, encoder=f"baseline: {best.encoder}")] if best else [])], folder)
    for other in [*others, evaluation]:
        name = "the model" if other is evaluation else other.encoder
        print_line(f"{name}: {metrics.name(metric)} {metrics.number(other.scores[metric].value)}")
    for sentence in verdict.headline(Run.load(folder)):
        print_line(sentence)


def show_lengths(evaluations: list[Evaluation], folder: Path) -> None:
    """Show scores by length as a table, and plot them into the folder."""
    from chordmixer.views.plots import plot_lengths

    if first_rank():
        print_lengths(evaluations)
        tell(f"plot: {plot_lengths(evaluations, folder / f'lengths-{evaluations[0].split}.png')}")


def print_lengths(evaluations: list[Evaluation]) -> None:
    """Print scores by length as a table."""
    from chordmixer.views.tables import length_table

    console = terminal.console()
    console.print(length_table(evaluations, console.width))
