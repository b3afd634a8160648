"""Normalisation layers: of tokens, with the formulas in `ops`, and of pooled vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from chordmixer import ops


class Norm(nn.Module):
    """Weights and running statistics of a layer, batch or group norm, or of no norm.

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
    """A batch that is split over several processes, for statistics over all of its records."""

    records: int
    """Number of records of the complete batch."""
    counts: bool
    """Whether the records here belong to the batch; otherwise they only keep this process in step with the others."""
    total: Callable[[Tensor], Tensor]
    """Sums a tensor over all processes; differentiable."""


class Standard(nn.Module):
    """Standardises each channel of pooled vectors over records.

    Averages over long sequences have small but precise differences: the frequency of a 4-mer in a plasmid is known to
    one in a thousand. A linear map with small initial weights and steps of a thousandth would need a hundred thousand
    steps to weight such a difference; after scaling it needs a few.

    In training, statistics are those of the batch if it has two or more records; `share` is set if processes share
    the batch. In evaluation they are those of the records that passed between `collect` and `settle`, with the final
    weights, so that an output does not depend on the other records.

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
        """Start to record the inputs of `forward`."""
        self.seen = []

    def settle(self) -> None:
        """Set mean and variance to those of the recorded inputs, and stop recording."""
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
        use_batch = self.training and self.share is None and len(x) > 1
        return F.batch_norm(x, self.mean, self.variance, training=use_batch, momentum=self.momentum, eps=self.eps)

    def _over_shares(self, x: Float[Tensor, "B C"], share: BatchShare) -> Float[Tensor, "B C"]:
        """`batch_norm` of the complete batch; in float64, since mean squares are close to squared means."""
        wide = x.double()
        rows = wide if share.counts else wide * 0
        mean, square = (share.total(torch.cat([rows.sum(0), rows.square().sum(0)])) / share.records).chunk(2)
        variance = (square - mean.square()).clamp_min(0)
        with torch.no_grad():
            unbiased = variance * (share.records / (share.records - 1))
            self.mean.lerp_(mean.float(), self.momentum)
            self.variance.lerp_(unbiased.float(), self.momentum)
        return ((wide - mean) * (variance + self.eps).rsqrt()).float()
