"""Enformer: convolutions down to bins of 128 bases, then attention between bins (Avsec et al. 2021).

A stem (15 taps) and six stages (5 taps) each end in a pooling of pairs, weighted by a softmax per channel; the last
token of an odd sequence is passed on alone. Attention uses the distance of two bins: to the product of query and key
is added that of the query and a learned map of the distance's features (half-lives, and steps at powers of two, with
and without the sign), with learned biases. The output of a bin is repeated for each of its tokens, so that the number
of tokens does not change; the output has no finer resolution.
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
"""Number of half-lives, and of steps, that describe a distance."""


@dataclass(frozen=True)
class EnformerConfig:
    """Default sizes are ours: a small Enformer."""

    max_length: int
    """The longest sequence that is accepted; half-lives of distances go up to it."""
    width: int = 128
    """Number of channels per token and per bin."""
    layers: int = 4
    """Number of attention blocks."""
    heads: int = 4
    """Number of attention heads."""
    halvings: int = 7
    """Number of poolings of pairs: a bin has 2^halvings tokens."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of the output of each part of an attention block that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def bins(self) -> int:
        """Number of bins of the longest sequence."""
        bins: int = -(-self.max_length // 2**self.halvings)
        return bins


class Stage(nn.Module):
    """Two convolutions, one of a single tap with a residual, and a pooling of pairs, which halves the tokens."""

    def __init__(self, width: int, taps: int, first: bool) -> None:
        super().__init__()
        self.enter = nn.Identity() if first else nn.Sequential(nn.LayerNorm(width), nn.GELU())
        self.wide = Convolution(width, width, taps)
        self.point = nn.Sequential(nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width))
        self.weight = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.weight.weight.copy_(2 * torch.eye(width))  # as theirs: large numbers weigh more

    def forward(self, x: Packed) -> Packed:
        values = self.wide(self.enter(x.values), x)
        values = values + self.point(values)
        weight = self.weight(values)
        parents, second, _ = pairs(x)  # a single token is paired with itself, which returns it
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
        distance = torch.arange(1 - bins, bins + 1, device=q.device).to(self.distance.weight.dtype)
        keys = self.distance(features(distance, self.bins)).unflatten(1, (self.heads, size)).permute(1, 2, 0)
        bias = by_position((q + self.distance_bias) @ keys) / size**0.5
        bias = bias.masked_fill(~mask[:, None, None], float("-inf"))
        return softmax_attention(q + self.content_bias, k, v, mask=bias.to(q.dtype))


def features(distance: Float[Tensor, "D"], bins: int) -> Float[Tensor, "D F"]:
    """Features of a distance: decays with half-lives up to `bins`, steps at powers of two, and both signed."""
    size = distance.abs()[:, None]
    index = torch.arange(FEATURES, device=distance.device)
    longest = max(log2(bins), 3.0)
    decays = torch.exp2(-size / torch.exp2(longest - (longest - 1) * index / FEATURES))
    steps = (size < 2**index).to(distance.dtype)
    unsigned = torch.cat([decays, steps], dim=1)
    return torch.cat([unsigned, distance.sign()[:, None] * unsigned], dim=1)


def by_position(by_distance: Float[Tensor, "B h N 2N"]) -> Float[Tensor, "B h N N"]:
    """From columns by distance (1 - N to N) to columns by position: out[i, j] is that of j - i. No index, one copy.

    >>> by_position(torch.arange(-1, 3).expand(1, 1, 2, 4)).tolist()
    [[[[0, 1], [-1, 0]]]]
    """
    n = by_distance.shape[2]
    by_key: Tensor = by_distance.flatten(2)[..., n - 1 : n - 1 + n * (2 * n - 1)].unflatten(2, (n, 2 * n - 1))[
        ..., :n
    ]
    return by_key


class Enformer(nn.Module):
    """Convolutions to bins, attention between bins, and each bin's output for all of its tokens.

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
        bins = in_buckets(bins, self._attend_bins)
        bin_of_token = bins.offsets.index_select(0, x.owners()) + x.places() // 2**self.config.halvings
        return x.with_values(bins.values.index_select(0, bin_of_token).to(x.values.dtype))

    def _attend_bins(self, values: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        for block in self.blocks:
            values = block(values, mask)
        return values
