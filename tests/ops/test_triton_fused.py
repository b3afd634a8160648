"""A block whose hidden layer stays on the chip, in Triton's interpreter, against the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chordmixer.ops import reference

triton_plan = pytest.importorskip("chordmixer.ops.triton_plan", reason="Triton is not installed")
triton_block = pytest.importorskip("chordmixer.ops.triton_block", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]


@pytest.mark.parametrize("order", ["paper", "released"])
def test_tiles_of_long_sequences_end_at_their_borders(gradients: Callable, distance: Callable, order: str) -> None:
    lengths = (64, 1, 33, 420)
    assert triton_plan.programs_for(sum(lengths), len(lengths), 32) == (sum(lengths) // 32 + len(lengths), True)
    actual, expected = (
        gradients(block, lengths, 4, 5, 20, order=order) for block in (triton_block.block, reference.block)
    )
    assert distance(actual, expected) < 2e-6
