"""Layers of encoders that need no padding: a stack of blocks on packed tokens, and long convolutions.

A long convolution uses the fast Fourier transform; sequences of similar length are transformed together.
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

SMALL_TRANSFORM = 1 << 14
"""Size up to which transforms are powers of two: cuFFT plans each size, which takes longer than a transform."""


class PackedStack(nn.Module):
    """An encoder with any blocks, which take the tokens and a `Packed` with the offsets of their sequences."""

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
    by_size = defaultdict(list)
    for b, length in enumerate(x.lengths):
        by_size[_transform_size(2 * length)].append(b)
    parts = [_transformed(x.select(group), kernel, size) for size, group in by_size.items()]
    order = list(chain.from_iterable(by_size.values()))
    original_order = sorted(range(len(order)), key=order.__getitem__)
    return Packed.from_lengths(torch.cat(parts), [x.lengths[b] for b in order]).select(original_order).values


def _transform_size(least: int) -> int:
    """A fast transform size: 8 to 15 times a power of two, at most an eighth above `least`; up to `SMALL_TRANSFORM` a
    power of two, so that many sequences share it.

    The size depends on the sequence only, so that rounding does not differ between batches.
    """
    if least <= SMALL_TRANSFORM:
        return 1 << (least - 1).bit_length()
    step = 1 << (least.bit_length() - 4)
    return -(-least // step) * step


def _transformed(x: Packed, kernel: Float[Tensor, "N C"], size: int) -> Float[Tensor, "T C"]:
    values = x.values.to(torch.promote_types(x.values.dtype, torch.float32))  # torch cannot transform bfloat16
    layout = Layout(x.lengths, range(0, len(x) * size, size), len(x) * size, x.device)
    rows = layout.put(values).unflatten(0, (len(x), size))
    spectrum = torch.fft.rfft(kernel[: max(x.lengths)].to(values.dtype), size, dim=0)
    mixed = torch.fft.irfft(torch.fft.rfft(rows, dim=1) * spectrum, size, dim=1)
    return layout.take(mixed.flatten(0, 1)).to(x.values.dtype)
