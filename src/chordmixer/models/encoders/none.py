"""No encoder: with a stem, a local convolutional network, as a baseline for long-range mixing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from chordmixer.config import LONGEST, check_numbers
from chordmixer.models.encoders.layers import MAX_COUNT, check_fits
from chordmixer.packed import Packed


@dataclass(frozen=True)
class NoEncoderConfig:
    """Sizes of a network without encoder blocks."""

    max_length: int
    """The longest sequence that is accepted."""
    width: int = 208
    """Number of channels per token. Default 208, as in a ChordMixer for 4,096 tokens with tracks of 16."""

    def __post_init__(self) -> None:
        check_numbers(self, max_length=(1, LONGEST), width=(1, MAX_COUNT))


class NoEncoder(nn.Module):
    """The identity.

    >>> import torch
    >>> NoEncoder(NoEncoderConfig(max_length=9, width=4))(Packed.from_list([torch.ones(3, 4)])).values.shape
    torch.Size([3, 4])
    """

    Config = NoEncoderConfig

    def __init__(self, config: NoEncoderConfig) -> None:
        super().__init__()
        self.config, self.width = config, config.width

    def forward(self, x: Packed) -> Packed:
        check_fits(x, self.config)
        return x
