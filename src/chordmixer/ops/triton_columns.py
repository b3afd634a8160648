"""Triton: statistics of columns, and batch norm: each channel over all tokens.

Before a block a batch norm is folded into the first layer, since it is the same for all tokens; after a block it
takes two passes over the tokens forward and two backward.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from chordmixer.ops.reference import NormState
from chordmixer.ops.triton_plan import cdiv


@triton.jit(do_not_specialize=["rows", "share"])
def _column_sums_kernel(
    p_x, p_other, p_centre, p_sums, rows, share,
    C: tl.constexpr, PAIRED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of one share of the rows: sums of a column's distances to its centre, and of their squares; PAIRED: of another
    matrix' numbers, and of these times the distances."""
    i_share = tl.program_id(0)
    o_channel = tl.program_id(1) * BC + tl.arange(0, BC)
    m_channel = o_channel < C
    b_centre = tl.load(p_centre + o_channel, mask=m_channel, other=0.0).to(tl.float32)
    b_sum, b_products = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    end = tl.minimum((i_share + 1) * share, rows)
    for first in range(i_share * share, end, BT):
        o_row = first + tl.arange(0, BT)
        mask = (o_row < end)[:, None] & m_channel[None, :]
        o_value = o_row[:, None].to(tl.int64) * C + o_channel[None, :]
        b_x = tl.load(p_x + o_value, mask=mask, other=0.0).to(tl.float32)
        b_x = tl.where(mask, b_x - b_centre[None, :], 0.0)
        b_other = b_x
        if PAIRED:
            b_other = tl.load(p_other + o_value, mask=mask, other=0.0).to(tl.float32)
        b_sum += b_other
        b_products += b_x * b_other
    p_share = p_sums + i_share.to(tl.int64) * 2 * C + o_channel
    tl.store(p_share, tl.sum(b_sum, axis=0), mask=m_channel)
    tl.store(p_share + C, tl.sum(b_products, axis=0), mask=m_channel)


def _column_sums(values: Tensor, centre: Tensor, other: Tensor | None = None) -> Tensor:
    """Both sums of each column, float32, deterministic."""
    rows, channels = values.shape
    shares = max(1, min(1024, rows // 256))
    sums = torch.empty(shares, 2, channels, device=values.device)
    _column_sums_kernel[(shares, cdiv(channels, 64))](
        values, values if other is None else other, centre, sums, rows, cdiv(rows, shares),
        C=channels, PAIRED=other is not None, BT=32, BC=64,
    )  # fmt: skip
    return sums.sum(0)


@triton.jit(do_not_specialize=["rows"])
def _affine_kernel(
    p_x, p_other, p_scale, p_slope, p_shift, p_out, rows,
    C: tl.constexpr, PAIRED: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """scale x + shift; PAIRED: slope times another matrix is added."""
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    o_channel = tl.arange(0, BC)
    m_channel = o_channel < C
    mask = (o_row < rows)[:, None] & m_channel[None, :]
    o_value = o_row[:, None] * C + o_channel[None, :]
    b_scale = tl.load(p_scale + o_channel, mask=m_channel, other=0.0)[None, :]
    b_y = tl.load(p_x + o_value, mask=mask, other=0.0).to(tl.float32) * b_scale
    if PAIRED:
        b_slope = tl.load(p_slope + o_channel, mask=m_channel, other=0.0)[None, :]
        b_y += tl.load(p_other + o_value, mask=mask, other=0.0).to(tl.float32) * b_slope
    tl.store(p_out + o_value, b_y + tl.load(p_shift + o_channel, mask=m_channel, other=0.0)[None, :], mask=mask)


def _affine(
    values: Tensor, scale: Tensor, shift: Tensor, *, plus: tuple[Tensor, Tensor] | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Each column times its scale, plus its shift; `plus` adds another matrix times its slopes."""
    rows, channels = values.shape
    other, slope = plus or (values, scale)
    out = torch.empty_like(values) if out is None else out
    block = triton.next_power_of_2(channels)
    tile = max(1, 4096 // block)
    _affine_kernel[(cdiv(rows, tile),)](
        values, other, scale.float(), slope.float(), shift.float(), out, rows,
        C=channels, PAIRED=plus is not None, BT=tile, BC=block,
    )  # fmt: skip
    return out


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each column, from differences to its first value."""
    distance, squares = _column_sums(values, values[0]) / len(values)
    return values[0].float() + distance, (squares - distance * distance).clamp_(min=0)


class _ColumnMoments(torch.autograd.Function):
    """Differentiable moments, with one pass over the tokens forward and one backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = _moments(values)
        ctx.save_for_backward(values, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mean_gradient: Tensor, variance_gradient: Tensor) -> Tensor:
        values, mean = ctx.saved_tensors
        scale = variance_gradient * (2 / len(values))
        return _affine(values, scale, mean_gradient / len(values) - mean * scale)


def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over all tokens, float32, differentiable."""
    mean, variance = _ColumnMoments.apply(values)
    return mean, variance


# --- Batch norm ---


def folded(values: Tensor, norm: NormState) -> tuple[Tensor, Tensor]:
    """Scale and shift of a batch norm for each channel; updates running statistics."""
    if not _uses_batch_statistics(norm):
        assert norm.mean is not None and norm.variance is not None
        mean, variance = norm.mean, norm.variance
    else:
        mean, variance = column_moments(values)
        _update_running_statistics(norm, mean, variance, len(values))
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return scale, norm.bias - mean * scale


class _BatchNorm(torch.autograd.Function):
    """Saves its input: y = w (x - m) r + b, and so dx = w r (dy - mean of dy - (x - m) r^2 mean of dy (x - m))."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, norm: NormState, weight: Tensor, bias: Tensor) -> Tensor:
        mean, variance = _moments(values)
        _update_running_statistics(norm, mean, variance, len(values))
        rstd = torch.rsqrt(variance + norm.eps)
        scale = weight * rstd
        ctx.save_for_backward(values, mean, rstd, scale)
        return _affine(values, scale, bias - mean * scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        values, mean, rstd, scale = ctx.saved_tensors
        gradient = gradient.contiguous()
        total, products = _column_sums(values, mean, gradient)
        slope = -scale * rstd.square() * products / len(values)
        shift = -scale * total / len(values) - slope * mean
        return _affine(gradient, scale, shift, plus=(values, slope)), None, products * rstd, total


def batch_norm(values: Tensor, norm: NormState, out: Tensor | None = None) -> Tensor:
    """`reference.normalise` for a batch norm."""
    if _uses_batch_statistics(norm):
        normed: Tensor = _BatchNorm.apply(values, norm, norm.weight, norm.bias)
        return normed if out is None else out.copy_(normed)
    scale, shift = folded(values, norm)
    if torch.is_grad_enabled() and (values.requires_grad or scale.requires_grad):
        normed = (values * scale + shift).to(values.dtype)
        return normed if out is None else out.copy_(normed)
    return _affine(values, scale, shift, out=out)


def _uses_batch_statistics(norm: NormState) -> bool:
    """Whether a batch norm uses the statistics of the batch, not running ones."""
    return norm.training or norm.mean is None or norm.variance is None


def _update_running_statistics(norm: NormState, mean: Tensor, variance: Tensor, tokens: int) -> None:
    """Update running statistics if there are any."""
    if norm.mean is not None and norm.variance is not None:
        norm.mean.lerp_(mean.detach().to(norm.mean.dtype), norm.momentum)
        unbiased = variance.detach() * (tokens / max(tokens - 1, 1))
        norm.variance.lerp_(unbiased.to(norm.variance.dtype), norm.momentum)
