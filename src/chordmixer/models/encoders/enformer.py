"""Enformer: convolutions down to bins of 128 bases, then attention between bins (Avsec et al. 2021).

A stem (15 taps) and six stages (5 taps) each end in a pooling of pairs, weighted by a softmax a channel; the last,
odd token of a sequence is carried up alone. Attention knows how far apart two bins are: to the product of query and
key comes that of the query and a learned map of the distance's features (half-lives, and steps at powers of two, with
and without the sign), with learned biases. The outcome of a bin is repeated for each of its tokens, so that as many
tokens come out as went in; no finer output is to be had from it.
Ours: embedded tokens in place of one-hot DNA, one width throughout, layer norm for batch norm, the gamma-shaped
features left out, and settings far below theirs (1,536 channels, 11 layers, 8 heads, 196,608 bases).
Receptive field: the whole sequence. Cost: O(N) for the convolutions, O((N / 128)^2) a layer of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chordmixer.models.convolutions import Convolution
from chordmixer.models.encoders.layers import (
    Attention,
    Residual,
    check_fits,
    check_settings,
    in_buckets,
    softmax_attention,
)
from chordmixer.models.encoders.tree_lstm import pairs
from chordmixer.packed import Packed, gathered

FEATURES = 16
"""Half-lives, and steps, that describe a distance."""


@dataclass(frozen=True)
class EnformerConfig:
    """Ours: a small one."""

    max_length: int
    """The longest sequence that it takes; half-lives of distances run up to it."""
    width: int = 128
    """Channels of a token and of a bin."""
    layers: int = 4
    """Blocks of attention."""
    heads: int = 4
    """Heads of attention."""
    halvings: int = 7
    """Poolings of pairs: a bin has 2^halvings tokens."""
    expansion: int = 2
    """Width of the MLP's hidden layer, in widths."""
    dropout: float = 0.0
    """Share of the output of each part of an attention block that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def bins(self) -> int:
        """Bins of the longest sequence."""
        bins: int = -(-self.max_length // 2**self.halvings)
        return bins


class Stage(nn.Module):
    """Two convolutions, one of a single tap with a residual, and a pooling of pairs: half as many tokens come out."""

    def __init__(self, width: int, taps: int, first: bool) -> None:
        super().__init__()
        self.enter = nn.Identity() if first else nn.Sequential(nn.LayerNorm(width), nn.GELU())
        self.wide = Convolution(width, width, taps)
        self.point = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.weight = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.weight.weight.copy_(2 * torch.eye(width))  # theirs: larger numbers weigh more from the start

    def forward(self, x: Packed) -> Packed:
        values = self.wide(self.enter(x.values), x)
        values = values + self.point(values)
        weight = self.weight(values)
        parents, second, _ = pairs(x)  # a token alone is its own second, and any weights of the two give it back
        first = parents.values
        share = torch.sigmoid(gathered(weight, first) - gathered(weight, second))
        a, b = gathered(values, first), gathered(values, second)
        return parents.with_values(share * a + (1 - share) * b)


class RelativeAttention(Attention):
    """Softmax attention by content and by distance, with the positions' part of Transformer-XL (Dai et al. 2019)."""

    def __init__(self, config: EnformerConfig) -> None:
        super().__init__(config)
        self.bins = config.bins
        self.distance = nn.Linear(4 * FEATURES, config.width, bias=False)
        self.content_bias, self.distance_bias = (
            nn.Parameter(torch.zeros(config.heads, 1, config.width // config.heads)) for _ in range(2)
        )

    def attend(
        self,
        q: Float[Tensor, "B h N d"],
        k: Float[Tensor, "B h N d"],
        v: Float[Tensor, "B h N d"],
        mask: Bool[Tensor, "B N"],
    ) -> Float[Tensor, "B h N d"]:
        bins, size = q.shape[2:]
        away = torch.arange(1 - bins, bins + 1, device=q.device).to(self.distance.weight.dtype)
        keys = self.distance(features(away, self.bins)).unflatten(1, (self.heads, size)).permute(1, 2, 0)
        bias = by_place((q + self.distance_bias) @ keys) / size**0.5
        bias = bias.masked_fill(~mask[:, None, None], float("-inf"))
        return softmax_attention(q + self.content_bias, k, v, mask=bias.to(q.dtype))


def features(away: Float[Tensor, "D"], bins: int) -> Float[Tensor, "D F"]:
    """What a distance looks like: decays with half-lives up to `bins`, steps at powers of two, and both signed."""
    far = away.abs()[:, None]
    count = torch.arange(FEATURES, device=away.device)
    longest = max(log2(bins), 3.0)
    decays = torch.exp2(-far / torch.exp2(longest - (longest - 1) * count / FEATURES))
    steps = (far < 2**count).to(away.dtype)
    plain = torch.cat([decays, steps], dim=1)
    return torch.cat([plain, away.sign()[:, None] * plain], dim=1)


def by_place(by_distance: Float[Tensor, "B h N 2N"]) -> Float[Tensor, "B h N N"]:
    """From columns of distances 1 - N to N to columns of places: out[i, j] is that of j - i. No index, one copy.

    >>> by_place(torch.arange(-1, 3).expand(1, 1, 2, 4)).tolist()
    [[[[0, 1], [-1, 0]]]]
    """
    n = by_distance.shape[2]
    by_key: Tensor = by_distance.flatten(2)[..., n - 1 : n - 1 + n * (2 * n - 1)].unflatten(2, (n, 2 * n - 1))[
        ..., :n
    ]
    return by_key


class Enformer(nn.Module):
    """Convolutions to bins, attention between bins, and each bin's outcome for all of its tokens.

    >>> encoder = Enformer(EnformerConfig(max_length=1000, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (1000, 1)])).values.shape
    torch.Size([1001, 8])
    """

    Config = EnformerConfig

    def __init__(self, config: EnformerConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.stages = nn.ModuleList(
            Stage(config.width, taps=15 if i == 0 else 5, first=i == 0) for i in range(config.halvings)
        )
        self.blocks = nn.ModuleList(
            Residual(config.width, RelativeAttention(config), config.expansion, config.dropout)
            for _ in range(config.layers)
        )

    def forward(self, x: Packed) -> Packed:
        check_fits(x, self.config)
        bins = x
        for stage in self.stages:
            bins = stage(bins)
        bins = in_buckets(bins, self._attended)
        own = bins.offsets.index_select(0, x.owners()) + x.places() // 2**self.config.halvings
        return x.with_values(bins.values.index_select(0, own).to(x.values.dtype))

    def _attended(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        for block in self.blocks:
            values = block(values, mask)
        return values
