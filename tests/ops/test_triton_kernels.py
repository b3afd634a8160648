"""The fused kernels in Triton's interpreter, at many sizes, against the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chordmixer.ops import reference

triton_block = pytest.importorskip("chordmixer.ops.triton_block", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]


@pytest.mark.parametrize(
    ("track_size", "hidden"),
    [(4, 16), (10, 96), (20, 196), (24, 256)],
)
def test_any_track_and_hidden_size_on_the_chip(
    gradients: Callable, distance: Callable, track_size: int, hidden: int
) -> None:
    actual, expected = (
        gradients(block, (1, 30, 2), track_size, 3, hidden) for block in (triton_block.block, reference.block)
    )
    assert distance(actual, expected) < 2e-6
