"""Mamba-2: a state that each token writes to, reads from and decays at its own rate (Dao and Gu 2024).

A head has a matrix h of states; a token has inputs u, vectors b to write and c to read them, and a step dt:

    h_t = exp(dt_t A) h_(t-1) + dt_t u_t b_t^T,        y_t = h_t c_t + D u_t,        A < 0, one number a head.

Around it stand their causal convolution of 4 taps, SiLU, a gate, an RMS norm and two linear maps; their block has no
MLP, so neither has ours. Computed in chunks: within a chunk as a masked matrix product, across chunks by the state
that each chunk adds, recursively in groups of chunks, in log N steps. Ours: plain torch, one sequence per chunk,
the norm before a block is a layer norm, and `direction="both"` adds a second state space that reads from the end.
The ChordMixer paper does not compare with Mamba-2: settings are ours.
Receptive field: the token and all before it, or the whole sequence. Cost: O(N) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.models.convolutions import Convolution
from chordmixer.models.encoders.layers import check_settings
from chordmixer.models.encoders.packed_layers import PackedStack
from chordmixer.packed import Layout, Packed

CHUNKS_PER_GROUP = 16
"""Number of chunks whose states are carried forward together."""


@dataclass(frozen=True)
class Mamba2Config:
    """Default sizes are ours: the paper does not compare with it."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 64
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 4
    """Number of heads: groups of inner channels with their own decay."""
    state: int = 64
    """Size of the state of an inner channel."""
    chunk: int = 64
    """Number of tokens per chunk: more need more memory and fewer steps."""
    direction: Literal["forward", "both"] = "forward"
    """`both`: a second state space per block, with its own weights, reads from the end."""
    expansion: int = 2
    """Number of inner channels, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each block's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)


# --- The recurrence, in chunks --------------------------------------------------------------------------


def scan(
    u: Float[Tensor, "T h p"],
    decay: Float[Tensor, "T h"],
    b: Float[Tensor, "T n"],
    c: Float[Tensor, "T n"],
    x: Packed,
    chunk: int,
) -> Float[Tensor, "T h p"]:
    """y_t = h_t c_t with h_t = exp(decay_t) h_(t-1) + u_t b_t^T, from zero at the start of each sequence of `x`."""
    chunks, layout = _chunks(x, chunk)
    u, decay, b, c = (layout.put(values).unflatten(0, (-1, chunk)) for values in (u, decay, b, c))
    total = decay.cumsum(1).transpose(1, 2)  # (chunk, head, token): the decay from the chunk's start
    ends = total[:, :, -1]
    inside = torch.einsum("khts,kshp->kthp", (c @ b.mT)[:, None] * _lower(total, total, diagonal=0), u)
    remaining = torch.exp(ends[:, :, None] - total).transpose(1, 2)[..., None]
    added = torch.einsum("kshp,ksn->khpn", remaining * u, b)
    state_before = _carried(added.flatten(2), ends, chunks).view_as(added)
    carried = torch.einsum("khpn,ktn->kthp", state_before, c) * total.exp().transpose(1, 2)[..., None]
    return layout.take((inside + carried).flatten(0, 1))


def _carried(added: Float[Tensor, "K h f"], decay: Float[Tensor, "K h"], x: Packed) -> Float[Tensor, "K h f"]:
    """The state before each chunk, from the states that chunks add and their decays."""
    if max(x.lengths) == 1:
        return torch.zeros_like(added)
    groups, layout = _chunks(x, CHUNKS_PER_GROUP)
    added, decay = (layout.put(values).unflatten(0, (-1, CHUNKS_PER_GROUP)) for values in (added, decay))
    total = decay.cumsum(1).transpose(1, 2)
    start, ends = total - decay.transpose(1, 2), total[:, :, -1]
    inside = torch.einsum("khts,kshf->kthf", _lower(start, total, diagonal=-1), added)
    state_before = _carried(torch.einsum("khs,kshf->khf", torch.exp(ends[:, :, None] - total), added), ends, groups)
    carried = torch.einsum("kht,khf->kthf", start.exp(), state_before)
    return layout.take((inside + carried).flatten(0, 1))


def _chunks(x: Packed, size: int) -> tuple[Packed, Layout]:
    """Cut each sequence into chunks, padding the last; zeros add nothing to the state and do not decay it."""
    counts = [-(-n // size) for n in x.lengths]
    chunks = Packed.from_lengths(torch.arange(sum(counts), device=x.device), counts)
    starts = [size * start for start in accumulate(counts[:-1], initial=0)]
    return chunks, Layout(x.lengths, starts, size * chunks.tokens, x.device)


def _lower(to: Float[Tensor, "K h t"], since: Float[Tensor, "K h s"], diagonal: int) -> Float[Tensor, "K h t s"]:
    """exp(to_t - since_s) for s up to t + diagonal, else 0."""
    span = to[..., :, None] - since[..., None, :]
    later = torch.ones(span.shape[-2:], dtype=torch.bool, device=span.device).triu(diagonal + 1)
    return span.masked_fill(later, float("-inf")).exp()


# --- The network ----------------------------------------------------------------------------------------


class SelectiveStateSpace(nn.Module):
    """The state space layer, in one direction."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        heads, inner = config.heads, config.expansion * config.width
        mixed = inner + 2 * config.state
        self.sizes = (inner, mixed, heads)
        self.enter = nn.Linear(config.width, inner + mixed + heads, bias=False)
        self.short = Convolution(mixed, mixed, taps=4, groups=mixed, causal=True)
        self.log_a = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        dt = torch.empty(heads).uniform_(log(1e-3), log(1e-1)).exp()
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # softplus inverts this to dt
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.RMSNorm(inner)
        self.out = nn.Linear(inner, config.width, bias=False)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        inner, _, heads = self.sizes
        gate, ubc, dt = self.enter(values).split(self.sizes, dim=1)
        u, b, c = F.silu(self.short(ubc, x)).split((inner, self.config.state, self.config.state), dim=1)
        with torch.autocast(values.device.type, enabled=False):  # sums over long decays
            exact = torch.promote_types(self.log_a.dtype, torch.float32)
            u, b, c, dt = u.to(exact).unflatten(1, (heads, -1)), b.to(exact), c.to(exact), dt.to(exact)
            dt = F.softplus(dt + self.dt_bias)
            y = scan(u * dt[:, :, None], -self.log_a.exp() * dt, b, c, x, self.config.chunk)
            y = (y + self.skip[:, None] * u).flatten(1)
        out: Tensor = self.out(self.norm(y * F.silu(gate)))
        return out


class Mamba2Block(nn.Module):
    """Norm, state space, residual."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.ahead = SelectiveStateSpace(config)
        self.back = SelectiveStateSpace(config) if config.direction == "both" else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        normed = self.norm(values)
        mixed = self.ahead(normed, x)
        if self.back is not None:
            sequence = x.owners()
            mirror = x.offsets[sequence] + x.offsets[sequence + 1] - 1 - torch.arange(x.tokens, device=x.device)
            mixed = mixed + self.back(normed[mirror], x)[mirror]
        out: Tensor = values + self.dropout(mixed)
        return out


class Mamba2(PackedStack):
    """Selective state spaces, layer upon layer.

    >>> encoder = Mamba2(Mamba2Config(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = Mamba2Config

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__(config, (Mamba2Block(config) for _ in range(config.layers)))
