"""Padded tokens in double precision, for comparing a rival with its formula written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

LENGTHS = (1, 2, 3, 7, 12)


@pytest.fixture
def rows() -> Callable[..., tuple[Tensor, Tensor, Sequence[int]]]:
    """Values of (5, 12, width), with numbers in the padding too, their mask and lengths."""

    def make(width: int) -> tuple[Tensor, Tensor, Sequence[int]]:
        mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
        return torch.randn(*mask.shape, width, dtype=torch.float64), mask, LENGTHS

    return make
