"""Performer: softmax attention by positive random features (Choromanski et al., 2021).

Ours: the features are drawn once, when the network is built, and saved with its weights, so that outputs are
deterministic; the authors redraw in training. The largest exponent is taken over each sequence's tokens. Receptive
field: the whole sequence in one layer. Cost: N r time and memory for r features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from chordmixer.models.encoders import layers

EPSILON = 1e-4
"""Added to every feature, relative to the largest, so that no token has zero weight: the authors' number."""


@dataclass(frozen=True)
class PerformerConfig:
    """The ChordMixer paper gives no settings for it: all defaults are ours, sized as its Nyströmformer."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    features: int = 256
    """r, the number of random features per head."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


def orthogonal_gaussian(rows: int, columns: int) -> Float[Tensor, "r d"]:
    """Rows as long as Gaussian ones, but orthogonal within each group of `columns` rows.

    >>> w = orthogonal_gaussian(5, 3)
    >>> w.shape, bool((w[0] @ w[1]).abs() < 1e-5)
    (torch.Size([5, 3]), True)
    """
    q, r = torch.linalg.qr(torch.randn(-(-rows // columns), columns, columns))
    q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None]  # else signs depend on the algorithm and are not random
    drawn: Tensor = q.mT.flatten(0, 1)[:rows] * torch.randn(rows, columns).norm(dim=1, keepdim=True)
    return drawn


class RandomFeatureAttention(layers.Attention):
    """phi(q) (phi(k)^T v) over phi(q) . sum phi(k), with phi(u) = r^(-1/2) (exp(w u - |u|^2 / 2 - max) + eps)."""

    projection: Tensor

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__(config)
        self.register_buffer("projection", orthogonal_gaussian(config.features, config.width // config.heads))

    def exponents(self, u: Float[Tensor, "B h N d"]) -> Float[Tensor, "B h N r"]:
        """Exponents of the features, in float32 or better even under autocast."""
        with torch.autocast(u.device.type, enabled=False):
            u = u.to(self.projection.dtype) * u.shape[3] ** -0.25
            return u @ self.projection.T - u.square().sum(3, keepdim=True) / 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scale = len(self.projection) ** -0.5
        exponents_q = self.exponents(q)
        exponents_k = self.exponents(k).masked_fill(~mask[:, None, :, None], -torch.inf)
        phi_q = scale * (torch.exp(exponents_q - exponents_q.amax(3, keepdim=True)) + EPSILON)
        phi_k = layers.hide(scale * (torch.exp(exponents_k - exponents_k.amax((2, 3), keepdim=True)) + EPSILON), mask)
        mixed: Tensor = phi_q @ (phi_k.transpose(2, 3) @ v) / (phi_q @ phi_k.sum(2).unsqueeze(3))
        return mixed


class Performer(layers.Stack):
    """Linear attention whose kernel approximates the softmax.

    >>> from chordmixer import Packed
    >>> encoder = Performer(PerformerConfig(max_length=100, width=8, features=16))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = PerformerConfig

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__(config, RandomFeatureAttention)
