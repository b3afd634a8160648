"""Pieces of the kernels on their own, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

triton_tiles = pytest.importorskip("chordmixer.ops.triton_tiles", reason="Triton is not installed")
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # infinity is what is wanted far out
]


@triton.jit
def gaussian_kernel(p_x, p_cdf, p_density, EXACT: tl.constexpr, N: tl.constexpr):
    offset = tl.arange(0, N)
    cdf, density = triton_tiles.gaussian(tl.load(p_x + offset), EXACT, False)
    tl.store(p_cdf + offset, cdf)
    tl.store(p_density + offset, density)


@pytest.mark.parametrize(("exact", "error"), [(True, 2e-6), (False, 2.6e-5)], ids=["float32", "16-bit"])
def test_gelu_errs_by_no_more_than_it_says(exact: bool, error: float) -> None:
    """This includes large inputs, where the fitted polynomial would diverge."""
    x = torch.cat([torch.linspace(-7, 7, 4096 - 96), torch.linspace(-400, 400, 96)])
    cdf, density = torch.empty_like(x), torch.empty_like(x)
    gaussian_kernel[(1,)](x, cdf, density, EXACT=exact, N=4096)
    expected = x.double() * torch.special.ndtr(x.double())
    assert float((x.double() * cdf.double() - expected).abs().max()) < error
    normal = (-0.5 * x.double() ** 2).exp() / (2 * torch.pi) ** 0.5
    torch.testing.assert_close(density.double(), normal, atol=1e-6, rtol=0)
