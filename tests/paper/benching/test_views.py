from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib import pyplot
from rich.console import Console

from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching import views
from chordmixer.paper.benching.cases import Phase, Reach, Result, adding, fixed
from chordmixer.paper.benching.views import COLUMNS, PAPER, PAPER_COLUMNS, SOURCE


def test_every_row_has_its_encoder() -> None:
    assert {name for own in PAPER.values() for name in own} <= set(ENCODERS)
    assert [len(own) for own in PAPER.values()] == [13, 3]


def test_numbers_as_they_stand_in_the_table() -> None:
    assert (PAPER[200]["chordmixer"], PAPER[128_000]["chordmixer"]) == ((1.5, 4.9), (23.1, 604))
    assert (PAPER[200]["tree_lstm"], PAPER[128_000]["cosformer"]) == ((25.3, 9831), (22.6, 994))
    assert "mamba2" not in PAPER[200] and "V100" in SOURCE


def test_each_number_beside_ours_and_the_paper(result: Callable[..., Result]) -> None:
    chord, cnn = result("chordmixer", 10.0, padded=0.0), result("cnn", 5.0, padded=0.25)
    row = dict(zip(COLUMNS + PAPER_COLUMNS, views.result_cells(cnn, chord, 200), strict=True))
    assert row["training, ms"] == "5 (0.5)" and row["inference, GB"] == "0.005 (0.5)"
    assert (row["weights"], row["tokens/s"], row["padded"]) == ("1k", "1M", "25%")
    assert (row["paper, ms"], row["paper, GB"]) == ("3.3 (0.67)", "1.4 (0.93)")
    assert len(views.result_cells(cnn, chord, None)) == len(COLUMNS)
    assert views.result_cells(cnn, None, None)[2] == "5"


@pytest.mark.parametrize(
    ("stage", "lost", "column"),
    [
        ("inference", ("inference", "training"), "inference, ms"),
        ("training", ("training",), "training, ms"),
        ("inference of 60 tokens", (), "inference, GB"),
        ("training of 60 tokens", (), "training, GB"),
    ],
)
def test_what_stopped_it_stands_where_the_number_would(
    result: Callable[..., Result], stage: str, lost: tuple[str, ...], column: str
) -> None:
    own = replace(result("cnn", 5.0), failed="out of memory", stage=stage, **dict.fromkeys(lost))  # type: ignore[arg-type]
    row = dict(zip(COLUMNS, views.result_cells(own, None, None), strict=True))
    assert [name for name, cell in row.items() if cell == "out of memory"] == [column]


FAST, SLOW = Phase(2.0, 3e6, 10**8, 7), Phase(9.0, 1e6, 10**9, 7)


def results(setting: str) -> list[Result]:
    return [
        Result("cnn", setting, 1000, 33, 0.0, 0.0, FAST, FAST),
        Result("chordmixer", setting, 9000, None, 0.0, 0.0, FAST, SLOW),
        Result("luna", setting, 800, inference=FAST, failed="out of memory", stage="training"),
        Result("lstm", setting, failed="time limit", stage="inference"),
    ]


def shown(grid: object, width: int) -> str:
    console = Console(width=width)
    with console.capture() as seen:
        console.print(grid)
    return seen.get()


def test_a_table_has_the_columns_that_fit() -> None:
    at = adding(200, 5)
    wide, narrow = (shown(views.table(at, results(at.name), width).terminal(), width) for width in (130, 80))
    assert "base length 200, longest 6,700 (in brackets: times ChordMixer's)" in wide
    assert "padded" in wide and "padded" not in narrow and "…" not in wide + narrow
    assert "2 (0.22)" in narrow and "3.3 (0.67)" in narrow and "out of memory" in narrow


def test_the_table_of_the_longest() -> None:
    grid = views.reach_table([Reach("cnn", "training", 4096, 1.0, 10**9, "out of memory"), Reach("cnn", "training")])
    assert grid.rows[1][2:] == ("none", "-", "-", "no longer one was tried")
    said = shown(grid.terminal(), 80)
    assert "4,096" in said and "1.0 GB" in said and "out of memory" in said


def test_pictures_differ(tmp_path: Path) -> None:
    few, many = [adding(200, 5)], [fixed(n, 1) for n in (10, 100, 1000)]
    pictures = [
        views.plot(at, [r for s in at for r in results(s.name)], tmp_path / "p.png").read_bytes()
        for at in ([*few, many[0]], few + many)
    ]
    assert len(set(pictures)) == 2 and all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pyplot.get_fignums() == []
