"""The local network: half as long as the run, by whatever ends it. `test_ladder` trains one."""

from __future__ import annotations

from chordmixer.models import ModelConfig
from chordmixer.training import Experiment, TrainingConfig
from chordmixer.training.local_network import local


def test_half_of_what_ends_the_run() -> None:
    model = ModelConfig(inputs=5, outputs=2)
    by_epochs = local(Experiment("files", None, model, TrainingConfig(epochs=9)))
    assert (by_epochs.training.epochs, by_epochs.training.steps) == (4, 0)
    by_steps = local(Experiment("files", None, model, TrainingConfig(epochs=9, steps=100, layer_decay=0.5)))
    assert (by_steps.training.epochs, by_steps.training.steps, by_steps.training.layer_decay) == (9, 50, 1.0)
