"""Triton: statistics of rows and columns, and the gradients that norms need.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["rows"])
def _row_statistics_kernel(p_x, p_mean, p_rstd, rows, eps, C: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    m_row = o_row < rows
    o_channel = tl.arange(0, BC)
    m_channel = o_channel < C
    mask = m_row[:, None] & m_channel[None, :]
    b_x = tl.load(p_x + o_row[:, None] * C + o_channel[None, :], mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(b_x, axis=1) / C
    b_x = tl.where(m_channel[None, :], b_x - mean[:, None], 0.0)
    tl.store(p_mean + o_row, mean, mask=m_row)
    tl.store(p_rstd + o_row, 1 / tl.sqrt(tl.sum(b_x * b_x, axis=1) / C + eps), mask=m_row)


def row_statistics(values: Tensor, eps: float, out: tuple[Tensor, ...] = ()) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each token's channels, float32."""
    rows, channels = values.shape
    mean, rstd = out or torch.empty(2, rows, device=values.device)
    block = triton.next_power_of_2(channels)
    tile = max(1, 8192 // block)
    _row_statistics_kernel[(triton.cdiv(rows, tile),)](values, mean, rstd, rows, eps, C=channels, BT=tile, BC=block)
    return mean, rstd


@triton.jit(do_not_specialize=["rows"])
def _layer_norm_backward_kernel(
    p_x, p_mean, p_rstd, p_gradient, p_residual, p_out, p_normal, rows,
    C: tl.constexpr, RESIDUAL: tl.constexpr, NORMAL: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    m_row = o_row < rows
    o_channel = tl.arange(0, BC)
    mask = m_row[:, None] & (o_channel < C)[None, :]
    o_value = o_row[:, None] * C + o_channel[None, :]
    mean, rstd = tl.load(p_mean + o_row, mask=m_row), tl.load(p_rstd + o_row, mask=m_row)
    b_x = tl.load(p_x + o_value, mask=mask, other=0.0).to(tl.float32)
    b_normal = tl.where(mask, (b_x - mean[:, None]) * rstd[:, None], 0.0)
    b_gradient = tl.load(p_gradient + o_value, mask=mask, other=0.0).to(tl.float32)
    along = tl.sum(b_gradient * b_normal, axis=1) / C
    b_out = (b_gradient - (tl.sum(b_gradient, axis=1) / C)[:, None] - b_normal * along[:, None]) * rstd[:, None]
    if RESIDUAL:
        b_out += tl.load(p_residual + o_value, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_out + o_value, b_out, mask=mask)
    if NORMAL:
        tl.store(p_normal + o_value, b_normal, mask=mask)


def layer_norm_backward(
    values: Tensor, mean: Tensor, rstd: Tensor, gradient: Tensor, residual: Tensor | None,
    normal: Tensor | None = None,
) -> None:  # fmt: skip
    """The gradient of a layer norm's input from that of its output, plus a residual's; written over `gradient`.

    The norm's output is written to `normal` on the way, if that is given.
    """
    rows, channels = values.shape
    block = triton.next_power_of_2(channels)
    tile = max(1, 4096 // block)
    _layer_norm_backward_kernel[(triton.cdiv(rows, tile),)](
        values, mean, rstd, gradient, gradient if residual is None else residual, gradient,
        gradient if normal is None else normal, rows,
        C=channels, RESIDUAL=residual is not None, NORMAL=normal is not None, BT=tile, BC=block,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "share"])
def _column_sums_kernel(p_x, p_sums, rows, share, C: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    """Sums of a column's distances to its first value, and of their squares, over one share of the rows."""
    i_share = tl.program_id(0)
    o_channel = tl.program_id(1) * BC + tl.arange(0, BC)
    m_channel = o_channel < C
    b_first = tl.load(p_x + o_channel, mask=m_channel, other=0.0).to(tl.float32)
    b_sum, b_squares = tl.zeros((BT, BC), tl.float32), tl.zeros((BT, BC), tl.float32)
    end = tl.minimum((i_share + 1) * share, rows)
    for first in range(i_share * share, end, BT):
        o_row = first + tl.arange(0, BT)
        mask = (o_row < end)[:, None] & m_channel[None, :]
        b_x = tl.load(p_x + o_row[:, None].to(tl.int64) * C + o_channel[None, :], mask=mask, other=0.0)
        b_x = tl.where(mask, b_x.to(tl.float32) - b_first[None, :], 0.0)
        b_sum += b_x
        b_squares += b_x * b_x
    p_share = p_sums + i_share.to(tl.int64) * 2 * C + o_channel
    tl.store(p_share, tl.sum(b_sum, axis=0), mask=m_channel)
    tl.store(p_share + C, tl.sum(b_squares, axis=0), mask=m_channel)


@triton.jit(do_not_specialize=["rows"])
def _affine_kernel(p_x, p_scale, p_shift, p_out, rows, C: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    o_row = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    o_channel = tl.arange(0, BC)
    m_channel = o_channel < C
    mask = (o_row < rows)[:, None] & m_channel[None, :]
    o_value = o_row[:, None] * C + o_channel[None, :]
    b_scale = tl.load(p_scale + o_channel, mask=m_channel, other=0.0)[None, :]
    b_shift = tl.load(p_shift + o_channel, mask=m_channel, other=0.0)[None, :]
    b_x = tl.load(p_x + o_value, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_out + o_value, b_x * b_scale + b_shift, mask=mask)


class _ColumnMoments(torch.autograd.Function):
    """One pass over the tokens forward, one back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, channels = values.shape
        shares = max(1, min(1024, rows // 256))
        sums = torch.empty(shares, 2, channels, device=values.device)
        share = triton.cdiv(rows, shares)
        _column_sums_kernel[(shares, triton.cdiv(channels, 64))](values, sums, rows, share, C=channels, BT=32, BC=64)
        distance, squares = sums.sum(0) / rows
        mean = values[0].float() + distance
        ctx.save_for_backward(values, mean)
        return mean, (squares - distance * distance).clamp_(min=0)

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_variance: Tensor) -> Tensor:
        values, mean = ctx.saved_tensors
        rows, channels = values.shape
        scale = of_variance * (2 / rows)
        shift = of_mean / rows - mean * scale
        out = torch.empty_like(values)
        block = triton.next_power_of_2(channels)
        tile = max(1, 4096 // block)
        _affine_kernel[(triton.cdiv(rows, tile),)](
            values, scale, shift, out, rows, C=channels, BT=tile, BC=block
        )  # fmt: skip
        return out


def column_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over all tokens, float32, differentiable."""
    mean, variance = _ColumnMoments.apply(values)
    return mean, variance
