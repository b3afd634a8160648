"""Local patterns before the encoder: a few convolutions along each sequence, added to its embedding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.config import check_numbers
from chordmixer.models.convolutions import Convolution
from chordmixer.packed import Packed


@dataclass(frozen=True)
class StemConfig:
    """Settings of the convolutions before the encoder."""

    layers: int = 0
    """Number of convolutions in sequence. Default 0: no stem."""
    taps: int = 7
    """Kernel size of each convolution in tokens, an odd number. Default 7."""
    width: int = 64
    """Number of channels between two convolutions. Default 64."""

    def __post_init__(self) -> None:
        check_numbers(self, layers=(0, 8), taps=(1, 127), width=(1, 1 << 16))
        if not self.taps % 2:
            raise ValueError(f"taps={self.taps} of a stem is not an odd number: give 7 or 9")


class Stem(nn.Module):
    """Convolutions, each followed by a layer norm and GELU, with zeros beyond a sequence's ends.

    The zeros also tell the network where a sequence starts and ends, which rotation alone cannot. A sequence may be
    shorter than the window.

    >>> import torch
    >>> stem = Stem(StemConfig(layers=2, taps=3), inputs=5, width=8)
    >>> stem(Packed.from_list([torch.randn(7, 5), torch.randn(1, 5)])).shape
    torch.Size([8, 8])
    """

    def __init__(self, config: StemConfig, inputs: int, width: int) -> None:
        super().__init__()
        sizes = [inputs, *[config.width] * (config.layers - 1), width]
        self.convolutions = nn.ModuleList(Convolution(a, b, config.taps) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:])

    def forward(self, x: Packed) -> Float[Tensor, "T C"]:
        values = x.values
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            values = F.gelu(norm(convolution(values, x)))
        return values
