"""Padded tokens in double precision, to compare encoders with their formulas, and noise in padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from chordmixer import Packed
from chordmixer.models.encoders import layers
from chordmixer.packed import Layout

LENGTHS = (1, 2, 3, 7, 12)


@pytest.fixture
def rows() -> Callable[..., tuple[Tensor, Tensor, Sequence[int]]]:
    """Values of (5, 12, width), with numbers in the padding too, their mask and lengths."""

    def make(width: int) -> tuple[Tensor, Tensor, Sequence[int]]:
        mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        return torch.randn(*mask.shape, width, dtype=torch.float64), mask, LENGTHS

    return make


@pytest.fixture
def noise_in_padding(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After its call, padding is random instead of zero, and rows of any lengths share a bucket."""
    pad = layers.padded

    def noisy(x: Packed, groups: Sequence[Sequence[int]], lengths: Sequence[int]) -> tuple[Tensor, Layout]:
        rows, layout = pad(x, groups, lengths)
        return (5 * torch.randn_like(rows)).index_copy(0, layout.index, x.values), layout

    def start() -> None:
        monkeypatch.setattr(layers, "padded", noisy)
        monkeypatch.setattr(layers, "MIN_FILL", 0.0)

    return start
