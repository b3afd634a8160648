"""How a target is put to a model: once a sequence, or about tokens that it hides first."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from chordmixer.packed import Packed
from chordmixer.tasks.targets import Target, TokenTarget


def ask(
    target: Target, model: nn.Module, inputs: Packed, targets: Shaped[Tensor, "B *K"]
) -> Float[Tensor, "B columns"]:
    """The rows that the target's losses and metrics read: a model's own, or what is counted over its tokens."""
    rows: Tensor = target.rows(model, inputs, targets) if isinstance(target, TokenTarget) else model(inputs)
    return rows


class Asked(nn.Module):
    """A model with the targets of one batch: for those who call it with the batch's inputs alone."""

    def __init__(self, model: nn.Module, target: Target, targets: Shaped[Tensor, "B *K"]) -> None:
        super().__init__()
        self.model, self.target, self.targets = model, target, targets

    def forward(self, x: Packed) -> Any:
        return ask(self.target, self.model, x, self.targets)
