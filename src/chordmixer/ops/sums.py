"""Sums over the tokens of each sequence whose rounding errors stay small over a million of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.ops.rotation import Rotation, tiles


def segment_sum(values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"]) -> Float[Tensor, "B C"]:
    """The sum of each sequence's tokens, the same in every batch.

    >>> segment_sum(torch.tensor([[1.0], [3.0], [10.0]]), torch.tensor([0, 2, 3]))
    tensor([[ 4.],
            [10.]])
    """
    total: Tensor = _SegmentSum.apply(values, offsets)
    return total


class _SegmentSum(torch.autograd.Function):
    """Sums by sequence, first over chunks counted from the sequence's own start, then over its chunks.

    Two levels keep the rounding error of a million terms near that of a thousand, and the answer of a sequence
    the same in every batch.
    """

    CHUNK = 1024

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor) -> Tensor:
        ctx.save_for_backward(offsets)
        ctx.tokens = len(values)
        chunks = -(-offsets.diff() // _SegmentSum.CHUNK)
        ends = F.pad(chunks.cumsum(0), (1, 0))
        inside = torch.arange(int(ends[-1]), device=offsets.device) - ends[:-1].repeat_interleave(chunks)
        starts = offsets[:-1].repeat_interleave(chunks) + inside * _SegmentSum.CHUNK
        partial = torch.segment_reduce(values, "sum", offsets=torch.cat([starts, offsets[-1:]]), axis=0)
        return torch.segment_reduce(partial, "sum", offsets=ends, axis=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (offsets,) = ctx.saved_tensors
        return gradient.repeat_interleave(offsets.diff(), 0, output_size=ctx.tokens), None


def segment_squares(
    values: Float[Tensor, "T C"], offsets: Int[Tensor, "B+1"], mean: Float[Tensor, "B C"]
) -> Float[Tensor, "B C"]:
    """Mean square distance from `mean` by sequence and channel, in tiles."""
    total = torch.zeros(mean.shape, dtype=torch.float64, device=mean.device)
    rotation = Rotation(values, offsets, tracks=1)
    for lo, hi in tiles(values):
        sequence = rotation.sequences(lo, hi)
        total.index_add_(0, sequence, (values[lo:hi] - mean[sequence]).square().double())
    return (total / offsets.diff()[:, None]).to(mean.dtype)
