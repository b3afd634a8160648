"""The largest batch of a run, tried out before it starts, and what is said where memory runs out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from chordmixer.data import Batch
from chordmixer.tasks.targets import Target

OTHER_NETWORK = "model.network.reversible=true or a smaller model.network.track_size"
"""What to set where memory is short."""


@contextmanager
def explained(lengths: Sequence[int], device: torch.device, longest: str = "") -> Iterator[None]:
    """Within it, memory that runs out is a `ValueError` that says what to do."""
    try:
        yield
    except RuntimeError as error:  # a GPU's own kind is one, a CPU's is told by its words
        if not (isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)):
            raise
        tokens, sequences = sum(lengths), len(lengths)
        raise ValueError(
            f"the memory of {device.type} ran out over a batch of {tokens:,} tokens in {sequences:,} "
            f"record{'s' if sequences > 1 else ''}: {remedies(lengths, longest)}"
        ) from None


def remedies(lengths: Sequence[int], longest: str, other: str = OTHER_NETWORK) -> str:
    """What to set where a batch of these lengths does not fit."""
    several = "a smaller training.batch_tokens, " if len(lengths) > 1 else ""
    return f"its longest record{f' {longest}' if longest else ''} has {max(lengths):,} tokens; set {several}{other}"


def rehearse(model: nn.Module, batch: Batch, target: Target, longest: str = "") -> None:
    """Forward and backward over a batch as in training, with room for the optimiser; nothing of it stays.

    Over the largest batch of a run this lets memory run out at once, not in the middle of the night.
    """
    device, training = batch.inputs.device, model.training
    parameters = [p for p in model.parameters() if p.requires_grad]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]  # running statistics
    model.train()
    try:
        with (
            explained(batch.lengths, device, longest),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            moments = [torch.empty_like(p) for p in parameters for _ in range(2)]
            losses = target.losses(model(batch.inputs), batch.targets)
            torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
            del moments
    finally:
        model.train(training)
        for buffer, before in buffers:
            buffer.copy_(before)
