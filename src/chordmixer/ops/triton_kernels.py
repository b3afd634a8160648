"""Triton: the whole block in one pass forward, two backward. `ops/README.md` derives them and counts their bytes.

`triton_fused.py` launches them.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
Tokens are counted in 32 bits, addresses in 64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from chordmixer.ops.triton_rows import kept
from chordmixer.ops.triton_tiles import (
    below,
    gaussian,
    hidden_before,
    pointers,
    product_plus,
    tile_of,
    weights_at,
)

RUNTIME = ["tokens", "sequences", "bisections", "share", "seed", "dropout", "eps"]
"""Numbers that change from batch to batch: a kernel is not compiled anew for each."""

# --- Forward ----------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def forward_kernel(
    p_x, p_residual, p_out, p_w1, p_b1, p_w2, p_b2, p_mean, p_rstd, p_next_mean, p_next_rstd, p_offsets,
    p_counts, tokens, channels, sequences, bisections, seed, dropout, eps,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr,
    NEXT: tl.constexpr, DROP_IN: tl.constexpr, DROP_OUT: tl.constexpr, EXACT: tl.constexpr, PTX: tl.constexpr,
    LONG: tl.constexpr, COUNTED: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    if COUNTED:  # a CUDA graph: what changes from batch to batch is on the device
        tokens, sequences, seed = tl.load(p_counts), tl.load(p_counts + 1), tl.load(p_counts + 2)
    first, o_local, m_token, start, length = tile_of(p_offsets, tokens, sequences, bisections, LONG, BT)
    b_hidden = hidden_before(
        p_x, p_w1, p_b1, p_mean, p_rstd, first, o_local, start, length, channels, seed, dropout,
        C, S, H, IN, NORM, DROP_IN, BK, BT, BH, PRECISION,
    )  # fmt: skip
    b_cdf, _ = gaussian(b_hidden, EXACT, PTX)
    b_hidden = (b_hidden * b_cdf).to(p_x.dtype.element_ty)
    b_sum, b_squares = tl.zeros((BT,), tl.float32), tl.zeros((BT,), tl.float32)
    for channel in range(0, channels, BN):
        o_channel = channel + tl.arange(0, BN)
        m_channel = below(o_channel, C, BN)
        p_tile = pointers(p_residual, first, o_local, start, length, channel, C, S, BN, OUT)
        b_residual = tl.load(p_tile, mask=m_channel[None, :], other=0.0)
        b_w2 = tl.trans(weights_at(p_w2, channel, 0, C, H, BN, BH))
        b_bias = tl.load(p_b2 + o_channel, mask=m_channel, other=0.0)[None, :]
        if DROP_OUT:
            b_mixed = tl.dot(b_hidden, b_w2, input_precision=PRECISION) + b_bias
            b_mixed = b_mixed * kept(seed, first + o_local, o_channel, dropout) + b_residual
        else:
            b_mixed = product_plus(b_hidden, b_w2, b_residual, EXACT, BN, PRECISION) + b_bias
        p_tile = pointers(p_out, first, o_local, start, length, channel, C, S, BN, OUT)
        tl.store(p_tile, b_mixed, mask=m_token[:, None] & m_channel[None, :])
        if NEXT:  # what is beyond the last channel is zero
            b_sum += tl.sum(b_mixed, axis=1)
            b_squares += tl.sum(b_mixed * b_mixed, axis=1)
    if NEXT:
        b_mean = b_sum / C
        b_rstd = 1 / tl.sqrt(tl.maximum(b_squares / C - b_mean * b_mean, 0.0) + eps)
        tl.store(p_next_mean + first + o_local, b_mean, mask=m_token)
        tl.store(p_next_rstd + first + o_local, b_rstd, mask=m_token)


# --- Backward, first pass: gradients of the tokens ----------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def backward_kernel(
    p_x, p_gradient, p_out, p_hidden, p_dhidden, p_places, p_w1, p_b1, p_w2, p_db1, p_mean, p_rstd, p_offsets,
    p_counts, tokens, channels, sequences, bisections, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr,
    DROP_IN: tl.constexpr, DROP_OUT: tl.constexpr, RESIDUAL: tl.constexpr, EXACT: tl.constexpr, PTX: tl.constexpr,
    LONG: tl.constexpr, COUNTED: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr,
    BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    if COUNTED:  # a CUDA graph: what changes from batch to batch is on the device
        tokens, sequences, seed = tl.load(p_counts), tl.load(p_counts + 1), tl.load(p_counts + 2)
    first, o_local, m_token, start, length = tile_of(p_offsets, tokens, sequences, bisections, LONG, BT)
    p_place = p_places + tl.cast(first, tl.int64) * 2 + o_local * 2
    tl.store(p_place, start, mask=m_token)
    tl.store(p_place + 1, length, mask=m_token)
    o_hidden = tl.arange(0, BH)
    m_hidden = below(o_hidden, H, BH)
    kind = p_x.dtype.element_ty

    b_before = hidden_before(
        p_x, p_w1, p_b1, p_mean, p_rstd, first, o_local, start, length, channels, seed, dropout,
        C, S, H, IN, NORM, DROP_IN, BK, BT, BH, PRECISION,
    )  # fmt: skip
    b_cdf, b_density = gaussian(b_before, EXACT, PTX)
    m_kept = m_token[:, None] & m_hidden[None, :]
    o_first = tl.cast(first, tl.int64) * H
    o_kept = o_local[:, None] * H + o_hidden[None, :]
    tl.store(p_hidden + o_first + o_kept, b_before * b_cdf, mask=m_kept)
    b_slope = (b_cdf + b_before * b_density).to(kind)

    b_dhidden = tl.zeros((BT, BH), tl.float32)
    for channel in range(0, channels, BN):
        o_channel = channel + tl.arange(0, BN)
        m_channel = below(o_channel, C, BN)
        p_tile = pointers(p_gradient, first, o_local, start, length, channel, C, S, BN, OUT)
        b_dy = tl.load(p_tile, mask=m_channel[None, :], other=0.0)
        if DROP_OUT:
            b_dy = (b_dy * kept(seed, first + o_local, o_channel, dropout)).to(kind)
        b_w2 = weights_at(p_w2, channel, 0, C, H, BN, BH)
        b_dhidden = tl.dot(b_dy, b_w2, b_dhidden, input_precision=PRECISION)
    b_dhidden = tl.where(m_token[:, None], b_dhidden * b_slope.to(tl.float32), 0.0)
    tl.store(p_db1 + tl.program_id(0).to(tl.int64) * H + o_hidden, tl.sum(b_dhidden, axis=0), mask=m_hidden)
    b_dbefore = b_dhidden.to(kind)
    tl.store(p_dhidden + o_first + o_kept, b_dbefore, mask=m_kept)

    zero = tl.program_id(1)  # Triton 3.6 mixes up the loops' addresses where it knows parts of them to be equal
    start, length = start + zero, length + zero
    for channel in range(0, channels, BK):
        o_channel = channel + tl.arange(0, BK)
        m_channel = below(o_channel, C, BK)
        b_w1 = weights_at(p_w1, 0, channel, H, C, BH, BK)
        if RESIDUAL:
            p_tile = pointers(p_gradient, first, o_local, start, length, channel, C, S, BK, IN)
            b_residual = tl.load(p_tile, mask=m_channel[None, :], other=0.0)
        if RESIDUAL and not DROP_IN:
            b_dx = product_plus(b_dbefore, b_w1, b_residual, EXACT, BK, PRECISION)
        else:
            b_dx = tl.dot(b_dbefore, b_w1, input_precision=PRECISION)
            if DROP_IN:
                b_dx *= kept(seed, first + o_local, o_channel, dropout)
            if RESIDUAL:
                b_dx += b_residual
        p_tile = pointers(p_out, first, o_local, start, length, channel, C, S, BK, IN)
        tl.store(p_tile, b_dx, mask=m_token[:, None] & m_channel[None, :])


# --- Backward, second pass: gradients of the weights --------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def weights_kernel(
    p_x, p_gradient, p_hidden, p_dhidden, p_places, p_dw1, p_dw2, p_db2, p_counts, tokens, share, stride, seed,
    dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    DROP_IN: tl.constexpr, DROP_OUT: tl.constexpr, COUNTED: tl.constexpr,
    BC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (c, h, s): hidden units h times rotated channels c, summed over the tokens of share s."""
    if COUNTED:
        tokens, seed = tl.load(p_counts), tl.load(p_counts + 2)
    channel, i_share = tl.program_id(0) * BC, tl.program_id(2)
    o_channel = channel + tl.arange(0, BC)
    o_hidden = tl.program_id(1) * BH + tl.arange(0, BH)
    m_hidden = below(o_hidden, H, BH)
    b_dw1, b_dw2 = tl.zeros((BH, BC), tl.float32), tl.zeros((BH, BC), tl.float32)
    b_db2 = tl.zeros((16, BC), tl.float32)
    kind = p_x.dtype.element_ty
    end = tl.minimum((i_share + 1) * share, tokens)
    for first in range(i_share * share, end, BT):
        o_local = tl.minimum(tl.arange(0, BT), end - 1 - first)
        m_token = first + tl.arange(0, BT) < end
        p_place = p_places + tl.cast(first, tl.int64) * 2 + o_local * 2
        start, length = tl.load(p_place), tl.load(p_place + 1)
        o_unit = tl.cast(first, tl.int64) * H + o_local[:, None] * H + o_hidden[None, :]
        m_unit = m_token[:, None] & m_hidden[None, :]  # what is zero here adds nothing, whatever the tokens hold

        m_channel = below(o_channel, C, BC)
        p_tile = pointers(p_x, first, o_local, start, length, channel, C, S, BC, IN)
        b_x = tl.load(p_tile, mask=m_channel[None, :], other=0.0)
        if DROP_IN:
            b_x = (b_x * kept(seed, first + o_local, o_channel, dropout)).to(kind)
        b_dhidden = tl.load(p_dhidden + o_unit, mask=m_unit, other=0.0)
        b_dw1 = tl.dot(tl.trans(b_dhidden), b_x, b_dw1, input_precision=PRECISION)

        p_tile = pointers(p_gradient, first, o_local, start, length, channel, C, S, BC, OUT)
        b_dy = tl.load(p_tile, mask=m_token[:, None] & m_channel[None, :], other=0.0)
        if DROP_OUT:
            b_dy = (b_dy * kept(seed, first + o_local, o_channel, dropout)).to(kind)
        b_hidden = tl.load(p_hidden + o_unit, mask=m_unit, other=0.0)
        b_dw2 = tl.dot(tl.trans(b_hidden), b_dy, b_dw2, input_precision=PRECISION)
        b_db2 += tl.sum(tl.reshape(b_dy, (BT // 16, 16, BC)).to(tl.float32), axis=0)  # no thread needs another's
    o_share = i_share.to(tl.int64) * stride
    m_out = m_hidden[:, None] & (o_channel < C)[None, :]
    tl.store(p_dw1 + o_share + o_hidden[:, None] * C + o_channel[None, :], b_dw1, mask=m_out)
    tl.store(p_dw2 + o_share + o_channel[None, :] * H + o_hidden[:, None], b_dw2, mask=m_out)
    if tl.program_id(1) == 0:
        tl.store(p_db2 + o_share + o_channel, tl.sum(b_db2, axis=0), mask=o_channel < C)
