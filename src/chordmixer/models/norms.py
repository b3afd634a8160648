"""The weights and running statistics of a normalisation; its formulas are in `ops`."""

from __future__ import annotations

import torch
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

    def state(self) -> ops.Norm | None:
        if self.kind is None:
            return None
        if self.kind == "batch":
            return ops.Norm(
                "batch",
                self.weight,
                self.bias,
                mean=self.mean,
                variance=self.variance,
                training=self.training,
                momentum=self.momentum,
            )
        return ops.Norm(self.kind, self.weight, self.bias, groups=self.groups)

    def extra_repr(self) -> str:
        return str(self.kind)
