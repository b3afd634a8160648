"""Triton: the whole block in one pass forward, two backward. `ops/README.md` derives them and counts their bytes.

Names: `p_` pointer, `b_` block of values, `o_` offset, `m_` mask, `i_` program index.
Tokens are counted in 32 bits, addresses in 64.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chordmixer.ops import reference
from chordmixer.ops.triton_rows import bisected, layer_norm_backward, locate, row_statistics, turned

RUNTIME = ["tokens", "sequences", "bisections", "share", "seed", "dropout"]
"""Numbers that change from batch to batch: a kernel is not compiled anew for each."""

# --- What forward and backward share ----------------------------------------------------------------------


@triton.jit
def _rows(o_token, start, length, first, o_channel, S: tl.constexpr, B: tl.constexpr, TURN: tl.constexpr):
    """The tokens that B channels from `first` on are read from: TURN 0 stays, 1 rotates, -1 rotates back."""
    o_position = o_token - start
    if TURN == 0:
        o_row = o_token[:, None]
    elif S % B == 0:  # one track
        o_row = (start + turned(o_position, length, first // S, TURN == -1))[:, None]
    else:
        o_track = o_channel[None, :] // S
        o_row = start[:, None] + turned(o_position[:, None], length[:, None], o_track, TURN == -1)
    return o_row


@triton.jit
def _places(
    o_token, m_token, start, length, first,
    C: tl.constexpr, S: tl.constexpr, B: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """Where B channels of these tokens stand in memory, and which of them exist."""
    o_channel = first + tl.arange(0, B)
    o_row = _rows(o_token, start, length, first, o_channel, S, B, TURN)
    return o_row.to(tl.int64) * C + o_channel[None, :], m_token[:, None] & (o_channel < C)[None, :]


@triton.jit
def _kept(seed, o_token, o_channel, C: tl.constexpr, dropout):
    """Dropout's factors, a function of the seed and the place."""
    draw = tl.rand(seed, o_token[:, None].to(tl.int64) * C + o_channel[None, :])
    return tl.where(draw >= dropout, 1 / (1 - dropout), 0.0)


@triton.jit
def _hidden(
    p_x, p_w1, p_b1, p_mean, p_rstd, o_token, m_token, start, length, channels, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr, DROP: tl.constexpr,
    BK: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The hidden layer before its GELU, in float32: rotated tokens times W1."""
    o_hidden = tl.arange(0, BH)
    m_hidden = o_hidden < H
    b_hidden = tl.zeros((BT, BH), tl.float32)
    for first in range(0, channels, BK):
        o_channel = first + tl.arange(0, BK)
        m_channel = o_channel < C
        mask = m_token[:, None] & m_channel[None, :]
        o_row = _rows(o_token, start, length, first, o_channel, S, BK, TURN)
        b_x = tl.load(p_x + o_row.to(tl.int64) * C + o_channel[None, :], mask=mask, other=0.0)
        o_w1 = o_hidden[None, :] * C + o_channel[:, None]
        b_w1 = tl.load(p_w1 + o_w1, mask=m_channel[:, None] & m_hidden[None, :], other=0.0)
        if NORM:
            b_mean = tl.load(p_mean + o_row)
            b_rstd = tl.load(p_rstd + o_row)
            b_x = ((b_x.to(tl.float32) - b_mean) * b_rstd).to(b_w1.dtype)
        if DROP:
            b_x = (b_x * _kept(seed, o_token, o_channel, C, dropout)).to(b_w1.dtype)
        b_hidden = tl.dot(b_x, b_w1, b_hidden, input_precision=PRECISION)
    return b_hidden + tl.load(p_b1 + o_hidden, mask=m_hidden, other=0.0)[None, :]


@triton.jit
def _gaussian(b_x, EXACT: tl.constexpr):
    """The normal distribution function, and exp(-x^2 / 2).

    Sixteen-bit kernels take formula 7.1.26 of Abramowitz and Stegun (error below 1.5e-7): one exponential for both.
    """
    b_exp = tl.exp(-0.5 * b_x * b_x)
    if EXACT:
        b_cdf = 0.5 + 0.5 * tl.erf(b_x * 0.7071067811865476)
    else:
        b_t = 1 / (1 + 0.23164189 * tl.abs(b_x))
        b_poly = b_t * (
            0.127414796 + b_t * (-0.142248368 + b_t * (0.7107068705 + b_t * (-0.7265760135 + b_t * 0.5307027145)))
        )
        b_tail = b_poly * b_exp
        b_cdf = tl.where(b_x < 0, b_tail, 1 - b_tail)
    return b_cdf, b_exp


# --- Forward ----------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def _forward_kernel(
    p_x, p_residual, p_out, p_w1, p_b1, p_w2, p_b2, p_mean, p_rstd, p_offsets,
    tokens, channels, sequences, bisections, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr,
    DROP_IN: tl.constexpr, DROP_OUT: tl.constexpr, EXACT: tl.constexpr,
    BK: tl.constexpr, BN: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o_token = tl.program_id(0) * BT + tl.arange(0, BT)
    m_token = o_token < tokens
    o_token = tl.minimum(o_token, tokens - 1)
    start, length = locate(p_offsets, o_token, sequences, bisections)
    b_hidden = _hidden(
        p_x, p_w1, p_b1, p_mean, p_rstd, o_token, m_token, start, length, channels, seed, dropout,
        C, S, H, IN, NORM, DROP_IN, BK, BT, BH, PRECISION,
    )  # fmt: skip
    b_cdf, _ = _gaussian(b_hidden, EXACT)
    b_hidden = (b_hidden * b_cdf).to(p_x.dtype.element_ty)
    o_hidden = tl.arange(0, BH)
    m_hidden = o_hidden < H
    for first in range(0, channels, BN):
        o_channel = first + tl.arange(0, BN)
        m_channel = o_channel < C
        o_value, mask = _places(o_token, m_token, start, length, first, C, S, BN, OUT)
        b_residual = tl.load(p_residual + o_value, mask=mask, other=0.0)
        o_w2 = o_channel[None, :] * H + o_hidden[:, None]
        b_w2 = tl.load(p_w2 + o_w2, mask=m_hidden[:, None] & m_channel[None, :], other=0.0)
        b_mixed = tl.dot(b_hidden, b_w2, input_precision=PRECISION)
        b_mixed += tl.load(p_b2 + o_channel, mask=m_channel, other=0.0)[None, :]
        if DROP_OUT:
            b_mixed *= _kept(seed, o_token, o_channel, C, dropout)
        tl.store(p_out + o_value, b_mixed + b_residual.to(tl.float32), mask=mask)


# --- Backward, first pass: gradients of the tokens ----------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def _backward_kernel(
    p_x, p_gradient, p_out, p_hidden, p_dhidden, p_places, p_w1, p_b1, p_w2, p_db1, p_mean, p_rstd, p_offsets,
    tokens, channels, sequences, bisections, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, NORM: tl.constexpr,
    DROP_IN: tl.constexpr, DROP_OUT: tl.constexpr, RESIDUAL: tl.constexpr, EXACT: tl.constexpr, BK: tl.constexpr,
    BN: tl.constexpr, BO: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    o_token = tl.program_id(0) * BT + tl.arange(0, BT)
    m_token = o_token < tokens
    o_token = tl.minimum(o_token, tokens - 1)
    start, length = locate(p_offsets, o_token, sequences, bisections)
    tl.store(p_places + o_token.to(tl.int64) * 2, start, mask=m_token)
    tl.store(p_places + o_token.to(tl.int64) * 2 + 1, length, mask=m_token)
    o_hidden = tl.arange(0, BH)
    m_hidden = o_hidden < H
    kind = p_x.dtype.element_ty

    b_before = _hidden(
        p_x, p_w1, p_b1, p_mean, p_rstd, o_token, m_token, start, length, channels, seed, dropout,
        C, S, H, IN, NORM, DROP_IN, BK, BT, BH, PRECISION,
    )  # fmt: skip
    b_cdf, b_exp = _gaussian(b_before, EXACT)
    m_kept = m_token[:, None] & m_hidden[None, :]
    o_kept = o_token[:, None].to(tl.int64) * H + o_hidden[None, :]
    tl.store(p_hidden + o_kept, b_before * b_cdf, mask=m_kept)
    b_slope = (b_cdf + b_before * b_exp * 0.3989422804014327).to(kind)

    b_dhidden = tl.zeros((BT, BH), tl.float32)
    for first in range(0, channels, BN):
        o_channel = first + tl.arange(0, BN)
        m_channel = o_channel < C
        o_value, mask = _places(o_token, m_token, start, length, first, C, S, BN, OUT)
        b_dy = tl.load(p_gradient + o_value, mask=mask, other=0.0)
        if DROP_OUT:
            b_dy = (b_dy * _kept(seed, o_token, o_channel, C, dropout)).to(kind)
        o_w2 = o_channel[:, None] * H + o_hidden[None, :]
        b_w2 = tl.load(p_w2 + o_w2, mask=m_channel[:, None] & m_hidden[None, :], other=0.0)
        b_dhidden = tl.dot(b_dy, b_w2, b_dhidden, input_precision=PRECISION)
    b_dhidden = tl.where(m_token[:, None], b_dhidden * b_slope.to(tl.float32), 0.0)
    tl.store(p_db1 + tl.program_id(0).to(tl.int64) * H + o_hidden, tl.sum(b_dhidden, axis=0), mask=m_hidden)
    b_dbefore = b_dhidden.to(kind)
    tl.store(p_dhidden + o_kept, b_dbefore, mask=m_kept)

    o_value, mask = _places(o_token, m_token, start, length, 0, C, S, BO, IN)
    b_residual = tl.load(p_gradient + o_value, mask=mask & RESIDUAL, other=0.0)
    for first in range(0, channels, BO):
        o_channel = first + tl.arange(0, BO)
        m_channel = o_channel < C
        o_next, m_next = _places(o_token, m_token, start, length, first + BO, C, S, BO, IN)
        b_next = tl.load(p_gradient + o_next, mask=m_next & RESIDUAL, other=0.0)
        o_w1 = o_hidden[:, None] * C + o_channel[None, :]
        b_w1 = tl.load(p_w1 + o_w1, mask=m_hidden[:, None] & m_channel[None, :], other=0.0)
        b_dx = tl.dot(b_dbefore, b_w1, input_precision=PRECISION)
        if DROP_IN:
            b_dx *= _kept(seed, o_token, o_channel, C, dropout)
        tl.store(p_out + o_value, b_dx + b_residual.to(tl.float32), mask=mask)
        b_residual, o_value, mask = b_next, o_next, m_next


# --- Backward, second pass: gradients of the weights --------------------------------------------------------


@triton.jit(do_not_specialize=RUNTIME)
def _weights_kernel(
    p_units, p_tokens, p_places, p_mean, p_rstd, p_out, p_sum, tokens, share, stride, seed, dropout,
    C: tl.constexpr, S: tl.constexpr, H: tl.constexpr, TURN: tl.constexpr, NORM: tl.constexpr, DROP: tl.constexpr,
    SECOND: tl.constexpr, BC: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (c, h, s): hidden units h times rotated channels c, summed over the tokens of share s."""
    first_channel, i_share = tl.program_id(0) * BC, tl.program_id(2)
    o_channel = first_channel + tl.arange(0, BC)
    o_hidden = tl.program_id(1) * BH + tl.arange(0, BH)
    m_channel, m_hidden = o_channel < C, o_hidden < H
    b_product, b_sum = tl.zeros((BH, BC), tl.float32), tl.zeros((BC,), tl.float32)
    kind = p_tokens.dtype.element_ty
    end = tl.minimum((i_share + 1) * share, tokens)
    for first in range(i_share * share, end, BT):
        o_token = first + tl.arange(0, BT)
        m_token = o_token < end
        o_token = tl.minimum(o_token, end - 1)
        start = tl.load(p_places + o_token.to(tl.int64) * 2)
        length = tl.load(p_places + o_token.to(tl.int64) * 2 + 1)
        mask = m_token[:, None] & m_channel[None, :]
        o_row = _rows(o_token, start, length, first_channel, o_channel, S, BC, TURN)
        b_tokens = tl.load(p_tokens + o_row.to(tl.int64) * C + o_channel[None, :], mask=mask, other=0.0)
        if NORM:
            b_normal = (b_tokens.to(tl.float32) - tl.load(p_mean + o_row)) * tl.load(p_rstd + o_row)
            b_tokens = tl.where(mask, b_normal, 0.0).to(kind)
        if DROP:
            b_tokens = (b_tokens * _kept(seed, o_token, o_channel, C, dropout)).to(kind)
        o_unit = o_token[:, None].to(tl.int64) * H + o_hidden[None, :]
        b_units = tl.load(p_units + o_unit, mask=m_token[:, None] & m_hidden[None, :], other=0.0)
        b_product = tl.dot(tl.trans(b_units), b_tokens, b_product, input_precision=PRECISION)
        if SECOND:
            b_sum += tl.sum(b_tokens.to(tl.float32), axis=0)
    o_share = i_share.to(tl.int64) * stride
    m_out = m_hidden[:, None] & m_channel[None, :]
    if SECOND:  # W2 is (C, H)
        tl.store(p_out + o_share + o_channel[None, :] * H + o_hidden[:, None], b_product, mask=m_out)
        if tl.program_id(1) == 0:
            tl.store(p_sum + o_share + o_channel, b_sum, mask=m_channel)
    else:  # W1 is (H, C)
        tl.store(p_out + o_share + o_hidden[:, None] * C + o_channel[None, :], b_product, mask=m_out)


# --- Launch, gradient, public function ----------------------------------------------------------------------


class Plan(NamedTuple):
    """What a block's kernels are compiled for."""

    channels: int
    track_size: int
    hidden: int
    released: bool
    norm: bool
    drop: bool
    full: bool
    """Whether the tokens are float32."""
    precision: str


@cache
def _switches(plan: Plan) -> dict[str, Any]:
    """Compile-time arguments of the kernels that pass through the whole block."""
    return {
        "C": plan.channels,
        "S": plan.track_size,
        "H": plan.hidden,
        "IN": 0 if plan.released else 1,
        "OUT": -1 if plan.released else 0,
        "NORM": plan.norm,
        "DROP_IN": plan.drop and not plan.released,
        "DROP_OUT": plan.drop and plan.released,
        "PRECISION": plan.precision,
        "EXACT": plan.full,
    }


@cache
def _shape(kernel: str, plan: Plan) -> dict[str, int]:
    """Tile sizes, warps, stages and registers: the best found on an H200 in bf16 at H = 128, smaller for more."""
    wide = triton.next_power_of_2(max(16, plan.hidden))
    tile = max(16, (32 if plan.full else 64) * 128 // max(wide, 128))
    track = plan.track_size if plan.norm and plan.track_size in (16, 32, 64) else 0  # one row's statistics a chunk
    if plan.full:  # true float32 has no matrix units to feed
        return {
            "forward": {"BK": 32, "BN": 32, "BT": tile, "BH": wide, "num_warps": 4, "num_stages": 1},
            "backward": {"BK": 32, "BN": 32, "BO": 32, "BT": tile, "BH": wide, "num_warps": 4, "num_stages": 1},
            "weights": {"BC": 32, "BT": 32, "BH": min(wide, 128), "num_warps": 4, "num_stages": 1},
        }[kernel]
    chunk = min(64, 32768 // wide)
    return {
        "forward": {
            "BK": track or min(32, chunk),
            "BN": chunk,
            "BT": tile,
            "BH": wide,
            "num_warps": 4,
            "num_stages": 3,
            "maxnreg": 128,
        },
        "backward": {
            "BK": track or chunk,
            "BN": chunk,
            "BO": chunk,
            "BT": tile,
            "BH": wide,
            "num_warps": 4,
            "num_stages": 3,
        },
        "weights": {"BC": 128, "BT": 64, "BH": min(wide, 128), "num_warps": 4, "num_stages": 4},
    }[kernel]


class _Block(torch.autograd.Function):
    """Keeps its input and nothing else; the backward pass computes the hidden layer again."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, chance: tuple[int, float], x: Tensor, residual: Tensor | None, offsets: Tensor,
        w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, mean: Tensor | None, rstd: Tensor | None, out: Tensor | None,
    ) -> Tensor:  # fmt: skip
        w1, w2 = w1.to(x.dtype).contiguous(), w2.to(x.dtype).contiguous()
        out = torch.empty_like(x) if out is None else out
        ctx.plan, ctx.chance, ctx.apart = plan, chance, residual is not None
        ctx.save_for_backward(x, offsets, w1, b1, w2, mean, rstd)
        shape = _shape("forward", plan)
        _forward_kernel[(triton.cdiv(len(x), shape["BT"]),)](
            x, x if residual is None else residual, out, w1, b1, w2, b2, x if mean is None else mean,
            x if rstd is None else rstd, offsets, *x.shape, *bisected(offsets), *chance, **_switches(plan), **shape,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, offsets, w1, b1, w2, mean, rstd = ctx.saved_tensors
        gradient, plan = gradient.contiguous(), ctx.plan
        statistics = (mean, rstd) if plan.norm else (x, x)
        hidden, dhidden = x.new_empty(2, len(x), len(b1))
        places = torch.empty(len(x), 2, dtype=torch.int32, device=x.device)
        dx = torch.empty_like(x)
        shape = _shape("backward", plan)
        db1 = torch.empty(triton.cdiv(len(x), shape["BT"]), len(b1), device=x.device)
        _backward_kernel[(len(db1),)](
            x, gradient, dx, hidden, dhidden, places, w1, b1, w2, db1, *statistics, offsets,
            *x.shape, *bisected(offsets), *ctx.chance,
            **_switches(plan), RESIDUAL=not (ctx.apart or plan.norm), **shape,
        )  # fmt: skip
        if plan.norm:
            dx = layer_norm_backward(x, mean, rstd, dx, None if ctx.apart else gradient)
        dw1, dw2, db2 = _weights(plan, ctx.chance, x, gradient, hidden, dhidden, places, statistics)
        return None, None, dx, gradient if ctx.apart else None, None, dw1, db1.sum(0), dw2, db2, None, None, None


def _weights(
    plan: Plan, chance: tuple[int, float], x: Tensor, gradient: Tensor,
    hidden: Tensor, dhidden: Tensor, places: Tensor, statistics: tuple[Tensor, Tensor],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Each share of the tokens into a sum of its own, then all shares together: the same numbers every time."""
    shape, switches = _shape("weights", plan), _switches(plan)
    size, common = plan.hidden * plan.channels, {k: switches[k] for k in ("C", "S", "H", "PRECISION")}
    blocks = triton.cdiv(plan.channels, shape["BC"]), triton.cdiv(plan.hidden, shape["BH"])
    shares = max(1, min(4 * _processors(x.device) // (blocks[0] * blocks[1]), len(x) // (4 * shape["BT"])))
    share = triton.cdiv(triton.cdiv(len(x), shares), shape["BT"]) * shape["BT"]
    sums = torch.empty(triton.cdiv(len(x), share), 2 * size + plan.channels, device=x.device)
    dw1, dw2, db2 = sums[0].split((size, size, plan.channels))
    numbers = (len(x), share, sums.shape[1], *chance)
    _weights_kernel[(*blocks, len(sums))](
        dhidden, x, places, *statistics, dw1, db2, *numbers, **common, **shape,
        TURN=switches["IN"], NORM=plan.norm, DROP=switches["DROP_IN"], SECOND=False,
    )  # fmt: skip
    _weights_kernel[(*blocks, len(sums))](
        hidden, gradient, places, *statistics, dw2, db2, *numbers, **common, **shape,
        TURN=switches["OUT"], NORM=False, DROP=switches["DROP_OUT"], SECOND=True,
    )  # fmt: skip
    dw1, dw2, db2 = sums.sum(0).split((size, size, plan.channels))
    return dw1.view(plan.hidden, plan.channels), dw2.view(plan.channels, plan.hidden), db2


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def block(
    values: Tensor,
    offsets: Tensor,
    track_size: int,
    mlp: reference.Mlp,
    *,
    order: str = "paper",
    prenorm: reference.Norm | None = None,
    norm: reference.Norm | None = None,
    dropout: float = 0.0,
    residual: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`reference.block`: a layer norm before it is part of the kernels, other norms stand beside them."""
    w1, b1, w2, b2 = mlp
    mean = rstd = None
    if prenorm is not None and prenorm.kind == "layer":
        mean, rstd = row_statistics(values.detach(), prenorm.eps)
        w1, b1 = w1 * prenorm.weight, b1 + w1 @ prenorm.bias  # the norm's own weights, folded into the first layer
    elif prenorm is not None:
        residual = values if residual is None else residual
        values = reference.normalise(values, offsets, prenorm)
    seed = int(torch.randint(1 << 31, ())) if dropout else 0
    plan = Plan(
        values.shape[1],
        track_size,
        len(b1),
        released=order == "released",
        norm=mean is not None,
        drop=dropout > 0,
        full=values.dtype == torch.float32,
        precision="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    )
    mixed = _Block.apply(
        plan, (seed, dropout), values.contiguous(), residual, offsets, w1, b1, w2, b2, mean, rstd, out
    )
    return reference.normalise(mixed, offsets, norm)
