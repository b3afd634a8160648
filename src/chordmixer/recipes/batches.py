"""Choose network, batches, passes and patience of a run by the lengths of its records, based on measurements."""

from __future__ import annotations

from chordmixer.models import ChordMixerConfig
from chordmixer.training import TrainingConfig

STEPS = 4_000
"""Minimum number of optimiser steps, also on small data: on one H200 the loss on fragments of mitochondria left its
plateau after 660 steps and fell until 2,600; on introns after 190 and until 740."""
PASSES = (10, 200)
"""Minimum and maximum number of passes over the training records, as far as `TOKENS` allows."""
TOKENS = 4_000_000_000
"""Maximum number of tokens of all passes; a run has at least three passes in any case."""
BATCH_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 16}
"""Maximum number of tokens of a batch, unless a single record is longer: 2 to 4 GB of memory by the forecast for
S = 16 and H = 128. For long records gradients of several batches are accumulated, so that a step is equal on both."""
EVALUATIONS = 40
"""Maximum number of evaluations in a run."""
SMALL_DATA = 1_000
"""Number of training records below which the network has a quarter of the size, against overfitting."""


def network_for(longest: int, *, small: bool = False, dropout: float = 0.0) -> ChordMixerConfig:
    """ChordMixer with layer norms and an identity start, for records of up to `longest` tokens; `small` has a quarter
    of the size.

    >>> network_for(1000, small=True).width, network_for(1000).width
    (88, 176)
    """
    return ChordMixerConfig(
        max_length=1 << (longest - 1).bit_length(),
        track_size=8 if small else 16,
        hidden=64 if small else 128,
        prenorm="layer",
        init="identity",
        dropout=dropout,
    )


def training(lengths: list[int], longest: int, device: str, most: int = 128) -> TrainingConfig:
    """Choose batches, passes and patience by the lengths of the training records.

    `longest` is the maximum length over all parts, `most` the maximum number of records of a step.

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
        learning_rate=1e-3,
        weight_decay=0.1,
        ema=0.05,
        precision="bf16" if device == "cuda" else "auto",
        evaluate_epochs=every,
        patience=max(5, epochs // every // 3),
    )


def batches(lengths: list[int], longest: int, device: str, most: int) -> tuple[int, int, int, int]:
    """Choose the maximum numbers of sequences and tokens of a batch, batches per step, and steps per pass.

    A step has 16 to `most` records, and a pass at least 50 steps if there are enough records.

    >>> batches([300] * 24_000, longest=16_000, device="cuda", most=64)
    (64, 38400, 1, 375)
    """
    records, tokens = len(lengths), sum(lengths)
    sequences = min(max(1 << (records // 50).bit_length() - 1, 16), most) if records >= 50 else 16
    wanted = 2 * sequences * tokens // records
    budget = max(longest, min(wanted, BATCH_TOKENS[device]))
    per_batch = min(sequences, max(1, budget * records // tokens))
    accumulate = max(1, round(sequences / per_batch))
    return sequences, budget, accumulate, -(-records // (per_batch * accumulate))
