"""A trained run that the tests of the commands share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chordmixer.cli import app

SMALL = ("model.network.track_size=4", "model.network.hidden=8", "model.words.lengths=[]", "training.device=cpu")
SHORT = ("training.epochs=2", "training.evaluate_epochs=1")


@pytest.fixture(scope="session")
def trained(
    motifs: list[str], quick_runs: Callable[[pytest.MonkeyPatch], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of `train --no-baselines` on the motifs; tests only read it."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = [word for setting in (*SMALL, *SHORT) for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        quick_runs(patch)
        result = CliRunner().invoke(app, ["train", *motifs, "--no-baselines", *settings, "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained run, for a single test."""
    return Path(shutil.copytree(trained, tmp_path / "run"))
