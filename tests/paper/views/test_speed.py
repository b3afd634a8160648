"""Tables and pictures of time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from chordmixer.paper.benching.cases import adding, fixed
from chordmixer.paper.benching.results import Phase, Reach, Result
from chordmixer.paper.views import speed

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
    wide, narrow = (shown(speed.table(at, results(at.name), width), width) for width in (130, 80))
    assert "base length 200, longest 6,700 (in brackets: times ChordMixer's)" in wide
    assert "padded" in wide and "padded" not in narrow and "…" not in wide + narrow
    assert "2 (0.22)" in narrow and "3.3 (0.67)" in narrow and "out of memory" in narrow


def test_the_longest() -> None:
    said = shown(speed.reach_table([Reach("cnn", "training", 4096, 1.0, 10**9, "out of memory")]), 80)
    assert "4,096" in said and "1.0 GB" in said and "out of memory" in said


def test_pictures_differ(tmp_path: Path) -> None:
    few, many = [adding(200, 5)], [fixed(n, 1) for n in (10, 100, 1000)]
    pictures = [
        speed.plot(at, [r for s in at for r in results(s.name)], tmp_path / "p.png").read_bytes()
        for at in ([*few, many[0]], few + many)
    ]
    assert len(set(pictures)) == 2 and all(picture.startswith(b"\x89PNG") for picture in pictures)


def test_no_figure_stays_open(tmp_path: Path) -> None:
    from matplotlib import pyplot

    at = fixed(10, 1)
    speed.plot([at], results(at.name)[:1], tmp_path / "p.png")
    assert pyplot.get_fignums() == []


def test_nothing_to_draw(tmp_path: Path) -> None:
    at = fixed(10, 1)
    with pytest.raises(ValueError, match="no encoder was measured: a picture needs at least one; give a Result"):
        speed.plot([at], results(at.name)[3:], tmp_path / "p.png")
