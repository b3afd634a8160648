"""Persistent kernels of a block that keep its weights in shared memory: verify then time them.

PYTHONPATH=src python benchmarks/persistent.py --out results.json

An experiment in Triton's Gluon (3.6) for Hopper GPUs, bfloat16 and 128 hidden units; the package does not use these
kernels. A program keeps both weight matrices and takes one tile of 128 tokens after the other. A thread has two
tokens of a tile, and eight channels in a row of each chunk of 32: rotated tokens, residuals and outputs move in 16
bytes per thread, nothing but the weights is in shared memory, and no warp waits for another. The matrix units want
the channels of a chunk in another order, so the weights are stored in that order.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index, `s_` shared memory.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from chordmixer.ops import triton_fused, triton_norms, triton_plan
from kernels import CASES, Case, copy_bandwidth, milliseconds

BT, WARPS = 128, 8
"""Tokens of a tile, and warps of a program, 16 tokens each."""

# --- Layouts and tokens --------------------------------------------------------------------------------------

TILE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0], [64, 0]],
        [],
        [128, 32],
    )
)
"""A chunk of a tile: two tokens and eight channels a thread."""
UNITS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0], [64, 0]],
        [],
        [128, 128],
    )
)
"""The hidden layer of a tile, 128 units, likewise."""
CUBE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [8, 0, 0]],
        [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0], [64, 0, 0]],
        [],
        [128, 4, 8],
    )
)
"""The same with the groups of eight channels apart."""
SQUARE = gl.constexpr(gl.SliceLayout(2, CUBE.value))
"""A number for each token and group."""
ROWS = gl.constexpr(gl.SliceLayout(1, SQUARE.value))
GROUPS = gl.constexpr(gl.SliceLayout(0, SQUARE.value))
PARTS = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(1, CUBE.value)))
COLUMNS = gl.constexpr(gl.SliceLayout(0, TILE.value))
TOKENS = gl.constexpr(gl.SliceLayout(1, TILE.value))
LINES = gl.constexpr(gl.BlockedLayout([1], [32], [8], [0]))


@gluon.jit
def _spread(b_numbers):
    """A number for each token and group, repeated for the group's eight channels."""
    b_cube = gl.expand_dims(b_numbers, 2) + gl.full([128, 4, 8], 0, b_numbers.dtype, CUBE)
    return gl.convert_layout(b_cube.reshape([128, 32]), TILE)


@gluon.jit
def _tokens_at(p_places, i_tile, tokens):
    """Start, length and position of a tile's tokens; those behind the last one repeat it."""
    o_token = gl.minimum(i_tile * 128 + gl.arange(0, 128, ROWS), tokens - 1)
    start, length = gl.load(p_places + o_token * 2)[:, None], gl.load(p_places + o_token * 2 + 1)[:, None]
    return start, length, o_token[:, None] - start


@gluon.jit
def _step(step, length, CHUNK: gl.constexpr, S: gl.constexpr):
    """How far the tracks of a chunk are rotated, modulo the length; computed from the chunk before where possible."""
    o_track = (CHUNK * 32 + 8 * gl.arange(0, 4, GROUPS)[None, :]) // S
    if CHUNK * 32 < S + 32:
        step = gl.where(o_track == 0, 0, 1 << gl.maximum(o_track - 1, 0)) % length
    elif CHUNK * 32 % S == 0:
        for _ in gl.static_range(32 // S if S <= 32 else 1):
            step = 2 * step
            step = gl.where(step >= length, step - length, step)
    return step


@gluon.jit
def _turned(start, length, position, step):
    there = position + step
    return start + gl.where(there >= length, there - length, there)


@gluon.jit
def _at(o_row, CHUNK: gl.constexpr, C: gl.constexpr):
    """Offsets of eight channels of each token and group; beyond the last channel they repeat it."""
    o_group = gl.minimum(CHUNK * 4 + gl.arange(0, 4, GROUPS)[None, :], C // 8 - 1)
    return o_row.to(gl.int64) * C + o_group * 8


@gluon.jit
def _pointers(p_group):
    p_all = gl.expand_dims(p_group, 2) + gl.arange(0, 8, PARTS)[None, None, :]
    p_all = gl.convert_layout(p_all.reshape([128, 32]), TILE)
    return gl.max_contiguous(gl.multiple_of(p_all, [1, 16]), [1, 8])


@gluon.jit
def _fetch(p_line):
    """Ask for lines of memory to be brought to the L2 cache."""
    gl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [p_line], gl.int32, False, 1)


@gluon.jit
def _fetch_tile(p_tile, rows, C: gl.constexpr):
    """The same for a tile's own tokens, of which `rows` exist."""
    o_line = gl.arange(0, 1024, LINES) * 64
    _fetch(p_tile + gl.minimum(o_line, gl.minimum(rows, 128) * C - 8))


@gluon.jit
def _placed(b_natural, N: gl.constexpr, LEFT: gl.constexpr):
    """A left factor with N columns in the order of the matrix units; of each 32 a thread has eight in a row.

    Column 8q + 4a + 2b + c is at place 16a + 8b + 2q + c.
    """
    b_placed = b_natural.reshape([128, N // 32, 4, 2, 2, 2]).permute([0, 1, 3, 4, 2, 5]).reshape([128, N])
    return gl.convert_layout(b_placed, LEFT)


@gluon.jit
def _natural(b_product, N: gl.constexpr):
    """The inverse, for a product with N columns."""
    b_product = b_product.reshape([128, N // 32, 2, 2, 4, 2]).permute([0, 1, 4, 2, 3, 5]).reshape([128, N])
    return gl.convert_layout(b_product, TILE if N == 32 else UNITS)


@gluon.jit
def _stored_order(o_place):
    """The channel or unit that is stored at a place: each 32 of them are in the order of the matrix units."""
    return o_place // 32 * 32 + o_place % 8 // 2 * 8 + o_place % 32 // 8 * 2 + o_place % 2


@gluon.jit
def _unknown_zero(i_tile):
    """Zero, which the compiler cannot know: it would otherwise keep an address for each chunk in registers."""
    return gl.inline_asm_elementwise("mov.u32 $0, 0;", "=r,r", [i_tile], gl.int32, False, 1)


@gluon.jit
def _keep_weights(p_w1, p_w2, s_w1, s_w2, C: gl.constexpr, H: gl.constexpr):
    """Copy the weights to shared memory, with channels and units in the stored order."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 2], [2, 16], [8, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    COLUMN: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    o_unit, o_column = _stored_order(gl.arange(0, H, ROW)), _stored_order(gl.arange(0, 32, COLUMN))
    o_row, o_hidden = _stored_order(gl.arange(0, 32, ROW)), _stored_order(gl.arange(0, H, COLUMN))
    for c in gl.static_range((C + 31) // 32):
        m_column, m_row = c * 32 + o_column < C, c * 32 + o_row < C
        b_w1 = gl.load(p_w1 + o_unit[:, None] * C + (c * 32 + o_column)[None, :], mask=m_column[None, :], other=0.0)
        b_w2 = gl.load(p_w2 + (c * 32 + o_row)[:, None] * H + o_hidden[None, :], mask=m_row[:, None], other=0.0)
        s_w1.index(c).store(b_w1)
        s_w2.index(c).store(b_w2)
    fence_async_shared()
    gl.thread_barrier()


# --- Numbers -------------------------------------------------------------------------------------------------


@gluon.jit
def _gaussian(b_x):
    """`triton_tiles.gaussian` in 16 bits: the normal distribution function and its density."""
    b_square = b_x * b_x
    b_inner = gl.minimum(b_square, 60.0)
    b_slope = -2.3011214 + b_inner * (-0.10677572 + b_inner * 0.0010142631)
    b_cdf = _inverse(1 + _exp2(b_x * b_slope))
    return b_cdf, 0.3989422804014327 * _exp2(-0.7213475204444817 * b_square)


@gluon.jit
def _exp2(b_x):
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=r,r", [b_x], gl.float32, True, 1)


@gluon.jit
def _inverse(b_x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [b_x], gl.float32, True, 1)


@gluon.jit
def _scattered(b_bits):
    b_bits = (b_bits ^ (b_bits >> 16)) * 0x7FEB352D
    b_bits = (b_bits ^ (b_bits >> 15)) * 0x846CA68B
    return b_bits ^ (b_bits >> 16)


@gluon.jit
def _kept(seed, o_token, CHUNK: gl.constexpr, dropout):
    """`triton_rows.kept`: dropout's factors of a chunk."""
    b_row = _scattered(o_token.to(gl.uint32) ^ _scattered(seed.to(gl.uint32)))
    o_channel = (CHUNK * 32 + gl.arange(0, 32, COLUMNS)).to(gl.uint32)
    b_bits = _scattered(b_row[:, None] + o_channel[None, :])
    return gl.where((b_bits >> 8).to(gl.float32) >= dropout * 16777216, 1 / (1 - dropout), 0.0)


@gluon.jit
def _read(
    p_x, p_mean, p_rstd, start, length, position, step, CHUNK: gl.constexpr, C: gl.constexpr, NORM: gl.constexpr
):
    """A chunk of rotated tokens and, for a layer norm, the statistics of where they come from."""
    o_there = _turned(start, length, position, step)
    b_chunk = (gl.load(_pointers(p_x + _at(o_there, CHUNK, C)), cache_modifier=".cg"),)
    if NORM:
        b_chunk = b_chunk + (gl.load(p_mean + o_there), gl.load(p_rstd + o_there))
    return b_chunk


@gluon.jit
def _factor(b_chunk, seed, o_token, dropout, CHUNK: gl.constexpr, NORM: gl.constexpr, DROP: gl.constexpr):
    """The chunk as the first product takes it: normalised, and with dropout."""
    b_x = b_chunk[0]
    if NORM:
        b_x = ((b_x.to(gl.float32) - _spread(b_chunk[1])) * _spread(b_chunk[2])).to(b_chunk[0].dtype)
    if DROP:
        b_x = (b_x.to(gl.float32) * _kept(seed, o_token, CHUNK, dropout)).to(b_chunk[0].dtype)
    return b_x


@gluon.jit
def _first_chunks(
    p_x, p_mean, p_rstd, start, length, position, C: gl.constexpr, S: gl.constexpr, NORM: gl.constexpr,
    AHEAD: gl.constexpr,
):  # fmt: skip
    """The first chunks of a tile's rotated tokens, and the rotation of the last one of them."""
    step = gl.full([128, 4], 0, gl.int32, SQUARE)
    b_ahead = ()
    for c in gl.static_range(AHEAD):
        step = _step(step, length, c, S)
        b_ahead = b_ahead + (_read(p_x, p_mean, p_rstd, start, length, position, step, c, C, NORM),)
    return step, b_ahead


@gluon.jit
def _hidden_before(
    p_x, p_mean, p_rstd, p_bias, p_fetched, s_w1, start, length, position, step, b_ahead, o_token, seed, dropout,
    zero,
    C: gl.constexpr, S: gl.constexpr, H: gl.constexpr, NORM: gl.constexpr, DROP: gl.constexpr, AHEAD: gl.constexpr,
    FETCHED: gl.constexpr,
):  # fmt: skip
    """The hidden layer before its GELU; with FETCHED the same places of another tensor are brought to L2."""
    NC: gl.constexpr = (C + 31) // 32
    FIRST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, H, 16])
    b_hidden = gl.full([128, H], 0.0, gl.float32, FIRST)
    b_used = ()
    for c in gl.static_range(NC):
        b_x = _factor(b_ahead[0], seed, o_token, dropout, c, NORM, DROP)
        b_x = _placed(b_x, 32, gl.DotOperandLayout(0, FIRST, 2))
        b_hidden = warpgroup_mma(b_x, s_w1.index(c + zero).permute((1, 0)), b_hidden, is_async=True)
        b_ahead = b_ahead[1:]
        if c + AHEAD < NC:
            step = _step(step, length, c + AHEAD, S)
            b_ahead = b_ahead + (_read(p_x, p_mean, p_rstd, start, length, position, step, c + AHEAD, C, NORM),)
            if FETCHED:
                _fetch(p_fetched + _at(_turned(start, length, position, step), c + AHEAD, C))
        if c:
            b_hidden = warpgroup_mma_wait(1, deps=[b_hidden, b_used[0]])[0]
        b_used = (b_x,)
    b_hidden = warpgroup_mma_wait(0, deps=[b_hidden, b_used[0]])[0]
    b_bias = gl.load(p_bias + zero * 4 + gl.arange(0, H, gl.SliceLayout(0, UNITS)))
    return _natural(b_hidden, H) + b_bias[None, :], step


# --- Forward -------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["tokens", "seed", "dropout", "eps"])
def forward_kernel(
    p_x, p_residual, p_out, p_w1, p_b1, p_w2, p_b2, p_mean, p_rstd, p_next_mean, p_next_rstd, p_places, tokens, seed,
    dropout, eps,
    C: gl.constexpr, S: gl.constexpr, H: gl.constexpr, NORM: gl.constexpr, NEXT: gl.constexpr, DROP: gl.constexpr,
    AHEAD: gl.constexpr, FETCH: gl.constexpr,
):  # fmt: skip
    """AHEAD: chunks of rotated tokens that are loaded ahead; FETCH: what is brought to L2 before, 1 the residual, 2
    rotated tokens, 3 both."""
    NC: gl.constexpr = (C + 31) // 32
    SECOND: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 32, 16])
    kind: gl.constexpr = p_x.dtype.element_ty
    s_w1 = gl.allocate_shared_memory(kind, [NC, H, 32], gl.NVMMASharedLayout(64, 16, 2))
    s_w2 = gl.allocate_shared_memory(kind, [NC, 32, H], gl.NVMMASharedLayout(128, 16, 2))
    _keep_weights(p_w1, p_w2, s_w1, s_w2, C, H)

    tiles, programs = gl.cdiv(tokens, 128), gl.num_programs(0)
    start, length, position = _tokens_at(p_places, gl.program_id(0), tokens)
    step, b_ahead = _first_chunks(p_x, p_mean, p_rstd, start, length, position, C, S, NORM, AHEAD)
    o_channel, o_local = gl.arange(0, 32, COLUMNS), gl.arange(0, 128, TOKENS)
    o_place = o_local[:, None] * C + o_channel[None, :]
    for i_tile in range(gl.program_id(0), tiles, programs):
        zero = _unknown_zero(i_tile)
        o_first = i_tile.to(gl.int64) * (128 * C) + zero * 8
        p_own, p_mixed = p_residual + o_first, p_out + o_first
        o_token = i_tile * 128 + o_local
        m_token = (o_token < tokens)[:, None]
        next_tile = gl.minimum(i_tile + programs, tiles - 1)
        next_start, next_length, next_position = _tokens_at(p_places, next_tile, tokens)
        if FETCH % 2:
            _fetch_tile(p_own, tokens - i_tile * 128, C)
        b_hidden, step = _hidden_before(
            p_x, p_mean, p_rstd, p_b1, p_x, s_w1, start, length, position, step, b_ahead, o_token, seed, dropout,
            zero, C, S, H, NORM, DROP, AHEAD, False,
        )  # fmt: skip
        b_ahead = ()
        start, length, position = next_start, next_length, next_position
        b_own = ()
        for c in gl.static_range(3):
            mask = m_token & (c * 32 + o_channel < C)[None, :]
            b_own = b_own + (gl.load(p_own + o_place + c * 32, mask=mask, other=0.0, cache_modifier=".cg"),)
        b_cdf, _ = _gaussian(b_hidden)
        b_active = _placed((b_hidden * b_cdf).to(kind), H, gl.DotOperandLayout(0, SECOND, 2))
        b_none = gl.full([128, 32], 0.0, gl.float32, SECOND)
        b_following = warpgroup_mma(b_active, s_w2.index(zero).permute((1, 0)), b_none, use_acc=False, is_async=True)
        b_sum = gl.full([128, 4], 0.0, gl.float32, SQUARE)
        b_squares = b_sum
        for c in gl.static_range(NC):
            b_mixed = b_following
            step = _step(step, length, c, S)
            if c < AHEAD:
                b_ahead = b_ahead + (_read(p_x, p_mean, p_rstd, start, length, position, step, c, C, NORM),)
            elif FETCH > 1:
                _fetch(p_x + _at(_turned(start, length, position, step), c, C))
            if c == AHEAD - 1:
                loaded = step
            if c + 1 < NC:
                b_following = warpgroup_mma(
                    b_active, s_w2.index(c + 1 + zero).permute((1, 0)), b_none, use_acc=False, is_async=True
                )
                b_mixed = warpgroup_mma_wait(1, deps=[b_mixed])
            else:
                b_mixed = warpgroup_mma_wait(0, deps=[b_mixed])
            m_channel = c * 32 + o_channel < C
            b_bias = gl.load(p_b2 + zero * 4 + o_channel + c * 32, mask=m_channel, other=0.0)
            b_mixed = _natural(b_mixed, 32) + b_own[0].to(gl.float32) + b_bias[None, :]
            b_own = b_own[1:]
            if c + 3 < NC:
                m_own = m_token & (c * 32 + 96 + o_channel < C)[None, :]
                b_own = b_own + (
                    gl.load(p_own + o_place + (c * 32 + 96), mask=m_own, other=0.0, cache_modifier=".cg"),
                )
            if NEXT:
                b_cube = gl.convert_layout(b_mixed.reshape([128, 4, 8]), CUBE)
                b_sum += gl.sum(b_cube, axis=2)
                b_squares += gl.sum(b_cube * b_cube, axis=2)
            gl.store(p_mixed + o_place + c * 32, b_mixed.to(kind), mask=m_token & m_channel[None, :])
        step = loaded
        if NEXT:  # what is beyond the last channel is zero
            b_mean = gl.sum(b_sum, axis=1) / C
            b_variance = gl.sum(b_squares, axis=1) / C - b_mean * b_mean
            o_row = i_tile * 128 + gl.arange(0, 128, ROWS)
            gl.store(p_next_mean + o_row, b_mean, mask=o_row < tokens)
            gl.store(p_next_rstd + o_row, gl.rsqrt(gl.maximum(b_variance, 0.0) + eps), mask=o_row < tokens)


# --- Backward, first pass ------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["tokens", "seed", "dropout"])
def backward_kernel(
    p_x, p_gradient, p_out, p_hidden, p_dhidden, p_w1, p_b1, p_w2, p_db1, p_mean, p_rstd, p_places, tokens, seed,
    dropout,
    C: gl.constexpr, S: gl.constexpr, H: gl.constexpr, NORM: gl.constexpr, DROP: gl.constexpr,
    RESIDUAL: gl.constexpr, AHEAD: gl.constexpr, FETCH: gl.constexpr,
):  # fmt: skip
    """FETCH: what is brought to L2 before it is loaded, 1 a tile's own gradients, 2 rotated ones, 3 both."""
    NC: gl.constexpr = (C + 31) // 32
    FIRST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, H, 16])
    SECOND: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 32, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, FIRST, 2)
    kind: gl.constexpr = p_x.dtype.element_ty
    s_w1 = gl.allocate_shared_memory(kind, [NC, H, 32], gl.NVMMASharedLayout(64, 16, 2))
    s_w2 = gl.allocate_shared_memory(kind, [NC, 32, H], gl.NVMMASharedLayout(128, 16, 2))
    _keep_weights(p_w1, p_w2, s_w1, s_w2, C, H)

    tiles, programs = gl.cdiv(tokens, 128), gl.num_programs(0)
    start, length, position = _tokens_at(p_places, gl.program_id(0), tokens)
    step, b_ahead = _first_chunks(p_x, p_mean, p_rstd, start, length, position, C, S, NORM, AHEAD)
    o_channel, o_unit = gl.arange(0, 32, COLUMNS), gl.arange(0, H, gl.SliceLayout(0, UNITS))
    o_local, o_row = gl.arange(0, 128, TOKENS), gl.arange(0, 128, gl.SliceLayout(1, UNITS))
    o_place, o_kept = o_local[:, None] * C + o_channel[None, :], o_row[:, None] * H + o_unit[None, :]
    for i_tile in range(gl.program_id(0), tiles, programs):
        zero = _unknown_zero(i_tile)
        p_own = p_gradient + (i_tile.to(gl.int64) * (128 * C) + zero * 8)
        o_first = i_tile.to(gl.int64) * (128 * H) + zero * 8
        o_token = i_tile * 128 + o_local
        m_token, m_kept = (o_token < tokens)[:, None], (i_tile * 128 + o_row < tokens)[:, None]
        if FETCH % 2:
            _fetch_tile(p_own, tokens - i_tile * 128, C)
        b_before, step = _hidden_before(
            p_x, p_mean, p_rstd, p_b1, p_gradient, s_w1, start, length, position, step, b_ahead, o_token, seed,
            dropout, zero, C, S, H, NORM, DROP, AHEAD, FETCH > 1 and RESIDUAL,
        )  # fmt: skip
        b_ahead, b_used = (), ()
        for c in gl.static_range(3):
            mask = m_token & (c * 32 + o_channel < C)[None, :]
            b_ahead = b_ahead + (gl.load(p_own + o_place + c * 32, mask=mask, other=0.0, cache_modifier=".cg"),)
        b_cdf, b_density = _gaussian(b_before)
        gl.store(p_hidden + o_first + o_kept, (b_before * b_cdf).to(kind), mask=m_kept)
        b_slope = (b_cdf + b_before * b_density).to(kind)

        b_dhidden = gl.full([128, H], 0.0, gl.float32, FIRST)
        for c in gl.static_range(NC):
            b_dy = _placed(b_ahead[0], 32, LEFT)
            b_dhidden = warpgroup_mma(b_dy, s_w2.index(c + zero), b_dhidden, is_async=True)
            b_ahead = b_ahead[1:]
            if c + 3 < NC:
                mask = m_token & (c * 32 + 96 + o_channel < C)[None, :]
                b_ahead = b_ahead + (
                    gl.load(p_own + o_place + (c * 32 + 96), mask=mask, other=0.0, cache_modifier=".cg"),
                )
            if c:
                b_dhidden = warpgroup_mma_wait(1, deps=[b_dhidden, b_used[0]])[0]
            b_used = (b_dy,)
        b_dhidden = warpgroup_mma_wait(0, deps=[b_dhidden, b_used[0]])[0]
        b_dhidden = gl.where(m_kept, _natural(b_dhidden, H) * b_slope.to(gl.float32), 0.0)
        b_warps = gl.sum(b_dhidden.reshape([8, 16, H]), axis=1)  # a row for each warp, which needs no other
        WARP: gl.constexpr = gl.SliceLayout(1, b_warps.type.layout)
        UNIT: gl.constexpr = gl.SliceLayout(0, b_warps.type.layout)
        p_sums = p_db1 + (i_tile * (8 * H) + zero * 4)
        gl.store(p_sums + gl.arange(0, 8, WARP)[:, None] * H + gl.arange(0, H, UNIT)[None, :], b_warps)
        b_dbefore = b_dhidden.to(kind)
        gl.store(p_dhidden + o_first + o_kept, b_dbefore, mask=m_kept)

        b_left = _placed(b_dbefore, H, gl.DotOperandLayout(0, SECOND, 2))
        b_none = gl.full([128, 32], 0.0, gl.float32, SECOND)
        b_following = warpgroup_mma(b_left, s_w1.index(zero), b_none, use_acc=False, is_async=True)
        next_tile = gl.minimum(i_tile + programs, tiles - 1)
        next_start, next_length, next_position = _tokens_at(p_places, next_tile, tokens)
        next_step, back = step, step
        m_square = (i_tile * 128 + gl.arange(0, 128, ROWS) < tokens)[:, None]
        p_there, b_residual = (), ()
        for c in gl.static_range(2):
            back = _step(back, length, c, S)
            p_there = p_there + (_at(_turned(start, length, position, back), c, C),)
            if RESIDUAL:
                b_residual = b_residual + (gl.load(_pointers(p_gradient + p_there[c]), cache_modifier=".cg"),)
        b_ahead = ()
        for c in gl.static_range(NC):
            b_dx = b_following
            if c < AHEAD:
                next_step = _step(next_step, next_length, c, S)
                b_ahead = b_ahead + (
                    _read(p_x, p_mean, p_rstd, next_start, next_length, next_position, next_step, c, C, NORM),
                )
            if c + 2 < NC:
                back = _step(back, length, c + 2, S)
                p_there = p_there + (_at(_turned(start, length, position, back), c + 2, C),)
                if RESIDUAL:
                    b_residual = b_residual + (gl.load(_pointers(p_gradient + p_there[2]), cache_modifier=".cg"),)
            if c + 1 < NC:
                b_following = warpgroup_mma(b_left, s_w1.index(c + 1 + zero), b_none, use_acc=False, is_async=True)
                b_dx = warpgroup_mma_wait(1, deps=[b_dx])
            else:
                b_dx = warpgroup_mma_wait(0, deps=[b_dx])
            b_dx = _natural(b_dx, 32)
            if DROP:
                b_dx *= _kept(seed, o_token, c, dropout)
            if RESIDUAL:
                b_dx += b_residual[0].to(gl.float32)
                b_residual = b_residual[1:]
            m_group = m_square & (c * 4 + gl.arange(0, 4, GROUPS) < C // 8)[None, :]
            m_all = gl.expand_dims(m_group, 2) & (gl.arange(0, 8, PARTS) >= 0)[None, None, :]
            m_all = gl.max_constancy(gl.convert_layout(m_all.reshape([128, 32]), TILE), [1, 8])
            gl.store(_pointers(p_out + p_there[0]), b_dx.to(kind), mask=m_all)
            p_there = p_there[1:]
        start, length, position, step = next_start, next_length, next_position, next_step


# --- Verify, then time ---------------------------------------------------------------------------------------


def places_of(offsets: Tensor) -> Tensor:
    """Start and length of each token's sequence; a network needs them once for all of its blocks."""
    lengths = offsets.diff()
    return torch.stack([offsets[:-1], lengths], 1).to(torch.int32).repeat_interleave(lengths, 0)


class Block:
    """A block's passes by the present kernels and by persistent ones, on the same inputs."""

    def __init__(self, case: Case, offsets: Tensor, norm: bool, dropout: float) -> None:
        tokens, width = int(offsets[-1]), case.width
        self.x, self.gradient = (torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.plan = triton_plan.plan_for(self.x, case.track_size, case.hidden, "paper", norm, dropout)
        self.chance, self.offsets, self.places = (7, dropout), offsets, places_of(offsets)
        weights = [weight.detach() for weight in case.weights]
        statistics = triton_norms.row_statistics(self.x, 1e-5) if norm else ()
        self.weights = triton_plan.Weights(*triton_fused.prepared(*weights, self.x.dtype), *statistics)
        self.next = tuple(torch.empty(2, tokens, device="cuda")) if norm else ()
        self.out, self.dx = torch.empty_like(self.x), torch.empty_like(self.x)
        self.sums = triton_plan.rows_of_sums(self.plan, 1, self.x.device)[0]
        self.scratch = triton_fused.scratch_for(self.x, self.plan, len(offsets) - 1)
        tiles = -(-tokens // BT)
        self.programs = min(tiles, triton_plan.processors(self.x.device))
        self.partial = torch.empty(tiles * WARPS, case.hidden, device="cuda")
        self.sizes = {"C": width, "S": case.track_size, "H": case.hidden, "NORM": norm, "DROP": dropout > 0}
        self.sizes["num_warps"] = WARPS

    def present_forward(self) -> None:
        triton_fused.forward(
            self.plan, self.chance, self.x, self.x, self.out, self.offsets, self.weights, self.next, 1e-5
        )

    def present_backward(self) -> None:
        triton_fused.backward(
            self.plan, self.chance, self.x, self.gradient, self.dx, self.offsets, self.weights, self.scratch,
            self.sums, False,
        )  # fmt: skip

    def forward(self, ahead: int, fetch: int) -> None:
        w1, b1, w2, b2, mean, rstd = self.weights
        statistics = (self.x, self.x) if mean is None else (mean, rstd)
        forward_kernel[(self.programs,)](
            self.x, self.x, self.out, w1, b1, w2, b2, *statistics, *(self.next or statistics), self.places,
            len(self.x), *self.chance, 1e-5, NEXT=bool(self.next), AHEAD=ahead, FETCH=fetch, **self.sizes,
        )  # fmt: skip

    def backward(self, ahead: int, fetch: int) -> None:
        w1, b1, w2, _, mean, rstd = self.weights
        statistics = (self.x, self.x) if mean is None or rstd is None else (mean, rstd)
        scratch = self.scratch._replace(places=self.places)
        backward_kernel[(self.programs,)](
            self.x, self.gradient, self.dx, scratch.hidden, scratch.dhidden, w1, b1, w2, self.partial, *statistics,
            self.places, len(self.x), *self.chance, RESIDUAL=not self.plan.norm, AHEAD=ahead, FETCH=fetch,
            **self.sizes,
        )  # fmt: skip
        x = self.x
        if self.plan.norm:
            x = torch.empty_like(x)
            triton_norms.layer_norm_backward(self.x, *statistics, self.dx, self.gradient, x)
        torch.sum(self.partial, 0, out=self.sums[-self.plan.hidden :])
        triton_fused._weight_gradients(
            self.plan, self.chance, x, self.gradient, scratch, self.sums[: -self.plan.hidden], None
        )

    def results(self) -> list[Tensor]:
        return [tensor.clone() for tensor in (self.out, *self.next, self.dx, self.sums)]


def verify(track_size: int, tracks: int, hidden: int, lengths: list[int], norm: bool, dropout: float) -> float:
    """The largest relative difference between both kinds of kernels; what is not written is not a number."""
    torch.manual_seed(0)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda")
    block = Block(Case(track_size, tracks, hidden, 1, 1), offsets, norm, dropout)
    block.present_forward()
    block.present_backward()
    expected = block.results()
    for tensor in (block.out, *block.next, block.dx, block.sums, block.scratch.hidden, block.scratch.dhidden):
        tensor.fill_(float("nan"))
    block.partial.fill_(float("nan"))
    block.forward(4, 3)
    block.backward(4, 3)
    pairs = zip(block.results(), expected, strict=True)
    return max(float((ours - other).float().norm() / other.float().norm()) for ours, other in pairs)


def measure(sizes: tuple[int, ...], bandwidth: float, norm: bool, dropout: float) -> dict[str, Any]:
    case = Case(*sizes)
    block = Block(case, case.offsets, norm, dropout)
    floors = case.floors(bandwidth)
    row: dict[str, Any] = {
        "width": case.width,
        "sequences": case.sequences,
        "length": case.length,
        "norm": norm,
        "dropout": dropout,
        "forward_floor": floors[0],
        "backward_floor": floors[1],
        "present_forward": milliseconds(block.present_forward, 20),
        "present_backward": milliseconds(block.present_backward, 20),
    }
    for ahead in (3, 4, 6):
        for fetch in range(4):
            row[f"forward_{ahead}_{fetch}"] = milliseconds(lambda a=ahead, f=fetch: block.forward(a, f), 20)
            if ahead < 6:
                row[f"backward_{ahead}_{fetch}"] = milliseconds(lambda a=ahead, f=fetch: block.backward(a, f), 20)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    mixed = [20_000, 3_000, 1, 2, 5, 777]
    shapes = [(16, 22, 128, mixed), (16, 19, 128, [100, 33_000, 64]), (16, 14, 128, [422] * 50), (8, 20, 128, mixed)]
    for track_size, tracks, hidden, lengths in shapes:
        for norm, dropout in ((False, 0.0), (True, 0.0), (False, 0.3), (True, 0.3)):
            error = verify(track_size, tracks, hidden, lengths, norm, dropout)
            print(f"{track_size * tracks:>4} {hidden} norm {norm!s:>5} dropout {dropout}: differs by {error:.1e}")
            assert error < 1e-2, "the kernels differ"
    bandwidth = copy_bandwidth()
    rows = []
    for sizes in CASES[:4]:
        for norm, dropout in ((False, 0.0), (True, 0.0), (True, 0.3)):
            row = measure(sizes, bandwidth, norm, dropout)
            rows.append(row)
            print(f"{row['width']} {row['sequences']} x {row['length']:,} norm {norm} dropout {dropout}")
            for part in ("forward", "backward"):
                floor = row[f"{part}_floor"]
                times = {name: value for name, value in row.items() if part in name and "floor" not in name}
                print("   ", ", ".join(f"{name} {value:.3f} ({floor / value:.0%})" for name, value in times.items()))
            if arguments.out:
                header = {"command": "python benchmarks/persistent.py", "device": torch.cuda.get_device_name()}
                header |= {"torch": torch.__version__, "date": date.today().isoformat(), "bandwidth": bandwidth}
                arguments.out.write_text(json.dumps({**header, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
