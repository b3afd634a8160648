"""`predict` and `embed`: their mistakes; their work is tested with a run in test_learning.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_a_run_that_is_not_there(chordmixer: Command, motifs: list[str], tmp_path: Path, command: str) -> None:
    code, said, errors = chordmixer(command, tmp_path / "none", motifs[0], "-o", tmp_path / "out.parquet")
    assert (code, said, errors.count("\n")) == (2, "", 1)
    assert "none is not a folder: give the --out folder of a training run" in errors


def test_embed_needs_a_place(chordmixer: Command, motifs: list[str], tmp_path: Path) -> None:
    code, _, errors = chordmixer("embed", tmp_path, motifs[0])
    assert code == 2 and "--out" in errors
