"""Rotation and pooling in Triton's interpreter, against the definition."""

from __future__ import annotations

import pytest
import torch

from chordmixer.ops import reference

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = pytest.importorskip("triton.language", reason="Triton is not installed")
triton_rows = pytest.importorskip("chordmixer.ops.triton_rows", reason="Triton is not installed")
kept = triton_rows.kept
pytestmark = [
    pytest.mark.usefixtures("unwritten_is_nan"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
]
OFFSETS = torch.tensor([0, 1, 3, 70, 250, 251])
LONG = torch.tensor([0, 1, 3, 70, 2300, 2301])
"""Offsets with a sequence of several chunks of sums."""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("track_size", [1, 4, 7, 16])
def test_rotation_and_its_gradient(track_size: int, reverse: bool) -> None:
    x = torch.randn(251, 5 * track_size, requires_grad=True)
    output = triton_rows.rotate(x, OFFSETS, track_size, reverse)
    assert torch.equal(output, reference.rotate(x, OFFSETS, track_size, reverse))
    (gradient,) = torch.autograd.grad(output, x, output.detach())
    assert torch.equal(gradient, x)


@pytest.mark.parametrize("track_size", [4, 7, 20], ids=["tracks", "odd-tracks", "one-track"])
def test_norm_dropout_and_residual_in_the_same_pass(track_size: int) -> None:
    torch.manual_seed(0)
    width = 20 if track_size == 20 else 5 * track_size
    x, residual, cotangent = torch.randn(3, 251, width)
    mean, rstd = x.mean(1), 1 / x.std(1)
    plain = triton_rows.turn(x, OFFSETS, track_size, statistics=(mean, rstd))
    normal = (x - mean[:, None]) * rstd[:, None]
    torch.testing.assert_close(plain, reference.rotate(normal, OFFSETS, track_size), rtol=1e-5, atol=1e-6)
    dropped = triton_rows.turn(x, OFFSETS, track_size, chance=(5, 0.4), residual=residual) - residual
    mask = dropped.abs() > 1e-5
    assert abs(mask.float().mean() - 0.6) < 0.02
    torch.testing.assert_close(dropped, reference.rotate(x, OFFSETS, track_size) * mask / 0.6, rtol=1e-4, atol=1e-4)
    adjoint = triton_rows.turn(cotangent, OFFSETS, track_size, reverse=True, chance=(5, 0.4))
    torch.testing.assert_close((dropped * cotangent).sum(), (x * adjoint).sum(), rtol=1e-3, atol=1e-1)  # the adjoint


def test_segment_mean_and_its_gradient() -> None:
    x = torch.randn(2301, 70, requires_grad=True)
    actual, expected = triton_rows.segment_mean(x, LONG), reference.segment_mean(x, LONG)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    gradient, expected_gradient = (torch.autograd.grad(mean.square().sum(), x)[0] for mean in (actual, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)


def test_segment_mean_of_sixteen_bits_is_summed_in_float32() -> None:
    x = torch.full((3000, 8), 1.0, dtype=torch.bfloat16)
    assert torch.equal(triton_rows.segment_mean(x, torch.tensor([0, 3000])), torch.ones(1, 8))


def test_rows_with_a_one_behind_the_channels() -> None:
    x = torch.randn(251, 20)
    output = triton_rows.turn(x, OFFSETS, 4, width=24)
    assert torch.equal(output[:, :20], reference.rotate(x, OFFSETS, 4))
    assert torch.equal(output[:, 20:], torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(251, 4))
    restored = triton_rows.turn(output, OFFSETS, 4, reverse=True, residual=x, out=torch.empty(251, 20))
    torch.testing.assert_close(restored, 2 * x)


def dropped(seed: int, share: float) -> torch.Tensor:
    """Which of 4,096 times 256 numbers are dropped; in one program, since each is slow in the interpreter."""

    @triton.jit
    def store_factors(p_out, seed, share, TOKENS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
        o_token, o_channel = tl.arange(0, TOKENS), tl.arange(0, CHANNELS)
        tl.store(p_out + o_token[:, None] * CHANNELS + o_channel[None, :], kept(seed, o_token, o_channel, share))

    factors = torch.empty(4096, 256)
    store_factors[(1,)](factors, seed, share, TOKENS=4096, CHANNELS=256)
    return (factors == 0).double()


def test_what_is_dropped_looks_random() -> None:
    """The shares dropped of all numbers, of rows, of columns, and of pairs of neighbours."""
    seed, share = 1 << 30, 0.3
    mask = dropped(seed, share)
    assert abs(mask.mean() - share) < 5 * (share * (1 - share) / mask.numel()) ** 0.5
    for dim, count in ((0, 4096), (1, 256)):
        assert mask.mean(dim).std() == pytest.approx((share * (1 - share) / count) ** 0.5, rel=0.2)
    for a, b in ((mask[1:], mask[:-1]), (mask[:, 1:], mask[:, :-1]), (mask[16:], mask[:-16])):
        assert (a * b).mean() == pytest.approx(share**2, rel=0.02)
    assert (mask * dropped(seed + 1, share)).mean() == pytest.approx(share**2, rel=0.02)


@pytest.mark.parametrize("track_size", [7, 16])
def test_a_pass_drops_by_seed_and_position(track_size: int) -> None:
    """Therefore the tests of these masks hold for every pass."""
    width = 3 * track_size
    output = triton_rows.turn(torch.ones(100, width), torch.tensor([0, 30, 100]), track_size, chance=(5, 0.3))
    assert torch.equal((output == 0).double(), dropped(5, 0.3)[:100, :width])
