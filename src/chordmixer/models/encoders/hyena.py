"""Hyena: long convolutions with filters computed by a small network, gated before and after (Poli et al. 2023).

Order 2. v, x1, x2 are three linear maps of the tokens, each followed by a causal convolution of 3 taps a channel;

    y = x1 * (h conv (v * x2) + bias * v * x2),        h_t = MLP(features of t) * exp(-decay t / max_length),

then a linear map. The MLP's activations are sines, its features t / max_length and sines and cosines of it; decays
differ by channel, from 1 % left at 0.3 of the maximum length to 1 % at 1.5 of it. Ours: positions are scaled by
`max_length` and never by the batch, so that outputs do not depend on the batch, and the filter is divided by
sqrt(max_length), so that its sum does not grow with it. The ChordMixer paper does not compare with Hyena: settings
are ours. Receptive field: the token and all before it. Cost: O(N log N) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.models.convolutions import Convolution
from chordmixer.models.encoders.layers import Residual, check_settings
from chordmixer.models.encoders.packed_layers import PackedStack, long_convolution
from chordmixer.packed import Packed


@dataclass(frozen=True)
class HyenaConfig:
    """Default sizes are ours: the paper does not compare with it."""

    max_length: int
    """The longest sequence that is accepted; filters are scaled to it."""
    width: int = 64
    """Number of channels per token."""
    layers: int = 2
    """Number of blocks."""
    filter_width: int = 64
    """Number of channels of the network that computes the filters."""
    bands: int = 16
    """Number of frequencies of its features: 0 to `bands - 1` cycles over the maximum length."""
    frequency: float = 10.0
    """Initial value of the learned factor of the sines' inputs."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)


class Sine(nn.Module):
    """sin(frequency * x), with a learned frequency per channel."""

    def __init__(self, width: int, frequency: float) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.full((width,), frequency))

    def forward(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        return torch.sin(self.frequency * x)


class Filter(nn.Module):
    """Computes h, one filter per channel.

    >>> Filter(HyenaConfig(max_length=100, width=8))(40).shape
    torch.Size([40, 8])
    """

    decay: Tensor

    def __init__(self, config: HyenaConfig) -> None:
        super().__init__()
        self.config = config
        width = config.filter_width
        self.network = nn.Sequential(
            nn.Linear(1 + 2 * config.bands, width),
            Sine(width, config.frequency),
            nn.Linear(width, width),
            Sine(width, config.frequency),
            nn.Linear(width, width),
            Sine(width, config.frequency),
            nn.Linear(width, config.width, bias=False),
        )
        self.register_buffer("decay", torch.linspace(log(100) / 1.5, log(100) / 0.3, config.width), persistent=False)

    def forward(self, length: int) -> Float[Tensor, "N C"]:
        """The first `length` taps; they do not depend on `length`."""
        t = torch.arange(length, device=self.decay.device).to(self.decay.dtype)[:, None] / self.config.max_length
        phase = 2 * pi * torch.arange(self.config.bands, device=t.device) * t
        with torch.autocast(t.device.type, enabled=False):  # bfloat16 cannot resolve positions
            h: Tensor = self.network(torch.cat([t, phase.cos(), phase.sin()], dim=1))
        return h * torch.exp(-self.decay * t) / sqrt(self.config.max_length)


class Operator(nn.Module):
    """The gates and the long convolution between them."""

    def __init__(self, config: HyenaConfig) -> None:
        super().__init__()
        self.enter = nn.Linear(config.width, 3 * config.width)
        self.short = Convolution(3 * config.width, 3 * config.width, taps=3, groups=3 * config.width, causal=True)
        self.filter = Filter(config)
        self.bias = nn.Parameter(torch.randn(config.width))
        self.out = nn.Linear(config.width, config.width)

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        v, x1, x2 = self.short(self.enter(values), x).chunk(3, dim=1)
        gated = v * x2
        mixed = long_convolution(x.with_values(gated), self.filter(max(x.lengths))) + self.bias * gated
        out: Tensor = self.out(x1 * mixed)
        return out


class Hyena(PackedStack):
    """Gated long convolutions with implicit filters.

    >>> encoder = Hyena(HyenaConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = HyenaConfig

    def __init__(self, config: HyenaConfig) -> None:
        super().__init__(
            config,
            (
                Residual(config.width, Operator(config), config.expansion, config.dropout)
                for _ in range(config.layers)
            ),
        )
