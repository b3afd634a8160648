"""The recipe for a user's own files: settings that depend only on the data, with the measurements behind them.

`recipes.paper_files` is the paper's network on files; this recipe adds what improves results on real data:
convolutions before the encoder, words, three kinds of pooling.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from chordmixer.models import ModelConfig
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig
from chordmixer.recipes.batches import SMALL_DATA, batches, network_for
from chordmixer.tasks import Task
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.training import Experiment, TrainingConfig
from chordmixer.training.devices import choose_device, format_bytes, free_bytes
from chordmixer.training.experiment import trial_count
from chordmixer.training.forecast import forecast, peak_bytes, scored_lengths
from chordmixer.training.speed import loading_seconds, settle_precision

logger = logging.getLogger(__name__)

STEPS = {"cuda": 4_000, "cpu": 2_000}
"""Optimiser steps of a run with batches of 64, unless `TOKENS` is reached before."""
TOKENS = {"cuda": 600_000_000, "cpu": 4_000_000}
"""Maximum number of tokens of all steps; a run has at least one pass, as far as `ONE_PASS` allows."""
ONE_PASS = {"cuda": math.inf, "cpu": 8_000_000}
"""Maximum number of tokens of a run of one pass or less: about five minutes on two cores, on which a pass over long
records may take hours."""
LEARNING_RATES = {"cuda": 1e-3, "cpu": 3e-3}
"""Runs on a CPU are short and their networks small. Validation losses there with 1e-3, 2e-3 and 3e-3: RNA families
0.486, 0.392, 0.322; classes of proteins 0.999, 0.838, 0.786; solubility 0.686, 0.632, 0.625; appliances 0.219, 0.279,
0.234 on 67 records, and accuracy on the test part 0.870, 0.879, 0.907."""
SEQUENCES = 64
"""Maximum number of sequences of a step, below `LARGE_DATA` training records."""
LARGE_DATA, LARGE_BATCH, LARGE_STEPS = 20_000, 128, 2_500
"""Training records from which a step on a GPU has more sequences, their number, and the steps of such a run. Introns:
validation ROC-AUC 0.9743 with 128 sequences, 0.9719 with 64; with 2,500 steps and more dropout 0.9760."""
EVALUATIONS, MIN_EVALUATIONS = 20, 3
"""Maximum and minimum number of evaluations in a run; fewer if they take long, and at least one if steps are few."""
EVALUATED_TOKENS = 1.5
"""Maximum number of evaluated tokens per training token: evaluations then take half of the time of the steps."""
TOO_FEW_STEPS = 100
"""Number of steps below which a network learns too little, and short runs cannot decide about words."""
TRIAL = 0.2
"""Fraction of the steps of each of the two short runs that decide about words."""
WORD_LENGTHS = {"dna": (4, 6, 8), "protein": (2, 3), "text": (3, 5, 7)}
"""Lengths of words for each kind of tokens."""
WORD_BITS = {"dna": 16, "protein": 14, "text": 18}
MEMORY_SHARE = 0.6
"""Maximum share of the free memory for a step, above which the network is reversible."""
MIN_SPREAD = 0.1
"""Minimum standard deviation of the logarithm of the lengths for a head that reads it: a constant feature would be
scaled by next to nothing, and be far off for a record of another length."""
MAX_POSITIONS = 1024
"""Maximum length of records for which the network may have a vector for each position."""
MIN_STEPS = 20
"""Minimum number of steps, also if they exceed the given time."""
MIN_INTERVAL = 10
"""Minimum number of steps between evaluations in a run of given time: each takes as long as several steps."""


def files(data: FilesConfig, minutes: float | None = None, device: str = "auto") -> Experiment:
    """An experiment for these files; reads them if they have not been read before.

    The numbers are validation losses after 2,000 steps of 64 records on one H200, with a head of mean and maximum;
    the log has all of them.

    - Convolutions over 7 tokens (9 samples of a series), three layers of them, added to the embedding. RNA families
      with words: 0.263, and 0.355 with two layers.
    - Words where the validation records want them: two short runs decide, since they help reviews (0.236 against
      0.305) and hurt proteins (0.778 against 0.760).
    - A vector for each position where all training records have one length and the validation records want them, by
      a third short run. Windows of 101 bases around m1A sites, 2,000 steps on a CPU: ROC-AUC 0.914 against 0.817.
    - The head reads mean, maximum and attention of the tokens. Attention in place of mean and maximum: appliances
      0.173 against 0.222, but reviews 0.245 against 0.236. All three together were not compared with fewer.
    - Series: layer norm and identity start as for letters, each channel also standardised within its record, random
      crops of 60 to 100 % of a record at 0.8 to 1.25 of its size. Appliances: 0.222, without crops 0.472.
    - On a GPU, dropout of 0.3 in the blocks and of 0.7 of the words. After 4,000 steps RNA families have 0.199 (0.223
      with 0.2 and 0.5), classes of proteins 0.520 (0.544), folds of proteins without words 4.90 (4.92); reviews,
      with 128 a step, 0.229 (0.246). Series keep 0.2, and so does a CPU, where runs are too short to overfit. A fifth
      of the head's features and a tenth of the letters are hidden in training.
    - AdamW with beta2 0.98 at 1e-3, on a CPU 3e-3, weights averaged over a twentieth of the run; bfloat16 on a GPU,
      and on a CPU where that is faster.
    - With `minutes`, as many steps as fit into them by a measurement on this machine; config.json has the number.
    """
    task = Files(data)
    if data.augment is None:
        augment = task.embedding == "real" and task.question.kind != "number"
        task = Files(replace(task.config, augment=augment))
    lengths = task.records("training").lengths
    device_type = "cpu" if device == "cpu" or not torch.cuda.is_available() else "cuda"
    model = _model(task, cpu=device_type == "cpu", small=device_type == "cpu" or len(lengths) < SMALL_DATA)
    config = _training(task, device_type)
    trial = TRIAL if trial_count(model) and config.steps >= TOO_FEW_STEPS else 0.0
    experiment = Experiment("files", task.config, model, replace(config, trial=trial))
    experiment = _fitting_memory(experiment, lengths, torch.device(device_type))
    if minutes is not None:
        return _within_minutes(experiment, task, minutes)
    if config.steps < TOO_FEW_STEPS:
        logger.warning(
            f"only {config.steps} steps of training, as these records are long for a CPU: use a GPU, or give the "
            "network more time, as with --minutes 60; baselines are not affected"
        )
    return experiment


def _fitting_memory(experiment: Experiment, lengths: list[int], device: torch.device) -> Experiment:
    """Make the network reversible if a step would otherwise fill the memory of the device.

    A reversible network computes its blocks again for their gradients; others store what the gradients need.
    """
    needed, free = peak_bytes(experiment, lengths, device), free_bytes(device)
    if needed <= MEMORY_SHARE * free:
        return experiment
    model = experiment.model
    reversible = replace(experiment, model=replace(model, network=replace(model.network, reversible=True)))
    logger.info(
        f"the network is reversible: on records of up to {max(lengths):,} tokens a step needs about "
        f"{format_bytes(peak_bytes(reversible, lengths, device))} of memory instead of "
        f"{format_bytes(needed)}, and {format_bytes(free)} are free"
    )
    return reversible


def _model(task: Files, cpu: bool, small: bool) -> ModelConfig:
    symbols, lengths = task.embedding == "tokens", task.records("training").lengths
    parts = parts_around(task.embedding, task.kind, lengths, cpu=cpu)
    return ModelConfig(
        inputs=task.inputs,
        outputs=task.target.outputs,
        **{**parts, "positions": parts["positions"] if symbols else 0},
        network=network_for(task.max_length, small=small, dropout=0.3 if symbols and not cpu else 0.2),
    )


def parts_around(embedding: str, kind: str, lengths: Sequence[int], *, cpu: bool) -> dict[str, Any]:
    """The settings of a model around its network: embedding, convolutions, words, pooling, and what the training
    records' lengths say about positions and the length itself. `kind` of tokens may have no words."""
    symbols, counts = embedding == "tokens", np.array(lengths)
    aligned = bool((counts == counts[0]).all()) and counts[0] <= MAX_POSITIONS
    words = WordsConfig()
    if kind in WORD_LENGTHS:
        words = WordsConfig(lengths=WORD_LENGTHS[kind], bits=WORD_BITS[kind], dropout=0.5 if cpu else 0.7)
    return {
        "embedding": "tokens" if symbols else "real",
        "head": "mean_maximum_attention",
        "head_dropout": 0.2,
        "drop_tokens": 0.1 if symbols else 0.0,
        "final_norm": "layer",
        "within_record": not symbols,
        "positions": int(counts[0]) if aligned else 0,
        "length": symbols and bool(np.log(counts).std() > MIN_SPREAD),
        # narrow on a CPU, where it takes half of the time
        "stem": StemConfig(layers=3, taps=7 if symbols else 9, width=32 if cpu else 64),
        "words": words,
    }


def _training(task: Files, device: str, steps: int | None = None) -> TrainingConfig:
    validation = scored_lengths(task)["validation"]  # type: ignore[arg-type]  # read-only
    return training(task.records("training").lengths, task.max_length, device, steps, sum(validation))


def training(
    lengths: list[int], longest: int, device: str, steps: int | None = None, validation: int = 0
) -> TrainingConfig:
    """Choose batches, steps and patience by the lengths of the training records; `longest` is the maximum length over
    all parts, and `validation` the number of tokens of the validation records.

    >>> introns = training([300] * 24_000, longest=16_000, device="cuda")
    >>> introns.batch_sequences, introns.steps, introns.epochs, introns.accumulate
    (128, 2500, 15, 1)
    >>> plasmids = training([75_000] * 700, longest=460_000, device="cuda")
    >>> plasmids.batch_sequences, plasmids.steps, plasmids.epochs, plasmids.accumulate
    (16, 445, 13, 3)
    """
    large = device == "cuda" and len(lengths) >= LARGE_DATA
    sequences, budget, accumulate, pass_steps = batches(lengths, longest, device, LARGE_BATCH if large else SEQUENCES)
    if steps is None:
        max_steps, step_tokens = LARGE_STEPS if large else STEPS[device], sum(lengths) / pass_steps
        steps = int(
            max(min(max_steps, TOKENS[device] / step_tokens), min(pass_steps, ONE_PASS[device] / step_tokens), 1)
        )
    evaluations = EVALUATIONS
    if validation:
        min_evaluations = MIN_EVALUATIONS if steps >= TOO_FEW_STEPS else 1
        evaluations = min(
            EVALUATIONS,
            max(min_evaluations, int(EVALUATED_TOKENS * steps * sum(lengths) / (pass_steps * validation))),
        )
    epochs = -(-steps // pass_steps) + 1  # a pass may have fewer batches than counted here
    return TrainingConfig(
        epochs=epochs,
        steps=steps,
        batch_sequences=sequences,
        batch_tokens=budget,
        accumulate=accumulate,
        learning_rate=LEARNING_RATES[device],
        weight_decay=0.1,
        beta2=0.98,
        ema=0.05,
        precision="bf16" if device == "cuda" else "auto",
        evaluate_every=steps // evaluations + 1,
        evaluate_epochs=epochs,
        patience=EVALUATIONS // 2,
    )


def _within_minutes(experiment: Experiment, task: Files, minutes: float) -> Experiment:
    """Set the number of steps to what fits into the time, trials and validation included."""
    experiment = settle_precision(experiment)
    step_seconds, passes = measured_seconds(experiment, task)  # type: ignore[arg-type]  # read-only
    steps = max(MIN_STEPS, int((60 * minutes - passes) / step_seconds))
    config = _training(task, choose_device(experiment.training).type, steps)
    interval = max(MIN_INTERVAL, config.evaluate_every)
    trial, precision = experiment.training.trial, experiment.training.precision
    return replace(experiment, training=replace(config, evaluate_every=interval, trial=trial, precision=precision))


def measured_seconds(
    experiment: Experiment, task: Task, scored: Sequence[str] = ("validation", "test")
) -> tuple[float, float]:
    """Measure the seconds of a step, with its share of the trials, and of all passes over the scored parts."""
    lengths, device = task.records("training").lengths, choose_device(experiment.training)
    scored_parts = {part: part_lengths for part, part_lengths in scored_lengths(task).items() if part in scored}
    timed = forecast(experiment, lengths, device, timed=True, scored=scored_parts)
    assert timed.seconds is not None
    step_seconds = timed.seconds / -(-timed.batches // experiment.training.accumulate)
    if device.type == "cuda":  # where the host prepares batches during the steps
        batch_seconds = loading_seconds(task.records("training"), experiment.training.sampler(lengths), device)
        step_seconds = max(step_seconds, batch_seconds * experiment.training.accumulate)
    return (
        1 + trial_count(experiment.model) * experiment.training.trial
    ) * step_seconds, timed.validation + timed.test
