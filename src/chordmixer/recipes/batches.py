"""Network, batches, passes and patience of a run, from the lengths of its records, with what was measured."""

from __future__ import annotations

from chordmixer.models import ChordMixerConfig
from chordmixer.training import TrainingConfig

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
        learning_rate=1e-3,
        weight_decay=0.1,
        ema=0.05,
        precision="bf16" if device == "cuda" else "auto",
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
