"""Triton: functions that the kernels of a block share: tiles, pointers through Rotate, and the hidden layer.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chordmixer.ops.triton_rows import kept, locate, turned


@triton.jit
def tile_of(p_offsets, tokens, sequences, bisections, LONG: tl.constexpr, BT: tl.constexpr):
    """This program's first token, the others by their distance to it, which exist, and their sequences' bounds.

    Where sequences are LONG a tile that several share is cut at their borders: program p = k + i has the tokens of
    sequence i in tile k, and one start and one length, of shape (1,), serve them all.
    """
    if LONG:
        low, high = 0, sequences
        for _ in range(bisections):
            middle = (low + high) // 2
            right = tl.load(p_offsets + middle) // BT + middle <= tl.program_id(0)
            low, high = tl.where(right, middle, low), tl.where(right, high, middle)
        i_tile = tl.program_id(0) - low
        begin, end = tl.load(p_offsets + low).to(tl.int32), tl.load(p_offsets + low + 1).to(tl.int32)
        first, last = tl.maximum(i_tile * BT, begin), tl.minimum((i_tile + 1) * BT, end)
        m_token = first + tl.arange(0, BT) < last
        first = tl.minimum(first, end - 1)  # a tile may begin where its sequence ends, and then has no token
        start, length = tl.full((1,), begin, tl.int32), tl.full((1,), end - begin, tl.int32)
        o_local = tl.minimum(tl.arange(0, BT), end - 1 - first)
    else:
        first = tl.program_id(0) * BT
        o_local = tl.minimum(tl.arange(0, BT), tokens - 1 - first)
        m_token = first + tl.arange(0, BT) < tokens
        start, length = locate(p_offsets, first + o_local, sequences, bisections)
    return first, o_local, m_token, start, length


@triton.jit
def _rows(o_token, start, length, channel, o_channel, S: tl.constexpr, B: tl.constexpr, BACK: tl.constexpr):
    """The tokens that B channels from `channel` on are read from, or, BACK, are read by."""
    o_position = o_token - start
    if S % B == 0:  # one track
        o_row = (start + turned(o_position, length, channel // S, BACK))[:, None]
    else:
        o_row = start[:, None] + turned(o_position[:, None], length[:, None], o_channel[None, :] // S, BACK)
    return o_row


@triton.jit
def pointers(
    p_x, first, o_local, start, length, channel,
    C: tl.constexpr, S: tl.constexpr, B: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """To B channels of a tile's tokens: TURN 0 at their own places, 1 rotated, -1 rotated back."""
    o_channel = channel + tl.arange(0, B)
    if TURN == 0:  # one address for the tile, and small distances
        p_tile = p_x + tl.cast(first, tl.int64) * C + o_local[:, None] * C + o_channel[None, :]
    else:
        o_row = _rows(first + o_local, start, length, channel, o_channel, S, B, TURN == -1)
        p_tile = p_x + o_row.to(tl.int64) * C + o_channel[None, :]
    return p_tile


@triton.jit
def below(o_index, SIZE: tl.constexpr, B: tl.constexpr):
    """Which of the indices exist; where chunks of B fill the size all do, and the compiler drops the mask."""
    return (o_index < SIZE) | (SIZE % B == 0)


@triton.jit
def weights_at(p_w, row, column, R: tl.constexpr, K: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr):
    """A block of a weight matrix of shape (R, K), zero beyond its edges."""
    o_row, o_column = row + tl.arange(0, BR), column + tl.arange(0, BK)
    mask = below(o_row, R, BR)[:, None] & below(o_column, K, BK)[None, :]
    return tl.load(p_w + o_row[:, None] * K + o_column[None, :], mask=mask, other=0.0)


@triton.jit
def hidden_before(
    p_x, p_w1, p_b1, p_mean, p_rstd, first, o_local, start, length, channels, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr, DROP: tl.constexpr,
    BK: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The hidden layer before its GELU, in float32: rotated tokens times W1."""
    o_hidden = tl.arange(0, BH)
    m_hidden = below(o_hidden, H, BH)
    b_hidden = tl.zeros((BT, BH), tl.float32) + tl.load(p_b1 + o_hidden, mask=m_hidden, other=0.0)[None, :]
    for channel in range(0, channels, BK):
        o_channel = channel + tl.arange(0, BK)
        m_channel = below(o_channel, C, BK)
        p_tile = pointers(p_x, first, o_local, start, length, channel, C, S, BK, TURN)
        b_x = tl.load(p_tile, mask=m_channel[None, :], other=0.0)
        b_w1 = tl.trans(weights_at(p_w1, 0, channel, H, C, BH, BK))
        if NORM:
            b_x = _normal(b_x, p_mean, p_rstd, first + o_local, start, length, channel, S, BT, BK, TURN)
        if DROP:
            b_x = (b_x * kept(seed, first + o_local, o_channel, dropout)).to(b_w1.dtype)
        b_hidden = tl.dot(b_x, b_w1, b_hidden, input_precision=PRECISION)
    return b_hidden


@triton.jit
def _normal(
    b_x, p_mean, p_rstd, o_token, start, length, channel,
    S: tl.constexpr, BT: tl.constexpr, B: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Layer norm, with the statistics of the tokens that the channels come from: two numbers a token and track."""
    TRACK: tl.constexpr = S if B % S == 0 and S & (S - 1) == 0 else 1  # channels that certainly share a token
    R: tl.constexpr = 1 if TURN == 0 or S % B == 0 else B // TRACK
    if TURN == 0:
        o_row = o_token[:, None]
    else:
        o_channel = channel + tl.arange(0, R) * TRACK
        o_row = start[:, None] + turned(
            (o_token - start)[:, None], length[:, None], o_channel[None, :] // S, TURN == -1
        )
    b_mean, b_rstd = tl.load(p_mean + o_row), tl.load(p_rstd + o_row)
    if R > 1:
        b_mean = tl.reshape(tl.broadcast_to(b_mean[:, :, None], (BT, R, B // R)), (BT, B))
        b_rstd = tl.reshape(tl.broadcast_to(b_rstd[:, :, None], (BT, R, B // R)), (BT, B))
    return ((b_x.to(tl.float32) - b_mean) * b_rstd).to(b_x.dtype)


@triton.jit
def product_plus(b_left, b_right, b_residual, EXACT: tl.constexpr, B: tl.constexpr, PRECISION: tl.constexpr):
    """left @ right + residual.

    In 16 bits the residual comes through the matrix units, as residual @ identity: it is then loaded ahead of its
    turn like any factor, and never passes through registers.
    """
    if EXACT:
        b_sum = tl.dot(b_left, b_right, input_precision=PRECISION) + b_residual
    else:
        b_one = (tl.arange(0, B)[:, None] == tl.arange(0, B)[None, :]).to(b_residual.dtype)
        b_sum = tl.dot(b_left, b_right, tl.dot(b_residual, b_one))
    return b_sum


@triton.jit
def _exp2(b_x, PTX: tl.constexpr):
    if PTX:
        b_y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=r,r", [b_x], tl.float32, True, 1)
    else:
        b_y = tl.exp2(b_x)
    return b_y


@triton.jit
def _inverse(b_x, PTX: tl.constexpr):
    if PTX:
        b_y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [b_x], tl.float32, True, 1)
    else:
        b_y = 1 / b_x
    return b_y


@triton.jit
def gaussian(b_x, EXACT: tl.constexpr, PTX: tl.constexpr):
    """The normal distribution function and its density.

    In 16 bits the first is 1 / (1 + exp(-x q(x^2))) with q fitted so that x times it errs by 2.5e-5 at most.
    """
    b_square = b_x * b_x
    if EXACT:
        b_cdf = 0.5 + 0.5 * tl.erf(b_x * 0.7071067811865476)
        b_density = 0.3989422804014327 * tl.exp(-0.5 * b_square)
    else:
        b_inner = tl.minimum(b_square, 60.0)  # beyond, the polynomial turns round
        b_slope = -2.3011214 + b_inner * (-0.10677572 + b_inner * 0.0010142631)
        b_cdf = _inverse(1 + _exp2(b_x * b_slope, PTX), PTX)
        b_density = 0.3989422804014327 * _exp2(-0.7213475204444817 * b_square, PTX)
    return b_cdf, b_density
