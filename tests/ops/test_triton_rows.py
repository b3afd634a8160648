"""Rotation, pooling and row statistics in Triton's interpreter, against the definition."""

from __future__ import annotations

import pytest
import torch

from chordmixer.ops import reference

triton_rows = pytest.importorskip("chordmixer.ops.triton_rows", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]
OFFSETS = torch.tensor([0, 1, 3, 70, 2300, 2301])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("track_size", [1, 4, 7, 16])
def test_rotation_and_its_gradient(track_size: int, reverse: bool) -> None:
    x = torch.randn(2301, 5 * track_size, requires_grad=True)
    made = triton_rows.rotate(x, OFFSETS, track_size, reverse)
    assert torch.equal(made, reference.rotate(x, OFFSETS, track_size, reverse))
    (gradient,) = torch.autograd.grad(made, x, made.detach())
    assert torch.equal(gradient, x)


def test_segment_mean_and_its_gradient() -> None:
    x = torch.randn(2301, 70, requires_grad=True)
    made, wanted = triton_rows.segment_mean(x, OFFSETS), reference.segment_mean(x, OFFSETS)
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-6)
    ours, theirs = (torch.autograd.grad(mean.square().sum(), x)[0] for mean in (made, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_segment_mean_of_sixteen_bits_is_summed_in_float32() -> None:
    x = torch.full((3000, 8), 1.0, dtype=torch.bfloat16)
    assert torch.equal(triton_rows.segment_mean(x, torch.tensor([0, 3000])), torch.ones(1, 8))


def test_row_statistics_and_layer_norm_gradient() -> None:
    x = torch.randn(37, 20, requires_grad=True)
    mean, rstd = triton_rows.row_statistics(x.detach(), 1e-5)
    normal = torch.nn.functional.layer_norm(x, (20,))
    torch.testing.assert_close((x - mean[:, None]) * rstd[:, None], normal, rtol=1e-5, atol=1e-5)
    gradient, residual = torch.randn(37, 20), torch.randn(37, 20)
    (wanted,) = torch.autograd.grad(normal, x, gradient)
    again = torch.empty_like(gradient)
    triton_rows.layer_norm_backward(x.detach(), mean, rstd, gradient, residual, again)
    torch.testing.assert_close(gradient, wanted + residual, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(again, normal, rtol=1e-5, atol=1e-5)


def test_column_moments_and_their_gradient() -> None:
    """Far from zero too, where a sum of squares would lose its last digits."""
    torch.manual_seed(0)
    x = (torch.randn(700, 20) + 1000 * torch.randn(20)).requires_grad_()
    made, wanted = triton_rows.column_moments(x), (x.double().mean(0), x.double().var(0, correction=0))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    weights = torch.randn(2, 20)
    slopes = [
        torch.autograd.grad(sum((m * w).sum() for m, w in zip(both, weights, strict=True)), x)[0]
        for both in (made, wanted)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-6)
