from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chordmixer import ops

TILE = 4096
ORDERS = ("paper", "released")
KINDS = (None, "layer", "batch", "group")
LENGTHS = {
    "one": [1],
    "short": [1, 2, 3, 1, 7, 16, 17],
    "long": [9000],
    "tile-edges": [4095, 1, 4096, 4097, 2],
    "many-in-a-tile": [3000, 5, 1000, 91, 6000, 1, 64],
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


def rotate_by_the_book(values: Tensor, lengths: list[int], track_size: int) -> Tensor:
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
        values = torch.randn(sum(lengths), 4 * 2)
        rotated = ops.rotate(values, offsets_of(lengths), track_size=2)
        assert torch.equal(rotated, rotate_by_the_book(values, lengths, 2))

    @given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 3))
    def test_any_lengths_tracks_and_sizes(self, lengths: list[int], tracks: int, size: int) -> None:
        values = torch.randn(sum(lengths), tracks * size)
        offsets = offsets_of(lengths)
        rotated = ops.rotate(values, offsets, size)
        assert torch.equal(rotated, rotate_by_the_book(values, lengths, size))
        assert torch.equal(ops.rotate(rotated, offsets, size, reverse=True), values)
        for before, after in zip(values.split(lengths), rotated.split(lengths), strict=True):
            assert torch.equal(before.flatten().sort().values, after.flatten().sort().values)

    @pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
    def test_reverse_undoes_it_exactly(self, lengths: list[int]) -> None:
        values, offsets = torch.randn(sum(lengths), 14 * 2), offsets_of(lengths)
        there = ops.rotate(values, offsets, track_size=2)
        assert torch.equal(ops.rotate(there, offsets, track_size=2, reverse=True), values)

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("lengths", [LENGTHS["short"], LENGTHS["tile-edges"]], ids=["short", "tile-edges"])
    def test_gradient_is_the_reverse_rotation(self, lengths: list[int], reverse: bool) -> None:
        values = torch.randn(sum(lengths), 6, requires_grad=True)
        incoming, offsets = torch.randn_like(values), offsets_of(lengths)
        ops.rotate(values, offsets, 1, reverse).backward(incoming)
        assert torch.equal(values.grad, ops.rotate(incoming, offsets, 1, not reverse))

    @pytest.mark.parametrize("reverse", [False, True])
    def test_gradcheck(self, reverse: bool) -> None:
        values = torch.randn(9, 8, dtype=torch.float64, requires_grad=True)
        arguments = (values, offsets_of([1, 3, 5]), 2, reverse)
        assert torch.autograd.gradcheck(ops.rotate, arguments)
        assert torch.autograd.gradgradcheck(ops.rotate, arguments)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    def test_opcheck(self, dtype: torch.dtype) -> None:
        values = torch.randn(9, 8, dtype=dtype, requires_grad=True)
        torch.library.opcheck(torch.ops.chordmixer.rotate, (values, offsets_of([1, 3, 5]), 2, False))

    @pytest.mark.parametrize("lengths", [[5, 3], [5000]], ids=["index", "slices"])
    def test_any_memory_layout(self, lengths: list[int]) -> None:
        values = torch.randn(8, sum(lengths)).T
        expected = ops.rotate(values.contiguous(), offsets_of(lengths), 2)
        assert torch.equal(ops.rotate(values, offsets_of(lengths), 2), expected)

    def test_compiles_without_a_break(self) -> None:
        values, offsets = torch.randn(9, 8, requires_grad=True), offsets_of([1, 3, 5])
        compiled = torch.compile(ops.rotate, backend="eager", fullgraph=True)
        rotated = compiled(values, offsets, 2)
        assert torch.equal(rotated, ops.rotate(values, offsets, 2))
        rotated.sum().backward()
        assert torch.equal(values.grad, torch.ones_like(values))


def random_norm(kind: str | None, width: int, groups: int, dtype: torch.dtype) -> ops.Norm | None:
    if kind is None:
        return None
    weight, bias, mean = (torch.randn(width, dtype=dtype) for _ in range(3))
    if kind == "batch":
        return ops.Norm(kind, weight, bias, mean=mean, variance=torch.rand(width, dtype=dtype) + 0.5)
    return ops.Norm(kind, weight, bias, groups=groups)


def random_block(
    lengths: list[int], order: str, prenorm: str | None, norm: str | None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Callable[..., Tensor]]:
    """Random tokens of 3 tracks of 2, and a block of random weights that is a function of tokens and options."""
    width, hidden = 6, 5
    shapes = ((hidden, width), (hidden,), (width, hidden), (width,))
    mlp = ops.Mlp(*(torch.randn(shape, dtype=dtype) for shape in shapes))
    values = torch.randn(sum(lengths), width, dtype=dtype)
    norms = {"prenorm": random_norm(prenorm, width, 2, dtype), "norm": random_norm(norm, width, 2, dtype)}

    def run(values: Tensor, **options: Any) -> Tensor:
        return ops.block(values, offsets_of(lengths), 2, mlp, order=order, **norms, **options)

    return values, run


def defined(run: Callable[..., Tensor], values: Tensor, **options: Any) -> Tensor:
    """What the definition says: gradients on, no tiles."""
    return run(values.clone().requires_grad_(), **options).detach()


every_block = pytest.mark.parametrize(
    ("order", "prenorm", "norm"),
    list(product(ORDERS, KINDS, KINDS)),
    ids=lambda name: str(name).lower(),
)


class TestBlock:
    def test_is_the_formula(self) -> None:
        lengths = [1, 2, 7]
        offsets, values, residual = offsets_of(lengths), torch.randn(10, 6), torch.randn(10, 6)
        w1, b1, w2, b2 = torch.randn(5, 6), torch.randn(5), torch.randn(6, 5), torch.randn(6)

        def mix(z: Tensor) -> Tensor:
            hidden = z @ w1.T + b1
            return hidden * (1 + torch.erf(hidden / 2**0.5)) / 2 @ w2.T + b2

        mlp = ops.Mlp(w1, b1, w2, b2)
        paper = residual + mix(rotate_by_the_book(values, lengths, 2))
        released = residual + rotate_by_the_book(mix(values), lengths, 2)
        for order, expected in (("paper", paper), ("released", released)):
            made = ops.block(values, offsets, 2, mlp, order=order, residual=residual)
            torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)

    @every_block
    @pytest.mark.parametrize("lengths", [LENGTHS["short"], LENGTHS["many-in-a-tile"]], ids=["one-tile", "tiles"])
    def test_tiles_are_the_definition(
        self, lengths: list[int], order: str, prenorm: str | None, norm: str | None
    ) -> None:
        values, run = random_block(lengths, order, prenorm, norm)
        kept, residual = values.clone(), torch.randn_like(values)
        plain, added = defined(run, values), defined(run, values, residual=residual)
        with torch.no_grad():
            out = torch.full_like(values, float("nan"))
            assert run(values, out=out) is out
            close = {"rtol": 1e-5, "atol": 1e-5}
            torch.testing.assert_close(run(values), plain, **close)
            torch.testing.assert_close(out, plain, **close)
            torch.testing.assert_close(run(values, residual=residual, out=out.fill_(float("nan"))), added, **close)
            assert torch.equal(run(values, residual=residual), out)
            torch.testing.assert_close(run(values, residual=residual, out=residual), added, **close)
        assert torch.equal(values, kept)

    @every_block
    def test_double_precision_stays_double(self, order: str, prenorm: str | None, norm: str | None) -> None:
        values, run = random_block([5, 1, 30], order, prenorm, norm, torch.float64)
        with torch.no_grad():
            made = run(values)
        assert made.dtype == torch.float64
        torch.testing.assert_close(made, defined(run, values), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("order", ORDERS)
    def test_any_memory_layout(self, order: str) -> None:
        values, run = random_block([4, 9], order, None, None)
        with torch.no_grad():
            torch.testing.assert_close(run(values.T.contiguous().T), run(values))

    @pytest.mark.parametrize("order", ORDERS)
    def test_autocast(self, order: str) -> None:
        values, run = random_block([5, 1, 30], order, "layer", None)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = defined(run, values)
            with torch.no_grad():
                made = run(values)
        assert made.dtype == expected.dtype == torch.float32
        torch.testing.assert_close(made, expected, rtol=0.05, atol=0.05)

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("prenorm", KINDS)
    def test_gradcheck(self, order: str, prenorm: str | None) -> None:
        values, run = random_block([1, 2, 5], order, prenorm, None, torch.float64)
        assert torch.autograd.gradcheck(run, values.requires_grad_())

    @pytest.mark.parametrize("lengths", [lambda t: [t], lambda t: [t // 2 - 7, t // 2 + 7]], ids=["one", "two"])
    @every_block
    def test_memory_is_the_output_and_tiles(
        self,
        order: str,
        prenorm: str | None,
        norm: str | None,
        lengths: Callable[[int], list[int]],
        peak_bytes: Callable[..., int],
    ) -> None:
        """With twice the tokens only the output grows, and the two numbers a token of a layer norm."""

        def peak(tokens: int) -> int:
            values, run = random_block(lengths(tokens), order, prenorm, norm)
            with torch.no_grad():
                return peak_bytes(lambda: run(values))

        tokens = 4 * TILE
        growth = (peak(2 * tokens) - peak(tokens)) / tokens
        assert 24 <= growth <= 24 + 8 * [prenorm, norm].count("layer") + 1

    @pytest.mark.parametrize("order", ORDERS)
    def test_dropout_lies_between_rotate_and_mix(self, order: str) -> None:
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
        theirs = torch.nn.BatchNorm1d(6)
        norm = ops.Norm(
            "batch", torch.ones(6), torch.zeros(6), mean=torch.zeros(6), variance=torch.ones(6), training=True
        )
        values = torch.randn(20, 6) * 3 + 1
        torch.testing.assert_close(ops.normalise(values, offsets_of([8, 12]), norm), theirs(values))
        torch.testing.assert_close(norm.mean, theirs.running_mean)
        torch.testing.assert_close(norm.variance, theirs.running_var)

    @pytest.mark.parametrize("gradients", [False, True])
    def test_group_norm_is_each_sequence_alone(self, gradients: bool) -> None:
        lengths = [1, 2, 5000, 30]
        theirs = torch.nn.GroupNorm(3, 6)
        torch.nn.init.normal_(theirs.weight)
        torch.nn.init.normal_(theirs.bias)
        norm = ops.Norm("group", theirs.weight.detach(), theirs.bias.detach(), groups=3)
        values = (torch.randn(sum(lengths), 6) * 2 + 5).requires_grad_(gradients)
        ours = ops.normalise(values, offsets_of(lengths), norm)
        expected = [theirs(s.T[None])[0].T for s in values.split(lengths)]
        torch.testing.assert_close(ours, torch.cat(expected), rtol=1e-4, atol=1e-4)
        if gradients:
            weights = torch.randn_like(ours)
            (mine,) = torch.autograd.grad((ours * weights).sum(), values)
            (true,) = torch.autograd.grad((torch.cat(expected) * weights).sum(), values)
            torch.testing.assert_close(mine, true, rtol=1e-3, atol=1e-4)


class TestSegmentMean:
    @given(st.lists(st.integers(1, 3000), min_size=1, max_size=6))
    def test_is_the_mean(self, lengths: list[int]) -> None:
        values = torch.randn(sum(lengths), 2)
        expected = torch.stack([s.double().mean(0) for s in values.split(lengths)])
        mean = ops.segment_mean(values, offsets_of(lengths))
        assert mean.dtype == torch.float32
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-6)

    def test_three_hundred_thousand_tokens_far_from_zero(self) -> None:
        values = torch.rand(300_000, 2) + 1000
        mean = ops.segment_mean(values, offsets_of([300_000]))
        error = (mean.double() - values.double().mean(0)) / values.double().mean(0)
        assert error.abs().max() < 2e-6

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_half_precision_is_summed_in_float32(self, dtype: torch.dtype) -> None:
        mean = ops.segment_mean(torch.ones(5000, 1, dtype=dtype), offsets_of([5000]))
        assert mean.dtype == torch.float32 and mean.item() == 1.0

    def test_a_sequence_does_not_feel_its_neighbours(self) -> None:
        lengths = [700, 5000, 1, 1024, 3]
        values = torch.randn(sum(lengths), 3)
        together = ops.segment_mean(values, offsets_of(lengths))
        alone = [ops.segment_mean(s, offsets_of([len(s)])) for s in values.split(lengths)]
        assert torch.equal(together, torch.cat(alone))

    def test_gradient(self) -> None:
        lengths = [1, 3, 1500]
        values = torch.randn(sum(lengths), 2, requires_grad=True)
        incoming = torch.randn(3, 2)
        ops.segment_mean(values, offsets_of(lengths)).backward(incoming)
        expected = torch.cat([(g / n).expand(n, 2) for g, n in zip(incoming, lengths, strict=True)])
        torch.testing.assert_close(values.grad, expected)
        double = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(ops.segment_mean, (double, offsets_of([1, 2, 3])))
        assert torch.autograd.gradgradcheck(ops.segment_mean, (double, offsets_of([1, 2, 3])))


def test_layer_norm_into_room_that_is_there() -> None:
    values, out = torch.randn(9_000, 6), torch.empty(9_000, 6)
    norm = ops.Norm("layer", torch.rand(6), torch.randn(6))
    assert ops.layer_norm(values, norm, out) is out
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(values, (6,), norm.weight, norm.bias, norm.eps))
