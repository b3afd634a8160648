"""Triton: one block, or a whole network of them, as operations of autograd.

How a block is computed depends on its hidden layer: in one fused kernel (`triton_fused.py`), or, where it is too wide
for that, by a rotation and the matrix library (`triton_wide.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chordmixer import ops
from chordmixer.ops import reference, torch_block, triton_fused, triton_wide
from chordmixer.ops.triton_columns import batch_norm, folded
from chordmixer.ops.triton_norms import row_statistics
from chordmixer.ops.triton_plan import Chance, Plan, Weights, plan_for, rows_of_sums, split_sums


def _way(plan: Plan) -> ModuleType:
    """Where this block is computed: both have `prepared`, `forward`, `scratch_for` and `backward`."""
    return triton_wide if plan.hidden > ops.WIDE else triton_fused


# --- One block ----------------------------------------------------------------------------------------------


class _Block(torch.autograd.Function):
    """Keeps its input and nothing else; the backward pass computes the hidden layer again."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chance: Chance, x: Tensor, residual: Tensor | None, offsets: Tensor, w1: Tensor,
        b1: Tensor, w2: Tensor, b2: Tensor, mean: Tensor | None, rstd: Tensor | None, out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        w1, b1, w2, b2 = _way(plan).prepared(w1, b1, w2, b2, x.dtype)
        weights = Weights(w1, b1, w2, b2, mean, rstd)
        out = torch.empty_like(x) if out is None else out
        ctx.plan, ctx.chance, ctx.apart = plan, chance, residual is not None
        ctx.save_for_backward(x, offsets, *weights)
        _way(plan).forward(plan, chance, x, x if residual is None else residual, out, offsets, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, offsets, *weights = ctx.saved_tensors
        gradient, plan, dx = gradient.contiguous(), ctx.plan, torch.empty_like(x)
        way = _way(plan)
        scratch, sums = way.scratch_for(x, plan, offsets.shape[0] - 1), rows_of_sums(plan, 1, x.device)
        way.backward(plan, ctx.chance, x, gradient, dx, offsets, Weights(*weights), scratch, sums[0], ctx.apart)
        of_weights = (part[0] for part in split_sums(plan, sums))
        return None, None, dx, gradient if ctx.apart else None, None, *of_weights, None, None, None


def block(
    values: Tensor,
    offsets: Tensor,
    track_size: int,
    mlp: reference.Mlp,
    *,
    order: str = "paper",
    prenorm: reference.NormState | None = None,
    norm: reference.NormState | None = None,
    dropout: float = 0.0,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`reference.block`: a layer or batch norm before it is part of the kernels, other norms stand beside them."""
    w1, b1, w2, b2 = mlp
    values = values.contiguous()
    mean = rstd = None
    if prenorm is not None and prenorm.kind == "layer":
        mean, rstd = row_statistics(values.detach(), prenorm.eps)
        w1, b1 = w1 * prenorm.weight, b1 + w1 @ prenorm.bias  # the norm's own weights, folded into the first layer
    elif prenorm is not None and prenorm.kind == "batch" and not (dropout and order == "paper"):
        scale, shift = folded(values, prenorm)  # the same for all tokens: rotation does not matter, dropout would
        w1, b1 = w1 * scale, b1 + w1 @ shift
    elif prenorm is not None:
        residual = values if residual is None else residual
        values = torch_block.normalise(values, offsets, prenorm)
    plan = plan_for(values, track_size, len(b1), order, mean is not None, dropout)
    seed = int(torch.randint(1 << 31, ())) if dropout else 0
    mixed: Tensor = _Block.apply(
        plan, (seed, dropout), values.contiguous(), residual, offsets, w1, b1, w2, b2, mean, rstd, out
    )
    if norm is None:
        return mixed
    if norm.kind == "batch":
        return batch_norm(mixed, norm, out)
    normed = torch_block.normalise(mixed, offsets, norm)
    return normed if out is None else out.copy_(normed)


# --- All blocks of a network --------------------------------------------------------------------------------


class _Blocks(torch.autograd.Function):
    """Many blocks as one operation: no bookkeeping between them, and gradients of early leavers stay in place.

    With `counts` (blocks, 4) on the device, launches are the same for all batches of one size: each block has room
    for all tokens, and its kernels read from there how many tokens and sequences are its own.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chances: list[Chance], exits: reference.Exits, counts: Tensor | None, eps: float,
        x: Tensor, offsets: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    ) -> Tensor:  # fmt: skip
        way, room = _way(plan), None if counts is None else x.new_empty(len(exits), *x.shape)
        w1, b1, w2, b2 = way.prepared(w1, b1, w2, b2, x.dtype)
        statistics: tuple[Tensor, ...] = row_statistics(x, eps) if plan.norm else ()
        inputs, weights = [x], []
        for i, (tokens, sequences) in enumerate(exits):
            own = tuple(s[:tokens] for s in statistics)
            weights.append(Weights(w1[i], b1[i], w2[i], b2[i], *own))
            source, out = inputs[-1][:tokens], x.new_empty(tokens, x.shape[1]) if room is None else room[i]
            # In the released order a program's tokens end up in different rows, and know no row's sum.
            following = plan.norm and not plan.released and i + 1 < len(exits)
            statistics = tuple(torch.empty(2, tokens, device=x.device)) if following else ()
            own_offsets = offsets[: sequences + 1]
            way.forward(
                plan, chances[i], source, source, out, own_offsets, weights[-1], statistics, eps, *_own(counts, i)
            )
            if plan.norm and plan.released and i + 1 < len(exits):
                statistics = row_statistics(out, eps)
            inputs.append(out)
        ctx.plan, ctx.chances, ctx.exits, ctx.counts = plan, chances, exits, counts
        ctx.save_for_backward(offsets, *inputs[:-1], *(part for own in weights for part in own))
        if counts is None or room is None:
            return _together(inputs[1:], exits)
        place = torch.arange(len(x), device=x.device)
        last = (place[:, None] < counts[:, 0]).sum(1) - 1  # the last block of each token
        return room.flatten(0, 1).index_select(0, last * len(x) + place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        plan, exits, counts = ctx.plan, ctx.exits, ctx.counts
        offsets, *saved = ctx.saved_tensors
        inputs, parts = saved[: len(exits)], saved[len(exits) :]
        size = len(Weights._fields)
        weights = [Weights(*parts[i * size : (i + 1) * size]) for i in range(len(exits))]
        gradient, x = gradient.contiguous(), inputs[0]
        way = _way(plan)
        scratch, sums = way.scratch_for(x, plan, offsets.shape[0] - 1), rows_of_sums(plan, len(exits), x.device)
        # With counts no block writes behind its own tokens, where the gradients of those that left before it stay.
        buffers = [torch.empty_like(x) if counts is None else gradient.clone() for _ in exits[:2]]
        incoming = gradient
        for i in reversed(range(len(exits))):
            tokens, sequences = exits[i]
            dx = buffers[i % len(buffers)]
            source, own = inputs[i][:tokens], offsets[: sequences + 1]
            way.backward(
                plan, ctx.chances[i], source, incoming[:tokens], dx[:tokens], own, weights[i], scratch, sums[i],
                False, *_own(counts, i),
            )  # fmt: skip
            if i and (before := exits[i - 1][0]) > tokens:
                dx[tokens:before] = gradient[tokens:before]  # of those who left after the block before
            incoming = dx
        return None, None, None, None, None, incoming, None, *split_sums(plan, sums)


def _own(counts: Tensor | None, block: int) -> tuple[Tensor, ...]:
    return () if counts is None else (counts[block],)


def _together(outputs: Sequence[Tensor], exits: reference.Exits) -> Tensor:
    """The last block's tokens, behind them those that left after each block before."""
    left = [outputs[i][after:] for i, (_, (after, _)) in enumerate(pairwise(exits)) if after < len(outputs[i])]
    return torch.cat([outputs[-1], *reversed(left)]) if left else outputs[-1]


def blocks(
    values: Tensor,
    offsets: Tensor,
    exits: reference.Exits,
    track_size: int,
    mlps: Sequence[reference.Mlp],
    *,
    order: str = "paper",
    prenorms: Sequence[reference.NormState | None],
    dropout: float = 0.0,
    counts: Tensor | None = None,
) -> Tensor:
    """`reference.blocks`, for networks whose norms are layer norms before Rotate, or none.

    `counts`, as a `StaticPacked` has them: tokens, sequences and seed of each block.
    """
    w1, b1, w2, b2 = (torch.stack(parts) for parts in zip(*mlps, strict=True))
    norms = [norm for norm in prenorms if norm is not None]
    if norms:
        scale, shift = torch.stack([n.weight for n in norms]), torch.stack([n.bias for n in norms])
        w1, b1 = w1 * scale[:, None, :], b1 + torch.einsum("lhc,lc->lh", w1, shift)
    plan = plan_for(values, track_size, b1.shape[1], order, bool(norms), dropout)
    seeds = torch.randint(1 << 31, (len(mlps),)).tolist() if dropout and counts is None else [0] * len(mlps)
    chances = [(seed, dropout) for seed in seeds]
    eps = norms[0].eps if norms else 0.0
    made: Tensor = _Blocks.apply(plan, chances, exits, counts, eps, values.contiguous(), offsets, w1, b1, w2, b2)
    return made
