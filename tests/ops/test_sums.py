from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from chordmixer import ops
from chordmixer.ops.sums import segment_squares


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


def test_three_hundred_thousand_tokens_far_from_zero() -> None:
    values = torch.rand(300_000, 2) + 1000
    mean = ops.segment_mean(values, offsets_of([300_000]))
    error = (mean.double() - values.double().mean(0)) / values.double().mean(0)
    assert error.abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    mean = ops.segment_mean(torch.ones(5000, 1, dtype=dtype), offsets_of([5000]))
    assert mean.dtype == torch.float32 and mean.item() == 1.0


def test_a_sequence_does_not_depend_on_its_neighbours() -> None:
    lengths = [700, 5000, 1, 1024, 3]
    values = torch.randn(sum(lengths), 3)
    batched = ops.segment_mean(values, offsets_of(lengths))
    unbatched = [ops.segment_mean(s, offsets_of([len(s)])) for s in values.split(lengths)]
    assert torch.equal(batched, torch.cat(unbatched))


def test_gradient() -> None:
    lengths = [1, 3, 1500]
    values = torch.randn(sum(lengths), 2, requires_grad=True)
    incoming = torch.randn(3, 2)
    ops.segment_mean(values, offsets_of(lengths)).backward(incoming)
    expected = torch.cat([(g / n).expand(n, 2) for g, n in zip(incoming, lengths, strict=True)])
    torch.testing.assert_close(values.grad, expected)
    double = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.segment_mean, (double, offsets_of([1, 2, 3])))
    assert torch.autograd.gradgradcheck(ops.segment_mean, (double, offsets_of([1, 2, 3])))


def test_squares_are_taken_from_the_mean_of_each_sequence() -> None:
    lengths = [1, 5000, 3]
    values = torch.randn(sum(lengths), 2) + 100
    mean = ops.segment_mean(values, offsets_of(lengths))
    expected = torch.stack([s.double().var(0, correction=0) for s in values.split(lengths)])
    torch.testing.assert_close(
        segment_squares(values, offsets_of(lengths), mean).double(), expected, rtol=1e-4, atol=1e-9
    )


def test_maximum_of_each_sequence_and_its_gradient() -> None:
    """Against a loop; the longest sequence has several chunks, and two tokens of the second share their maximum."""
    lengths = [1, 3, 1024, 2500, 2]
    values = torch.randn(sum(lengths), 3, dtype=torch.float64)
    values[1] = values[2] = 9
    values.requires_grad_()
    actual = ops.segment_max(values, offsets_of(lengths))
    expected = torch.stack([s.amax(0) for s in values.split(lengths)])
    assert torch.equal(actual, expected)
    grad_output = torch.randn_like(actual)
    grad, expected_grad = (torch.autograd.grad(y, values, grad_output)[0] for y in (actual, expected))
    torch.testing.assert_close(grad, expected_grad)
    unbatched = torch.cat([ops.segment_max(s, offsets_of([len(s)])) for s in values.split(lengths)])
    assert torch.equal(actual, unbatched)


def test_maximum_in_half_precision() -> None:
    values = torch.randn(5000, 4).bfloat16()
    assert torch.equal(ops.segment_max(values, offsets_of([5000])), values.amax(0, keepdim=True))
