from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from chordmixer import ops
from chordmixer.ops import reference

RandomBlock = Callable[..., tuple[Tensor, Callable[..., Tensor]]]
TILE = 4096
ORDERS = ("paper", "released")
KINDS = (None, "layer", "batch", "group")


def expected_output(run: Callable[..., Tensor], values: Tensor, **options: Any) -> Tensor:
    """The output of the definition; `run` must give the same when it records gradients."""
    expected = run(values, reference.block, **options)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if values.dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    if not torch.is_autocast_enabled("cpu"):
        torch.testing.assert_close(run(values.clone().requires_grad_(), **options).detach(), expected, **tolerance)
    return expected


every_block = pytest.mark.parametrize(
    ("order", "prenorm", "norm"),
    list(product(ORDERS, KINDS, KINDS)),
    ids=lambda name: str(name).lower(),
)


@every_block
@pytest.mark.parametrize(
    "lengths", [[1, 2, 3, 1, 7, 16, 17], [3000, 5, 1000, 91, 6000, 1, 64]], ids=["one-tile", "tiles"]
)
def test_tiles_are_the_definition(
    lengths: list[int], order: str, prenorm: str | None, norm: str | None, random_block: RandomBlock
) -> None:
    values, run = random_block(lengths, order, prenorm, norm)
    original, residual = values.clone(), torch.randn_like(values)
    plain, added = expected_output(run, values), expected_output(run, values, residual=residual)
    with torch.no_grad():
        out = torch.full_like(values, float("nan"))
        assert run(values, out=out) is out
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(run(values), plain, **tolerance)
        torch.testing.assert_close(out, plain, **tolerance)
        torch.testing.assert_close(run(values, residual=residual, out=out.fill_(float("nan"))), added, **tolerance)
        assert torch.equal(run(values, residual=residual), out)
        torch.testing.assert_close(run(values, residual=residual, out=residual), added, **tolerance)
    assert torch.equal(values, original)


@every_block
def test_double_precision_stays_double(
    order: str, prenorm: str | None, norm: str | None, random_block: RandomBlock
) -> None:
    values, run = random_block([5, 1, 30], order, prenorm, norm, torch.float64)
    with torch.no_grad():
        output = run(values)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, expected_output(run, values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_any_memory_layout(order: str, random_block: RandomBlock) -> None:
    values, run = random_block([4, 9], order, None, None)
    with torch.no_grad():
        torch.testing.assert_close(run(values.T.contiguous().T), run(values))


@pytest.mark.parametrize("order", ORDERS)
def test_autocast(order: str, random_block: RandomBlock) -> None:
    values, run = random_block([5, 1, 30], order, "layer", None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = expected_output(run, values)
        with torch.no_grad():
            actual = run(values)
    assert actual.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.05)


@every_block
def test_memory_is_the_output_and_tiles(
    order: str,
    prenorm: str | None,
    norm: str | None,
    peak_bytes: Callable[..., int],
    random_block: RandomBlock,
) -> None:
    """With twice the tokens, only the output grows, and two numbers per token for each layer norm."""

    def peak(tokens: int) -> int:
        lengths = [tokens] if order == "paper" else [tokens // 2 - 7, tokens // 2 + 7]
        values, run = random_block(lengths, order, prenorm, norm)
        with torch.no_grad():
            return peak_bytes(lambda: run(values))

    tokens = 4 * TILE
    growth = (peak(2 * tokens) - peak(tokens)) / tokens
    assert 24 <= growth <= 24 + 8 * [prenorm, norm].count("layer") + 1


def test_layer_norm_into_a_given_tensor() -> None:
    values, out = torch.randn(9_000, 6), torch.empty(9_000, 6)
    norm = ops.NormState("layer", torch.rand(6), torch.randn(6))
    assert ops.layer_norm(values, norm, out) is out
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(values, (6,), norm.weight, norm.bias, norm.eps))
