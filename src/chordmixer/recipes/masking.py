"""The recipe for pre-training on a user's own files: settings that depend only on the data."""

from __future__ import annotations

import torch

from chordmixer.models import ModelConfig
from chordmixer.recipes.batches import network_for, training
from chordmixer.tasks.masking import Masking, MaskingConfig
from chordmixer.training import Experiment


def masking(data: MaskingConfig) -> Experiment:
    """An experiment for these files; reads them if they have not been read before.

    - The paper's autoencoder: encoder and decoder are ChordMixer networks of the same settings, 30 % of the tokens
      are masked. `model.decoder=none` reads the masked tokens straight from the encoder's, with half the weights.
    - Networks and training are those of `recipes.paper_files` for letters and text, of the larger size for any
      number of records: masks differ in every pass, which reduces overfitting. Not tuned beyond that.
    """
    task = Masking(data)
    model = ModelConfig(
        inputs=task.inputs,
        outputs=task.target.outputs,
        head="tokens",
        final_norm="layer",
        decoder="network",
        network=network_for(task.max_length),
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lengths = task.records("training").lengths
    return Experiment("masking", task.config, model, training(lengths, task.max_length, device))
