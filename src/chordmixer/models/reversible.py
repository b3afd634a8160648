"""The reversible form of the same blocks (Gomez et al., RevNet, 2017): O(C N) memory at any depth.

Two streams a and b both start as the input. Even blocks add to a what they make of b, odd blocks add to b what
they make of a, in place; the output is the mean of the two. Going back, each block subtracts what it added, so
nothing is stored but the two streams at the end. A sequence that has left stays untouched in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.models.norms import Norm


def through(blocks: nn.ModuleList, values: Tensor, offsets: Tensor, exits: ops.Exits) -> Tensor:
    """All blocks over sequences ordered by depth; gradients through recomputation."""
    active = blocks[: len(exits)]
    weights = tuple(p for p in active.parameters() if p.requires_grad)
    made: Tensor = _Reversible.apply(active, offsets, exits, values, *weights)
    return made


def _forward(blocks: nn.ModuleList, offsets: Tensor, exits: ops.Exits, streams: list[Tensor]) -> list[list[Tensor]]:
    """Run all blocks in place; the random states from before each one, so that dropout can be repeated."""
    states = []
    for i, (block, (tokens, sequences)) in enumerate(zip(blocks, exits, strict=True)):
        grown, source = streams[i % 2][:tokens], streams[1 - i % 2][:tokens]
        states.append(_random_state(source.device))
        made = block(source, offsets[: sequences + 1], residual=grown, out=grown)
        if made.data_ptr() != grown.data_ptr():  # training modes make a new tensor
            grown.copy_(made)
    return states


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, blocks: nn.ModuleList, offsets: Tensor, exits: ops.Exits, values: Tensor, *weights: Tensor
    ) -> Tensor:
        streams = [values.clone(), values.clone()]
        ctx.states = _forward(blocks, offsets, exits, streams)
        ctx.offsets, ctx.blocks, ctx.exits, ctx.weights = offsets, blocks, exits, weights
        device = values.device.type
        ctx.autocast = (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        ctx.streams = streams if any(ctx.needs_input_grad) else None
        return torch.add(*streams).div_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.streams is None:
            raise RuntimeError("a reversible network's backward pass consumes its outputs: call backward once")
        offsets, streams, ctx.streams = ctx.offsets, ctx.streams, None
        gradients = [gradient / 2, gradient / 2]
        collected = {id(w): torch.zeros_like(w) for w in ctx.weights}
        enabled, dtype = ctx.autocast
        for i in reversed(range(len(ctx.blocks))):
            block, (tokens, sequences) = ctx.blocks[i], ctx.exits[i]
            own = [w for w in block.parameters() if w.requires_grad]
            grown, source = streams[i % 2][:tokens], streams[1 - i % 2][:tokens]
            with torch.enable_grad(), _repeat(block, ctx.states[i], source.device):
                entry = source.detach().requires_grad_()
                with torch.autocast(source.device.type, dtype=dtype, enabled=enabled):
                    made = block(entry, offsets[: sequences + 1], residual=torch.zeros_like(grown))
                of_entry, *of_weights = torch.autograd.grad(made, [entry, *own], gradients[i % 2][:tokens])
            grown.sub_(made.detach())
            gradients[1 - i % 2][:tokens] += of_entry
            for weight, part in zip(own, of_weights, strict=True):
                collected[id(weight)] += part
        return None, None, None, gradients[0] + gradients[1], *(collected[id(w)] for w in ctx.weights)


@contextmanager
def _repeat(block: nn.Module, state: list[Tensor], device: torch.device) -> Iterator[None]:
    """The second time through a block: the same dropout mask, and no second update of running statistics."""
    now = _random_state(device)
    norms = [(m, m.momentum) for m in block.modules() if isinstance(m, Norm)]
    _set_random_state(state, device)
    for norm, _ in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        _set_random_state(now, device)
        for norm, momentum in norms:
            norm.momentum = momentum


def _random_state(device: torch.device) -> list[Tensor]:
    """Of the host, from which the kernels draw their seeds, and of the device, from which plain torch drops."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
