"""The README's Python and its quick start run; its commands exist. `test_docs.py` checks its links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import chordmixer.recipes  # noqa: F401
from chordmixer.cli import app
from chordmixer.data import samples

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_python_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that the quick start leaves, with fewer records and one pass over them."""
    recipe = sys.modules["chordmixer.recipes.files"]  # its function has the same name
    monkeypatch.setattr(recipe, "STEPS", {"cpu": 1, "cuda": 1})
    monkeypatch.setattr(recipe, "TRIAL", 0.0)
    monkeypatch.setattr(recipe, "WORD_BITS", dict.fromkeys(recipe.WORD_BITS, 4))
    monkeypatch.setattr(recipe, "_within_minutes", lambda experiment, task, minutes: experiment)
    monkeypatch.setattr(samples, "RECORDS", 15)
    monkeypatch.setattr("chordmixer.training.evaluation.RESAMPLES", 10)
    monkeypatch.chdir(tmp_path)
    samples.write_sample("dna", tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile("\n".join(blocks("python")), "README.md", "exec"), namespace)
    assert namespace["predictor"].classes == ["cattaga", "gattaca"] and namespace["vectors"].shape[0] == 1


def test_the_quick_start_can_be_pasted(tmp_path: Path) -> None:
    """By a user who has nothing but the command: a new home, an empty folder, no other programs on the PATH."""
    block = next(block for block in blocks("sh") if "chordmixer sample" in block)
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    command = Path(sys.executable).parent / "chordmixer"
    assert command.exists(), "the package is not installed: run the tests with make test"
    source = str(Path(__file__).parent.parent / "src")
    environment = {
        "HOME": str(tmp_path / "home"),
        "PATH": str(command.parent),
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    result = subprocess.run(
        ["/bin/sh", "-e"], input=block, cwd=tmp_path / "here", env=environment, capture_output=True, text=True
    )
    assert (result.returncode, result.stderr.count("records read: 20 used, 0 rejected")) == (0, 1), result.stderr
    sample = tmp_path / "here" / "sample"
    answers = [line.split("\t") for line in (sample / "answers.tsv").read_text().splitlines()[1:]]
    correct = sum(row[3] == ("gattaca", "cattaga")[number % 2] for number, row in enumerate(answers))
    assert len(answers) == 20 and correct >= 16, "most predictions on the easy sample must be right"
    assert (sample / "RUN" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("command", re.findall(r"^chordmixer (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_command_exists(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_make_target_exists(target: str) -> None:
    assert f"\n{target}:" in (Path(__file__).parent.parent / "Makefile").read_text()
