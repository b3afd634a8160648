"""Cosformer: linear attention whose weights fade with distance by a cosine (Qin et al., 2022).

Ours: sinusoidal positions are added to the tokens, and the cosine's period is the length of each sequence: with that
of the batch, outputs would depend on the batch. Receptive field: the whole sequence in one layer. Cost: N time and
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor

from chordmixer.models.encoders import layers


@dataclass(frozen=True)
class CosformerConfig:
    """The defaults are those of the ChordMixer paper's Adding problem; `expansion` and `dropout` are ours."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class CosineAttention(layers.Attention):
    """Weights relu(q_i) . relu(k_j) cos(pi (i - j) / 2N), split by the cosine of a difference so that sums factor."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        precise = torch.promote_types(q.dtype, torch.float32)
        place = torch.arange(q.shape[2], device=q.device, dtype=precise)
        angle = (place * (pi / 2) / mask.sum(1, keepdim=True))[:, None, :, None]
        cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
        q, k = F.relu(q), layers.hide(F.relu(k), mask)
        q, k = torch.cat([q * cos, q * sin], dim=3), torch.cat([k * cos, k * sin], dim=3)
        total = q @ k.sum(2).unsqueeze(3)
        return q @ (k.transpose(2, 3) @ v) / total.clamp(min=1e-6)


class Cosformer(layers.Stack):
    """Linear attention with cosine weights.

    >>> from chordmixer import Packed
    >>> encoder = Cosformer(CosformerConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = CosformerConfig

    def __init__(self, config: CosformerConfig) -> None:
        super().__init__(config, CosineAttention)
