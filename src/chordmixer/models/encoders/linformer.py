"""Linformer: keys and values are projected along the sequence to k rows (Wang et al., 2020).

Ours: the projections of a layer are shared by its heads, and a sequence of N tokens takes their first N rows.
Receptive field: the whole sequence in one layer. Cost: N k time and memory; its parameters grow with the longest
length, 2 k a layer and position, and those of late positions learn only from sequences that reach them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from chordmixer.models.encoders import layers


@dataclass(frozen=True)
class LinformerConfig:
    """The defaults are those of the ChordMixer paper's Adding problem; `rank`, `expansion` and `dropout` are ours."""

    max_length: int
    """The longest sequence that is accepted; the projections have a row for each position."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 1
    """Number of blocks."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    rank: int = 128
    """k, the number of rows that keys and values are projected to."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class LinformerAttention(layers.Attention):
    """softmax(q (E^T k)^T / sqrt(d)) F^T v, with E and F of (max_length, rank)."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        start = torch.randn(2, config.max_length, config.rank) / sqrt(config.rank)
        self.projections = nn.Parameter(start)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        longest = self.projections.shape[1]  # beyond it there is only padding
        along_keys, along_values = self.projections[:, : q.shape[2]].transpose(1, 2)
        k, v = (layers.hide(t, mask)[:, :, :longest] for t in (k, v))
        return layers.softmax_attention(q, along_keys @ k, along_values @ v)


class Linformer(layers.Stack):
    """Attention to a fixed number of learned mixtures of the tokens.

    >>> from chordmixer import Packed
    >>> encoder = Linformer(LinformerConfig(max_length=100, width=8, rank=4))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = LinformerConfig

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config, LinformerAttention)
