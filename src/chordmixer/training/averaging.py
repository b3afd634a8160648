"""The mean of a model's weights over its last steps: what is judged and kept is steadier than any single step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Weights and running statistics of a model, averaged over about the last `horizon` steps.

    Until then it is their plain mean, later a fading one. At a high rate the weights circle around what they have
    learnt; their mean lies near its middle, as if the rate had fallen already.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Average(model, horizon=10)
    >>> for step in (1, 2, 3):
    ...     _ = model.weight.data.fill_(step)
    ...     average.update(step)
    >>> with average.in_place():
    ...     model.weight.item()
    2.0
    >>> model.weight.item()
    3.0
    """

    def __init__(self, model: nn.Module, horizon: float, values: dict[str, Tensor] | None = None) -> None:
        """`values` are those of a run that goes on."""
        self.horizon = max(1.0, horizon)
        self.live = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
        start = values or self.live
        self.values = {name: start[name].to(own.device, copy=True) for name, own in self.live.items()}

    def update(self, step: int) -> None:
        """Take in the weights after this step, counted from 1."""
        torch._foreach_lerp_([*self.values.values()], [*self.live.values()], 1 / min(step, self.horizon))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with these values; afterwards it has its own again, bit by bit."""
        own = {name: value.clone() for name, value in self.live.items()}
        torch._foreach_copy_([*self.live.values()], [*self.values.values()])
        try:
            yield
        finally:
            torch._foreach_copy_([*self.live.values()], [*own.values()])
