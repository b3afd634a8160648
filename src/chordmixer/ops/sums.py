"""Sums and maxima over the tokens of each sequence; sums keep rounding errors small for a million tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops.rotation import Rotation, tiles

CHUNK = 1024
"""Number of tokens that are reduced sequentially."""


def segment_sum(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The sum of each sequence's tokens, the same in every batch.

    >>> segment_sum(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 2, 3]))
    tensor([[ 4.],
            [10.]])
    """
    total: Tensor = _SegmentSum.apply(values, offsets)
    return total


def segment_mean(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """`reference.segment_mean`."""
    values = values if values.dtype == torch.float64 else values.float()
    return segment_sum(values, offsets) / offsets.diff()[:, None]


class _SegmentSum(torch.autograd.Function):
    """Sums by sequence, first over chunks counted from the sequence's start, then over its chunks.

    Two levels keep the rounding error of a million terms near that of a thousand, and the sum of a sequence does not
    depend on its batch.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.tokens = len(values)
        return _reduce(values, offsets, "sum")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return gradient.repeat_interleave(offsets.diff(), 0, output_size=ctx.tokens), None


def segment_max(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The maximum of each channel over a sequence's tokens; tied tokens share its gradient equally.

    >>> segment_max(torch.tensor([[1.0], [3.0], [-10.0]]), torch.tensor([0, 2, 3]))
    tensor([[  3.],
            [-10.]])
    """
    maxima: Tensor = _SegmentMax.apply(values, offsets)
    return maxima


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        maxima = _reduce(values, offsets, "max")
        ctx.save_for_backward(values, offsets, maxima)
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        values, offsets, maxima = ctx.saved_tensors

        def spread(rows: Tensor) -> Tensor:
            return rows.repeat_interleave(offsets.diff(), 0, output_size=len(values))

        is_maximum = (values == spread(maxima)).to(gradient.dtype)
        return is_maximum * spread(gradient / _reduce(is_maximum, offsets, "sum")), None


def _reduce(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], operation: str) -> Float[Tensor, "B C"]:
    """Reduce chunks counted from each sequence's start, then the chunks of each sequence, for parallelism.

    The number of chunks is an upper bound, so that the host does not wait for the device; the last ones are empty.
    """
    ends = F.pad((-(-offsets.diff() // CHUNK)).cumsum(0), (1, 0))
    number = torch.arange(len(values) // CHUNK + len(offsets), device=offsets.device)
    owner = torch.searchsorted(ends, number, right=True).clamp_(max=len(offsets) - 1) - 1
    starts = offsets[owner] + (number - ends[owner]) * CHUNK
    starts = torch.where(number < ends[-1], starts, len(values))
    partial = torch.segment_reduce(values, operation, offsets=starts, axis=0)
    return torch.segment_reduce(partial, operation, offsets=ends, axis=0)


def segment_squares(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], mean: Float[Tensor, "B C"]
) -> Float[Tensor, "B C"]:
    """Mean squared deviation from `mean` by sequence and channel, computed in tiles."""
    total = torch.zeros(mean.shape, dtype=torch.float64, device=mean.device)
    rotation = Rotation(values, offsets, tracks=1)
    for lo, hi in tiles(values):
        sequence = rotation.sequences(lo, hi)
        total.index_add_(0, sequence, (values[lo:hi] - mean[sequence]).square().double())
    return (total / offsets.diff()[:, None]).to(mean.dtype)
