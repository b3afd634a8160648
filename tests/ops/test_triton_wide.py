"""A block whose hidden layer is too wide for a tile, against the definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chordmixer.ops import reference

triton_wide = pytest.importorskip("chordmixer.ops.triton_wide", reason="Triton is not installed")
triton_block = pytest.importorskip("chordmixer.ops.triton_block", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]


@pytest.mark.parametrize(
    ("track_size", "hidden"),
    [(4, 257), (24, 320), (28, 420), (32, 350), (8, 750)],
)
def test_any_track_and_a_wide_hidden_size(
    gradients: Callable, distance: Callable, track_size: int, hidden: int
) -> None:
    actual, expected = (
        gradients(block, (1, 30, 2), track_size, 3, hidden) for block in (triton_block.block, reference.block)
    )
    assert distance(actual, expected) < 2e-6


@pytest.mark.parametrize(("hidden", "wide"), [(256, False), (257, True)])
def test_the_matrix_library_is_for_wide_ones(monkeypatch: pytest.MonkeyPatch, hidden: int, wide: bool) -> None:
    calls = []
    forward = triton_wide.forward
    monkeypatch.setattr(triton_wide, "forward", lambda *args: (calls.append(hidden), forward(*args)))
    width = 8
    mlp = reference.Mlp(
        torch.randn(hidden, width), torch.randn(hidden), torch.randn(width, hidden), torch.randn(width)
    )
    with torch.no_grad():
        triton_block.block(torch.randn(9, width), torch.tensor([0, 9]), 4, mlp)
    assert bool(calls) is wide


def test_nothing_but_the_input_is_kept(gradients: Callable) -> None:
    """The hidden layer is recomputed: autograd holds the tokens and the weights, and no (T, H) tensor."""
    shapes: list[torch.Size] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        shapes.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gradients(triton_block.block, (1, 30, 2), 4, 3, 300)
    assert torch.Size([33, 12]) in shapes and torch.Size([33, 300]) not in shapes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_fill_multiples_of_16_bytes(dtype: torch.dtype) -> None:
    w1, b1, w2, b2 = torch.randn(3, 301, 20), torch.randn(3, 301), torch.randn(3, 20, 301), torch.randn(3, 20)
    first, _, second, _ = triton_wide.prepared(w1, b1, w2, b2, dtype)
    for matrix, weight, bias in ((first, w1, b1), (second, w2, b2)):
        assert matrix.dtype == dtype and matrix.shape[-1] * dtype.itemsize % 16 == 0
        rows, columns = weight.shape[1:]
        assert torch.equal(matrix[:, :rows, :columns], weight.to(dtype))
        assert torch.equal(matrix[:, :rows, columns], bias.to(dtype))
        assert matrix.float().abs().sum() == pytest.approx(
            float(weight.to(dtype).float().abs().sum() + bias.to(dtype).float().abs().sum())
        )
