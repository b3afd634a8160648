from __future__ import annotations

from typing import Any

import pytest
import torch

from chordmixer import Model, ModelConfig, Packed
from chordmixer.models.encoders.none import NoEncoderConfig
from chordmixer.models.stem import StemConfig


def test_a_local_network_sees_as_far_as_its_stem() -> None:
    """Two convolutions of five taps reach four tokens to either side, and no further."""
    config = ModelConfig(
        inputs=5, outputs=1, head="tokens", encoder="none", network=NoEncoderConfig(100, 8), stem=StemConfig(2, 5)
    )
    model = Model(config).eval()
    ids = torch.randint(5, (40,))
    changed = ids.clone()
    changed[20] = (ids[20] + 1) % 5
    before, after = (model(Packed.from_list([x])).values for x in (ids, changed))
    assert torch.nonzero((before != after).any(dim=1))[:, 0].tolist() == list(range(16, 25))


def test_sizes() -> None:
    with pytest.raises(ValueError, match=r"max_length=0"):
        NoEncoderConfig(0, 8)


def test_too_long(random_batch: Any) -> None:
    config = ModelConfig(inputs=5, outputs=1, encoder="none", network=NoEncoderConfig(3, 8))
    with pytest.raises(ValueError, match=r"has 4 tokens, above this network's max_length=3"):
        Model(config)(Packed.from_list([torch.zeros(4, dtype=torch.long)]))
