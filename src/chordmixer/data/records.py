"""What every source of sequences gives, be it a file or a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from chordmixer.packed import Packed


class Record(NamedTuple):
    """One sequence and what is asked of it."""

    values: Tensor
    """Token ids of shape (N,) or real channels of shape (N, channels)."""
    target: Tensor
    """A scalar: a class index or a real number."""


@runtime_checkable
class MadeRecords(Protocol):
    """Records that a rule makes: a whole batch at once, on the device that needs it."""

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Inputs and targets of several records."""
        ...


class Records(Protocol):
    """Sequences by index; all lengths are known before any sequence is read."""

    @property
    def lengths(self) -> Sequence[int]: ...

    def __getitem__(self, index: int) -> Record: ...

    def name(self, index: int) -> str:
        """How the user knows this record."""
        ...
