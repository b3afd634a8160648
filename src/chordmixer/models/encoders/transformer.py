"""The Transformer encoder: every token attends to every other (Vaswani et al., 2017).

Ours: norms before the layers instead of after them, a GELU, no dropout within the attention. Receptive field: the
whole sequence in one layer. Cost: N^2 time; memory of N where torch has a fused kernel, N^2 where it has none.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from chordmixer.models.encoders import layers
from chordmixer.packed import Packed

LONG_MEAN = 2048
"""Mean length from which one sequence occupies a GPU, so that padding several to a batch is no faster."""


@dataclass(frozen=True)
class TransformerConfig:
    """The defaults are those of the ChordMixer paper's Adding problem; `expansion` and `dropout` are ours."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 64
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 4
    """Number of attention heads, which divide the channels."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class SoftmaxAttention(layers.Attention):
    """softmax(q k^T / sqrt(d)) v, by torch's fused kernels."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        keys = None if mask is None else mask[:, None, None]
        return layers.softmax_attention(q, k, v, mask=keys)


class Transformer(layers.Stack):
    """Softmax attention over each sequence: without padding on a CPU and for long sequences, else in padded buckets.

    >>> import torch
    >>> encoder = Transformer(TransformerConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, SoftmaxAttention)

    def forward(self, x: Packed) -> Packed:
        layers.check_fits(x, self.config)
        x = layers.with_positions(x)
        if x.device.type == "cpu" or x.tokens >= LONG_MEAN * len(x):  # equal lengths only, so that no mask is needed
            return layers.in_buckets(x, lambda values, mask: self.through(values, None), mixed=False)
        return layers.in_buckets(x, self.through)
