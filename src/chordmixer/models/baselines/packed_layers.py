"""What the rivals that need no padding share: a stack of blocks on packed tokens, and convolutions of them.

For a short convolution all sequences stand in one row with zeros between them, as many as a token can reach over; for
a long one, by the fast Fourier transform, those of like length are transformed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from chordmixer.models.baselines.layers import check_fits
from chordmixer.packed import Packed

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


# --- Convolutions ---------------------------------------------------------------------------------------


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
        far = (max(x.lengths) - 1) // dilation
        left, right = min(before, far), min(after, far)
        weight = self.weight[..., before - left : before + right + 1]
        gap = max(left, right) * dilation
        row, place = spaced(values, x, gap)
        row = F.pad(row, (left * dilation, right * dilation))
        with as_products():
            mixed = F.conv1d(row, weight, self.bias, dilation=dilation, groups=self.groups)
        return mixed[0].T.index_select(0, place)


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


def spaced(values: Float[Tensor, "T C"], x: Packed, gap: int) -> tuple[Float[Tensor, "1 C T+gaps"], Int[Tensor, "T"]]:
    """All sequences in one row with `gap` zeros between them, and the place of each token in it.

    >>> x = Packed.from_lengths(torch.ones(5, 1), [2, 3])
    >>> row, place = spaced(x.values, x, gap=2)
    >>> row.int().flatten().tolist(), place.tolist()
    ([1, 1, 0, 0, 1, 1, 1], [0, 1, 4, 5, 6])
    """
    place = torch.arange(x.tokens, device=x.device) + gap * x.owners()
    row = values.new_zeros(x.tokens + gap * (len(x) - 1), values.shape[1]).index_copy(0, place, values)
    return row.T[None], place


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
    place = x.owners() * size + x.places()
    rows = values.new_zeros(len(x) * size, values.shape[1]).index_copy(0, place, values).view(len(x), size, -1)
    spectrum = torch.fft.rfft(kernel[: max(x.lengths)].to(values.dtype), size, dim=0)
    mixed = torch.fft.irfft(torch.fft.rfft(rows, dim=1) * spectrum, size, dim=1)
    return mixed.flatten(0, 1).index_select(0, place).to(x.values.dtype)
