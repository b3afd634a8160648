"""Triton: a block whose hidden layer is too wide to stay on the chip.

Rotate, with norm and dropout, is a separate kernel, and Mix uses the matrix library: at H = 420 its products take as
long as the memory traffic, and a tile that keeps the hidden layer of its tokens could hold only 16 of them.

The library is three times slower if rows do not begin at multiples of 16 bytes, as 308 numbers of 2 bytes do not. So
rows are padded, and the first number after the channels is a one: W1's column there is b1, and the product for dW1
also sums up db1. The same holds for the hidden layer, W2 and b2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from chordmixer.ops.triton_norms import layer_norm_backward, row_statistics
from chordmixer.ops.triton_plan import Chance, Plan, Weights, cdiv, split_sums
from chordmixer.ops.triton_rows import turn
from chordmixer.ops.triton_tiles import gaussian


def aligned(numbers: int, kind: torch.dtype) -> int:
    """Round a row length up to a multiple of 16 bytes.

    >>> aligned(308, torch.bfloat16), aligned(308, torch.float32)
    (312, 308)
    """
    step = 16 // kind.itemsize
    return -(-numbers // step) * step


def prepared(
    w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """[W1 b1 0] and [W2 b2 0], with rows of zeros below, of one block or of a stack of blocks; and the biases."""
    hidden, channels = w1.shape[-2:]
    wide_hidden, wide = aligned(hidden + 1, kind), aligned(channels + 1, kind)
    first = F.pad(torch.cat([w1, b1[..., None]], -1), (0, wide - channels - 1, 0, wide_hidden - hidden))
    rows = aligned(channels, kind)  # of W2's output, which has no column of ones
    second = F.pad(torch.cat([w2, b2[..., None]], -1), (0, wide_hidden - hidden - 1, 0, rows - channels))
    return first.to(kind), b1, second.to(kind), b2


def forward(
    plan: Plan, chance: Chance, x: Tensor, residual: Tensor, out: Tensor, offsets: Tensor, weights: Weights,
    following: tuple[Tensor, ...] = (), eps: float = 0.0,
) -> None:  # fmt: skip
    """One block; mean and inverse standard deviation of the rows of `out` are written to `following` if given."""
    hidden = _mix_input(plan, chance, x, offsets, weights) @ weights.w1.t()
    _gelu(plan, hidden)
    mixed = hidden @ weights.w2.t()
    if plan.released:
        turn(mixed, offsets, plan.track_size, chance=chance, residual=residual, out=out)
    else:
        torch.add(mixed[:, : plan.channels], residual, out=out)
    if following:
        row_statistics(out, eps, following)


def scratch_for(x: Tensor, plan: Plan, sequences: int) -> None:
    """No shared scratch memory: each block allocates and frees its own."""


def backward(
    plan: Plan, chance: Chance, x: Tensor, gradient: Tensor, dx: Tensor, offsets: Tensor, weights: Weights,
    scratch: None, sums: Tensor, separate_residual: bool,
) -> None:  # fmt: skip
    """Write gradients of the tokens to `dx`, and of W1, W2, b2 and b1, end to end, to `sums`.

    With `separate_residual` the residual was another tensor, whose gradient is not added to `dx`.
    """
    residual_gradient = None if separate_residual or plan.norm else gradient
    dmixed, width = gradient, weights.w2.shape[0]
    if plan.released:
        dmixed = turn(gradient, offsets, plan.track_size, reverse=True, chance=chance, width=width)
    elif width > plan.channels:
        dmixed = turn(gradient, offsets, plan.channels, width=width)  # a copy, padded
    z = _mix_input(plan, chance, x, offsets, weights)
    hidden, dhidden = z @ weights.w1.t(), dmixed @ weights.w2
    _gelu(plan, hidden, dhidden)
    _weight_gradients(plan, dmixed.t() @ hidden, dhidden.t() @ z, sums)
    del hidden, z, dmixed
    dz = dhidden @ weights.w1[:, :width]
    if not plan.released:
        turn(dz, offsets, plan.track_size, reverse=True, chance=chance, residual=residual_gradient, out=dx)
    elif residual_gradient is None:
        dx.copy_(dz[:, : plan.channels])
    else:
        torch.add(dz[:, : plan.channels], residual_gradient, out=dx)
    if plan.norm and weights.mean is not None and weights.rstd is not None:
        layer_norm_backward(x, weights.mean, weights.rstd, dx, None if separate_residual else gradient)


def _mix_input(plan: Plan, chance: Chance, x: Tensor, offsets: Tensor, weights: Weights) -> Tensor:
    """The input of Mix: normalised tokens, in the paper's order rotated and with dropout, and the column of ones."""
    statistics = (weights.mean, weights.rstd) if weights.mean is not None and weights.rstd is not None else None
    width = weights.w1.shape[1]
    if not plan.released:
        return turn(x, offsets, plan.track_size, chance=chance, statistics=statistics, width=width)
    # all channels as a single track, which is not rotated
    return turn(x, offsets, plan.channels, statistics=statistics, width=width)


def _weight_gradients(plan: Plan, second: Tensor, first: Tensor, sums: Tensor) -> None:
    """Copy weight gradients to `sums`; those of the biases are the columns that belong to the ones."""
    dw1, db1, dw2, db2 = (part[0] for part in split_sums(plan, sums[None]))
    channels, hidden = plan.channels, plan.hidden
    dw1.copy_(first[:hidden, :channels])
    db1.copy_(first[:hidden, channels])
    dw2.copy_(second[:channels, :hidden])
    db2.copy_(second[:channels, hidden])


# --- GELU ---


@triton.jit(do_not_specialize=["numbers"])
def _gelu_kernel(
    p_hidden, p_gradient, numbers,
    H: tl.constexpr, W: tl.constexpr, BACK: tl.constexpr, EXACT: tl.constexpr, PTX: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * B
    o_number = first + tl.arange(0, B)
    mask = o_number < numbers
    b_before = tl.load(p_hidden + o_number, mask=mask, other=0.0).to(tl.float32)
    b_cdf, b_density = gaussian(b_before, EXACT, PTX)
    o_column = ((first % W).to(tl.int32) + tl.arange(0, B)) % W
    tl.store(p_hidden + o_number, tl.where(o_column == H, 1.0, b_before * b_cdf), mask=mask)
    if BACK:
        b_gradient = tl.load(p_gradient + o_number, mask=mask, other=0.0).to(tl.float32)
        tl.store(p_gradient + o_number, b_gradient * (b_cdf + b_before * b_density), mask=mask)


def _gelu(plan: Plan, hidden: Tensor, gradient: Tensor | None = None) -> None:
    """GELU in place, with the column of ones; with a `gradient`, that is multiplied by GELU's derivative in place."""
    block = 1024
    _gelu_kernel[(cdiv(hidden.numel(), block),)](
        hidden, hidden if gradient is None else gradient, hidden.numel(),
        H=plan.hidden, W=hidden.shape[1], BACK=gradient is not None, EXACT=plan.full, PTX=plan.ptx, B=block,
    )  # fmt: skip
