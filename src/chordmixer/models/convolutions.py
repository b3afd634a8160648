"""Convolutions along packed sequences, with zeros beyond each one's ends.

All sequences are laid out in one row, separated by as many zeros as the kernel can reach across, so that a single
convolution handles the batch.
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

MAX_ROUNDED = 1 << 18
"""Length of a row above which a convolution takes longer than cuDNN's planning: longer rows are not rounded up."""


class Convolution(nn.Conv1d):
    """A convolution along each sequence, with zeros beyond both ends; a `causal` one sees only earlier tokens.

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
        """Convolve `values`, whose sequences start where those of `x` do."""
        taps, dilation = self.kernel_size[0], self.dilation[0]
        before, after = (taps - 1, 0) if self.causal else (taps // 2, taps // 2)
        # Taps beyond the longest sequence would read zeros only: leave them out, and shorten the gaps.
        far = taps if isinstance(x, StaticPacked) else (max(x.lengths) - 1) // dilation
        left_taps, right_taps = min(before, far), min(after, far)
        weight = self.weight[..., before - left_taps : before + right_taps + 1]
        gap = max(left_taps, right_taps) * dilation
        spare = 0
        if values.is_cuda and not isinstance(x, StaticPacked):
            spare = _round_up(x.tokens + gap * len(x)) - x.tokens - gap * len(x)
        row, layout = spaced(values, x, gap, left_taps * dilation, right_taps * dilation + spare)
        if 1 < self.groups == self.in_channels == self.out_channels:
            assert self.bias is not None
            return layout.take(_by_channel(row, weight[:, 0], self.bias, dilation)[: layout.size])
        image = row[None, None].permute(0, 3, 1, 2)  # channels last, which is faster in cuDNN
        with as_products():
            mixed = F.conv2d(image, weight[:, :, None], self.bias, dilation=(1, dilation), groups=self.groups)
        return layout.take(mixed.permute(0, 2, 3, 1).flatten(0, 2)[: layout.size])


def _round_up(length: int) -> int:
    """Round a length up by an eighth at most, unless it is above `MAX_ROUNDED`: cuDNN plans each new length for
    milliseconds, and batches seldom have the same.

    >>> _round_up(1000), _round_up(1024), _round_up(1 << 20) - (1 << 20)
    (1024, 1024, 0)
    """
    step = (1 << length.bit_length()) >> 4
    return length if length > MAX_ROUNDED or not step else -(-length // step) * step


def _by_channel(
    row: Float[Tensor, "L C"], weight: Float[Tensor, "C k"], bias: Float[Tensor, "C"], dilation: int
) -> Float[Tensor, "L-reach C"]:
    """A depthwise convolution, tap by tap; cuDNN's took a quarter of a training step of Hyena and Mamba-2."""
    weight, length = weight.to(row.dtype).T, len(row) - (weight.shape[1] - 1) * dilation
    mixed = bias.to(row.dtype) + row[:length] * weight[0]
    for tap, tap_weight in enumerate(weight[1:], 1):
        mixed = torch.addcmul(mixed, row[tap * dilation :][:length], tap_weight)
    return mixed


@contextmanager
def as_products() -> Iterator[None]:
    """Give cuDNN's layers the precision of matrix products. By default cuDNN rounds float32 to TF32, so that the
    output of a sequence differs in the fourth digit between batches."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.get_float32_matmul_precision() != "highest"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def spaced(
    values: Float[Tensor, "T C"], x: Packed, gap: int, before: int = 0, after: int = 0
) -> tuple[Float[Tensor, "L C"], Layout]:
    """All sequences in one row with `gap` zeros between them, and their layout.

    `before` and `after` more zeros are added at the ends; positions of the layout count from the first sequence.

    >>> x = Packed.from_lengths(torch.ones(5, 1), [2, 3])
    >>> row, layout = spaced(x.values, x, gap=2, before=1)
    >>> row.int().flatten().tolist(), layout.starts
    ([0, 1, 1, 0, 0, 1, 1, 1], [0, 4])
    """
    if isinstance(x, StaticPacked):
        index, size = torch.arange(x.tokens, device=x.device) + gap * x.owners(), x.tokens + gap * len(x)
        return Layout.from_index(index + before, before + size + after).put(values), Layout.from_index(index, size)
    starts = [start + gap * b for b, start in enumerate(accumulate(x.lengths[:-1], initial=0))]
    layout = Layout(x.lengths, starts, x.tokens + gap * (len(x) - 1), x.device)
    return layout.within(before, after).put(values), layout
