"""The README's Python runs, its TOML and its commands are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chordmixer.cli import app
from chordmixer.cli.settings import build
from chordmixer.recipes import adding
from chordmixer.tasks.adding import AddingConfig

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


@pytest.mark.parametrize("command", re.findall(r"^chordmixer (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_command_exists(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", "\n".join(blocks("sh")), flags=re.M))
def test_make_target_exists(target: str) -> None:
    assert f"\n{target}:" in (Path(__file__).parent.parent / "Makefile").read_text()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", README))
def test_link_leads_somewhere(link: str) -> None:
    assert (Path(__file__).parent.parent / link).exists()
