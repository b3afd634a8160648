"""Weights and running statistics of normalisations: of tokens, whose formulas are in `ops`, and of pooled vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer import ops


class Norm(nn.Module):
    """Holds the state of a layer, batch or group norm, or of none.

    >>> Norm("layer", width=8).state().kind
    'layer'
    >>> Norm(None, width=8).state() is None
    True
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, kind: str | None, width: int, groups: int = 1) -> None:
        super().__init__()
        self.kind = kind
        self.groups = groups
        self.momentum = 0.1
        if kind is not None:
            self.weight = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width))
        if kind == "batch":
            self.register_buffer("mean", torch.zeros(width))
            self.register_buffer("variance", torch.ones(width))

    def state(self) -> ops.NormState | None:
        if self.kind is None:
            return None
        if self.kind == "batch":
            return ops.NormState(
                "batch",
                self.weight,
                self.bias,
                mean=self.mean,
                variance=self.variance,
                training=self.training,
                momentum=self.momentum,
            )
        return ops.NormState(self.kind, self.weight, self.bias, groups=self.groups)

    def extra_repr(self) -> str:
        return str(self.kind)


class BatchShare(NamedTuple):
    """A batch of which other processes have shares too, for statistics over all of it."""

    records: int
    """Of the whole batch."""
    counts: bool
    """Whether the records here are part of it, or only keep this process in step with the others."""
    total: Callable[[Tensor], Tensor]
    """The sum over all processes, with its gradient."""


class Standard(nn.Module):
    """Centres and scales each channel of pooled vectors over records.

    Long averages tell small differences precisely: the share of a word of four letters in a plasmid is known to one
    in a thousand. A linear map that starts small and moves by a thousandth a step would need a hundred thousand steps
    to give such a difference its weight; scaled to one, it needs a few.

    In training the records are those of the batch, if it has two or more; `share` says where processes share one. In
    evaluation they are those that passed between `collect` and `settle`, with the very weights that are then used, so
    that no answer depends on others.

    >>> standard = Standard(width=1).eval()
    >>> standard.collect()
    >>> _ = standard(torch.tensor([[2.0], [4.0]]))
    >>> standard.settle()
    >>> standard(torch.tensor([[5.0]])).round(decimals=3)
    tensor([[2.]])
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.momentum = eps, 0.1
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.seen: list[Tensor] | None = None
        self.share: BatchShare | None = None

    def collect(self) -> None:
        """From now on keep what passes."""
        self.seen = []

    def settle(self) -> None:
        """Mean and variance are those of what was kept."""
        assert self.seen, "something passed since `collect`"
        records, self.seen = torch.cat(self.seen).double(), None
        self.mean.copy_(records.mean(0))
        self.variance.copy_(records.var(0, correction=0))

    def forward(self, x: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        x = x.float()
        if self.seen is not None:
            self.seen.append(x.detach())
        if self.training and self.share is not None and self.share.records > 1:
            return self._over_shares(x, self.share)
        several = self.training and self.share is None and len(x) > 1
        return F.batch_norm(x, self.mean, self.variance, training=several, momentum=self.momentum, eps=self.eps)

    def _over_shares(self, x: Float[Tensor, "B C"], share: BatchShare) -> Float[Tensor, "B C"]:
        """The same as `batch_norm` of the whole batch; in float64, since mean squares are close to squared means."""
        wide = x.double()
        own = wide if share.counts else wide * 0
        mean, square = (share.total(torch.cat([own.sum(0), own.square().sum(0)])) / share.records).chunk(2)
        variance = (square - mean.square()).clamp_min(0)
        with torch.no_grad():
            unbiased = variance * (share.records / (share.records - 1))
            self.mean.lerp_(mean.float(), self.momentum)
            self.variance.lerp_(unbiased.float(), self.momentum)
        return ((wide - mean) * (variance + self.eps).rsqrt()).float()
