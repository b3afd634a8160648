from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from chordmixer import ChordMixer, ChordMixerConfig, Packed
from chordmixer.models.encoders.pointwise import Pointwise

CONFIG = ChordMixerConfig(max_length=40, track_size=2, hidden=8)


@pytest.mark.parametrize("prenorm", [None, "layer", "batch"])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_tokens_do_not_depend_on_each_other(prenorm: Any, norm: Any) -> None:
    encoder = Pointwise(replace(CONFIG, prenorm=prenorm, norm=norm)).eval()
    x = Packed.from_list([torch.randn(n, encoder.width) for n in (40, 3, 1)])
    unbatched = [encoder(Packed.from_list([token[None]])).values for token in x.values]
    torch.testing.assert_close(encoder(x).values, torch.cat(unbatched), rtol=1e-5, atol=1e-5)


def test_gradients_stay_at_their_token() -> None:
    encoder = Pointwise(CONFIG)
    values = torch.randn(10, encoder.width, requires_grad=True)
    encoder(Packed.from_list([values])).values[4].sum().backward()
    assert values.grad.any(dim=1).nonzero().flatten().tolist() == [4]


def test_is_the_same_network_without_rotate() -> None:
    """A single token cannot be rotated; both networks have weights of the same names and shapes."""
    pointwise, chordmixer = Pointwise(replace(CONFIG, max_length=2)), ChordMixer(replace(CONFIG, max_length=2))
    pointwise.load_state_dict(chordmixer.state_dict())
    token = Packed.from_list([torch.randn(1, pointwise.width)])
    torch.testing.assert_close(pointwise(token).values, chordmixer(token).values)


def test_drops_out_in_training_only() -> None:
    encoder = Pointwise(replace(CONFIG, dropout=0.5))
    x = Packed.from_list([torch.randn(40, encoder.width)])
    assert not torch.equal(encoder(x).values, encoder(x).values)
    encoder.eval()
    assert torch.equal(encoder(x).values, encoder(x).values)
