"""Settings for a user's own files, chosen from the data alone. What was measured stands with each number."""

from __future__ import annotations

from collections.abc import Callable

import torch

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.terminal import tell
from chordmixer.training import Experiment, TrainingConfig

STEPS = 4_000
"""Optimiser steps at least, however small the data are: on one H200 fragments of mitochondria left the plateau after
660 and went on to learn until 2,600 of them, introns after 190 and 740."""
PASSES = (10, 200)
"""Over the training records, at least and at most, as long as `TOKENS` allow it."""
TOKENS = 4_000_000_000
"""Of all passes together, after which a run ends, but never before three."""
BATCH_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 16}
"""Of a batch at most, unless a single record is longer: 2 to 4 GB of either by the forecast, S = 16 and H = 128.
Gradients of several such batches are added up where records are long, so that a step is the same on both."""
EVALUATIONS = 40
"""In a run, at most: more would tell nothing new."""
SMALL = 1_000
"""Training records below which the network is a quarter of the size: it overfits soon enough."""


def paper_files(data: FilesConfig, say: Callable[[str], None] = tell) -> Experiment:
    """An experiment for these files; reads them if they have not been read before.

    - Letters and text: layer norm before Rotate, a last one before the head, and an identity start. Series of real
      numbers: the paper's own, since a norm throws away the size of a number, which may be the answer. A sketch of
      the network before this code had, after the same time, ROC-AUC 0.988 with norms and 0.922 without on fragments
      of mitochondria, and 38 % against 95 % on the Adding problem of base length 1,000.
    - The longest length is rounded up to a power of two: the network is the same, and takes slightly longer records.
    - Batches of 128 at rate 1e-3 for large sets; smaller ones for small sets, so that a pass has 50 steps or more.
    - Their pooled channels are centred and scaled over records (head `standard`): without it plasmids stayed at what
      their share of G and C tells, ROC-AUC 0.92 on pieces of 2,000 bases, and with it reached 0.97 in six passes.
    - A tenth of the letters is hidden in training, against overfitting: introns of at most 160 bases came
      to 0.942 in place of 0.938.
    - Weights are judged and kept as their mean over a twentieth of the run: at a high rate those of single steps were
      0.951 to 0.969 on introns from one pass to the next. Dropout of 0.1 to 0.3, a smaller network, smaller batches
      and weight decay of 1 did less on introns, or harm on fragments of mitochondria.
    - The rate rises for a twentieth of the run and falls along a cosine. It stops early after a third of the
      evaluations without a better validation loss, which count only from when it has learnt something.
    - bfloat16 on a GPU, which cost nothing in accuracy; float32 elsewhere.
    """
    task = Files(data, say)
    lengths = task.records("training").lengths
    symbols = task.embedding == "tokens"
    small = len(lengths) < SMALL
    network = ChordMixerConfig(
        max_length=1 << (task.max_length - 1).bit_length(),
        track_size=8 if small else 16,
        hidden=64 if small else 128,
        prenorm="layer" if symbols else None,
        init="identity" if symbols else "xavier",
    )
    model = ModelConfig(
        inputs=task.inputs,
        outputs=task.target.outputs,
        embedding="tokens" if symbols else "real",
        head="standard" if symbols else "average",
        drop_tokens=0.1 if symbols else 0.0,
        final_norm="layer" if symbols else None,
        network=network,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Experiment("files", task.config, model, training(lengths, task.max_length, device))


def training(lengths: list[int], longest: int, device: str, most: int = 128) -> TrainingConfig:
    """Batches, passes and patience for training records of these lengths; `longest` is that of all parts.

    A step has at most so many records.

    >>> introns = training([300] * 48_000, longest=16_000, device="cuda")
    >>> introns.batch_sequences, introns.epochs, introns.accumulate
    (128, 11, 1)
    >>> plasmids = training([75_000] * 700, longest=460_000, device="cuda")
    >>> plasmids.batch_sequences, plasmids.epochs, plasmids.accumulate
    (16, 76, 3)
    """
    sequences, budget, accumulate, steps = batches(lengths, longest, device, most)
    epochs = min(max(-(-STEPS // steps), PASSES[0]), PASSES[1])
    epochs = max(min(epochs, TOKENS // sum(lengths)), 3)
    every = -(-epochs // EVALUATIONS)
    return TrainingConfig(
        epochs=epochs,
        batch_sequences=sequences,
        batch_tokens=budget,
        accumulate=accumulate,
        rate=1e-3,
        weight_decay=0.1,
        average=0.05,
        precision="bf16" if device == "cuda" else "fp32",
        evaluate_epochs=every,
        patience=max(5, epochs // every // 3),
    )


def batches(lengths: list[int], longest: int, device: str, most: int) -> tuple[int, int, int, int]:
    """Most sequences and tokens of a batch, batches a step, and steps in a pass.

    A step has 16 records or more, up to `most`, and a pass 50 steps or more where there are records enough.

    >>> batches([300] * 24_000, longest=16_000, device="cuda", most=64)
    (64, 38400, 1, 375)
    """
    records, tokens = len(lengths), sum(lengths)
    sequences = min(max(1 << (records // 50).bit_length() - 1, 16), most) if records >= 50 else 16
    wanted = 2 * sequences * tokens // records
    budget = max(longest, min(wanted, BATCH_TOKENS[device]))
    in_a_batch = min(sequences, max(1, budget * records // tokens))
    accumulate = max(1, round(sequences / in_a_batch))
    return sequences, budget, accumulate, -(-records // (in_a_batch * accumulate))
