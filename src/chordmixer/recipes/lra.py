"""Tasks of the Long Range Arena that a rule makes, with the sizes, rates and batches of the paper."""

from __future__ import annotations

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.tasks.lra.listops import ListOps, ListOpsConfig
from chordmixer.tasks.lra.pathfinder import Pathfinder, PathfinderConfig
from chordmixer.training import Experiment, TrainingConfig


def listops(data: ListOpsConfig) -> Experiment:
    """H = 88, S = 8, batches of 150 at rate 0.007 (paper, table of hyper-parameters); the epochs are ours.

    >>> listops(ListOpsConfig()).model.network.width
    96
    """
    network = ChordMixerConfig(max_length=data.max_length, track_size=8, hidden=88)
    model = ModelConfig(inputs=ListOps.inputs, outputs=ListOps.target.outputs, network=network)
    return Experiment("listops", data, model, TrainingConfig(epochs=30, batch_sequences=150, rate=7e-3))


def pathfinder(data: PathfinderConfig) -> Experiment:
    """H = 320, S = 24, batches of 150 at rate 0.005; for Path-X 128, 10, 120, 0.001; the epochs are ours.

    >>> pathfinder(PathfinderConfig(size=128)).model.network.track_size
    10
    """
    large = data.size == 128
    network = ChordMixerConfig(
        max_length=data.size**2, track_size=10 if large else 24, hidden=128 if large else 320
    )  # fmt: skip
    model = ModelConfig(
        inputs=Pathfinder.inputs, outputs=Pathfinder.target.outputs, embedding="real", network=network
    )  # fmt: skip
    training = TrainingConfig(epochs=30, batch_sequences=120 if large else 150, rate=1e-3 if large else 5e-3)
    return Experiment("pathfinder", data, model, training)
