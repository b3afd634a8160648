"""What every source of sequences gives, be it a file or a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Record(NamedTuple):
    """One sequence and what is asked of it."""

    values: Tensor
    """Token ids of shape (N,) or real channels of shape (N, channels)."""
    target: Tensor
    """A scalar: a class index or a real number."""


class Records(Protocol):
    """Sequences by index; all lengths are known before any sequence is read."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def __getitem__(self, index: int) -> Record: ...

    def name(self, index: int) -> str:
        """How the user knows this record."""
        ...
