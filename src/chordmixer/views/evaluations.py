"""What `chordmixer evaluate` says: which records were trained on, and every metric with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from chordmixer.training.evaluation import Evaluation, Score
from chordmixer.views import metrics

if TYPE_CHECKING:
    from chordmixer.training.file_evaluation import FilesEvaluation


def first_line(found: FilesEvaluation) -> str:
    """Whether the scores are of records that the run has learnt from."""
    total = found.overall.records
    if found.seen is None:
        return "warning: this run keeps no hashes of its training records: whether these were seen is unknown"
    seen = sum(found.seen.values())
    if not seen:
        return f"none of the {total:,} records was seen in training"
    parts = ", ".join(f"{count:,} {part}" for part, count in found.seen.items() if count)
    said = (
        f"warning: {seen:,} of {total:,} records were seen in training ({parts}): their scores show recall, not skill"
    )
    rest = f"the {total - seen:,} unseen records are scored apart" if found.unseen else "give new records"
    return f"{said}; {rest}"


def columns(found: FilesEvaluation) -> dict[str, Evaluation]:
    """The sets of records that have scores of their own, those that count first."""
    if found.unseen is None or found.unseen is found.overall:
        return {"all": found.overall}
    return {"unseen": found.unseen, "all": found.overall}


def table(evaluations: Mapping[str, Evaluation]) -> Table:
    """A row a metric, a column a set of records, then what the best constant prediction of the first set reaches."""
    first = next(iter(evaluations.values()))
    grid = Table(title="scores (95 % interval)", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("metric", no_wrap=True)
    for name, evaluation in evaluations.items():
        grid.add_column(f"{name}, {evaluation.records:,} records", justify="right")
    grid.add_column("constant", justify="right")
    for metric in (first.headline, *(name for name in first.scores if name != first.headline)):
        guess = first.guessing.get(metric, math.nan)
        cells = [_cell(evaluation.scores[metric]) for evaluation in evaluations.values()]
        grid.add_row(metrics.name(metric), *cells, metrics.number(guess) if math.isfinite(guess) else "-")
    return grid


def _cell(score: Score) -> str:
    return f"{metrics.number(score.value)} ({metrics.spread(score)})" if math.isfinite(score.value) else "-"
