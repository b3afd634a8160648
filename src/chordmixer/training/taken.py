"""A step whose result may still be on its way from the device, and what is said if it turns out not to be finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

SHOWN = 8
"""Records that are named."""


class Taken(NamedTuple):
    """What was known when it was taken."""

    step: int
    """Steps taken before it."""
    batch: int
    """Batches of the epoch used before it."""
    done: float
    rate: float
    records: list[int]
    tokens: int
    result: Float[Tensor, "2"]
    """The sum of its losses, and the norm of its gradient."""

    def refusal(self, loss: float, names: Sequence[str], precision: str) -> str:
        """Of a sum of losses and its records' names; the learning rate is blamed from the second step on only."""
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        at_first = "try training.precision=fp32" if precision == "bf16" else "at their targets"
        cure = f"lower the learning rate of {self.rate:.2g}" if self.step else at_first
        return (
            f"loss {loss / len(names)} or its gradient is not finite at step {self.step + 1}, records {shown}: "
            f"weights stay as after step {self.step}; look at these records or {cure}"
        )
