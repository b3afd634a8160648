"""What encoders that need no padding share: a stack of blocks on packed tokens, and long convolutions of them.

A long convolution is made by the fast Fourier transform; sequences of like length are transformed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.models.encoders.layers import check_fits
from chordmixer.packed import Layout, Packed

SMALL = 1 << 14
"""Up to this size of transforms there are few sizes: cuFFT makes a plan for each, which takes longer than they do."""


class PackedStack(nn.Module):
    """An encoder but for its blocks: each takes the tokens, and a `Packed` that says where their sequences start."""

    def __init__(self, config: Any, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Packed) -> Packed:
        check_fits(x, self.config)
        values = x.values
        for block in self.blocks:
            values = block(values, x)
        return x.with_values(values)


def long_convolution(x: Packed, kernel: Float[Tensor, "N C"]) -> Float[Tensor, "T C"]:
    """y_n = sum over m <= n of kernel_(n-m) x_m, channel by channel, in O(N log N); the kernel reaches the longest.

    >>> x = Packed.from_lengths(torch.tensor([[1.0], [2.0], [5.0]]), [2, 1])
    >>> long_convolution(x, torch.tensor([[1.0], [10.0]])).round().flatten().tolist()
    [1.0, 12.0, 5.0]
    """
    alike = defaultdict(list)
    for b, length in enumerate(x.lengths):
        alike[_transform_size(2 * length)].append(b)
    parts = [_transformed(x.select(group), kernel, size) for size, group in alike.items()]
    order = list(chain.from_iterable(alike.values()))
    back = sorted(range(len(order)), key=order.__getitem__)
    return Packed.from_lengths(torch.cat(parts), [x.lengths[b] for b in order]).select(back).values


def _transform_size(least: int) -> int:
    """A size that transforms quickly: 8 to 15 times a power of two, at most an eighth above the least; up to
    `SMALL` a power of two, so that many sequences share it.

    It follows from the sequence alone, so that rounding does not differ from batch to batch.
    """
    if least <= SMALL:
        return 1 << (least - 1).bit_length()
    step = 1 << (least.bit_length() - 4)
    return -(-least // step) * step


def _transformed(x: Packed, kernel: Float[Tensor, "N C"], size: int) -> Float[Tensor, "T C"]:
    values = x.values.to(torch.promote_types(x.values.dtype, torch.float32))  # there is no transform of bfloat16
    layout = Layout(x.lengths, range(0, len(x) * size, size), len(x) * size, x.device)
    rows = layout.put(values).unflatten(0, (len(x), size))
    spectrum = torch.fft.rfft(kernel[: max(x.lengths)].to(values.dtype), size, dim=0)
    mixed = torch.fft.irfft(torch.fft.rfft(rows, dim=1) * spectrum, size, dim=1)
    return layout.take(mixed.flatten(0, 1)).to(x.values.dtype)
