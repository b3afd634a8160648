from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chordmixer.paper.benching import cells
from chordmixer.paper.benching.results import Reach, Result


def test_each_number_beside_ours_and_the_paper(result: Callable[..., Result]) -> None:
    chord, cnn = result("chordmixer", 10.0, padded=0.0), result("cnn", 5.0, padded=0.25)
    row = dict(zip(cells.header(200), cells.row(cnn, chord, 200), strict=True))
    assert row["training, ms"] == "5 (0.5)" and row["inference, GB"] == "0.005 (0.5)"
    assert (row["weights"], row["tokens/s"], row["padded"]) == ("1k", "1M", "25%")
    assert (row["paper, ms"], row["paper, GB"]) == ("3.3 (0.67)", "1.4 (0.93)")
    assert cells.header(None)[-1] == "padded" and len(cells.row(cnn, chord, None)) == len(cells.header(None))
    assert cells.row(cnn, None, None)[2] == "5"


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
    row = dict(zip(cells.header(None), cells.row(own, None, None), strict=True))
    assert [name for name, cell in row.items() if cell == "out of memory"] == [column]


def test_the_longest() -> None:
    assert cells.reach(Reach("cnn", "training"))[2:] == ["none", "-", "-", "no longer one was tried"]
