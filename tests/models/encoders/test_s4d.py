from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import Any

import pytest
import torch
from torch import Tensor

from chordmixer import Packed
from chordmixer.models.encoders.s4d import DiagonalStateSpace, S4d, S4dConfig

LENGTHS = [1, 2, 5, 40]


def space() -> DiagonalStateSpace:
    return DiagonalStateSpace(width=3, modes=4).double()


def a_and_dt(s: DiagonalStateSpace) -> tuple[Tensor, Tensor]:
    return torch.complex(-s.log_re.exp(), s.im), s.log_dt.exp()[:, None]


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 40])
def test_kernel_is_its_formula(length: int) -> None:
    s = space()
    a, dt = a_and_dt(s)
    c = torch.view_as_complex(s.read)
    expected = [2 * (c * (torch.exp(dt * a) - 1) / a * torch.exp(n * dt * a)).real.sum(1) for n in range(length)]
    torch.testing.assert_close(s.kernel(length), torch.stack(expected))


def test_convolution_is_the_recurrence() -> None:
    """h_n = exp(dt A) h_(n-1) + (exp(dt A) - 1) / A x_n, y_n = 2 Re C h_n + D x_n, step by step."""
    s = space()
    a, dt = a_and_dt(s)
    x = Packed.from_lengths(torch.randn(sum(LENGTHS), 3, dtype=torch.float64), LENGTHS)
    expected = []
    for tokens in x.to_list():
        state = torch.zeros_like(a)
        for token in tokens:
            state = torch.exp(dt * a) * state + (torch.exp(dt * a) - 1) / a * token[:, None]
            expected.append(2 * (torch.view_as_complex(s.read) * state).real.sum(1) + s.skip * token)
    linear, gate = s.out(torch.nn.functional.gelu(torch.stack(expected))).chunk(2, dim=1)
    torch.testing.assert_close(s(x.values, x), linear * gate.sigmoid())


def test_starts_as_s4d_lin() -> None:
    s = DiagonalStateSpace(width=200, modes=32)
    a, dt = a_and_dt(s)
    torch.testing.assert_close(a, (-0.5 + 1j * pi * torch.arange(32)).expand(200, 32))
    assert dt.min() >= 1e-3 and dt.max() <= 1e-1 and abs(dt.log().mean() - log(1e-2)) < 0.3


def test_kernel_never_holds_all_modes(peak_bytes: Callable[[Callable[[], Any]], int]) -> None:
    """All waves at once would be 4 * 32 * 100,000 complex numbers, 102 MB."""
    s = DiagonalStateSpace(width=4, modes=32)
    assert peak_bytes(lambda: s.kernel(100_000)) < 10e6


def test_kernel_in_float32_is_close() -> None:
    s = DiagonalStateSpace(width=8, modes=32)
    kernel = s.kernel(20_000)
    torch.testing.assert_close(
        kernel.double(), s.double().kernel(20_000), rtol=0, atol=1e-3 * kernel.abs().max().item()
    )


def test_names_what_wants_a_small_rate() -> None:
    encoder = S4d(S4dConfig(max_length=10, width=4, layers=2))
    parameters = dict(encoder.named_parameters())
    assert len(encoder.small_rate) == 6 and set(encoder.small_rate) < set(parameters)
    assert {name.rsplit(".", 1)[1] for name in encoder.small_rate} == {"log_dt", "log_re", "im"}
