"""The reversible form of the same blocks (Gomez et al., RevNet, 2017): O(C N) memory at any depth.

Two streams a and b both start as the input. Even blocks add f(b) to a, odd blocks add f(a) to b, in place; the
output is the mean of the two. In the backward pass each block subtracts what it added, so only the final two streams
are stored. A sequence that has passed its last block does not change in either stream.
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
    """Run all blocks on sequences sorted by depth; the backward pass recomputes activations."""
    used_blocks = blocks[: len(exits)]
    weights = tuple(p for p in used_blocks.parameters() if p.requires_grad)
    result: Tensor = _Reversible.apply(used_blocks, offsets, exits, values, *weights)
    return result


def _forward(blocks: nn.ModuleList, offsets: Tensor, exits: ops.Exits, streams: list[Tensor]) -> list[list[Tensor]]:
    """Run all blocks in place; return the random states before each block, to repeat its dropout."""
    states = []
    for i, (block, (tokens, sequences)) in enumerate(zip(blocks, exits, strict=True)):
        target, source = streams[i % 2][:tokens], streams[1 - i % 2][:tokens]
        states.append(_random_state(source.device))
        output = block(source, offsets[: sequences + 1], residual=target, out=target)
        if output.data_ptr() != target.data_ptr():  # in training a block makes a new tensor
            target.copy_(output)
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
            weights = [w for w in block.parameters() if w.requires_grad]
            target, source = streams[i % 2][:tokens], streams[1 - i % 2][:tokens]
            with torch.enable_grad(), _repeat(block, ctx.states[i], source.device):
                inputs = source.detach().requires_grad_()
                with torch.autocast(source.device.type, dtype=dtype, enabled=enabled):
                    output = block(inputs, offsets[: sequences + 1], residual=torch.zeros_like(target))
                dx, *dweights = torch.autograd.grad(output, [inputs, *weights], gradients[i % 2][:tokens])
            target.sub_(output.detach())
            gradients[1 - i % 2][:tokens] += dx
            for weight, dweight in zip(weights, dweights, strict=True):
                collected[id(weight)] += dweight
        return None, None, None, gradients[0] + gradients[1], *(collected[id(w)] for w in ctx.weights)


@contextmanager
def _repeat(block: nn.Module, state: list[Tensor], device: torch.device) -> Iterator[None]:
    """Context to run a block a second time: the same dropout mask, and no second update of running statistics."""
    current = _random_state(device)
    norms = [(m, m.momentum) for m in block.modules() if isinstance(m, Norm)]
    _set_random_state(state, device)
    for norm, _ in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        _set_random_state(current, device)
        for norm, momentum in norms:
            norm.momentum = momentum


def _random_state(device: torch.device) -> list[Tensor]:
    """Random states of the host, which seeds the kernels, and of the device, which torch's dropout draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
