"""TCN: causal convolutions whose taps lie 1, 2, 4, ... tokens apart (Bai, Kolter and Koltun 2018).

A level is their block: twice (dilated causal convolution with weight norm, ReLU, dropout), a residual and a ReLU.
Ours: all levels have the same width, so that no residual needs a map, and there are as many levels as reach the
longest sequence; the ChordMixer paper compares with a TCN and gives no settings.
Receptive field: 1 + 2 (kernel - 1) (2^levels - 1) tokens, all of them before the token. Cost: O(N * kernel) a level.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from chordmixer.models.convolutions import Convolution
from chordmixer.models.encoders.layers import check_settings
from chordmixer.models.encoders.packed_layers import PackedStack
from chordmixer.packed import Packed


@dataclass(frozen=True)
class TcnConfig:
    """Default sizes are ours: the paper gives none."""

    max_length: int
    """The longest sequence that is accepted."""
    width: int = 64
    """Number of channels per token."""
    layers: int | None = None
    """Number of levels; None: as many as the last of `max_length` tokens needs to see the first."""
    kernel: int = 3
    """Kernel size of a convolution."""
    dropout: float = 0.0
    """Share of each convolution's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def levels(self) -> int:
        """Number of levels.

        >>> TcnConfig(max_length=1000).levels, TcnConfig(max_length=1000).receptive_field
        (8, 1021)
        """
        if self.layers:
            return self.layers
        reach = 2 * max(1, self.kernel - 1)
        return max(1, (-(-(self.max_length - 1) // reach)).bit_length())

    @property
    def receptive_field(self) -> int:
        """Number of tokens that can change one token's output: itself and those before it."""
        tokens: int = 1 + 2 * (self.kernel - 1) * (2**self.levels - 1)
        return tokens


class Level(nn.Module):
    """Two convolutions of the same dilation, and a residual."""

    def __init__(self, config: TcnConfig, dilation: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.first, self.second = (
            weight_norm(Convolution(config.width, config.width, config.kernel, dilation, causal=True))
            for _ in range(2)
        )

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T C"]:
        mixed = values
        for convolution in (self.first, self.second):
            mixed = F.dropout(F.relu(convolution(mixed, x)), self.dropout, self.training)
        return F.relu(values + mixed)


class Tcn(PackedStack):
    """Dilated causal convolutions, level by level.

    >>> import torch
    >>> encoder = Tcn(TcnConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = TcnConfig

    def __init__(self, config: TcnConfig) -> None:
        super().__init__(config, (Level(config, dilation=2**i) for i in range(config.levels)))
