"""The process of one run: it trains what its folder says, and a mistake is its last line."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.forked import Forked

from chordmixer.training import Experiment, train


def run(folder: Path) -> tuple[int | None, str, str]:
    """Its exit code, output and errors."""
    process = Forked([sys.executable, "-m", "chordmixer.paper.reproduction.worker", str(folder)])
    said, errors = process.communicate(timeout=120)
    return process.returncode, said, errors


def test_it_trains_what_the_folder_says(tiny: Experiment, tmp_path: Path) -> None:
    train(tiny, tmp_path / "here")
    (tmp_path / "there").mkdir()
    tiny.save(tmp_path / "there")
    code, said, errors = run(tmp_path / "there")
    assert (code, errors) == (0, "") and "validation at step" in said
    assert (tmp_path / "there" / "evaluation-test.json").exists()
    here, there = (tmp_path / folder / "model.safetensors" for folder in ("here", "there"))
    assert there.read_bytes() == here.read_bytes()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    code, said, errors = run(tmp_path / "gone")
    assert (code, said) == (2, "")
    assert errors.count("\n") == 1 and "gone is not a folder" in errors
