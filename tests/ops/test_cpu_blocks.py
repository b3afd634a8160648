"""All blocks as one operation on a CPU, against the definition: values, every gradient, dropout, batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from chordmixer import ops
from chordmixer.ops import Exits, Mlp, NormState, cpu_blocks, reference
from chordmixer.ops.rotation import tiles

TRACK_SIZE, TRACKS, HIDDEN, DEPTH = 4, 6, 16, 5
WIDTH = TRACK_SIZE * TRACKS
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.02}
"""The largest relative distance from the definition; in bf16 the definition rounds its products too."""
BATCHES = {"one-tile": [40, 7, 1], "tiles": [9000, 2500, 30]}
precisions = pytest.mark.parametrize("precision", TOLERANCE)
norms = pytest.mark.parametrize("norm", [None, "layer"], ids=str)

Function = Callable[..., Tensor]


def exits_of(lengths: list[int]) -> Exits:
    """The last sequence leaves after two blocks, all but the first after four."""
    total, without_last = sum(lengths), sum(lengths[:-1])
    return [(total, 3), (total, 3), (without_last, 2), (without_last, 2), (lengths[0], 1)]


class Network:
    """Random tokens and weights, the same in every instance."""

    def __init__(self, lengths: list[int], norm: str | None, precision: str) -> None:
        generator = torch.Generator().manual_seed(0)
        dtype = torch.float64 if precision == "float64" else torch.float32

        def draw(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator).to(dtype).requires_grad_()

        self.offsets, self.exits = torch.tensor([0, *accumulate(lengths)]), exits_of(lengths)
        self.x, self.half = draw(sum(lengths), WIDTH), precision == "bfloat16"
        shapes = ((HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN), (WIDTH,))
        self.mlps = [Mlp(*(draw(*shape) for shape in shapes)) for _ in range(DEPTH)]
        with torch.no_grad():
            for mlp in self.mlps:
                mlp.fc1_weight.div_(WIDTH**0.5), mlp.fc2_weight.div_(HIDDEN**0.5)
        self.norms = [NormState(norm, draw(WIDTH), draw(WIDTH)) if norm else None for _ in range(DEPTH)]
        self.gradient = draw(sum(lengths), WIDTH).detach()

    def run(self, function: Function = ops.blocks, **settings: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return function(self.x, self.offsets, self.exits, TRACK_SIZE, self.mlps, prenorms=self.norms, **settings)

    def inputs(self) -> list[Tensor]:
        norm_weights = [weight for norm in self.norms if norm for weight in (norm.weight, norm.bias)]
        return [self.x, *(weight for mlp in self.mlps for weight in mlp), *norm_weights]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    actual, expected = actual.detach().double(), expected.detach().double()
    return float((actual - expected).norm() / expected.norm())


@precisions
@norms
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
@pytest.mark.usefixtures("unwritten_is_nan")
def test_values_and_every_gradient(lengths: list[int], norm: str | None, precision: str) -> None:
    network = Network(lengths, norm, precision)
    actual, expected = network.run(), network.run(reference.blocks)
    assert actual.dtype == expected.dtype == network.x.dtype, "the stream stays as it is"
    assert relative_error(actual, expected) < TOLERANCE[precision]
    with torch.no_grad():
        assert relative_error(network.run(), expected) < TOLERANCE[precision]
    gradients = torch.autograd.grad(actual, network.inputs(), network.gradient)
    expected_gradients = torch.autograd.grad(expected, network.inputs(), network.gradient)
    assert max(map(relative_error, gradients, expected_gradients)) < TOLERANCE[precision]


@norms
def test_bf16_is_near_float32(norm: str | None) -> None:
    """The difference is within the bounds of docs/python.md, and not zero."""
    exact, rounded = (Network(BATCHES["tiles"], norm, precision).run() for precision in ("float32", "bfloat16"))
    assert 1e-4 < relative_error(rounded, exact) < 0.02


@precisions
@norms
def test_a_sequence_is_the_same_in_every_batch(norm: str | None, precision: str) -> None:
    batched = Network(BATCHES["tiles"], norm, precision)
    single = Network(BATCHES["tiles"], norm, precision)
    first = BATCHES["tiles"][0]
    single.x, single.offsets = batched.x[:first], batched.offsets[:2]
    single.exits = [(first, 1)] * DEPTH
    with torch.no_grad():
        assert relative_error(single.run(), batched.run()[:first]) < (1e-6 if precision != "bfloat16" else 1e-2)


@norms
def test_dropout(norm: str | None) -> None:
    """The gradients fit the mask that was drawn; another call draws another mask, and an equal seed the same."""
    network = Network([40, 7, 1], norm, "float64")

    def run(*_: Tensor) -> Tensor:
        torch.manual_seed(3)
        return network.run(dropout=0.25)

    assert torch.autograd.gradcheck(run, network.inputs()[:6], fast_mode=True)
    assert not torch.equal(run(), network.run(dropout=0.25))
    with torch.no_grad():
        assert torch.equal(run(), run())


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
def test_a_mask_drops_the_share_that_was_asked(dtype: torch.dtype) -> None:
    mask = cpu_blocks.draw_mask(torch.empty(1001, 301, dtype=dtype), 0.3)
    assert set(mask.unique().tolist()) == {-1, 0}
    columns = (mask == 0).double().mean(0)
    assert float(columns.mean()) == pytest.approx(0.3, abs=0.005) and float(columns.std()) < 0.02


def test_expectation_of_dropout() -> None:
    network = Network([400, 7, 1], None, "float32")
    network.exits, network.mlps, network.norms = network.exits[:1], network.mlps[:1], network.norms[:1]
    with torch.no_grad():
        for weight in network.mlps[0][2:]:
            weight.mul_(1e-3)
        mean = torch.stack([network.run(dropout=0.5) for _ in range(400)]).mean(0)
    assert relative_error(mean, network.run(dropout=0.0)) < 1e-3


def test_memory_of_the_inputs_is_not_kept() -> None:
    """For gradients the blocks save their inputs in their own type, and not the tokens that came in."""
    network = Network([4000, 7, 1], None, "bfloat16")
    x = network.x * 1
    with torch.autocast("cpu", torch.bfloat16):
        output = ops.blocks(x, network.offsets, network.exits, TRACK_SIZE, network.mlps, prenorms=network.norms)
    saved = [t for t in output.grad_fn.saved_tensors if t.dtype == torch.float32 and t.ndim == 2]  # type: ignore[union-attr]
    address = x.untyped_storage().data_ptr()
    assert all(t.untyped_storage().data_ptr() != address for t in saved)


def test_index_of_a_batch_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from chordmixer.ops.rotation import Rotation

    calls: list[tuple[int, int]] = []
    sources = Rotation.sources

    def spy(self: Rotation, lo: int, hi: int) -> Tensor:
        calls.append((lo, hi))
        return sources(self, lo, hi)

    monkeypatch.setattr(Rotation, "sources", spy)
    network = Network([900, 900, 900], None, "float32")
    with torch.no_grad():
        network.run()
    assert calls == list(tiles(network.x))
