from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import Packed
from chordmixer.models.encoders.mamba2 import Mamba2, Mamba2Config, SelectiveStateSpace, scan

SMALL = Mamba2Config(max_length=100, width=4, layers=1, heads=2, state=3, chunk=4)


def recurrence(u: Any, decay: Any, b: Any, c: Any, x: Packed) -> torch.Tensor:
    """h_t = exp(decay_t) h_(t-1) + u_t b_t^T, y_t = h_t c_t, token by token."""
    out = []
    for start, length in zip(x.offsets.tolist(), x.lengths, strict=False):
        state = torch.zeros(*u.shape[1:], b.shape[1], dtype=u.dtype)
        for t in range(start, start + length):
            state = decay[t].exp()[:, None, None] * state + u[t, :, :, None] * b[t]
            out.append(state @ c[t])
    return torch.stack(out)


def inputs(lengths: list[int], dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    tokens = sum(lengths)
    u, b, c = (
        torch.randn(tokens, 2, 3, dtype=dtype),
        torch.randn(tokens, 4, dtype=dtype),
        torch.randn(tokens, 4, dtype=dtype),
    )
    return u, -3 * torch.rand(tokens, 2, dtype=dtype), b, c, Packed.from_lengths(torch.zeros(tokens), lengths)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), chunk=st.sampled_from([1, 4, 64]))
def test_chunks_are_the_recurrence(lengths: list[int], chunk: int) -> None:
    u, decay, b, c, x = inputs(lengths)
    torch.testing.assert_close(scan(u, decay, b, c, x, chunk), recurrence(u, decay, b, c, x))


def test_chunks_of_chunks_of_chunks() -> None:
    """600 chunks of 1 token: three levels of groups of 16; with slow decays, so that all of them matter."""
    u, decay, b, c, x = inputs([600, 3])
    torch.testing.assert_close(scan(u, decay / 1000, b, c, x, 1), recurrence(u, decay / 1000, b, c, x))


def test_gradients_are_the_recurrence_s() -> None:
    *tensors, x = inputs([37, 1, 8])
    for t in tensors:
        t.requires_grad_()
    actual = torch.autograd.grad(scan(*tensors, x, 4).square().sum(), tensors)
    expected = torch.autograd.grad(recurrence(*tensors, x).square().sum(), tensors)
    torch.testing.assert_close(actual, expected)


def test_strong_decays_stay_finite() -> None:
    """Differences of cumulated decays above the diagonal would overflow."""
    u, decay, b, c, x = inputs([200], torch.float32)
    decay = (1000 * decay).requires_grad_()
    y = scan(u, decay, b, c, x, 64)
    y.sum().backward()
    assert y.isfinite().all() and decay.grad.isfinite().all()


def test_mixer_is_its_formula() -> None:
    space = SelectiveStateSpace(SMALL).double()
    tokens = torch.randn(30, 4, dtype=torch.float64)
    x = Packed.from_list([tokens])
    gate, ubc, dt = space.enter(tokens).split([8, 14, 2], dim=1)
    u, b, c = F.silu(space.short(ubc, x)).split([8, 3, 3], dim=1)
    dt, u = F.softplus(dt + space.dt_bias), u.unflatten(1, (2, 4))
    y = recurrence(dt[:, :, None] * u, -space.log_a.exp() * dt, b, c, x) + space.skip[:, None] * u
    torch.testing.assert_close(space(tokens, x), space.out(space.norm(y.flatten(1) * F.silu(gate))))


def test_steps_start_between_a_thousandth_and_a_tenth() -> None:
    space = SelectiveStateSpace(Mamba2Config(max_length=10, width=64, heads=64))
    dt = F.softplus(space.dt_bias)
    assert dt.min() > 0.99e-3 and dt.max() < 1.01e-1
    assert space.log_a.exp().min() >= 1 and space.log_a.exp().max() <= 16.01


def test_both_directions_mirror_each_other() -> None:
    encoder = Mamba2(Mamba2Config(max_length=100, width=4, layers=1, heads=2, direction="both")).double()
    block = encoder.blocks[0]
    block.back.load_state_dict(block.ahead.state_dict())
    sequences = [torch.randn(n, 4, dtype=torch.float64) for n in (30, 7)]
    mirrored = encoder(Packed.from_list([s.flip(0) for s in sequences])).to_list()
    expected = encoder(Packed.from_list(sequences)).to_list()
    torch.testing.assert_close([s.flip(0) for s in mirrored], expected)


@pytest.mark.parametrize("length", [1000, 4000])
def test_memory_is_linear(length: int, peak_bytes: Callable[[Callable[[], Any]], int]) -> None:
    encoder = Mamba2(Mamba2Config(max_length=4000, width=4, layers=1, heads=2, state=4, chunk=16)).eval()
    x = Packed.from_lengths(torch.randn(length, 4), [length])
    with torch.no_grad():
        assert peak_bytes(lambda: encoder(x)) < 2000 * length
