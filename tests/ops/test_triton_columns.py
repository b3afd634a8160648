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
    """Far from zero too, where a sum of squares would lose its last digits."""
    torch.manual_seed(0)
    x = (torch.randn(700, 20) + 1000 * torch.randn(20)).requires_grad_()
    made, wanted = triton_columns.column_moments(x), (x.double().mean(0), x.double().var(0, correction=0))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    weights = torch.randn(2, 20)
    slopes = [
        torch.autograd.grad(sum((m * w).sum() for m, w in zip(both, weights, strict=True)), x)[0]
        for both in (made, wanted)
    ]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-6)


def batch_norms(training: bool, running: bool = True) -> list[NormState]:
    """Two that are alike, each with running statistics of its own."""
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
    ours, theirs = batch_norms(training, running)
    x = (3 * torch.randn(tokens, 20) + 10).requires_grad_()
    made = triton_columns.batch_norm(x, ours)
    wanted = reference.normalise(x, torch.tensor([0, tokens]), theirs)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    gradient = torch.randn(tokens, 20)
    slopes = [
        torch.autograd.grad(y, [x, norm.weight, norm.bias], gradient) for y, norm in ((made, ours), (wanted, theirs))
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    if running:
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.variance, theirs.variance)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_gradients_goes_into_out(training: bool) -> None:
    ours, theirs = batch_norms(training)
    x, out = torch.randn(33, 20), torch.empty(33, 20)
    with torch.no_grad():
        assert triton_columns.batch_norm(x, ours, out) is out
        torch.testing.assert_close(out, reference.normalise(x, torch.tensor([0, 33]), theirs), rtol=1e-4, atol=1e-4)


def test_batch_norm_of_sixteen_bits() -> None:
    ours, theirs = batch_norms(training=True)
    x = torch.randn(700, 20).bfloat16()
    made = triton_columns.batch_norm(x, ours)
    wanted = reference.normalise(x.float(), torch.tensor([0, 700]), theirs)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made.float(), wanted, rtol=1e-2, atol=2e-2)
