"""Tables: one for a terminal, Markdown and HTML; tables of scores."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from chordmixer.training.evaluation import Evaluation, LengthBin, Score
from chordmixer.training.file_evaluation import FilesEvaluation, Rows
from chordmixer.views import page, tables
from chordmixer.views.tables import ReportTable, interval_name, length_table, mean_over_seeds, score_cell


def printed(renderable: RenderableType, width: int = 100) -> list[list[str]]:
    """The lines of a table below its title, as cells."""
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if not set(line) <= {"─", " "}]
    return [re.split(r" {2,}", line.strip()) for line in lines]


TABLE = ReportTable(
    ("id", "truth", "score"),
    [("a<b|c", "[bold]yes", score_cell(Score(0.9, 0.8, 1.0), best=True))],
    "worst & last",
    words=(0, 1),
)


def test_one_table_in_three_formats() -> None:
    assert printed(TABLE.terminal()) == [
        ["worst & last"],
        ["id", "truth", "score"],
        ["a<b|c", "[bold]yes", "0.900 (0.800 to 1.000)"],
    ]
    assert TABLE.markdown().splitlines()[1:] == [
        "|---|---|---|",
        "| a&lt;b\\|c | \\[bold\\]yes | 0.900 (0.800 to 1.000) |",
    ]
    markup = TABLE.html()
    assert '<th scope="col" class="words">truth</th><th scope="col">score</th>' in markup
    assert '<th scope="row" class="words">a&lt;b|c</th><td class="words">[bold]yes</td>' in markup
    assert "<td><b>0.900</b><small>0.800 to 1.000</small></td>" in markup
    assert 'aria-label="worst &amp; last"' in markup and 'tabindex="0"' in markup


def test_undefined_scores() -> None:
    assert str(score_cell(None)) == str(score_cell(Score(math.nan, math.nan, math.nan))) == tables.UNDEFINED


def test_cells_of_a_stacked_table_name_their_column() -> None:
    """On a phone cells are shown below each other."""
    html = ReportTable(("", "ROC-AUC", "F1"), [("this model", "0.9", "0.8")]).html(stacked=True)
    assert (
        '<td data-title="ROC-AUC">0.9</td><td data-title="F1">0.8</td>' in html and 'class="scroll stacked"' in html
    )
    assert ".stacked td::before { content: attr(data-title)" in page.STYLE.read_text()


def test_only_long_words_may_be_broken() -> None:
    long = "x" * (tables.LONGEST_WORD + 1)
    html = ReportTable(("id", "truth", "length"), [(long, "a b", long), ("y", long, "1")], words=(0, 1)).html()
    assert f'<th scope="row" class="words long">{long}</th><td class="words">a b</td><td>{long}</td>' in html
    assert f'<th scope="row" class="words">y</th><td class="words long">{long}</td><td>1</td>' in html


# --- Scores by metric ---


def scored(records: int, value: float) -> Evaluation:
    scores = {"accuracy": Score(0.8, 0.7, 0.9), "roc_auc": Score(value, 0.55, 0.75), "mcc": Score(*[math.nan] * 3)}
    guess = {"accuracy": 0.5, "roc_auc": 0.5, "mcc": math.nan}
    return Evaluation("files", "files", "chordmixer", "roc_auc", records, 0.1, scores, guess, [])


def files_evaluation(unseen: Evaluation | None, seen: dict[str, int] | None) -> Any:
    return FilesEvaluation(scored(1_200, 0.95), unseen, seen, None, Rows())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unseen", "seen", "line"),
    [
        (
            scored(200, 0.6),
            {"training": 900, "validation": 100},
            "warning: 1,000 of 1,200 records were seen in training (900 training, 100 validation): their scores show "
            "recall, not skill; the 200 unseen records are scored separately",
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
def test_seen_records_are_counted(unseen: Evaluation | None, seen: dict[str, int] | None, line: str) -> None:
    assert tables.seen_line(files_evaluation(unseen, seen)) == line


def test_every_metric_the_headline_first_and_unseen_records_before_all() -> None:
    columns = tables.seen_and_unseen(files_evaluation(scored(200, 0.6), {"training": 1_000, "validation": 0}))
    _, *rows = printed(tables.metrics_table(columns).terminal())
    assert rows == [
        ["metric", "unseen, 200 records", "all, 1,200 records", "constant"],
        ["ROC-AUC", "0.600 (0.550 to 0.750)", "0.950 (0.550 to 0.750)", "0.500"],
        ["accuracy", "0.800 (0.700 to 0.900)", "0.800 (0.700 to 0.900)", "0.500"],
        ["Matthews correlation", "-", "-", "-"],
    ]
    assert [*tables.seen_and_unseen(files_evaluation(None, None))] == ["all"]


# --- Scores by length ---


def evaluation(encoder: str, value: float) -> Evaluation:
    score = {"accuracy": Score(value, value - 0.05, value + 0.05)}
    bins = [
        LengthBin(10, 30, 99, 5, score),
        LengthBin(50, 100, 1_999, 20, score),
        LengthBin(100, 2_000, 9_000, 25, score),
    ]
    return Evaluation("adding", "test", encoder, "accuracy", 50, 0.01, score, {"accuracy": 0.125}, bins)


@pytest.fixture
def several() -> list[Evaluation]:
    return [evaluation("chordmixer", 0.9), evaluation("pointwise", 0.2)]


@pytest.mark.parametrize("models", [1, 2])
def test_a_row_per_bin_then_all_and_the_constant_prediction(several: list[Evaluation], models: int) -> None:
    cells = ["90.0 (85-95)", "20.0 (15-25)"][:models]
    assert printed(length_table(several[:models], 80)) == [
        ["adding, test set: accuracy in % by length (95 % interval)"],
        ["percentile", "length", "records", *["chordmixer", "pointwise"][:models]],
        ["10", "30 to 99", "5", *cells],
        ["50", "100 to 1,999", "20", *cells],
        ["100", "2,000 to 9,000", "25", *cells],
        ["all", "50", *cells],
        ["constant prediction", "50", *["12.5"] * models],
    ]


def regression_evaluations(models: int) -> list[Evaluation]:
    """For regression, R² of records of one length is of no use; their error has the targets' unit, not per cent."""
    score = {"r2": Score(-5.0, -80.0, 0.2), "mae": Score(12.5, 10.0, 15.0)}
    bins = [LengthBin(50, 10, 90, 5, score), LengthBin(100, 91, 200, 5, score)]
    guess = {"r2": 0.0, "mae": 20.0}
    return [Evaluation("files", "files", f"m{i}", "r2", 10, 0.1, score, guess, bins) for i in range(models)]


@pytest.mark.parametrize("models", [1, 4])
def test_regression_has_the_error_by_length(models: int) -> None:
    text = str(printed(length_table(regression_evaluations(models), 100)))
    assert "files: mean absolute error by length" in text
    assert "12.50 (10.00 to 15.00)" in text and "20.00" in text and "-8000" not in text and "-500" not in text


@pytest.mark.parametrize(
    ("width", "shown"),
    [(120, [*range(12)]), (80, [0, 1, 3, 4, 6, 7, 8, 10, 11]), (60, [0, 3, 6, 8, 11]), (20, [11])],
)
def test_many_models_have_a_row_each(several: list[Evaluation], width: int, shown: list[int]) -> None:
    """With as many of a dozen length bins as there is room for, and every name in full."""
    score = {"accuracy": Score(0.123, 0.1, 0.2)}
    bins = [LengthBin(p, 30, 9_949 * p, 5, score) for p in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)]
    names = ["chordmixer", "nystromformer-average", "transformer", "plain: length alone"]
    many = [replace(several[0], encoder=name, by_length=bins) for name in names]
    many[1] = replace(many[1], by_length=[replace(b, scores={"accuracy": Score(float("nan"), 0, 0)}) for b in bins])
    rows = [" ".join(line).split() for line in printed(length_table(many, width), max(width, 60))[1:]]
    assert rows[0] == ["percentile", "all", *(str(bins[i].percentile) for i in shown)]
    assert rows[1][0] == "longest" and rows[1][-1] == "990k" and len(rows[1]) == 1 + len(shown)
    assert rows[2] == ["chordmixer", "90.0", "(85-95)", *["12"] * len(shown)]
    assert rows[3][0] == "nystromformer-average" and rows[3][3:] == ["-"] * len(shown)
    assert rows[-1] == ["constant", "prediction", "12.5"]


def test_runs_of_one_model_become_their_mean_and_range() -> None:
    runs = [evaluation("chordmixer", value) for value in (0.8, 0.9, 0.7)]
    single = evaluation("luna", 0.5)
    mean, unchanged = mean_over_seeds([runs[0], single, *runs[1:]])
    assert unchanged is single
    assert mean.scores["accuracy"] == Score(pytest.approx(0.8), 0.7, 0.9)
    assert [row.scores["accuracy"] for row in mean.by_length] == [Score(pytest.approx(0.8), 0.7, 0.9)] * 3
    assert (mean.encoder, mean.records, mean.loss) == ("chordmixer", 50, pytest.approx(0.01))


def test_a_table_of_several_seeds_says_what_stands_in_brackets() -> None:
    (title,), _, *rows = printed(length_table([evaluation("chordmixer", value) for value in (0.8, 0.9)], 80))
    assert title.endswith("by length (lowest to highest of 2 runs)")
    assert [row[-1] for row in rows] == ["85.0 (80-90)"] * 4 + ["12.5"]


@pytest.mark.parametrize(
    ("encoders", "expected"),
    [
        (["a"], "95 % interval"),
        (["a", "b"], "95 % interval"),
        (["a", "a", "b", "b"], "lowest to highest of 2 runs"),
        (["a", "a", "b"], "lowest to highest of 2 runs, 95 % interval of a single one"),
    ],
)
def test_bars_in_words(encoders: list[str], expected: str) -> None:
    assert interval_name([evaluation(name, 0.5) for name in encoders]) == expected


def test_runs_on_other_records_have_no_mean() -> None:
    first = evaluation("chordmixer", 0.5)
    second = replace(first, by_length=first.by_length[:2])
    with pytest.raises(
        ValueError, match="2 evaluations of chordmixer are of different records: only runs on the same"
    ):
        mean_over_seeds([first, second])


def test_scores_without_an_interval(several: list[Evaluation]) -> None:
    few = replace(several[0], scores={"accuracy": Score(0.9)})
    few = replace(few, by_length=[replace(row, scores={"accuracy": Score(1.0)}) for row in few.by_length])
    assert [row[-1] for row in printed(length_table([few], 100))[2:]] == ["100.0", "100.0", "100.0", "90.0", "12.5"]
