from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import Packed
from chordmixer.models import ModelConfig
from chordmixer.models.positions import PositionEmbedding


def naive(positions: PositionEmbedding, tokens: torch.Tensor) -> torch.Tensor:
    """The embedding of one sequence, token by token."""
    starts, ends = positions.table
    rows, count = [], positions.table.shape[1]
    for i, token in enumerate(tokens):
        from_end = len(tokens) - 1 - i
        rows.append(token + (starts[i] if i < count else 0) + (ends[from_end] if from_end < count else 0))
    return torch.stack(rows)


def test_each_sequence_counts_from_its_own_ends(random_batch: Callable[..., Any]) -> None:
    """Values and gradients, against each sequence alone; some have fewer tokens than there are position vectors."""
    positions = PositionEmbedding(count=4, width=3).double()
    x = random_batch([1, 2, 60, 7, 4], 3, torch.float64)
    x.values.requires_grad_()
    actual, expected = positions(x).values, torch.cat([naive(positions, tokens) for tokens in x.to_list()])
    torch.testing.assert_close(actual, expected)
    grad_output, variables = torch.randn_like(actual), [x.values, positions.table]
    torch.testing.assert_close(*(torch.autograd.grad(y, variables, grad_output) for y in (actual, expected)))


def test_a_model_with_positions_tells_orders_apart(scrambled: Callable[..., Any]) -> None:
    """Two sequences that are rotations of each other: without positions, ChordMixer's mean is the same for both."""
    from chordmixer.models import ChordMixerConfig, Model

    rotated = Packed.from_list([torch.tensor([0, 1, 2, 3, 4]), torch.tensor([2, 3, 4, 0, 1])])
    for count, alike in ((0, True), (8, False)):
        network = ChordMixerConfig(max_length=8, track_size=2, hidden=8)
        model = scrambled(Model(ModelConfig(inputs=5, outputs=1, positions=count, network=network)))
        first, second = model.eval()(rotated)
        assert torch.allclose(first, second, atol=1e-6) == alike


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^positions=-1 is too small: give 0 or more"):
        ModelConfig(inputs=2, outputs=1, positions=-1)
