from __future__ import annotations

from typing import Any

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders import lstm
from chordmixer.models.encoders.lstm import Lstm, LstmConfig


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_is_torch_s_lstm_of_each_sequence(direction: Any) -> None:
    encoder = Lstm(LstmConfig(max_length=30, width=6, direction=direction)).double()
    x = Packed.from_lengths(torch.randn(48, 6, dtype=torch.float64), [10, 30, 1, 7])
    expected = torch.cat([encoder.lstm(tokens)[0] for tokens in x.to_list()])
    torch.testing.assert_close(encoder(x).values, expected)


@pytest.mark.parametrize("steps", [1, 7, 10, 29])
def test_stretches_are_one_sequence(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Lstm(LstmConfig(max_length=30, width=6)).double()
    x = Packed.from_lengths(torch.randn(48, 6, dtype=torch.float64), [10, 30, 1, 7])
    x.values.requires_grad_()
    variables = [x.values, *encoder.parameters()]
    expected = encoder(x).values
    monkeypatch.setattr(lstm, "MAX_STEPS", steps)
    actual, grad_output = encoder(x).values, torch.randn_like(expected)
    torch.testing.assert_close(actual, expected)
    gradients, expected_gradients = (torch.autograd.grad(y, variables, grad_output) for y in (actual, expected))
    torch.testing.assert_close(gradients, expected_gradients)


def test_two_directions_share_the_width() -> None:
    with pytest.raises(ValueError, match="width=7 is odd: direction='both' needs a half for each; give 8"):
        LstmConfig(max_length=30, width=7, direction="both")


def test_dropout_of_one_layer_is_no_warning() -> None:
    Lstm(LstmConfig(max_length=30, width=4, layers=1, dropout=0.5))
