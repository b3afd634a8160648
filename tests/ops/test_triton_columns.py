"""Statistics of columns and batch norm in Triton's interpreter, against plain torch."""

from __future__ import annotations

import pytest
import torch

from chordmixer.ops import NormState, reference

triton_columns = pytest.importorskip("chordmixer.ops.triton_columns", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]


def test_column_moments_and_their_gradient() -> None:
    """The values are far from zero, where a sum of squares would lose its last digits."""
    torch.manual_seed(0)
    x = (torch.randn(700, 20) + 1000 * torch.randn(20)).requires_grad_()
    actual, expected = triton_columns.column_moments(x), (x.double().mean(0), x.double().var(0, correction=0))
    for moment, expected_moment in zip(actual, expected, strict=True):
        torch.testing.assert_close(moment.double(), expected_moment, rtol=1e-5, atol=1e-5)
    weights = torch.randn(2, 20)
    gradients = [
        torch.autograd.grad(sum((m * w).sum() for m, w in zip(moments, weights, strict=True)), x)[0]
        for moments in (actual, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def batch_norms(training: bool, running: bool = True) -> list[NormState]:
    """Two equal norms, each with its own running statistics."""
    torch.manual_seed(1)
    weight, bias, mean, variance = torch.randn(20), torch.randn(20), torch.randn(20), torch.rand(20) + 0.5
    return [
        NormState(
            "batch", weight.clone().requires_grad_(), bias.clone().requires_grad_(), training=training,
            mean=mean.clone() if running else None, variance=variance.clone() if running else None,
        )
        for _ in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize(("training", "running"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("tokens", [2, 33, 700])
def test_batch_norm_and_its_gradients(tokens: int, training: bool, running: bool) -> None:
    norm, ref_norm = batch_norms(training, running)
    x = (3 * torch.randn(tokens, 20) + 10).requires_grad_()
    actual = triton_columns.batch_norm(x, norm)
    expected = reference.normalise(x, torch.tensor([0, tokens]), ref_norm)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    grad_output = torch.randn(tokens, 20)
    gradients = [
        torch.autograd.grad(y, [x, n.weight, n.bias], grad_output) for y, n in ((actual, norm), (expected, ref_norm))
    ]
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-3)
    if running:
        torch.testing.assert_close(norm.mean, ref_norm.mean)
        torch.testing.assert_close(norm.variance, ref_norm.variance)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_gradients_goes_into_out(training: bool) -> None:
    norm, ref_norm = batch_norms(training)
    x, out = torch.randn(33, 20), torch.empty(33, 20)
    with torch.no_grad():
        assert triton_columns.batch_norm(x, norm, out) is out
        torch.testing.assert_close(out, reference.normalise(x, torch.tensor([0, 33]), ref_norm), rtol=1e-4, atol=1e-4)


def test_batch_norm_of_sixteen_bits() -> None:
    norm, ref_norm = batch_norms(training=True)
    x = torch.randn(700, 20).bfloat16()
    actual = triton_columns.batch_norm(x, norm)
    expected = reference.normalise(x.float(), torch.tensor([0, 700]), ref_norm)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=1e-2, atol=2e-2)
