"""`inspect`, `evaluate`, `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chordmixer.cli.looking import first_rank, say

Command = Callable[..., tuple[int, str, str]]


def test_inspect(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    code, said, errors = chordmixer("inspect", *motifs, "--plot", tmp_path / "lengths.png", "--cache", tmp_path / "c")
    assert (code, errors) == (0, "")
    assert "each file is a class: with, without" in said and "200 records read: 200 used, 0 rejected" in said
    assert "200 records, " in said and "length percentiles" in said and "padding avoided" in said
    assert (tmp_path / "lengths.png").stat().st_size > 0 and [*(tmp_path / "c").iterdir()]


def test_inspect_needs_no_labels(chordmixer: Command, motifs: list[str]) -> None:
    code, said, _ = chordmixer("inspect", motifs[0])
    assert code == 0 and "classes" not in said and "100 records" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "none.fa"], "none.fa cannot be read (No such file or directory)"),
        (["report", "none"], "none is not a folder: give the --out folder of a training run"),
        (["evaluate", "none", "x.fa"], "none is not a folder: give the --out folder of a training run"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_path_is_one_line(chordmixer: Command, arguments: list[str], message: str) -> None:
    code, _, errors = chordmixer(*arguments)
    assert (code, errors.count("\n")) == (2, 1) and message in errors


def test_other_ranks_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    say("one")
    monkeypatch.setenv("RANK", "1")
    say("two")
    assert not first_rank() and capsys.readouterr().out == "one\n"
