"""Triton: launching the kernels of `triton_kernels.py` for one block, or for a whole network of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from chordmixer.ops import reference
from chordmixer.ops.triton_kernels import backward_kernel, forward_kernel, weights_kernel
from chordmixer.ops.triton_rows import bisected, column_moments, layer_norm_backward, row_statistics

# --- What a kernel is compiled for --------------------------------------------------------------------------


class Plan(NamedTuple):
    """What a block's kernels are compiled for."""

    channels: int
    track_size: int
    hidden: int
    released: bool
    norm: bool
    drop: bool
    full: bool
    """Whether the tokens are float32."""
    ptx: bool
    """Whether an NVIDIA processor runs it, whose own instructions may be named."""
    precision: str


def _plan(values: Tensor, track_size: int, hidden: int, order: str, norm: bool, dropout: float) -> Plan:
    return Plan(
        values.shape[1],
        track_size,
        hidden,
        released=order == "released",
        norm=norm,
        drop=dropout > 0,
        full=values.dtype == torch.float32,
        ptx=values.is_cuda and torch.version.hip is None,
        precision="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    )


@cache
def _switches(kernel: str, plan: Plan) -> dict[str, Any]:
    """Compile-time arguments: what is computed, and in tiles of which shape."""
    switches = {
        "C": plan.channels,
        "S": plan.track_size,
        "H": plan.hidden,
        "IN": 0 if plan.released else 1,
        "OUT": -1 if plan.released else 0,
        "DROP_IN": plan.drop and not plan.released,
        "DROP_OUT": plan.drop and plan.released,
        "PRECISION": plan.precision,
    }
    if kernel != "weights":
        switches |= {"NORM": plan.norm, "EXACT": plan.full, "PTX": plan.ptx}
    return switches | _shape(kernel, plan)


def _shape(kernel: str, plan: Plan) -> dict[str, int]:
    """Tile sizes, warps and stages: the best found on an H200 in bf16 at H = 128, smaller for more."""
    wide = triton.next_power_of_2(max(16, plan.hidden))
    tile = max(16, (32 if plan.full else 64) * 128 // max(wide, 128))
    if plan.full:  # true float32 has no matrix units to feed
        through = {"BK": 32, "BN": 32, "BT": tile, "BH": wide, "num_warps": 4, "num_stages": 1}
        weights = {"BC": 32, "BT": 32, "BH": min(wide, 128), "num_warps": 4, "num_stages": 1}
        return weights if kernel == "weights" else through
    few = wide <= 128
    chunk = min(64, 32768 // wide)
    return {
        "forward": {"BK": min(64 if few and not plan.norm else 32, chunk), "BN": 32, "num_stages": 3},
        "backward": {"BK": min(32 if plan.norm else 64, chunk), "BN": chunk, "num_stages": 4 if few else 3},
        "weights": {"BC": 64, "num_stages": 5},
    }[kernel] | {
        "BT": 32 if kernel == "weights" else tile,
        "BH": min(wide, 128) if kernel == "weights" else wide,
        "num_warps": 4,
    }


def _programs(tokens: int, sequences: int, tile: int) -> tuple[int, bool]:
    """How many programs a pass takes, and whether sequences are long enough to cut tiles at their borders."""
    long = 4 * sequences * tile <= tokens
    return (tokens // tile + sequences, True) if long else (triton.cdiv(tokens, tile), False)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# --- Launches -----------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """A block's linear maps, the matrices in the tokens' type; and mean and inverse deviation of its input's rows."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    mean: Tensor | None = None
    rstd: Tensor | None = None


Chance = tuple[int, float]
"""The seed and share of what is dropped."""


def _forward(
    plan: Plan, chance: Chance, x: Tensor, residual: Tensor, out: Tensor, offsets: Tensor, weights: Weights,
    following: tuple[Tensor, ...] = (), eps: float = 0.0,
) -> None:  # fmt: skip
    """One block; `following`, if given, takes mean and inverse deviation of the rows of `out`."""
    switches = _switches("forward", plan)
    programs, long = _programs(x.shape[0], offsets.shape[0] - 1, switches["BT"])
    w1, b1, w2, b2, mean, rstd = weights
    forward_kernel[(programs,)](
        x, residual, out, w1, b1, w2, b2, x if mean is None else mean, x if rstd is None else rstd,
        *(following or (x, x)), offsets, *x.shape, *bisected(offsets), *chance, eps,
        NEXT=bool(following), LONG=long, **switches,
    )  # fmt: skip


class Scratch(NamedTuple):
    """What the first backward pass leaves for the second, and rows of partial sums."""

    hidden: Tensor
    dhidden: Tensor
    places: Tensor
    db1: Tensor

    @classmethod
    def for_tokens(cls, x: Tensor, plan: Plan, sequences: int) -> Scratch:
        hidden, dhidden = x.new_empty(2, x.shape[0], plan.hidden)
        places = torch.empty(x.shape[0], 2, dtype=torch.int32, device=x.device)
        most = triton.cdiv(x.shape[0], _switches("backward", plan)["BT"]) + sequences
        return cls(hidden, dhidden, places, torch.empty(most, plan.hidden, device=x.device))


def _backward(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, dx: Tensor, offsets: Tensor, weights: Weights,
    scratch: Scratch, sums: Tensor, apart: bool,
) -> None:  # fmt: skip
    """Gradients of the tokens into `dx`, of W1, W2, b2 and b1, one behind the other, into `sums`.

    `apart`: the residual was another tensor, whose gradient is not added to dx.
    """
    switches = _switches("backward", plan)
    programs, long = _programs(x.shape[0], offsets.shape[0] - 1, switches["BT"])
    w1, b1, w2, _, mean, rstd = weights
    statistics = (x, x) if mean is None or rstd is None else (mean, rstd)
    db1 = scratch.db1[:programs]
    backward_kernel[(programs,)](
        x, gradient, dx, *scratch[:3], w1, b1, w2, db1, *statistics, offsets,
        *x.shape, *bisected(offsets), *chance,
        RESIDUAL=not (apart or plan.norm), LONG=long, **switches,
    )  # fmt: skip
    if plan.norm:
        normal = torch.empty_like(x)
        layer_norm_backward(x, *statistics, dx, None if apart else gradient, normal)
        x = normal
    torch.sum(db1, 0, out=sums[-plan.hidden :])
    _weight_gradients(plan, chance, x, gradient, scratch, sums[: -plan.hidden])


def _weight_gradients(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, scratch: Scratch, sums: Tensor
) -> None:
    """Each share of the tokens into a sum of its own, then all shares together: the same numbers every time."""
    switches, size = _switches("weights", plan), plan.hidden * plan.channels
    blocks = triton.cdiv(plan.channels, switches["BC"]), triton.cdiv(plan.hidden, switches["BH"])
    shares = max(1, min(4 * _processors(x.device) // (blocks[0] * blocks[1]), x.shape[0] // (4 * switches["BT"])))
    share = triton.cdiv(triton.cdiv(x.shape[0], shares), switches["BT"]) * switches["BT"]
    parts = torch.empty(triton.cdiv(x.shape[0], share), len(sums), device=x.device)
    dw1, dw2, db2 = parts[0].split((size, size, plan.channels))
    weights_kernel[(*blocks, len(parts))](
        x, gradient, *scratch[:3], dw1, dw2, db2, x.shape[0], share, len(sums), *chance, **switches
    )
    torch.sum(parts, 0, out=sums)


def _sums(plan: Plan, blocks: int, device: torch.device) -> Tensor:
    """Room for the gradients of all weights of several blocks, a row each."""
    return torch.empty(blocks, 2 * plan.hidden * plan.channels + plan.channels + plan.hidden, device=device)


def _split(plan: Plan, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the gradients of W1, b1, W2 and b2, with a leading dimension for the blocks."""
    channels, hidden = plan.channels, plan.hidden
    dw1, dw2, db2, db1 = sums.split((hidden * channels, hidden * channels, channels, hidden), dim=1)
    return dw1.unflatten(1, (hidden, channels)), db1, dw2.unflatten(1, (channels, hidden)), db2


# --- One block ----------------------------------------------------------------------------------------------


class _Block(torch.autograd.Function):
    """Keeps its input and nothing else; the backward pass computes the hidden layer again."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chance: Chance, x: Tensor, residual: Tensor | None, offsets: Tensor, w1: Tensor,
        b1: Tensor, w2: Tensor, b2: Tensor, mean: Tensor | None, rstd: Tensor | None, out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        weights = Weights(w1.to(x.dtype).contiguous(), b1, w2.to(x.dtype).contiguous(), b2, mean, rstd)
        out = torch.empty_like(x) if out is None else out
        ctx.plan, ctx.chance, ctx.apart = plan, chance, residual is not None
        ctx.save_for_backward(x, offsets, *weights)
        _forward(plan, chance, x, x if residual is None else residual, out, offsets, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, offsets, *weights = ctx.saved_tensors
        gradient, plan, dx = gradient.contiguous(), ctx.plan, torch.empty_like(x)
        scratch, sums = Scratch.for_tokens(x, plan, offsets.shape[0] - 1), _sums(plan, 1, x.device)
        _backward(plan, ctx.chance, x, gradient, dx, offsets, Weights(*weights), scratch, sums[0], ctx.apart)
        of_weights = (part[0] for part in _split(plan, sums))
        return None, None, dx, gradient if ctx.apart else None, None, *of_weights, None, None, None


def block(
    values: Tensor,
    offsets: Tensor,
    track_size: int,
    mlp: reference.Mlp,
    *,
    order: str = "paper",
    prenorm: reference.Norm | None = None,
    norm: reference.Norm | None = None,
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
        scale, shift = _batch_norm(values, prenorm)
        w1, b1 = w1 * scale, b1 + w1 @ shift
    elif prenorm is not None:
        residual = values if residual is None else residual
        values = reference.normalise(values, offsets, prenorm)
    plan = _plan(values, track_size, len(b1), order, mean is not None, dropout)
    seed = int(torch.randint(1 << 31, ())) if dropout else 0
    mixed = _Block.apply(
        plan, (seed, dropout), values.contiguous(), residual, offsets, w1, b1, w2, b2, mean, rstd, out
    )
    return reference.normalise(mixed, offsets, norm)


def _batch_norm(values: Tensor, norm: reference.Norm) -> tuple[Tensor, Tensor]:
    """What a batch norm does to each channel: it is the same for all tokens, so that rotation does not matter.

    Dropout between it and W1 would: that stays beside the kernels.
    """
    if norm.training or norm.mean is None or norm.variance is None:
        mean, variance = column_moments(values)
        if norm.mean is not None and norm.variance is not None:
            tokens = values.shape[0]
            norm.mean.lerp_(mean.detach().to(norm.mean.dtype), norm.momentum)
            unbiased = variance.detach() * (tokens / max(tokens - 1, 1))
            norm.variance.lerp_(unbiased.to(norm.variance.dtype), norm.momentum)
    else:
        mean, variance = norm.mean, norm.variance
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return scale, norm.bias - mean * scale


# --- All blocks of a network --------------------------------------------------------------------------------


class _Blocks(torch.autograd.Function):
    """Many blocks as one operation: no bookkeeping between them, and gradients of early leavers stay in place."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chances: list[Chance], exits: reference.Exits, eps: float, x: Tensor, offsets: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    ) -> Tensor:  # fmt: skip
        w1, w2 = w1.to(x.dtype), w2.to(x.dtype)
        statistics: tuple[Tensor, ...] = row_statistics(x, eps) if plan.norm else ()
        inputs, weights = [x], []
        for i, (tokens, sequences) in enumerate(exits):
            own = tuple(s[:tokens] for s in statistics)
            weights.append(Weights(w1[i], b1[i], w2[i], b2[i], *own))
            source, out = inputs[-1][:tokens], x.new_empty(tokens, x.shape[1])
            # In the released order a program's tokens end up in different rows, and know no row's sum.
            following = plan.norm and not plan.released and i + 1 < len(exits)
            statistics = tuple(torch.empty(2, tokens, device=x.device)) if following else ()
            _forward(plan, chances[i], source, source, out, offsets[: sequences + 1], weights[-1], statistics, eps)
            if plan.norm and plan.released and i + 1 < len(exits):
                statistics = row_statistics(out, eps)
            inputs.append(out)
        ctx.plan, ctx.chances, ctx.exits = plan, chances, exits
        ctx.save_for_backward(offsets, *inputs[:-1], *(part for own in weights for part in own))
        return _together(inputs[1:], exits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        plan, exits = ctx.plan, ctx.exits
        offsets, *saved = ctx.saved_tensors
        inputs, parts = saved[: len(exits)], saved[len(exits) :]
        size = len(Weights._fields)
        weights = [Weights(*parts[i * size : (i + 1) * size]) for i in range(len(exits))]
        gradient, x = gradient.contiguous(), inputs[0]
        scratch, sums = Scratch.for_tokens(x, plan, offsets.shape[0] - 1), _sums(plan, len(exits), x.device)
        buffers = [torch.empty_like(x) for _ in exits[:2]]
        incoming = gradient
        for i in reversed(range(len(exits))):
            tokens, sequences = exits[i]
            dx = buffers[i % len(buffers)]
            source, own = inputs[i][:tokens], offsets[: sequences + 1]
            _backward(
                plan, ctx.chances[i], source, incoming[:tokens], dx[:tokens], own, weights[i], scratch, sums[i], False
            )  # fmt: skip
            if i and (before := exits[i - 1][0]) > tokens:
                dx[tokens:before] = gradient[tokens:before]  # of those who left after the block before
            incoming = dx
        return None, None, None, None, incoming, None, *_split(plan, sums)


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
    prenorms: Sequence[reference.Norm | None],
    dropout: float = 0.0,
) -> Tensor:
    """`reference.blocks`, for networks whose norms are layer norms before Rotate, or none."""
    w1, b1, w2, b2 = (torch.stack(parts) for parts in zip(*mlps, strict=True))
    norms = [norm for norm in prenorms if norm is not None]
    if norms:
        scale, shift = torch.stack([n.weight for n in norms]), torch.stack([n.bias for n in norms])
        w1, b1 = w1 * scale[:, None, :], b1 + torch.einsum("lhc,lc->lh", w1, shift)
    plan = _plan(values, track_size, b1.shape[1], order, bool(norms), dropout)
    seeds = torch.randint(1 << 31, (len(mlps),)).tolist() if dropout else [0] * len(mlps)
    chances = [(seed, dropout) for seed in seeds]
    eps = norms[0].eps if norms else 0.0
    made: Tensor = _Blocks.apply(plan, chances, exits, eps, values.contiguous(), offsets, w1, b1, w2, b2)
    return made
