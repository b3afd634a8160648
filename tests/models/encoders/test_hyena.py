from __future__ import annotations

from math import sqrt

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders.hyena import Filter, HyenaConfig, Operator

CONFIG = HyenaConfig(max_length=40, width=3, filter_width=8, bands=2)
LENGTHS = [1, 2, 5, 40]


def test_operator_is_its_formula() -> None:
    """Both convolutions are written as loops."""
    operator = Operator(CONFIG).double()
    x = Packed.from_lengths(torch.randn(sum(LENGTHS), 3, dtype=torch.float64), LENGTHS)
    expected = []
    for tokens in x.to_list():
        projected, taps = operator.enter(tokens), operator.short.weight[:, 0]
        short = torch.stack(
            [
                operator.short.bias + sum(taps[:, 2 - lag] * projected[n - lag] for lag in range(3) if n >= lag)
                for n in range(len(tokens))
            ]
        )
        v, x1, x2 = short.chunk(3, dim=1)
        gated, h = v * x2, operator.filter(len(tokens))
        for n in range(len(tokens)):
            mixed = sum(h[n - m] * gated[m] for m in range(n + 1)) + operator.bias * gated[n]
            expected.append(operator.out(x1[n] * mixed))
    torch.testing.assert_close(operator(x.values, x), torch.stack(expected))


def test_filter_is_a_network_of_sines_in_a_window() -> None:
    filters = Filter(CONFIG).double()
    first, sine1, second, sine2, third, sine3, last = filters.network
    for n in (0, 7, 39):
        t = n / 40
        z = torch.tensor(
            [t, 1.0, torch.cos(torch.tensor(2 * torch.pi * t)), 0.0, torch.sin(torch.tensor(2 * torch.pi * t))]
        )
        z = z.double()
        for linear, sine in ((first, sine1), (second, sine2), (third, sine3)):
            z = torch.sin(sine.frequency * linear(z))
        expected = last(z) * torch.exp(-filters.decay * t) / sqrt(40)
        torch.testing.assert_close(filters(40)[n], expected, rtol=1e-5, atol=1e-6)


def test_a_shorter_filter_is_the_start_of_a_longer_one() -> None:
    filters = Filter(CONFIG)
    torch.testing.assert_close(filters(7), filters(40)[:7])


@pytest.mark.parametrize("channel, share", [(0, 1.5), (-1, 0.3)])
def test_windows_run_from_long_to_short(channel: int, share: float) -> None:
    decay = Filter(CONFIG).decay[channel]
    torch.testing.assert_close(torch.exp(-decay * share), torch.tensor(0.01))


def test_positions_survive_autocast() -> None:
    filters = Filter(HyenaConfig(max_length=5000, width=3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = filters(5000)
    torch.testing.assert_close(half, filters(5000))
