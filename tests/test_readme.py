"""The README's Python and its quick start run, its TOML and its commands are accepted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chordmixer.cli import app
from chordmixer.cli.settings import build
from chordmixer.paper.recipes import adding
from chordmixer.paper.tasks.adding import AddingConfig

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_python_runs_from_top_to_bottom() -> None:
    exec(compile("\n".join(blocks("python")), "README.md", "exec"), {})


def test_toml_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(blocks("toml")[0])
    experiment = build(adding, AddingConfig(), path)
    assert (experiment.training.epochs, experiment.model.network.max_length) == (6, 31_800)


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
    done = subprocess.run(
        ["/bin/sh", "-e"], input=block, cwd=tmp_path / "here", env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.count("records read: 20 used, 0 rejected")) == (0, 1), done.stderr
    sample = tmp_path / "here" / "sample"
    answers = [line.split("\t") for line in (sample / "answers.tsv").read_text().splitlines()[1:]]
    right = sum(row[3] == ("gattaca", "cattaga")[number % 2] for number, row in enumerate(answers))
    assert len(answers) == 20 and right >= 16, "the sample is easy enough"
    assert (sample / "RUN" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("command", re.findall(r"^chordmixer (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_command_exists(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_make_target_exists(target: str) -> None:
    assert f"\n{target}:" in (Path(__file__).parent.parent / "Makefile").read_text()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    assert (Path(__file__).parent.parent / link).exists()
