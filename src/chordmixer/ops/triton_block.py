"""Triton: one block, or a whole network of them, as operations of autograd.

The implementation depends on the width of the hidden layer: one fused kernel (`triton_fused.py`), or, if it is too
wide for that, a rotation and the matrix library (`triton_wide.py`).
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


def _kernels(plan: Plan) -> ModuleType:
    """The module that computes a block: both have `prepared`, `forward`, `scratch_for` and `backward`."""
    return triton_wide if plan.hidden > ops.FUSED_HIDDEN else triton_fused


# --- One block ----------------------------------------------------------------------------------------------


class _Block(torch.autograd.Function):
    """Saves its input only; the backward pass recomputes the hidden layer."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chance: Chance, x: Tensor, residual: Tensor | None, offsets: Tensor, w1: Tensor,
        b1: Tensor, w2: Tensor, b2: Tensor, mean: Tensor | None, rstd: Tensor | None, out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        w1, b1, w2, b2 = _kernels(plan).prepared(w1, b1, w2, b2, x.dtype)
        weights = Weights(w1, b1, w2, b2, mean, rstd)
        out = torch.empty_like(x) if out is None else out
        ctx.plan, ctx.chance, ctx.has_residual = plan, chance, residual is not None
        ctx.save_for_backward(x, offsets, *weights)
        _kernels(plan).forward(plan, chance, x, x if residual is None else residual, out, offsets, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, offsets, *weights = ctx.saved_tensors
        gradient, plan, dx = gradient.contiguous(), ctx.plan, torch.empty_like(x)
        kernels = _kernels(plan)
        scratch, sums = kernels.scratch_for(x, plan, offsets.shape[0] - 1), rows_of_sums(plan, 1, x.device)
        kernels.backward(
            plan, ctx.chance, x, gradient, dx, offsets, Weights(*weights), scratch, sums[0], ctx.has_residual
        )
        weight_gradients = (part[0] for part in split_sums(plan, sums))
        return None, None, dx, gradient if ctx.has_residual else None, None, *weight_gradients, None, None, None


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
    """`reference.block`: a layer or batch norm before it is fused into the kernels, other norms are separate."""
    w1, b1, w2, b2 = mlp
    values = values.contiguous()
    mean = rstd = None
    if prenorm is not None and prenorm.kind == "layer":
        mean, rstd = row_statistics(values.detach(), prenorm.eps)
        w1, b1 = w1 * prenorm.weight, b1 + w1 @ prenorm.bias  # the norm's weights, folded into the first layer
    elif prenorm is not None and prenorm.kind == "batch" and not (dropout and order == "paper"):
        scale, shift = folded(values, prenorm)  # the same for all tokens: commutes with rotation, not with dropout
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
    """All blocks as one operation: no overhead between them, and gradients of early exits stay in place.

    With `counts` (blocks, 4) on the device, launches are the same for all batches of one size: each block has memory
    for all tokens, and its kernels read the number of its tokens and sequences from `counts`.
    """

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chances: list[Chance], exits: reference.Exits, counts: Tensor | None, eps: float,
        x: Tensor, offsets: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    ) -> Tensor:  # fmt: skip
        kernels, outputs = _kernels(plan), None if counts is None else x.new_empty(len(exits), *x.shape)
        w1, b1, w2, b2 = kernels.prepared(w1, b1, w2, b2, x.dtype)
        statistics: tuple[Tensor, ...] = row_statistics(x, eps) if plan.norm else ()
        inputs, weights = [x], []
        for i, (tokens, sequences) in enumerate(exits):
            used = tuple(s[:tokens] for s in statistics)
            weights.append(Weights(w1[i], b1[i], w2[i], b2[i], *used))
            source, out = inputs[-1][:tokens], x.new_empty(tokens, x.shape[1]) if outputs is None else outputs[i]
            # In the released order a program writes to different rows, so it cannot compute their statistics.
            following = plan.norm and not plan.released and i + 1 < len(exits)
            statistics = tuple(torch.empty(2, tokens, device=x.device)) if following else ()
            prefix = offsets[: sequences + 1]
            kernels.forward(
                plan, chances[i], source, source, out, prefix, weights[-1], statistics, eps, *_counts_of(counts, i)
            )
            if plan.norm and plan.released and i + 1 < len(exits):
                statistics = row_statistics(out, eps)
            inputs.append(out)
        ctx.plan, ctx.chances, ctx.exits, ctx.counts = plan, chances, exits, counts
        ctx.save_for_backward(offsets, *inputs[:-1], *(part for parts in weights for part in parts))
        if counts is None or outputs is None:
            return _join_exits(inputs[1:], exits)
        index = torch.arange(len(x), device=x.device)
        last = (index[:, None] < counts[:, 0]).sum(1) - 1  # the last block of each token
        return outputs.flatten(0, 1).index_select(0, last * len(x) + index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        plan, exits, counts = ctx.plan, ctx.exits, ctx.counts
        offsets, *saved = ctx.saved_tensors
        inputs, parts = saved[: len(exits)], saved[len(exits) :]
        size = len(Weights._fields)
        weights = [Weights(*parts[i * size : (i + 1) * size]) for i in range(len(exits))]
        gradient, x = gradient.contiguous(), inputs[0]
        kernels = _kernels(plan)
        scratch, sums = kernels.scratch_for(x, plan, offsets.shape[0] - 1), rows_of_sums(plan, len(exits), x.device)
        # With counts no block writes beyond its tokens, so gradients of sequences that exited earlier are kept there.
        buffers = [torch.empty_like(x) if counts is None else gradient.clone() for _ in exits[:2]]
        incoming = gradient
        for i in reversed(range(len(exits))):
            tokens, sequences = exits[i]
            dx = buffers[i % len(buffers)]
            source, prefix = inputs[i][:tokens], offsets[: sequences + 1]
            kernels.backward(
                plan, ctx.chances[i], source, incoming[:tokens], dx[:tokens], prefix, weights[i], scratch, sums[i],
                False, *_counts_of(counts, i),
            )  # fmt: skip
            if i and (before := exits[i - 1][0]) > tokens:
                dx[tokens:before] = gradient[tokens:before]  # of sequences that exit after the previous block
            incoming = dx
        return None, None, None, None, None, incoming, None, *split_sums(plan, sums)


def _counts_of(counts: Tensor | None, block: int) -> tuple[Tensor, ...]:
    return () if counts is None else (counts[block],)


def _join_exits(outputs: Sequence[Tensor], exits: reference.Exits) -> Tensor:
    """The last block's tokens, followed by those that exited after each earlier block."""
    finished = [outputs[i][after:] for i, (_, (after, _)) in enumerate(pairwise(exits)) if after < len(outputs[i])]
    return torch.cat([outputs[-1], *reversed(finished)]) if finished else outputs[-1]


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
    """`reference.blocks`, for networks with layer norms before Rotate or no norms.

    `counts` are those of a `StaticPacked`: number of tokens and sequences, and seed, of each block.
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
    mixed: Tensor = _Blocks.apply(plan, chances, exits, counts, eps, values.contiguous(), offsets, w1, b1, w2, b2)
    return mixed
