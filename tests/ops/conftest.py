"""Random blocks, with the same inputs for the definition and for a fast path, and the distance of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from chordmixer.ops import Mlp, NormState, block


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def gradients() -> Callable[..., dict[str, Tensor]]:
    """The output of a block function and its gradient with respect to every input, by name."""

    def measure(
        function: Callable[..., Tensor], lengths: Sequence[int], track_size: int, tracks: int, hidden: int,
        prenorm: str | None = None, separate: bool = False, dtype: torch.dtype = torch.float32,
        device: str = "cpu", compute_dtype: torch.dtype | None = None, **settings: object,
    ) -> dict[str, Tensor]:  # fmt: skip
        generator = torch.Generator().manual_seed(0)

        def draw(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator)

        tokens, width = sum(lengths), track_size * tracks
        inputs = {"x": draw(tokens, width), "residual": draw(tokens, width)}
        inputs |= {"w1": draw(hidden, width) / width**0.5, "b1": draw(hidden)}
        inputs |= {"w2": draw(width, hidden) / hidden**0.5, "b2": draw(width)}
        inputs |= {"weight": 1 + 0.3 * draw(width), "bias": draw(width)}
        grad_output = draw(tokens, width).to(dtype)
        for name, value in inputs.items():
            value = value.to(dtype) if name in ("x", "residual") else value
            inputs[name] = value.to(device, compute_dtype or value.dtype).requires_grad_()
        output = function(
            inputs["x"],
            torch.tensor([0, *accumulate(lengths)], device=device),
            track_size,
            Mlp(*(inputs[name] for name in ("w1", "b1", "w2", "b2"))),
            prenorm=prenorm
            and NormState(prenorm, inputs["weight"], inputs["bias"], groups=track_size, training=True),
            residual=inputs["residual"] if separate else None,
            **settings,
        )
        used = [n for n in inputs if (separate or n != "residual") and (prenorm or n not in ("weight", "bias"))]
        grads = torch.autograd.grad(output, [inputs[n] for n in used], grad_output.to(device, output.dtype))
        return {"out": output.detach(), **dict(zip(used, grads, strict=True))}

    return measure


@pytest.fixture
def distance() -> Callable[[dict[str, Tensor], dict[str, Tensor]], float]:
    """The largest relative distance between two sets of tensors, NaN counted as infinite."""

    def measure(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
        assert actual.keys() == expected.keys()
        errors = [(actual[n].double() - expected[n].double()).norm() / expected[n].double().norm() for n in expected]
        return float(torch.stack(errors).nan_to_num(float("inf")).max())

    return measure


@pytest.fixture
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nothing has written yet holds NaN."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty

    def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def poisoned(*arguments: object, **settings: object) -> Tensor:
            tensor = make(*arguments, **settings)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(-1)

        return poisoned

    monkeypatch.setattr(torch, "empty", filled(empty))
    monkeypatch.setattr(torch, "empty_like", filled(empty_like))
    monkeypatch.setattr(Tensor, "new_empty", filled(new_empty))


def random_norm(kind: str | None, width: int, groups: int, dtype: torch.dtype) -> NormState | None:
    if kind is None:
        return None
    weight, bias, mean = (torch.randn(width, dtype=dtype) for _ in range(3))
    if kind == "batch":
        return NormState(kind, weight, bias, mean=mean, variance=torch.rand(width, dtype=dtype) + 0.5)
    return NormState(kind, weight, bias, groups=groups)


@pytest.fixture
def random_block() -> Callable[..., tuple[Tensor, Callable[..., Tensor]]]:
    """Random tokens of 3 tracks of 2, and a block of random weights that is a function of tokens and options."""

    def draw(
        lengths: list[int], order: str, prenorm: str | None, norm: str | None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Callable[..., Tensor]]:
        width, hidden = 6, 5
        shapes = ((hidden, width), (hidden,), (width, hidden), (width,))
        mlp = Mlp(*(torch.randn(shape, dtype=dtype) for shape in shapes))
        values = torch.randn(sum(lengths), width, dtype=dtype)
        norms = {"prenorm": random_norm(prenorm, width, 2, dtype), "norm": random_norm(norm, width, 2, dtype)}

        def run(values: Tensor, function: Callable[..., Tensor] = block, **options: Any) -> Tensor:
            return function(values, torch.tensor([0, *accumulate(lengths)]), 2, mlp, order=order, **norms, **options)

        return values, run

    return draw
