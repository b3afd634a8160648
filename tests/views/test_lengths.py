"""Scores by length, as a table and as a plot."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from chordmixer.training.evaluation import Evaluation, LengthBin, Score
from chordmixer.views import lengths
from chordmixer.views.drawing import COLOURS


def evaluation(encoder: str, value: float) -> Evaluation:
    score = {"accuracy": Score(value, value - 0.05, value + 0.05)}
    bins = [
        LengthBin(10, 30, 99, 5, score),
        LengthBin(50, 100, 1_999, 20, score),
        LengthBin(100, 2_000, 9_000, 25, score),
    ]
    return Evaluation("adding", "test", encoder, "accuracy", 50, 0.01, score, {"accuracy": 0.125}, bins)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures that are saved, in their order."""
    found: list[Any] = []
    save = lengths.drawing.save
    monkeypatch.setattr(lengths.drawing, "save", lambda figure, path: (found.append(figure), save(figure, path))[1])
    return found


@pytest.fixture
def several() -> list[Evaluation]:
    return [evaluation("chordmixer", 0.9), evaluation("pointwise", 0.2)]


@pytest.mark.parametrize("models", [1, 2])
def test_a_row_a_bin_then_all_and_the_constant_answer(several: list[Evaluation], models: int) -> None:
    console = Console(file=StringIO(), width=150)
    grid = lengths.table(several[:models], 80)
    console.print(grid)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")
    ]
    cells = ["90.0 (85-95)", "20.0 (15-25)"][:models]
    assert rows == [
        ["10", "30 to 99", "5", *cells],
        ["50", "100 to 1,999", "20", *cells],
        ["100", "2,000 to 9,000", "25", *cells],
        ["all", "", "50", *cells],
        ["one answer for all", "", "50", *["12.5"] * models],
    ]
    assert [str(column.header) for column in grid.columns][3:] == ["chordmixer", "pointwise"][:models]
    assert "adding, test set: accuracy in % by length (95 % interval)" in text


@pytest.mark.parametrize("models", [1, 4])
def test_of_numbers_the_error_by_length(drawn: list[Any], tmp_path: Path, models: int) -> None:
    """R² of the records of one length is no use; their error has the targets' unit and no per cent."""
    score = {"r2": Score(-5.0, -80.0, 0.2), "mae": Score(12.5, 10.0, 15.0)}
    bins = [LengthBin(50, 10, 90, 5, score), LengthBin(100, 91, 200, 5, score)]
    guess = {"r2": 0.0, "mae": 20.0}
    named = [Evaluation("files", "files", f"m{i}", "r2", 10, 0.1, score, guess, bins) for i in range(models)]
    console = Console(file=StringIO(), width=100)
    console.print(lengths.table(named, 100))
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "files: mean absolute error by length" in text
    assert "12.50 (10.00-15.00)" in text and "20.00" in text and "-8000" not in text and "-500" not in text
    lengths.plot(named, tmp_path / "lengths.png")
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "mean absolute error" and axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 20


@pytest.mark.parametrize("models", [1, 2])
def test_a_plot_is_a_picture(several: list[Evaluation], tmp_path: Path, models: int) -> None:
    path = lengths.plot(several[:models], tmp_path / "lengths.png")
    assert path == tmp_path / "lengths.png"
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 10_000


def test_no_figure_stays_open(several: list[Evaluation], tmp_path: Path) -> None:
    from matplotlib import pyplot

    lengths.plot(several, tmp_path / "lengths.png")
    assert pyplot.get_fignums() == []


def test_every_model_is_drawn(tmp_path: Path, drawn: list[Any]) -> None:
    """Of more than there are colours each in a panel, beside the first, the best one first."""
    many = [evaluation(f"model {i}", 0.1 * i) for i in range(len(COLOURS) + 1)]
    for count in (1, 2, 6):
        lengths.plot(many[:count], tmp_path / "lengths.png", "Adding")
        (axes,) = drawn.pop().axes
        assert [bars.get_label() for bars in axes.containers] == [f"model {i}" for i in range(count)]
    lengths.plot(many, tmp_path / "lengths.png", "Adding")
    panels = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"model {i}: {10 * i:.1f} %" for i in (6, 5, 4, 3, 2, 1)]
    assert {axes.containers[0].get_label() for axes in panels} == {"model 0"}
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["model 0: 0.0 %", "one answer for all"]
    assert drawn[0].get_suptitle() == "Adding, test set, 50 sequences; bars: 95 % interval"


@pytest.mark.parametrize(
    ("width", "shown"),
    [(120, [*range(12)]), (80, [0, 1, 3, 4, 6, 7, 8, 10, 11]), (60, [0, 3, 6, 8, 11]), (20, [11])],
)
def test_of_many_models_a_row_each(several: list[Evaluation], width: int, shown: list[int]) -> None:
    """With as many of a dozen length bins as there is room for, and every name in full."""
    score = {"accuracy": Score(0.123, 0.1, 0.2)}
    bins = [LengthBin(p, 30, 9_949 * p, 5, score) for p in (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)]
    names = ["chordmixer", "nystromformer-average", "transformer", "plain: length alone"]
    many = [replace(several[0], encoder=name, by_length=bins) for name in names]
    many[1] = replace(many[1], by_length=[replace(b, scores={"accuracy": Score(float("nan"), 0, 0)}) for b in bins])
    console = Console(file=StringIO(), width=max(width, 60))
    console.print(lengths.table(many, width))
    assert isinstance(console.file, StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if "%" not in line and "interval" not in line]
    rows = [line.split() for line in lines]
    assert rows[0] == ["percentile", "all", *(str(bins[i].percentile) for i in shown)]
    assert rows[1][0] == "longest" and rows[1][-1] == "990k" and len(rows[1]) == 1 + len(shown)
    assert rows[2] == ["chordmixer", "90.0", "(85-95)", *["12"] * len(shown)]
    assert rows[3][0] == "nystromformer-average" and rows[3][3:] == ["-"] * len(shown)
    assert rows[-1] == ["one", "answer", "for", "all", "12.5"]


# --- Several seeds ---


def test_runs_of_one_model_become_their_mean_and_range() -> None:
    runs = [evaluation("chordmixer", value) for value in (0.8, 0.9, 0.7)]
    single = evaluation("luna", 0.5)
    mean, other = lengths.grouped([runs[0], single, *runs[1:]])
    assert other is single
    assert mean.scores["accuracy"] == Score(pytest.approx(0.8), 0.7, 0.9)
    assert [row.scores["accuracy"] for row in mean.by_length] == [Score(pytest.approx(0.8), 0.7, 0.9)] * 3
    assert (mean.encoder, mean.records, mean.loss) == ("chordmixer", 50, pytest.approx(0.01))


def test_a_table_of_several_seeds_says_what_stands_in_brackets() -> None:
    grid = lengths.table([evaluation("chordmixer", value) for value in (0.8, 0.9)], 80)
    assert str(grid.title).endswith("by length (lowest to highest of 2 runs)")
    assert [*grid.columns[3].cells] == ["85.0 (80-90)"] * 4 + ["12.5"]


@pytest.mark.parametrize(
    ("encoders", "words"),
    [
        (["a"], "95 % interval"),
        (["a", "b"], "95 % interval"),
        (["a", "a", "b", "b"], "lowest to highest of 2 runs"),
        (["a", "a", "b"], "lowest to highest of 2 runs, 95 % interval of a single one"),
    ],
)
def test_bars_in_words(encoders: list[str], words: str) -> None:
    assert lengths.spread([evaluation(name, 0.5) for name in encoders]) == words


def test_runs_on_other_records_have_no_mean() -> None:
    one = evaluation("chordmixer", 0.5)
    other = replace(one, by_length=one.by_length[:2])
    with pytest.raises(
        ValueError, match="2 evaluations of chordmixer are of different records: only runs on the same"
    ):
        lengths.grouped([one, other])


def test_seeds_change_the_picture(tmp_path: Path) -> None:
    runs = [evaluation("chordmixer", value) for value in (0.8, 0.9)]
    plots = [
        lengths.plot(own, tmp_path / "p.png").read_bytes() for own in (runs, [runs[0]], [lengths.grouped(runs)[0]])
    ]
    assert len(set(plots)) == 3


def test_a_single_length_stands_in_the_middle(several: list[Evaluation], tmp_path: Path, drawn: list[Any]) -> None:
    """As of pictures, which are all of one length: models side by side around it, not at the picture's edges."""
    lengths.plot([replace(own, by_length=own.by_length[:1]) for own in several], tmp_path / "lengths.png")
    (axes,) = drawn[0].axes
    low, high = axes.get_xlim()
    places = [bars[0].get_xdata()[0] for bars in axes.containers]
    assert low == -high and all(2 * abs(place) < high for place in places)


def test_scores_without_an_interval_have_no_bar(drawn: list[Any], tmp_path: Path) -> None:
    few = replace(evaluation("chordmixer", 0.9), scores={"accuracy": Score(0.9)})
    few = replace(few, by_length=[replace(row, scores={"accuracy": Score(1.0)}) for row in few.by_length])
    console = Console(width=100, file=StringIO(), record=True)
    console.print(lengths.table([few], 100))
    assert "100.0 │" in (text := console.export_text()) and "(" not in text.split("interval)")[1]
    lengths.plot([few], tmp_path / "few.png")
    caps = drawn[0].axes[0].containers[0].lines[1]
    assert len(caps) == 2 and all(np.isnan(np.asarray(cap.get_ydata(), dtype=float)).all() for cap in caps)
