"""`chordmixer tune` from the files to best.toml, and `train` with it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import SMALL

from chordmixer import tuning

Run = Callable[..., tuple[int, str, str]]
SHORT = [word for setting in SMALL for word in ("--set", setting)]


def test_from_files_to_a_trained_run(chordmixer: Run, motifs: list[str], tmp_path: Path) -> None:
    out = tmp_path / "study"
    command = ["tune", *motifs, "--out", out, "--minutes", 5, "--steps", 4, *SHORT]
    code, output, errors = chordmixer(*command, "--trials", 3)
    assert (code, errors) == (0, "")
    assert "default: validation loss" in output and f"page: {out / 'study.html'}" in output
    assert f"--config {out / 'best.toml'}" in output and (out / "study.html").stat().st_size > 5_000
    best = tomllib.loads((out / "best.toml").read_text())
    assert best["training"]["steps"] > 100 and best["model"]["network"]["hidden"] == 8

    code, output, _ = chordmixer(*command, "--trials", 3)  # nothing is left to do
    assert code == 0 and "3 trials of 4 steps" in output
    code, output, _ = chordmixer(*command, "--trials", 4)
    assert code == 0 and "4 trials of 4 steps" in output and output.count("\ntrial ") == 1

    best = tomllib.loads((out / "best.toml").read_text())
    short = ("--set", "training.steps=2", "--no-baselines", "--out", tmp_path / "run")
    code, _, errors = chordmixer("train", *motifs, "--config", out / "best.toml", *short)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (code, errors) == (0, "") and config["training"]["learning_rate"] == best["training"]["learning_rate"]
    assert config["model"]["head"] == best["model"]["head"] and config["training"]["steps"] == 2


@pytest.mark.parametrize(
    "options, message",
    [
        (["--minutes", 1], "no folder for the study: add --out STUDY"),
        (["--out", "S"], "no time for the study: add --minutes M"),
        (["--out", "S", "--minutes", 1, "--folds", 3], "--folds and --replicates train several networks"),
    ],
)
def test_refusals(
    chordmixer: Run,
    motifs: list[str],
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = chordmixer("tune", *motifs, *options)
    assert code == 2 and message in errors and errors.count("\n") == 1 and [*tmp_path.iterdir()] == []


def test_without_optuna(chordmixer: Run, motifs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "find_spec", lambda name: None)
    code, _, errors = chordmixer("tune", *motifs, "--out", "S", "--minutes", 1)
    assert (code, errors) == (2, "chordmixer: tune needs the optuna package: pip install 'chordmixer[tune]'\n")
