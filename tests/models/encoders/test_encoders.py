from __future__ import annotations

import pytest
import torch
from torch import nn

from chordmixer import ChordMixerConfig, Packed
from chordmixer.models.encoders import ENCODERS, build, encoder_class


@pytest.mark.parametrize("name", ENCODERS)
def test_packed_in_packed_out(name: str) -> None:
    encoder = build(name, encoder_class(name).Config(max_length=20))
    assert isinstance(encoder, nn.Module) and type(encoder).__name__.lower() in (name.replace("_", ""), "noencoder")
    y = encoder(Packed.from_list([torch.randn(n, encoder.width) for n in (3, 20, 1)]))
    assert y.lengths == (3, 20, 1) and y.values.shape == (24, encoder.width)


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="encoder 'mamba' is not known: choose one of chordmixer, pointwise"):
        build("mamba", ChordMixerConfig())
