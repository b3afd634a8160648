from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer import Packed
from chordmixer.models.encoders.tcn import Tcn, TcnConfig


@given(max_length=st.integers(1, 10**7), kernel=st.integers(2, 9))
def test_levels_are_just_enough(max_length: int, kernel: int) -> None:
    config = TcnConfig(max_length, kernel=kernel)
    assert config.receptive_field >= max_length
    fewer = 1 + 2 * (kernel - 1) * (2 ** (config.levels - 1) - 1)
    assert config.levels == 1 or fewer < max_length


def test_levels_may_be_given() -> None:
    assert len(Tcn(TcnConfig(max_length=1000, width=4, layers=3)).blocks) == 3


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_sees_back_as_far_as_it_says(layers: int) -> None:
    encoder = Tcn(TcnConfig(max_length=60, width=16, layers=layers)).double()
    tokens = torch.randn(60, 16, dtype=torch.float64, requires_grad=True)
    encoder(Packed.from_list([tokens])).values[59].sum().backward()
    visible = tokens.grad.any(dim=1).nonzero().flatten()
    assert int(60 - visible.min()) == encoder.config.receptive_field


def test_weights_have_a_norm_of_their_own() -> None:
    """In weight norm, the length of a filter is one parameter and its direction another."""
    level = Tcn(TcnConfig(max_length=10, width=4)).blocks[0]
    with torch.no_grad():
        level.first.parametrizations.weight.original0.fill_(3.0)
    torch.testing.assert_close(level.first.weight.flatten(1).norm(dim=1), torch.full((4,), 3.0))


def test_a_level_is_two_convolutions_and_a_residual() -> None:
    encoder = Tcn(TcnConfig(max_length=3, width=4, layers=1)).double()
    tokens = torch.randn(3, 4, dtype=torch.float64)
    level = encoder.blocks[0]
    mixed = tokens
    for convolution in (level.first, level.second):
        history = torch.cat([torch.zeros(2, 4, dtype=torch.float64), mixed])
        mixed = torch.conv1d(history.T[None], convolution.weight, convolution.bias)[0].T.relu()
    torch.testing.assert_close(encoder(Packed.from_list([tokens])).values, (tokens + mixed).relu())
