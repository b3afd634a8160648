"""What is said of a step that was not finite: which, on what, and what may help."""

from __future__ import annotations

import pytest
import torch

from chordmixer.training.taken import Taken


@pytest.mark.parametrize(
    ("step", "precision", "cure"),
    [
        (0, "fp32", "or at their targets"),
        (0, "bf16", "or try training.precision=fp32"),
        (6, "fp32", "or lower the learning rate of 0.001"),
        (6, "bf16", "or lower the learning rate of 0.001"),
    ],
)
def test_the_cure_depends_on_the_step(step: int, precision: str, cure: str) -> None:
    taken = Taken(step, 0, 0.1, 1e-3, [4, 2], 90, torch.zeros(2))
    said = taken.refusal(float("inf"), ["r4", "r2"], precision)
    assert said.startswith(
        f"loss inf or its gradient is not finite at step {step + 1}, records r4, r2: weights stay "
    )
    assert said.endswith(f"as after step {step}; look at these records {cure}")


def test_many_records_are_not_all_named() -> None:
    names = [f"r{i}" for i in range(11)]
    said = Taken(0, 0, 0.0, 1.0, list(range(11)), 9, torch.zeros(2)).refusal(11.0, names, "fp32")
    assert said.startswith("loss 1.0 or ") and "r6, r7 and 3 more: weights" in said
