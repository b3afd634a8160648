"""How long an epoch takes on this device, from a few steps on made-up records: about, and in some five seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chordmixer.data import TokenSampler
from chordmixer.models.chordmixer import depth
from chordmixer.models.model import Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import memory
from chordmixer.training.experiment import Experiment

SECONDS, TOKENS = 1.2, 4_000
"""Of a measured step, about, and tokens of the first one, which tells how many a longer one may have."""


def seconds(
    experiment: Experiment, sampler: TokenSampler, device: torch.device, place: memory.Place, free: int
) -> float:
    """Of an epoch: a typical batch is measured, or as much of it as takes a second; time grows as tokens x depth."""
    batches = sorted(([sampler.lengths[i] for i in batch] for batch in sampler), key=_work)
    typical = sorted(batches[len(batches) // 2], reverse=True)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        take = _stepper(experiment, device)
        few = _shrunk(typical, TOKENS / sum(typical))
        take(few)  # loads, or compiles
        taken = min(take(few), take(few))  # other programs may have been in the way once
        probe = _shrunk(typical, SECONDS / taken * sum(few) / sum(typical))
        while probe != few and _bytes(experiment, probe, place) > free / 2:
            probe = max(_shrunk(probe, 0.5), few, key=_work)
        if _work(probe) > _work(few):
            few, taken = probe, min(take(probe), take(probe))  # the first time memory is asked for, and not there
    return taken / _work(few) * sum(map(_work, batches))


def _bytes(experiment: Experiment, lengths: Sequence[int], place: memory.Place) -> int:
    return sum(memory.peak(experiment.model, lengths, place, freeze=experiment.training.freeze).values())


def _work(lengths: Sequence[int]) -> int:
    """Tokens, once for each block that they pass."""
    return sum(n * depth(n) for n in lengths)


def _shrunk(lengths: Sequence[int], share: float) -> list[int]:
    """Sequences made shorter, all by the same share.

    >>> _shrunk([100, 3], 0.1), _shrunk([100, 3], 4)
    ([10, 1], [100, 3])
    """
    return [max(1, int(n * min(share, 1))) for n in lengths]


def _stepper(experiment: Experiment, device: torch.device) -> Callable[[Sequence[int]], float]:
    """A function that takes a training step on made-up records of some lengths, and tells the seconds."""
    config, half = experiment.model, experiment.training.precision == "bf16"
    model = Model(config).to(device)
    if experiment.training.freeze:
        model.freeze()
    adam = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)

    def take(lengths: Sequence[int]) -> float:
        parts = memory.sequences(config, lengths)
        inputs = Packed.from_lengths(_made_up(config, sum(parts)), parts).to(device)
        _wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            answers = model(inputs)
        outputs = answers.values if isinstance(answers, Packed) else answers
        outputs.float().square().sum().backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        _wait(device)
        return time.perf_counter() - start

    return take


def _made_up(config: ModelConfig, tokens: int) -> Tensor:
    return (
        torch.randint(config.inputs, (tokens,))
        if config.embedding == "tokens"
        else torch.randn(tokens, config.inputs)
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
