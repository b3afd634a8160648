"""Triton: location of a token's sequence, rotation, and means over sequences.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
Tokens are counted in 32 bits, addresses in 64.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chordmixer.ops.triton_plan import cdiv


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


@triton.jit
def _scattered(b_bits):
    """32 bits so mixed that each depends on all: two rounds of multiplying and folding.

    The multipliers are those of C. Wellons' search for hashes of low bias.
    """
    b_bits = (b_bits ^ (b_bits >> 16)) * 0x7FEB352D
    b_bits = (b_bits ^ (b_bits >> 15)) * 0x846CA68B
    return b_bits ^ (b_bits >> 16)


@triton.jit
def kept(seed, o_token, o_channel, dropout):
    """Dropout's factors, a function of the seed and the place: 19 instructions of PTX a number, `tl.rand` has 73."""
    b_row = _scattered(o_token.to(tl.uint32) ^ _scattered(seed.to(tl.uint32)))
    b_bits = _scattered(b_row[:, None] + o_channel.to(tl.uint32)[None, :])
    return tl.where((b_bits >> 8).to(tl.float32) >= dropout * 16777216, 1 / (1 - dropout), 0.0)


@triton.jit(do_not_specialize=["tokens", "sequences", "bisections", "seed", "dropout"])
def _turn_kernel(
    p_x, p_residual, p_out, p_mean, p_rstd, p_offsets, tokens, sequences, bisections, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, FROM: tl.constexpr, TO: tl.constexpr, REVERSE: tl.constexpr,
    NORM: tl.constexpr, DROP: tl.constexpr, RESIDUAL: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    TAIL: tl.constexpr,
):  # fmt: skip
    """FROM and TO: numbers of a row that is read or written, C of them channels; the residual has C."""
    o_token = tl.program_id(0) * BT + tl.arange(0, BT)
    m_token = o_token < tokens
    o_token = tl.minimum(o_token, tokens - 1)
    start, length = locate(p_offsets, o_token, sequences, bisections)
    o_own = o_token.to(tl.int64)
    for track in range(C // S):
        o_channel = track * S + tl.arange(0, BS)
        mask = m_token[:, None] & (tl.arange(0, BS) < S)[None, :]
        o_row = start + turned(o_token - start, length, track, REVERSE)
        o_there = o_row.to(tl.int64)[:, None] * FROM + o_channel[None, :]
        b_x = tl.load(p_x + o_there, mask=mask, other=0.0)
        if NORM or DROP or RESIDUAL:
            b_x = b_x.to(tl.float32)
        if NORM:
            b_x = (b_x - tl.load(p_mean + o_row)[:, None]) * tl.load(p_rstd + o_row)[:, None]
        if DROP:  # the mask belongs to the places that the rotation writes, which in reverse are those it reads
            b_x = b_x * kept(seed, o_row if REVERSE else o_token, o_channel, dropout)
        if RESIDUAL:
            b_x += tl.load(p_residual + o_own[:, None] * C + o_channel[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(p_out + o_own[:, None] * TO + o_channel[None, :], b_x, mask=mask)
    if TO > C:
        o_tail = C + tl.arange(0, TAIL)
        b_tail = tl.where(o_tail == C, 1.0, 0.0)[None, :] + tl.zeros((BT, 1), tl.float32)
        tl.store(
            p_out + o_own[:, None] * TO + o_tail[None, :], b_tail, mask=m_token[:, None] & (o_tail < TO)[None, :]
        )


def turn(
    values: Tensor,
    offsets: Tensor,
    track_size: int,
    *,
    reverse: bool = False,
    chance: tuple[int, float] = (0, 0.0),
    statistics: tuple[Tensor, Tensor] | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    width: int = 0,
) -> Tensor:
    """`reference.rotate` of contiguous tokens, fused with optional norm, dropout and residual in one pass.

    `statistics`, mean and inverse standard deviation of the rows, normalise the tokens first; `chance` is the seed
    and share of dropout; the residual is added last. In reverse, with the same chance, it is the adjoint of rotation
    with dropout. Rows of `values` may be longer than those of `out`; with a `width`, output rows have that many
    numbers: the channels, a one, and zeros.
    """
    tokens, channels = values.shape
    if out is None:
        out = values.new_empty(tokens, width or channels)
    else:
        channels = out.shape[1]
    block = triton.next_power_of_2(track_size)
    tile = max(1, 512 // block)  # of 16 to 128 tokens on an H200 the fewest are the fastest, by up to a third
    _turn_kernel[(cdiv(tokens, tile),)](
        values, values if residual is None else residual, out, *(statistics or (values, values)), offsets,
        tokens, *bisected(offsets), *chance,
        C=channels, S=track_size, FROM=values.shape[1], TO=out.shape[1], REVERSE=reverse,
        NORM=statistics is not None, DROP=chance[1] > 0, RESIDUAL=residual is not None, BT=tile, BS=block,
        TAIL=triton.next_power_of_2(max(1, out.shape[1] - channels)),
    )  # fmt: skip
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, track_size: int, reverse: bool) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.track_size, ctx.reverse = track_size, reverse
        return turn(values.contiguous(), offsets, track_size, reverse=reverse)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (offsets,) = ctx.saved_tensors
        return rotate(gradient, offsets, ctx.track_size, not ctx.reverse), None, None, None


def rotate(values: Tensor, offsets: Tensor, track_size: int, reverse: bool = False) -> Tensor:
    """`reference.rotate`."""
    rotated: Tensor = _Rotate.apply(values, offsets, track_size, reverse)
    return rotated


def bisected(offsets: Tensor) -> tuple[int, int]:
    """The number of sequences, and the number of bisection steps to find one of them."""
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
    """Sum each range of rows into one row."""
    out = torch.empty(len(begin), values.shape[1], device=values.device)
    _sum_rows_kernel[(len(begin), cdiv(values.shape[1], 64))](
        values, begin, end, out, C=values.shape[1], BT=64, BC=64
    )
    return out


class _TritonSegmentSum(torch.autograd.Function):
    """Sums by sequence in float32, first over chunks counted from its start, then over its chunks.

    The number of chunks is known on the device only, so the number of ranges is an upper bound; the last ones are
    empty.
    """

    CHUNK = 1024

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.kind, ctx.tokens, chunk = values.dtype, len(values), _TritonSegmentSum.CHUNK
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
    means: Tensor = _TritonSegmentSum.apply(values, offsets) / offsets.diff()[:, None]
    return means
