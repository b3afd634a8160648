"""Triton: a block whose hidden layer is too wide to stay on the chip.

Rotate, with norm and dropout, is a kernel of its own, and Mix is left to the matrix library: at H = 420 its products
take as long as the bytes, and a tile that keeps the hidden layer of its tokens has room for 16 of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from chordmixer.ops.triton_norms import layer_norm_backward, row_statistics
from chordmixer.ops.triton_plan import Chance, Plan, Weights, split_sums
from chordmixer.ops.triton_rows import turn


def forward(
    plan: Plan, chance: Chance, x: Tensor, residual: Tensor, out: Tensor, offsets: Tensor, weights: Weights,
    following: tuple[Tensor, ...] = (), eps: float = 0.0,
) -> None:  # fmt: skip
    """One block; `following`, if given, takes mean and inverse deviation of the rows of `out`."""
    hidden = _before(weights, _read(plan, chance, x, offsets, weights))
    torch.ops.aten.gelu_(hidden)
    mixed = torch.addmm(weights.b2.to(x.dtype), hidden, weights.w2.t())
    if plan.released:
        turn(mixed, offsets, plan.track_size, chance=chance, residual=residual, out=out)
    else:
        torch.add(mixed, residual, out=out)
    if following:
        for own, made in zip(following, row_statistics(out, eps), strict=True):
            own.copy_(made)


def scratch_for(x: Tensor, plan: Plan, sequences: int) -> None:
    """Each block makes its own, and frees it."""


def backward(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, dx: Tensor, offsets: Tensor, weights: Weights,
    scratch: None, sums: Tensor, apart: bool,
) -> None:  # fmt: skip
    """Gradients of the tokens into `dx`, of W1, W2, b2 and b1, one behind the other, into `sums`.

    `apart`: the residual was another tensor, whose gradient is not added to dx.
    """
    dw1, db1, dw2, db2 = (part[0] for part in split_sums(plan, sums[None]))
    own = None if apart or plan.norm else gradient
    dmixed = gradient
    if plan.released:
        dmixed = turn(gradient, offsets, plan.track_size, reverse=True, chance=chance)
    z = _read(plan, chance, x, offsets, weights)
    before = _before(weights, z)
    dw2.copy_(dmixed.t() @ F.gelu(before))
    torch.sum(dmixed, 0, dtype=torch.float32, out=db2)
    dbefore = dmixed @ weights.w2
    torch.ops.aten.gelu_backward.grad_input(dbefore, before, grad_input=dbefore)
    dw1.copy_(dbefore.t() @ z)
    torch.sum(dbefore, 0, dtype=torch.float32, out=db1)
    del before, z
    dz = dbefore @ weights.w1
    if not plan.released:
        turn(dz, offsets, plan.track_size, reverse=True, chance=chance, residual=own, out=dx)
    elif own is None:
        dx.copy_(dz)
    else:
        torch.add(dz, own, out=dx)
    if plan.norm and weights.mean is not None and weights.rstd is not None:
        layer_norm_backward(x, weights.mean, weights.rstd, dx, None if apart else gradient, normal=dz)


def _read(plan: Plan, chance: Chance, x: Tensor, offsets: Tensor, weights: Weights) -> Tensor:
    """What Mix reads: tokens, normalised and, in the paper's order, rotated and thinned by dropout."""
    statistics = (weights.mean, weights.rstd) if weights.mean is not None and weights.rstd is not None else None
    if not plan.released:
        return turn(x, offsets, plan.track_size, chance=chance, statistics=statistics)
    if statistics is None:
        return x
    return turn(x, offsets, plan.channels, statistics=statistics)  # all channels as the first track, which stays


def _before(weights: Weights, z: Tensor) -> Tensor:
    """The hidden layer before its GELU."""
    return torch.addmm(weights.b1.to(z.dtype), z, weights.w1.t())
