"""Triton: where a token's sequence lies, plain rotation, sums and statistics over rows.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
Tokens are counted in 32 bits, addresses in 64.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def locate(p_offsets, o_token, sequences, bisections):
    """Start and length of each token's sequence, by bisection of the offsets."""
    low = o_token * 0
    high = low + sequences
    for _ in range(bisections):
        middle = (low + high) // 2
        right = tl.load(p_offsets + middle) <= o_token
        low = tl.where(right, middle, low)
        high = tl.where(right, high, middle)
    start = tl.load(p_offsets + low).to(tl.int32)
    return start, tl.load(p_offsets + low + 1).to(tl.int32) - start


@triton.jit
def turned(o_position, length, o_track, REVERSE: tl.constexpr):
    """The position that a track reads (or, in reverse, is read by): 2^(t-1) further on, around its sequence."""
    shift = tl.where(o_track == 0, 0, 1 << tl.maximum(o_track - 1, 0))
    step = shift % length
    if REVERSE:
        step = length - step
    there = o_position + step
    return tl.where(there >= length, there - length, there)


@triton.jit(do_not_specialize=["tokens", "sequences", "bisections"])
def _rotate_kernel(
    p_x, p_out, p_offsets, tokens, sequences, bisections,
    C: tl.constexpr, S: tl.constexpr, REVERSE: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    o_token = tl.program_id(0) * BT + tl.arange(0, BT)
    m_token = o_token < tokens
    o_token = tl.minimum(o_token, tokens - 1)
    start, length = locate(p_offsets, o_token, sequences, bisections)
    o_position = o_token - start
    for first in range(0, C, BC):
        o_channel = first + tl.arange(0, BC)
        mask = m_token[:, None] & (o_channel < C)[None, :]
        o_source = start[:, None] + turned(o_position[:, None], length[:, None], o_channel[None, :] // S, REVERSE)
        b_x = tl.load(p_x + o_source.to(tl.int64) * C + o_channel[None, :], mask=mask)
        tl.store(p_out + o_token[:, None].to(tl.int64) * C + o_channel[None, :], b_x, mask=mask)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.track_size, ctx.reverse = track_size, reverse
        values = values.contiguous()
        out = torch.empty_like(values)
        tokens, channels = values.shape
        _rotate_kernel[(triton.cdiv(tokens, 64),)](
            values, out, offsets, tokens, *bisected(offsets),
            C=channels, S=track_size, REVERSE=reverse, BT=64, BC=64,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (offsets,) = ctx.saved_tensors
        return rotate(gradient, offsets, ctx.track_size, not ctx.reverse), None, None, None


def rotate(values: Tensor, offsets: Tensor, track_size: int, reverse: bool = False) -> Tensor:
    """`reference.rotate`."""
    rotated: Tensor = _Rotate.apply(values, offsets, track_size, reverse)
    return rotated


def bisected(offsets: Tensor) -> tuple[int, int]:
    """The number of sequences, and the halvings that find one among them."""
    sequences = offsets.shape[0] - 1
    return sequences, (sequences - 1).bit_length()


@triton.jit
def _sum_rows_kernel(p_x, p_begin, p_end, p_out, C: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    i_range = tl.program_id(0).to(tl.int64)
    o_channel = tl.program_id(1) * BC + tl.arange(0, BC)
    m_channel = o_channel < C
    begin, end = tl.load(p_begin + i_range), tl.load(p_end + i_range)
    b_sum = tl.zeros((BC,), tl.float32)
    for first in range(begin, end, BT):
        o_row = first + tl.arange(0, BT)
        mask = (o_row < end)[:, None] & m_channel[None, :]
        b_x = tl.load(p_x + o_row[:, None] * C + o_channel[None, :], mask=mask, other=0.0)
        b_sum += tl.sum(b_x.to(tl.float32), axis=0)
    tl.store(p_out + i_range * C + o_channel, b_sum, mask=m_channel)


def _sum_rows(values: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """One row for each range of rows."""
    out = torch.empty(len(begin), values.shape[1], device=values.device)
    _sum_rows_kernel[(len(begin), triton.cdiv(values.shape[1], 64))](
        values, begin, end, out, C=values.shape[1], BT=64, BC=64
    )
    return out


class _SegmentSum(torch.autograd.Function):
    """Sums by sequence in float32, first over chunks counted from its own start, then over its chunks.

    The number of chunks is known on the device only, so as many ranges are made as there could be; those behind the
    last are empty.
    """

    CHUNK = 1024

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.kind, ctx.tokens, chunk = values.dtype, len(values), _SegmentSum.CHUNK
        ends = torch.nn.functional.pad((-(-offsets.diff() // chunk)).cumsum(0), (1, 0))
        index = torch.arange(len(values) // chunk + len(offsets) - 1, device=values.device)
        sequence = torch.searchsorted(ends[1:], index, right=True).clamp_(max=len(offsets) - 2)
        begin = offsets[sequence] + (index - ends[sequence]) * chunk
        end = torch.minimum(begin + chunk, offsets[sequence + 1])
        return _sum_rows(_sum_rows(values.contiguous(), begin, end), ends[:-1], ends[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return gradient.to(ctx.kind).repeat_interleave(offsets.diff(), 0, output_size=ctx.tokens), None


def segment_mean(values: Tensor, offsets: Tensor) -> Tensor:
    """`reference.segment_mean`."""
    means: Tensor = _SegmentSum.apply(values, offsets) / offsets.diff()[:, None]
    return means


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


def row_statistics(values: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each token's channels, float32."""
    rows, channels = values.shape
    mean, rstd = (torch.empty(rows, device=values.device) for _ in range(2))
    block = triton.next_power_of_2(channels)
    tile = max(1, 8192 // block)
    _row_statistics_kernel[(triton.cdiv(rows, tile),)](values, mean, rstd, rows, eps, C=channels, BT=tile, BC=block)
    return mean, rstd


@triton.jit(do_not_specialize=["rows"])
def _layer_norm_backward_kernel(
    p_x, p_mean, p_rstd, p_gradient, p_residual, p_out, p_normal, rows,
    C: tl.constexpr, RESIDUAL: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
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
    tl.store(p_normal + o_value, b_normal, mask=mask)


def layer_norm_backward(
    values: Tensor, mean: Tensor, rstd: Tensor, gradient: Tensor, residual: Tensor | None, normal: Tensor
) -> None:
    """The gradient of a layer norm's input from that of its output, plus a residual's; written over `gradient`.

    The norm's output is written to `normal` on the way.
    """
    rows, channels = values.shape
    block = triton.next_power_of_2(channels)
    tile = max(1, 4096 // block)
    _layer_norm_backward_kernel[(triton.cdiv(rows, tile),)](
        values, mean, rstd, gradient, gradient if residual is None else residual, gradient, normal, rows,
        C=channels, RESIDUAL=residual is not None, BT=tile, BC=block,
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
