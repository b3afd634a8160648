"""Scores by length, as a table and as a plot."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from chordmixer.training.evaluation import Evaluation, LengthBin, Score
from chordmixer.views import lengths


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
def test_a_row_a_bin_then_all_and_the_constant_answer(several: list[Evaluation], models: int) -> None:
    console = Console(file=StringIO(), width=150)
    grid = lengths.table(several[:models])
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


def test_every_model_is_drawn(tmp_path: Path) -> None:
    """Also more of them than there are colours."""
    many = [evaluation(f"model {i}", 0.1 * i) for i in range(len(lengths.COLOURS) + 1)]
    plots = [lengths.plot(many[: n + 1], tmp_path / f"{n}.png").read_bytes() for n in (0, 1, 5, 6)]
    assert len(set(plots)) == 4
