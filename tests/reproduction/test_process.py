"""The process of one run: it trains what its folder says, and a mistake is its last line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chordmixer.training import Experiment, train


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chordmixer.reproduction.process", str(folder)], capture_output=True, text=True
    )


def test_it_trains_what_the_folder_says(tiny: Experiment, tmp_path: Path) -> None:
    train(tiny, tmp_path / "here")
    (tmp_path / "there").mkdir()
    tiny.save(tmp_path / "there")
    ended = run(tmp_path / "there")
    assert (ended.returncode, ended.stderr) == (0, "") and "validation at step" in ended.stdout
    assert (tmp_path / "there" / "evaluation-test.json").exists()
    here, there = (tmp_path / folder / "model.safetensors" for folder in ("here", "there"))
    assert there.read_bytes() == here.read_bytes()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path / "gone")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1 and "gone is not a folder" in ended.stderr
