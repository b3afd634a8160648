"""Triton: statistics of rows, and the gradient that a layer norm needs.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from chordmixer.ops.triton_plan import cdiv


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
    """Mean and inverse standard deviation of each token's channels, float32."""
    rows, channels = values.shape
    mean, rstd = out or torch.empty(2, rows, device=values.device)
    block = triton.next_power_of_2(channels)
    tile = max(1, 8192 // block)
    _row_statistics_kernel[(cdiv(rows, tile),)](values, mean, rstd, rows, eps, C=channels, BT=tile, BC=block)
    return mean, rstd


@triton.jit(do_not_specialize=["rows"])
def _layer_norm_backward_kernel(
    p_x, p_mean, p_rstd, p_gradient, p_residual, p_out, p_normal, p_counts, rows,
    C: tl.constexpr, COUNTED: tl.constexpr, RESIDUAL: tl.constexpr, NORMAL: tl.constexpr, BT: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    if COUNTED:
        rows = tl.load(p_counts)
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
    normal: Tensor | None = None, counts: Tensor | None = None,
) -> None:  # fmt: skip
    """The gradient of a layer norm's input from that of its output, plus a residual's; overwrites `gradient`.

    The norm's output is also written to `normal` if that is given. The first number of `counts` is the number of
    rows, on the device; nothing is written after them.
    """
    rows, channels = values.shape
    block = triton.next_power_of_2(channels)
    tile = max(1, 4096 // block)
    _layer_norm_backward_kernel[(cdiv(rows, tile),)](
        values, mean, rstd, gradient, gradient if residual is None else residual, gradient,
        gradient if normal is None else normal,
        mean if counts is None else counts, rows, C=channels, COUNTED=counts is not None,
        RESIDUAL=residual is not None, NORMAL=normal is not None, BT=tile, BC=block,
    )  # fmt: skip
