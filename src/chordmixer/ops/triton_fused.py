"""Triton: a block with fused kernels (`triton_kernels.py`), in one pass forward and two backward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chordmixer.ops.triton_kernels import backward_kernel, forward_kernel, weights_kernel
from chordmixer.ops.triton_norms import layer_norm_backward
from chordmixer.ops.triton_plan import Chance, Plan, Weights, cdiv, processors, programs_for, switches_of
from chordmixer.ops.triton_rows import bisected


def prepared(
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights of one block, or of a stack of blocks, in the kernels' dtype."""
    return w1.to(kind).contiguous(), b1, w2.to(kind).contiguous(), b2


def forward(
    plan: Plan, chance: Chance, x: Tensor, residual: Tensor, out: Tensor, offsets: Tensor, weights: Weights,
    following: tuple[Tensor, ...] = (), eps: float = 0.0, counts: Tensor | None = None,
) -> None:  # fmt: skip
    """One block; mean and inverse standard deviation of the rows of `out` are written to `following` if given.

    `counts`, if given, has the numbers of tokens and sequences and the seed on the device, instead of the host's.
    """
    switches = switches_of("forward", plan)
    programs, long = programs_for(x.shape[0], offsets.shape[0] - 1, switches["BT"])
    w1, b1, w2, b2, mean, rstd = weights
    forward_kernel[(programs,)](
        x, residual, out, w1, b1, w2, b2, x if mean is None else mean, x if rstd is None else rstd,
        *(following or (x, x)), offsets, offsets if counts is None else counts, *x.shape, *bisected(offsets), *chance,
        eps, NEXT=bool(following), LONG=long, COUNTED=counts is not None, **switches,
    )  # fmt: skip


class Scratch(NamedTuple):
    """Results of the first backward pass for the second, and rows of partial sums."""

    hidden: Tensor
    dhidden: Tensor
    places: Tensor
    db1: Tensor


def scratch_for(x: Tensor, plan: Plan, sequences: int) -> Scratch:
    """Allocate scratch memory that all blocks share, on these tokens or fewer."""
    hidden, dhidden = x.new_empty(2, x.shape[0], plan.hidden)
    places = torch.empty(x.shape[0], 2, dtype=torch.int32, device=x.device)
    max_programs = cdiv(x.shape[0], switches_of("backward", plan)["BT"]) + sequences
    return Scratch(hidden, dhidden, places, torch.empty(max_programs, plan.hidden, device=x.device))


def backward(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, dx: Tensor, offsets: Tensor, weights: Weights,
    scratch: Scratch, sums: Tensor, separate_residual: bool, counts: Tensor | None = None,
) -> None:  # fmt: skip
    """Write gradients of the tokens to `dx`, and of W1, W2, b2 and b1, end to end, to `sums`.

    With `separate_residual` the residual was another tensor, whose gradient is not added to `dx`.
    """
    switches = switches_of("backward", plan)
    programs, long = programs_for(x.shape[0], offsets.shape[0] - 1, switches["BT"])
    w1, b1, w2, _, mean, rstd = weights
    statistics = (x, x) if mean is None or rstd is None else (mean, rstd)
    db1 = scratch.db1[:programs]
    backward_kernel[(programs,)](
        x, gradient, dx, *scratch[:3], w1, b1, w2, db1, *statistics, offsets,
        offsets if counts is None else counts, *x.shape, *bisected(offsets), *chance,
        RESIDUAL=not (separate_residual or plan.norm), LONG=long, COUNTED=counts is not None, **switches,
    )  # fmt: skip
    if plan.norm:
        normal = torch.empty_like(x)
        layer_norm_backward(x, *statistics, dx, None if separate_residual else gradient, normal, counts)
        x = normal
    torch.sum(db1, 0, out=sums[-plan.hidden :])
    _weight_gradients(plan, chance, x, gradient, scratch, sums[: -plan.hidden], counts)


def _weight_gradients(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, scratch: Scratch, sums: Tensor, counts: Tensor | None
) -> None:
    """Sum each share of the tokens separately, then all shares: deterministic."""
    switches, size = switches_of("weights", plan), plan.hidden * plan.channels
    blocks = cdiv(plan.channels, switches["BC"]), cdiv(plan.hidden, switches["BH"])
    shares = max(1, min(4 * processors(x.device) // (blocks[0] * blocks[1]), x.shape[0] // (4 * switches["BT"])))
    share = cdiv(cdiv(x.shape[0], shares), switches["BT"]) * switches["BT"]
    parts = torch.empty(cdiv(x.shape[0], share), len(sums), device=x.device)
    dw1, dw2, db2 = parts[0].split((size, size, plan.channels))
    weights_kernel[(*blocks, len(parts))](
        x, gradient, *scratch[:3], dw1, dw2, db2, scratch.places if counts is None else counts,
        x.shape[0], share, len(sums), *chance, COUNTED=counts is not None, **switches,
    )  # fmt: skip
    torch.sum(parts, 0, out=sums)
