"""What is said of scores on files."""

from __future__ import annotations

import math
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from chordmixer.training.evaluation import Evaluation, Score
from chordmixer.training.file_evaluation import FilesEvaluation, Rows
from chordmixer.views import evaluations


def scored(records: int, value: float) -> Evaluation:
    scores = {"accuracy": Score(0.8, 0.7, 0.9), "roc_auc": Score(value, 0.55, 0.75), "mcc": Score(*[math.nan] * 3)}
    guess = {"accuracy": 0.5, "roc_auc": 0.5, "mcc": math.nan}
    return Evaluation("files", "files", "chordmixer", "roc_auc", records, 0.1, scores, guess, [])


def found(unseen: Evaluation | None, seen: dict[str, int] | None) -> Any:
    return FilesEvaluation(scored(1_200, 0.95), unseen, seen, None, Rows())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unseen", "seen", "line"),
    [
        (
            scored(200, 0.6),
            {"training": 900, "validation": 100},
            "warning: 1,000 of 1,200 records were seen in training (900 training, 100 validation): their scores show "
            "recall, not skill; the 200 unseen records are scored apart",
        ),
        (
            None,
            {"training": 1_200, "validation": 0},
            "warning: 1,200 of 1,200 records were seen in training (1,200 training): their scores show recall, not "
            "skill; give new records",
        ),
        (None, None, "warning: this run keeps no hashes of its training records: whether these were seen is unknown"),
        (scored(1_200, 0.9), {"training": 0, "validation": 0}, "none of the 1,200 records was seen in training"),
    ],
    ids=["some", "all", "unknown", "none"],
)
def test_the_first_line(unseen: Evaluation | None, seen: dict[str, int] | None, line: str) -> None:
    assert evaluations.first_line(found(unseen, seen)) == line


def test_every_metric_the_headline_first_and_unseen_records_before_all() -> None:
    columns = evaluations.columns(found(scored(200, 0.6), {"training": 1_000, "validation": 0}))
    console = Console(file=StringIO(), width=80)
    console.print(evaluations.table(columns))
    assert isinstance(console.file, StringIO)
    lines = [line.split("  ") for line in console.file.getvalue().splitlines()[1:]]
    rows = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert rows == [
        ["metric", "unseen, 200 records", "all, 1,200 records", "constant"],
        ["ROC-AUC", "0.600 (0.550 to 0.750)", "0.950 (0.550 to 0.750)", "0.500"],
        ["accuracy", "0.800 (0.700 to 0.900)", "0.800 (0.700 to 0.900)", "0.500"],
        ["Matthews correlation", "-", "-", "-"],
    ]
    assert [*evaluations.columns(found(None, None))] == ["all"]
