"""How fast a model trains and answers on this device, from a few steps on made-up records: in some five seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from chordmixer.data import TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.model import Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import memory, threads
from chordmixer.training.experiment import Experiment

SECONDS, TOKENS = 1.2, 4_000
"""Of a measured step, about, and tokens of the first one, which tells how many a longer one may have."""


class Speed(NamedTuple):
    """Seconds of a unit of `work`."""

    training: float
    answering: float
    """The forward pass alone, of validation and test."""


def work(model: ModelConfig, lengths: Sequence[int]) -> int:
    """What time grows with: tokens, once for each block of a ChordMixer that they pass; of others, tokens."""
    return sum(n * depth(n) for n in lengths) if model.encoder == memory.COUNTED else sum(lengths)


def speed(
    experiment: Experiment, sampler: TokenSampler, device: torch.device, hardware: memory.Hardware, free: int
) -> Speed:
    """A typical batch is measured, or as much of it as takes a second."""
    model, typical = experiment.model, _typical(experiment.model, sampler)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        take = _stepper(experiment, device)
        few = _less(model, typical, TOKENS / sum(typical))
        take(few)  # loads, or compiles
        taken = min(take(few), take(few))  # other programs may have been in the way once
        probe = _less(model, typical, SECONDS / taken * sum(few) / sum(typical))
        while probe != few and _bytes(experiment, probe, hardware) > free / 2:
            probe = max(_less(model, probe, 0.5), few, key=sum)
        if sum(probe) > sum(few):
            few, taken = probe, min(take(probe), take(probe))  # the first time memory is asked for, and not there
        answered = min(take(few, True), take(few, True))
    return Speed(taken / work(model, few), answered / work(model, few))


def choose_threads(
    experiment: Experiment, sampler: TokenSampler, device: torch.device, kept: int = 0
) -> threads.ThreadChoice:
    """Choose the number of CPU threads by steps over a typical batch, and set it; on a GPU nothing is chosen.

    A run that goes on gives the number that it has `kept`.
    """
    if device.type != "cpu":
        return threads.ThreadChoice(0, 0)
    typical = _typical(experiment.model, sampler)
    few = _less(experiment.model, typical, threads.TOKENS / sum(typical))
    stepper: list[Stepper] = []

    def take() -> float:  # a model is built only where it is needed
        if not stepper:
            stepper.append(_stepper(experiment, device))
        return stepper[0](few)

    with torch.random.fork_rng([]):
        return threads.choose(take, kept)


def _typical(model: ModelConfig, sampler: TokenSampler) -> list[int]:
    """The lengths in the batch of an epoch that has the median work, longest first."""
    batches = sorted(([sampler.lengths[i] for i in batch] for batch in sampler), key=lambda own: work(model, own))
    return sorted(batches[len(batches) // 2], reverse=True)


def _bytes(experiment: Experiment, lengths: Sequence[int], hardware: memory.Hardware) -> int:
    """Of a step; 0 where memory is not counted, since what takes a second is then taken to fit."""
    if experiment.model.encoder != memory.COUNTED:
        return 0
    return sum(memory.peak(experiment.model, lengths, hardware, freeze=experiment.training.freeze).values())


def _less(model: ModelConfig, lengths: Sequence[int], share: float) -> list[int]:
    """About that share of a batch: of a ChordMixer shorter sequences, of other encoders fewer, since their time may
    grow with the square of a length; a lone one is made shorter all the same.
    """
    if model.encoder == memory.COUNTED or share >= 1 or len(lengths) == 1:
        return _shrunk(lengths, share)
    wanted = max(1, int(len(lengths) * share))
    some = [lengths[(2 * k + 1) * len(lengths) // (2 * wanted)] for k in range(wanted)]
    return _shrunk(some, share * sum(lengths) / sum(some)) if wanted == 1 else some


def _shrunk(lengths: Sequence[int], share: float) -> list[int]:
    """Sequences made shorter, all by the same share.

    >>> _shrunk([100, 3], 0.1), _shrunk([100, 3], 4)
    ([10, 1], [100, 3])
    """
    return [max(1, int(n * min(share, 1))) for n in lengths]


class Stepper(Protocol):
    """Takes a training step on made-up records of some lengths, or only answers, and tells the seconds."""

    def __call__(self, lengths: Sequence[int], answering: bool = False, /) -> float: ...


def _stepper(experiment: Experiment, device: torch.device) -> Stepper:
    config, half = experiment.model, experiment.training.precision == "bf16"
    model = Model(config).to(device)
    if experiment.training.freeze:
        model.freeze()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def take(lengths: Sequence[int], answering: bool = False, /) -> float:
        parts = memory.sequence_lengths(config, lengths)
        inputs = threads.made_up(config, parts).to(device)
        _wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half), torch.set_grad_enabled(not answering):
            answers = model(inputs)
        if not answering:
            outputs = answers.values if isinstance(answers, Packed) else answers
            outputs.float().square().sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)
        _wait(device)
        return time.perf_counter() - start

    return take


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
