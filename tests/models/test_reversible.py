from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from chordmixer import ChordMixer, ChordMixerConfig, Packed
from chordmixer.models.chordmixer import depth

Make = Callable[..., Any]
CONFIG = ChordMixerConfig(max_length=40, track_size=2, hidden=8, reversible=True)
LENGTHS = [40, 33, 9, 3, 2, 1]  # depths 6, 6, 4, 2, 1, 1
KINDS = (None, "layer", "batch", "group")
ORDERS = ("paper", "released")


def plain_forward(encoder: ChordMixer, values: Tensor) -> Tensor:
    """The same function with every activation kept: two streams that are updated in turn, and their mean."""
    a = b = values
    for i, block in enumerate(encoder.blocks):
        staying = [n for n in LENGTHS if depth(n) > i]
        tokens, offsets = sum(staying), torch.tensor([0, *staying]).cumsum(0)
        grown, source = (a, b) if i % 2 == 0 else (b, a)
        updated = torch.cat([block(source[:tokens], offsets, residual=grown[:tokens]), grown[tokens:]])
        a, b = (updated, b) if i % 2 == 0 else (a, updated)
    return (a + b) / 2


def gradients(encoder: ChordMixer, run: Callable[[Tensor], Tensor], values: Tensor) -> list[Tensor]:
    """The output, then the gradients of the input and of every parameter."""
    entry = values.clone().requires_grad_()
    out = run(entry)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), [entry, *encoder.parameters()])]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("prenorm", KINDS)
@pytest.mark.parametrize(
    ("training", "dropout"), [(False, 0.0), (True, 0.0), (True, 0.3)], ids=["eval", "train", "drop"]
)
def test_gradients_are_those_of_the_plain_computation(
    order: Any, prenorm: Any, training: bool, dropout: float, scrambled: Make, random_batch: Make
) -> None:
    encoder = scrambled(ChordMixer(replace(CONFIG, order=order, prenorm=prenorm, dropout=dropout)).double())
    encoder.train(training)
    x = random_batch(LENGTHS, encoder.width, torch.float64)
    torch.manual_seed(5)
    actual = gradients(encoder, lambda values: encoder(x.with_values(values)).values, x.values)
    random = torch.rand(1)
    torch.manual_seed(5)
    expected = gradients(encoder, lambda values: plain_forward(encoder, values), x.values)
    assert torch.equal(random, torch.rand(1)), "recomputation must not change the random state"
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


def test_callers_order_is_kept(random_batch: Make) -> None:
    encoder = ChordMixer(CONFIG).eval()
    x = random_batch(LENGTHS, encoder.width)
    order = [3, 0, 5, 2, 4, 1]
    torch.testing.assert_close(encoder(x.select(order)).to_list(), [encoder(x).to_list()[i] for i in order])


def test_frozen_weights_get_no_gradient(random_batch: Make) -> None:
    encoder = ChordMixer(CONFIG)
    encoder.blocks[0].requires_grad_(False)
    encoder(random_batch(LENGTHS, encoder.width)).values.sum().backward()
    assert encoder.blocks[0].fc1.weight.grad is None
    assert all(p.grad is not None for p in encoder.blocks[1:].parameters())


def test_running_statistics_are_updated_once_a_step(random_batch: Make) -> None:
    encoder = ChordMixer(replace(CONFIG, prenorm="batch"))
    x = random_batch(LENGTHS, encoder.width)
    out = encoder(x).values
    after_forward = [b.clone() for b in encoder.buffers()]
    out.sum().backward()
    torch.testing.assert_close(list(encoder.buffers()), after_forward, rtol=0, atol=0)
    torch.testing.assert_close(encoder.blocks[0].prenorm.mean, 0.1 * x.values.mean(0))
    assert all(block.prenorm.momentum == 0.1 for block in encoder.blocks)


def test_backward_twice_is_refused(random_batch: Make) -> None:
    encoder = ChordMixer(CONFIG)
    loss = encoder(random_batch(LENGTHS, encoder.width)).values.sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="consumes its outputs: call backward once"):
        loss.backward()


def test_autocast_in_the_backward_pass_too(random_batch: Make) -> None:
    encoder = ChordMixer(replace(CONFIG, prenorm="layer"))
    x = random_batch(LENGTHS, encoder.width)

    def cast(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Backward outside of autocast, as training loops do."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            entry = x.values.clone().requires_grad_()
            out = run(entry)
        return [out, *torch.autograd.grad(out.square().sum(), [entry, *encoder.parameters()])]

    actual = cast(lambda values: encoder(x.with_values(values)).values)
    for gradient, expected in zip(actual, cast(lambda values: plain_forward(encoder, values)), strict=True):
        torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


@pytest.mark.parametrize("order", ORDERS)
def test_training_memory_does_not_grow_with_depth(order: Any, peak_bytes: Callable[..., int]) -> None:
    """The same 2,048 tokens as sequences of 8 (3 blocks) and as one (11 blocks)."""

    def growth(reversible: bool) -> float:
        encoder = ChordMixer(ChordMixerConfig(2048, 8, 8, order=order, reversible=reversible))
        values = torch.randn(2048, encoder.width)

        def peak(length: int) -> int:
            x = Packed.from_lengths(values, [length] * (2048 // length))
            encoder.zero_grad()
            return peak_bytes(lambda: encoder(x).values.sum().backward())

        return peak(2048) / peak(8)

    assert growth(reversible=False) > 2
    assert growth(reversible=True) < 1.1
