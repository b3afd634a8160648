"""Retrieval of the Long Range Arena, with the sizes, rate and batch of the paper."""

from __future__ import annotations

import torch

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.paper.lra.retrieval import Retrieval, RetrievalConfig
from chordmixer.training import Experiment, TrainingConfig


def retrieval(data: RetrievalConfig) -> Experiment:
    """H = 128, S = 12, batches of 90 pairs at rate 0.007 (paper, table of hyper-parameters); the epochs are ours,
    and so is bfloat16 on a GPU.

    The paper does not say how two documents become one answer. Here both go through the same encoder, and a head
    compares their averages, as in the Arena.

    >>> retrieval(RetrievalConfig()).model.network.width
    156
    """
    network = ChordMixerConfig(max_length=data.max_length, track_size=12, hidden=128)
    model = ModelConfig(inputs=Retrieval.inputs, outputs=Retrieval.target.outputs, head="pair", network=network)
    precision = "bf16" if torch.cuda.is_available() else "fp32"
    training = TrainingConfig(epochs=20, batch_sequences=90, rate=7e-3, precision=precision)  # type: ignore[arg-type]
    return Experiment("retrieval", data, model, training)
