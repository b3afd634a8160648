"""ChordMixer blocks without Rotate, so that tokens do not interact, as a baseline for mixing."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chordmixer import ops
from chordmixer.models.chordmixer import Block, ChordMixerConfig
from chordmixer.packed import Packed


class PointwiseBlock(Block):
    """A block without Rotate."""

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:  # type: ignore[override]
        z = F.dropout(ops.normalise(x, offsets, self.prenorm.state()), self.config.dropout, self.training)
        return ops.normalise(x + ops.mix(z, self.mlp()), offsets, self.norm.state())


class Pointwise(nn.Module):
    """Each token separately through all MLPs of a ChordMixer network with the same config.

    >>> import torch
    >>> encoder = Pointwise(ChordMixerConfig(max_length=100, track_size=4, hidden=16))
    >>> encoder(Packed.from_list([torch.randn(7, encoder.width)])).values.shape
    torch.Size([7, 32])
    """

    Config = ChordMixerConfig

    def __init__(self, config: ChordMixerConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.blocks = nn.ModuleList(PointwiseBlock(config) for _ in range(config.depth))

    def forward(self, x: Packed) -> Packed:
        values = x.values
        for block in self.blocks:
            values = block(values, x.offsets)
        return x.with_values(values)
