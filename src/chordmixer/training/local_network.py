"""The local network of a run: its own network without the encoder, which sees a few tokens at a time.

What it does not reach, and the whole network does, is long-range structure. It is trained in RUN/local.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from chordmixer.training.experiment import Experiment
from chordmixer.training.ladder import FOLDER
from chordmixer.training.loop import TrainingRun

SHARE = 0.5
"""Of the run's length."""


def train_local(run: Path, console: Console, cache: Path | str | None = None) -> None:
    """Train the local network of a finished run, or go on with it."""
    experiment, folder = local(Experiment.load(run, cache=cache)), run / FOLDER
    own = TrainingRun(experiment, folder, (folder / "config.json").exists(), console, resumed_as=run)
    try:
        own.train()
    finally:
        own.folder.close()


def local(experiment: Experiment) -> Experiment:
    """The same without the encoder, over half of the steps."""
    config = experiment.training
    shorter: dict[str, Any] = {"epochs": max(1, round(SHARE * config.epochs))}
    if config.steps:
        shorter = {"steps": max(1, round(SHARE * config.steps))}
    model = experiment.model.with_encoder("none")
    return replace(experiment, model=model, training=replace(config, **shorter, layer_decay=1.0))
