from __future__ import annotations

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.encoders.cnn import Cnn, CnnConfig


def test_takes_odd_kernels() -> None:
    with pytest.raises(ValueError, match="kernel=4 has no middle: a window around a token is odd; give 5"):
        CnnConfig(max_length=10, kernel=4)


def test_one_block_is_torch_s_convolution_of_a_lone_sequence() -> None:
    encoder = Cnn(CnnConfig(max_length=50, width=6, layers=1, kernel=5)).double()
    tokens = torch.randn(50, 6, dtype=torch.float64)
    block = encoder.blocks[0]
    convolved = torch.conv1d(block.norm1(tokens).T[None], block.mixer.weight, block.mixer.bias, padding=2)[0].T
    expected = tokens + convolved
    expected = expected + block.mlp(block.norm2(expected))
    torch.testing.assert_close(encoder(Packed.from_list([tokens])).values, expected)
