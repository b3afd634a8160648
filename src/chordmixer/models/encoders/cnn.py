"""1-D CNN: residual blocks, each a convolution over the tokens next to a token and an MLP.

The simplest network that sees neighbours (LeCun et al. 1989; residual blocks: He et al. 2016). The ChordMixer paper
compares with one and gives no settings: these are ours, as is the layer norm before each part in place of batch norm.
Receptive field: layers * (kernel - 1) + 1 tokens. Cost: O(N * kernel) a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from chordmixer.models.convolutions import Convolution
from chordmixer.models.encoders.layers import Residual, check_settings
from chordmixer.models.encoders.packed_layers import PackedStack


@dataclass(frozen=True)
class CnnConfig:
    """Default sizes are ours: the paper gives none."""

    max_length: int
    """The longest sequence that is accepted; no weight depends on it."""
    width: int = 64
    """Number of channels per token."""
    layers: int = 4
    """Number of blocks."""
    kernel: int = 9
    """Kernel size of a convolution, an odd number."""
    expansion: int = 2
    """Hidden width of each MLP, as a multiple of `width`."""
    dropout: float = 0.0
    """Share of each part's output that is set to zero in training."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.kernel % 2 == 0:
            raise ValueError(
                f"kernel={self.kernel} has no middle: a window around a token is odd; give {self.kernel + 1}"
            )

    @property
    def receptive_field(self) -> int:
        """Number of tokens that can change one token's output."""
        return self.layers * (self.kernel - 1) + 1


class Cnn(PackedStack):
    """Convolutions over the tokens around each token.

    >>> import torch
    >>> from chordmixer import Packed
    >>> encoder = Cnn(CnnConfig(max_length=100, width=8))
    >>> encoder(Packed.from_list([torch.randn(n, 8) for n in (100, 1)])).values.shape
    torch.Size([101, 8])
    """

    Config = CnnConfig

    def __init__(self, config: CnnConfig) -> None:
        width = config.width
        super().__init__(
            config,
            (
                Residual(width, Convolution(width, width, config.kernel), config.expansion, config.dropout)
                for _ in range(config.layers)
            ),
        )
