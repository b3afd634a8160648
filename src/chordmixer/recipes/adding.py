"""The Adding problem of the paper's section 4.1."""

from __future__ import annotations

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.tasks.adding import Adding, AddingConfig
from chordmixer.training import Experiment, TrainingConfig


def adding(data: AddingConfig) -> Experiment:
    """S = 16 and H = 128 are the paper's; its batch of 2 at rate 1e-4 is replaced by one of 64 at 1e-3.

    >>> adding(AddingConfig(base_length=1000)).model.network.max_length
    31800
    """
    network = ChordMixerConfig(max_length=data.longest, track_size=16, hidden=128)
    model = ModelConfig(inputs=Adding.inputs, outputs=1, embedding="real", network=network)
    return Experiment("adding", data, model, TrainingConfig(epochs=10, batch_sequences=64, rate=1e-3))
