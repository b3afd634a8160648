"""Convolutions along packed sequences, with zeros beyond each one's ends.

All sequences stand in one row with zeros between them, as many as a token can reach over, so that one convolution
serves the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer.packed import Layout, Packed, StaticPacked

LONG_ROW = 1 << 18
"""Tokens from which on a convolution takes longer than its planning."""


class Convolution(nn.Conv1d):
    """A convolution along each sequence, with zeros beyond both its ends; `causal` looks back only.

    >>> smooth = Convolution(1, 1, taps=3)
    >>> with torch.no_grad():
    ...     _ = smooth.weight.fill_(1), smooth.bias.zero_()
    >>> x = Packed.from_lengths(torch.ones(6, 1), [4, 2])
    >>> smooth(x.values, x).flatten().tolist()
    [2.0, 3.0, 3.0, 2.0, 2.0, 2.0]
    """

    def __init__(
        self, inputs: int, outputs: int, taps: int, dilation: int = 1, groups: int = 1, causal: bool = False
    ) -> None:
        assert causal or taps % 2, "a convolution that looks both ways has a middle"
        super().__init__(inputs, outputs, taps, dilation=dilation, groups=groups)
        self.causal = causal

    def forward(self, values: Float[Tensor, "T C"], x: Packed) -> Float[Tensor, "T D"]:  # type: ignore[override]
        """Of these values; `x` says where its sequences start."""
        taps, dilation = self.kernel_size[0], self.dilation[0]
        before, after = (taps - 1, 0) if self.causal else (taps // 2, taps // 2)
        # Taps that lie farther away than the longest sequence meet zeros only: leave them out, and shorten the gaps.
        far = taps if isinstance(x, StaticPacked) else (max(x.lengths) - 1) // dilation
        left, right = min(before, far), min(after, far)
        weight = self.weight[..., before - left : before + right + 1]
        gap = max(left, right) * dilation
        spare = 0
        if values.is_cuda and not isinstance(x, StaticPacked):
            spare = _rounded(x.tokens + gap * len(x)) - x.tokens - gap * len(x)
        row, layout = spaced(values, x, gap, left * dilation, right * dilation + spare)
        if 1 < self.groups == self.in_channels == self.out_channels:
            assert self.bias is not None
            return layout.take(_by_channel(row, weight[:, 0], self.bias, dilation)[: layout.size])
        image = row[None, None].permute(0, 3, 1, 2)  # the channels of a token stay side by side: cuDNN likes it so
        with as_products():
            mixed = F.conv2d(image, weight[:, :, None], self.bias, dilation=(1, dilation), groups=self.groups)
        return layout.take(mixed.permute(0, 2, 3, 1).flatten(0, 2)[: layout.size])


def _rounded(length: int) -> int:
    """Up to an eighth more, up to a length where that would cost: cuDNN plans each length that it has not met for
    milliseconds, and batches seldom have the same.

    >>> _rounded(1000), _rounded(1024), _rounded(1 << 20) - (1 << 20)
    (1024, 1024, 0)
    """
    step = (1 << length.bit_length()) >> 4
    return length if length > LONG_ROW or not step else -(-length // step) * step


def _by_channel(
    row: Float[Tensor, "L C"], weight: Float[Tensor, "C k"], bias: Float[Tensor, "C"], dilation: int
) -> Float[Tensor, "L-reach C"]:
    """A convolution of each channel alone, a tap at a time; cuDNN's was a quarter of a step of Hyena and Mamba-2."""
    weight, length = weight.to(row.dtype).T, len(row) - (weight.shape[1] - 1) * dilation
    mixed = bias.to(row.dtype) + row[:length] * weight[0]
    for tap, own in enumerate(weight[1:], 1):
        mixed = torch.addcmul(mixed, row[tap * dilation :][:length], own)
    return mixed


@contextmanager
def as_products() -> Iterator[None]:
    """cuDNN's layers as exact as matrix products: torch has it round float32 to TF32 unless told otherwise, and the
    same sequence then differs in the fourth digit between one batch and another."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def spaced(
    values: Float[Tensor, "T C"], x: Packed, gap: int, before: int = 0, after: int = 0
) -> tuple[Float[Tensor, "L C"], Layout]:
    """All sequences in one row with `gap` zeros between them, and where they start in it.

    More zeros may stand before the first, from which on the layout counts, and after the last.

    >>> x = Packed.from_lengths(torch.ones(5, 1), [2, 3])
    >>> row, layout = spaced(x.values, x, gap=2, before=1)
    >>> row.int().flatten().tolist(), layout.starts
    ([0, 1, 1, 0, 0, 1, 1, 1], [0, 4])
    """
    if isinstance(x, StaticPacked):
        place, size = torch.arange(x.tokens, device=x.device) + gap * x.owners(), x.tokens + gap * len(x)
        return Layout.of_places(place + before, before + size + after).put(values), Layout.of_places(place, size)
    starts = [start + gap * b for b, start in enumerate(accumulate(x.lengths[:-1], initial=0))]
    layout = Layout(x.lengths, starts, x.tokens + gap * (len(x) - 1), x.device)
    return layout.within(before, after).put(values), layout
