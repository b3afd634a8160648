"""Sequences split over the ranks of a process group, and reductions over these ranks.

Gradients are those of the sum of all ranks' losses: the gradient of a sum over ranks is summed over ranks too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from chordmixer import ops
from chordmixer.models.exchange import Sharding, bounds, exchanged
from chordmixer.ops.sums import segment_sum
from chordmixer.ops.torch_block import by_group
from chordmixer.packed import Layout, Packed, check_packed

Group = dist.ProcessGroup | None
"""The ranks that share sequences; None: all."""


@dataclass(frozen=True, eq=False)
class Shard:
    """One rank's share of every sequence of a batch, end to end."""

    values: Shaped[Tensor, "T *C"]
    """This rank's tokens."""
    sharding: Sharding
    """Which tokens of each sequence this rank holds."""
    group: Group = None
    """The ranks that share them."""

    def __post_init__(self) -> None:
        if self.tokens != self.sharding.tokens:
            cut = self.sharding
            raise ValueError(
                f"{self.tokens:,} tokens are not the {cut.tokens:,} that rank {cut.rank} of {cut.ranks} holds of "
                f"{len(cut.lengths)} sequences: rank r of R holds tokens r * N // R up to (r + 1) * N // R of each; "
                "cut them with shard(packed, group)"
            )

    @staticmethod
    def from_lengths(values: Shaped[Tensor, "T *C"], lengths: Sequence[int], group: Group = None) -> Shard:
        """Build a shard from this rank's tokens and the lengths of the complete sequences."""
        return Shard(values, _sharding(lengths, group), group)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the complete sequences."""
        return self.sharding.lengths

    @cached_property
    def offsets(self) -> Int[Tensor, "B+1"]:
        """Index of the first token of each sequence's share among this rank's tokens; a share may be empty."""
        return torch.tensor(self.sharding.offsets).to(self.values.device, non_blocking=True)

    @property
    def tokens(self) -> int:
        return len(self.values)

    def __len__(self) -> int:
        return len(self.lengths)

    def with_values(self, values: Shaped[Tensor, "T *C"]) -> Shard:
        """The same shares with other values, one per token."""
        return Shard(values, self.sharding, self.group)

    def select(self, indices: Sequence[int]) -> Shard:
        """The sequences at `indices`, each once, in that order."""
        if list(indices) == list(range(len(self))):
            return self
        counts, starts = ([part[i] for i in indices] for part in (self.sharding.counts, self.sharding.offsets))
        values = Layout(counts, starts, self.tokens, self.values.device).take(self.values)
        return Shard.from_lengths(values, [self.lengths[i] for i in indices], self.group)

    def spread(self, rows: Float[Tensor, "B C"]) -> Float[Tensor, "T C"]:
        """Repeat the row of each sequence for all of its tokens."""
        return rows.repeat_interleave(self.offsets.diff(), 0, output_size=self.tokens)


Sequences = TypeVar("Sequences", Packed, Shard)
"""Complete sequences, or a rank's share of them."""


def shard(x: Packed, group: Group = None) -> Shard:
    """This rank's share of a batch that all ranks hold."""
    check_packed(x)
    cut = _sharding(x.lengths, group)
    shares = [sequence[slice(*bounds(len(sequence), cut.rank, cut.ranks))] for sequence in x]
    return Shard(torch.cat(shares), cut, group)


def check_ranks() -> None:
    """Raise a ValueError unless the process group is initialised."""
    if not dist.is_initialized():
        raise ValueError(
            "torch.distributed has no process group, whose ranks could share sequences: call "
            "torch.distributed.init_process_group() first, in a program started by torchrun"
        )


def _sharding(lengths: Sequence[int], group: Group) -> Sharding:
    check_ranks()
    return Sharding(lengths, dist.get_rank(group), dist.get_world_size(group))


def rotate(x: Shard, track_size: int) -> Float[Tensor, "T C"]:
    """`ops.rotate` of the complete sequences."""
    return exchanged(x.values, x.sharding.rotation(x.values.shape[1] // track_size), x.group)


def with_neighbours(x: Shard, before: int, after: int) -> tuple[Packed, Callable[[Tensor], Tensor]]:
    """Each share with up to `before` and `after` neighbouring tokens, and a function that removes these neighbours.

    A rank without tokens gets a single zero, which is removed too, so that weights have gradients on all ranks and
    the backward pass calls the same collectives on each.
    """
    halo = x.sharding.halo(before, after)
    values = exchanged(x.values, halo.exchange, x.group)
    if not halo.lengths:
        values = torch.cat([values, values.new_zeros(1, *values.shape[1:])])
        return Packed.from_lengths(values, [1]), lambda wide: wide[:0]
    layout = Layout(halo.counts, halo.starts, len(values), values.device)
    return Packed.from_lengths(values, halo.lengths), layout.take


def mean(x: Packed | Shard) -> Float[Tensor, "B C"]:
    """The mean of each sequence's tokens, in float32 or better; the same on all ranks."""
    if isinstance(x, Packed):
        return ops.segment_mean(x.values, x.offsets)
    values = x.values if x.values.dtype == torch.float64 else x.values.float()
    return total(segment_sum(values, x.offsets), x.group) / torch.tensor(x.lengths, device=values.device)[:, None]


def maximum(x: Packed | Shard) -> Float[Tensor, "B C"]:
    """The maximum of each channel over a sequence's tokens; tied tokens, on any ranks, share its gradient equally."""
    if isinstance(x, Packed):
        return ops.segment_max(x.values, x.offsets)
    maxima: Tensor = _Maximum.apply(x.values, x.offsets, x.group)
    return maxima


def total(values: Tensor, group: Group) -> Tensor:
    """The sum over ranks, on each of them."""
    summed: Tensor = _ShardTotal.apply(values, group)
    return summed


def normalise(x: Shard, norm: ops.NormState | None) -> Float[Tensor, "T C"]:
    """`ops.normalise` of the complete sequences, with statistics over the tokens of all ranks."""
    if norm is None or norm.kind == "layer" or (norm.kind == "batch" and not norm.training):
        return ops.normalise(x.values, x.offsets, norm)
    if norm.kind == "group":
        centre = x.spread(by_group(mean(x), norm.groups))
        variance = x.spread(by_group(mean(x.with_values((x.values - centre).square())), norm.groups))
    else:
        tokens = sum(x.lengths)
        centre = total(x.values.sum(0), x.group) / tokens
        variance = total((x.values - centre).square().sum(0), x.group) / tokens
        assert norm.mean is not None and norm.variance is not None
        norm.mean.lerp_(centre.detach(), norm.momentum)
        norm.variance.lerp_(variance.detach() * (tokens / max(1, tokens - 1)), norm.momentum)
    return ((x.values - centre) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias).to(x.values.dtype)


class _ShardTotal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _reduced(values, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduced(gradient, ctx.group), None


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, group: Group) -> Tensor:
        maxima = _reduced(ops.segment_max(values, offsets), group, dist.ReduceOp.MAX)
        ctx.save_for_backward(values, offsets, maxima)
        ctx.group = group
        return maxima

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        values, offsets, maxima = ctx.saved_tensors

        def spread(rows: Tensor) -> Tensor:
            return rows.repeat_interleave(offsets.diff(), 0, output_size=len(values))

        is_maximum = (values == spread(maxima)).to(gradient.dtype)
        share = _reduced(gradient, ctx.group) / _reduced(segment_sum(is_maximum, offsets), ctx.group)
        return is_maximum * spread(share), None, None


def _reduced(values: Tensor, group: Group, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    values = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(values, operation, group)
    return values
