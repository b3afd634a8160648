"""A small Adding problem that two CPU cores learn in two minutes."""

from __future__ import annotations

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.paper.tasks.adding import Adding, AddingConfig
from chordmixer.training import Experiment, TrainingConfig


def demo(encoder: str = "chordmixer") -> Experiment:
    """Lengths 32 to 256 in every batch; `pointwise` is the same network without rotation."""
    data = AddingConfig(base_length=32, max_length=256, training=20_000, validation=1_000, test=2_000)
    network = ChordMixerConfig(max_length=data.longest, track_size=8, hidden=32)
    model = ModelConfig(inputs=Adding.inputs, outputs=1, embedding="real", encoder=encoder, network=network)
    training = TrainingConfig(epochs=6, batch_sequences=64, rate=4e-3, device="cpu")
    return Experiment("adding", data, model, training)
