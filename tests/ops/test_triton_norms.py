"""Statistics of rows in Triton's interpreter, against plain torch."""

from __future__ import annotations

import pytest
import torch

triton_norms = pytest.importorskip("chordmixer.ops.triton_norms", reason="Triton is not installed")
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]


def test_row_statistics_and_layer_norm_gradient() -> None:
    x = torch.randn(37, 20, requires_grad=True)
    mean, rstd = triton_norms.row_statistics(x.detach(), 1e-5)
    normal = torch.nn.functional.layer_norm(x, (20,))
    torch.testing.assert_close((x - mean[:, None]) * rstd[:, None], normal, rtol=1e-5, atol=1e-5)
    gradient, residual = torch.randn(37, 20), torch.randn(37, 20)
    (expected,) = torch.autograd.grad(normal, x, gradient)
    recomputed = torch.empty_like(gradient)
    triton_norms.layer_norm_backward(x.detach(), mean, rstd, gradient, residual, recomputed)
    torch.testing.assert_close(gradient, expected + residual, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(recomputed, normal, rtol=1e-5, atol=1e-5)
