"""Nyströmformer: attention through a few landmarks, which are means of stretches of tokens (Xiong et al., 2021).

Ours: stretches follow the length of each sequence, and a sequence with fewer tokens than landmarks has one landmark
per token. Receptive field: the whole sequence in one layer. Cost: N m time and memory for m landmarks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from chordmixer.models.encoders import layers

TAPS = 33
"""Kernel size of the convolution of the values, which is added to the attention."""
STRETCH = 64
"""Number of tokens of the convolution per matrix product."""
ITERATIONS = 6
"""Number of iterations for the pseudo-inverse."""


@dataclass(frozen=True)
class NystromformerConfig:
    """The defaults are those of the ChordMixer paper's Adding problem; `expansion` and `dropout` are ours."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 128
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    heads: int = 2
    """Number of attention heads, which divide the channels."""
    landmarks: int = 64
    """m, the maximum number of landmarks of a sequence; the authors' number."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each layer's output that is set to zero in training."""

    def __post_init__(self) -> None:
        layers.check_settings(self)


class NystromAttention(layers.Attention):
    """F1 pinv(F2) F3 v + conv(v): tokens to landmarks, landmarks to each other, landmarks to tokens."""

    def __init__(self, config: NystromformerConfig) -> None:
        super().__init__(config)
        self.landmarks = config.landmarks
        self.conv = Smoothing(config.heads)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q, k, v = q * q.shape[3] ** -0.25, k * k.shape[3] ** -0.25, layers.hide(v, mask)
        means = averages(mask, min(self.landmarks, mask.shape[1]), q.dtype)[:, None]
        used = means.any(3)
        ql, kl = means @ q, means @ k
        f1 = softmax(q @ kl.transpose(2, 3), used[:, :, None])
        f2 = softmax(ql @ kl.transpose(2, 3), used[:, :, None])
        # An unused landmark has a row and column of the identity, so it does not affect the inverse of the rest.
        f2 = torch.where(used[..., None], f2, torch.eye(f2.shape[3], dtype=f2.dtype, device=f2.device))
        f3 = softmax(ql @ k.transpose(2, 3), mask[:, None, None])
        out: Tensor = f1 @ (pseudo_inverse(f2).to(v.dtype) @ (f3 @ v)) + self.conv(v)
        return out


class Smoothing(nn.Module):
    """A convolution along the tokens, the same for all channels of a head, as products with a band matrix.

    Torch's convolution takes two thirds of a training step on a GPU for the gradient of a few dozen weights.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, TAPS).uniform_(-1, 1) / TAPS**0.5)

    def forward(self, v: Float[Tensor, "B h N d"]) -> Float[Tensor, "B h N d"]:
        """Convolve stretches of tokens, each with its neighbours on both sides; zeros beyond the ends."""
        far = TAPS // 2
        windows = F.pad(v, (0, 0, far, far + -v.shape[2] % STRETCH)).unfold(2, STRETCH + 2 * far, STRETCH)
        tap = torch.arange(STRETCH + 2 * far, device=v.device) - torch.arange(STRETCH, device=v.device)[:, None]
        reached = (tap >= 0) & (tap < TAPS)
        band = torch.where(reached, self.weight[:, tap.clamp(0, TAPS - 1)], 0.0)
        return (band[:, None] @ windows.mT).flatten(2, 3)[:, :, : v.shape[2]]


def softmax(scores: Float[Tensor, "B h I J"], mask: Bool[Tensor, "B 1 1 J"]) -> Float[Tensor, "B h I J"]:
    """Softmax with zero weight where the mask is false."""
    return scores.masked_fill(~mask, -torch.inf).softmax(3)


def averages(mask: Bool[Tensor, "B N"], landmarks: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "B m N"]:
    """The matrix of means over stretches of tokens, whose lengths differ by at most one.

    >>> averages(torch.tensor([[True] * 5, [True] * 2 + [False] * 3]), landmarks=3)[1]
    tensor([[1., 0., 0., 0., 0.],
            [0., 1., 0., 0., 0.],
            [0., 0., 0., 0., 0.]])
    """
    length = mask.sum(1, keepdim=True)
    position = torch.arange(mask.shape[1], device=mask.device)
    stretch = position * length.clamp(max=landmarks) // length
    in_stretch = stretch[:, None] == torch.arange(landmarks, device=mask.device)[:, None]
    chosen = (in_stretch & mask[:, None]).to(dtype)
    return chosen / chosen.sum(2, keepdim=True).clamp(min=1)


def pseudo_inverse(a: Float[Tensor, "B h m m"]) -> Float[Tensor, "B h m m"]:
    """The iteration of Razavi et al. (2014), as the authors use it, with a start for each head.

    In float32 or better even under autocast: it does not converge with less precision.

    >>> a = torch.tensor([[0.8, 0.2], [0.1, 0.9]])
    >>> torch.allclose(pseudo_inverse(a) @ a, torch.eye(2), atol=1e-4)
    True
    """
    a = a.to(torch.promote_types(a.dtype, torch.float32))
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = a.mT / a.sum(-2, keepdim=True).amax(-1, keepdim=True)  # rows of a softmax add up to one
    with torch.autocast(a.device.type, enabled=False):
        for _ in range(ITERATIONS):
            az = a @ z
            z = z / 4 @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
    return z


class Nystromformer(layers.Stack):
    """Attention through landmarks, plus a short convolution.

    >>> from chordmixer import Packed
    >>> encoder = Nystromformer(NystromformerConfig(max_length=100, width=8, landmarks=4))
    >>> encoder(Packed.from_list([torch.randn(7, 8), torch.randn(100, 8)])).values.shape
    torch.Size([107, 8])
    """

    Config = NystromformerConfig

    def __init__(self, config: NystromformerConfig) -> None:
        super().__init__(config, NystromAttention)
