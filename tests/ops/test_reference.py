from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chordmixer import ops
from chordmixer.ops import reference

RandomBlock = Callable[..., tuple[Tensor, Callable[..., Tensor]]]
ORDERS = ("paper", "released")
KINDS = (None, "layer", "batch", "group")
LENGTHS = {
    "one": [1],
    "short": [1, 2, 3, 1, 7, 16, 17],
    "long": [9000],
    "tile-edges": [4095, 1, 4096, 4097, 2],
    "many-in-a-tile": [3000, 5, 1000, 91, 6000, 1, 64],
}


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


def naive_rotate(values: Tensor, lengths: list[int], track_size: int) -> Tensor:
    """Equations 1 and 2, a number at a time."""
    rotated = torch.full_like(values, float("nan"))
    for start, n in zip(offsets_of(lengths).tolist(), lengths, strict=False):
        for t in range(values.shape[1] // track_size):
            channels = slice(t * track_size, (t + 1) * track_size)
            for j in range(n):
                k = j if t == 0 else (j + 2 ** (t - 1)) % n
                rotated[start + j, channels] = values[start + k, channels]
    return rotated


class TestRotate:
    @pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
    def test_is_equations_1_and_2(self, lengths: list[int]) -> None:
        values, offsets = torch.randn(sum(lengths), 4 * 2), offsets_of(lengths)
        rotated = reference.rotate(values, offsets, track_size=2)
        assert torch.equal(rotated, naive_rotate(values, lengths, 2))
        assert torch.equal(rotated, ops.rotate(values, offsets, track_size=2))

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 3))
    def test_any_lengths_tracks_and_sizes(self, lengths: list[int], tracks: int, size: int) -> None:
        values = torch.randn(sum(lengths), tracks * size)
        offsets = offsets_of(lengths)
        rotated = ops.rotate(values, offsets, size)
        assert torch.equal(rotated, reference.rotate(values, offsets, size))
        for rotate in (ops.rotate, reference.rotate):
            assert torch.equal(rotate(rotated, offsets, size, reverse=True), values)
        for before, after in zip(values.split(lengths), rotated.split(lengths), strict=True):
            assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)

    @pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
    def test_reverse_undoes_it_exactly(self, lengths: list[int]) -> None:
        values, offsets = torch.randn(sum(lengths), 14 * 2), offsets_of(lengths)
        rotated = ops.rotate(values, offsets, track_size=2)
        assert torch.equal(ops.rotate(rotated, offsets, track_size=2, reverse=True), values)

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [LENGTHS["short"], LENGTHS["tile-edges"]], ids=["short", "tile-edges"])
    def test_gradient_is_the_reverse_rotation(self, lengths: list[int], reverse: bool) -> None:
        values = torch.randn(sum(lengths), 6, requires_grad=True)
        incoming, offsets = torch.randn_like(values), offsets_of(lengths)
        ops.rotate(values, offsets, 1, reverse).backward(incoming)
        assert torch.equal(values.grad, ops.rotate(incoming, offsets, 1, not reverse))


class TestBlock:
    def test_is_the_formula(self) -> None:
        lengths = [1, 2, 7]
        offsets, values, residual = offsets_of(lengths), torch.randn(10, 6), torch.randn(10, 6)
        w1, b1, w2, b2 = torch.randn(5, 6), torch.randn(5), torch.randn(6, 5), torch.randn(6)

        def mix(z: Tensor) -> Tensor:
            hidden = z @ w1.T + b1
            return hidden * (1 + torch.erf(hidden / 2**0.5)) / 2 @ w2.T + b2

        mlp = ops.Mlp(w1, b1, w2, b2)
        paper = residual + mix(naive_rotate(values, lengths, 2))
        released = residual + naive_rotate(mix(values), lengths, 2)
        for order, expected in (("paper", paper), ("released", released)):
            for block in (reference.block, ops.block):
                output = block(values, offsets, 2, mlp, order=order, residual=residual)
                torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("prenorm", KINDS)
    def test_gradcheck(self, order: str, prenorm: str | None, random_block: RandomBlock) -> None:
        values, run = random_block([1, 2, 5], order, prenorm, None, torch.float64)
        assert torch.autograd.gradcheck(run, values.requires_grad_())

    @pytest.mark.parametrize("order", ORDERS)
    def test_dropout_lies_between_rotate_and_mix(self, order: str, random_block: RandomBlock) -> None:
        values, run = random_block([40], order, None, None)
        torch.manual_seed(1)
        first = run(values, dropout=0.5)
        assert not torch.allclose(first, run(values, dropout=0.5))
        torch.manual_seed(1)
        assert torch.equal(first, run(values, dropout=0.5))
        if order == "released":  # what is dropped there is a number of the output
            assert 0.3 < (first == values).float().mean() < 0.7


class TestNormalise:
    def test_batch_norm_in_training_updates_its_statistics(self) -> None:
        torch_norm = torch.nn.BatchNorm1d(6)
        norm = ops.NormState(
            "batch", torch.ones(6), torch.zeros(6), mean=torch.zeros(6), variance=torch.ones(6), training=True
        )
        values = torch.randn(20, 6) * 3 + 1
        torch.testing.assert_close(ops.normalise(values, offsets_of([8, 12]), norm), torch_norm(values))
        torch.testing.assert_close(norm.mean, torch_norm.running_mean)
        torch.testing.assert_close(norm.variance, torch_norm.running_var)

    @pytest.mark.parametrize("gradients", [False, True])
    def test_group_norm_is_each_sequence_alone(self, gradients: bool) -> None:
        lengths = [1, 2, 5000, 30]
        torch_norm = torch.nn.GroupNorm(3, 6)
        torch.nn.init.normal_(torch_norm.weight)
        torch.nn.init.normal_(torch_norm.bias)
        norm = ops.NormState("group", torch_norm.weight.detach(), torch_norm.bias.detach(), groups=3)
        values = (torch.randn(sum(lengths), 6) * 2 + 5).requires_grad_(gradients)
        actual = ops.normalise(values, offsets_of(lengths), norm)
        expected = [torch_norm(s.T[None])[0].T for s in values.split(lengths)]
        torch.testing.assert_close(actual, torch.cat(expected), rtol=1e-4, atol=1e-4)
        if gradients:
            weights = torch.randn_like(actual)
            (gradient,) = torch.autograd.grad((actual * weights).sum(), values)
            (expected_gradient,) = torch.autograd.grad((torch.cat(expected) * weights).sum(), values)
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


class TestSegmentMean:
    @given(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
    def test_is_the_mean(self, lengths: list[int]) -> None:
        values = torch.randn(sum(lengths), 2)
        expected = torch.stack([s.double().mean(0) for s in values.split(lengths)])
        for segment_mean in (reference.segment_mean, ops.segment_mean):
            mean = segment_mean(values, offsets_of(lengths))
            assert mean.dtype == torch.float32
            torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)
