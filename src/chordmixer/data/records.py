"""What every source of sequences gives, be it a file or a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from chordmixer.data import draws
from chordmixer.data.store import Store
from chordmixer.packed import Packed

KEPT, SHORTEST, FACTORS = 0.6, 32, (0.8, 1.25)
"""What training sees of a series: see `cropped`."""


class Record(NamedTuple):
    """One sequence and what is asked of it."""

    values: Tensor
    """Token ids of shape (N,) or real channels of shape (N, channels)."""
    target: Tensor
    """A class index or a real number; a row of zeros and ones where a record may have several labels."""


@runtime_checkable
class MadeRecords(Protocol):
    """Records that a rule makes: a whole batch at once, on the device that needs it."""

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Inputs and targets of several records."""
        ...


@runtime_checkable
class DrawnRecords(Protocol):
    """Records that training sees in one of several forms, drawn anew each epoch."""

    def drawn(self, index: int, epoch: int) -> Record:
        """The form of this epoch: a function of the two numbers alone, so that a run can be resumed."""
        ...


@runtime_checkable
class WeightedRecords(Protocol):
    """Records that do not all count the same in the loss."""

    weights: ndarray | None
    """One each, with mean one; None: they do."""


@runtime_checkable
class PairedRecords(Protocol):
    """Records of two sequences each, which follow each other in a batch; `lengths` counts the tokens of both."""

    longer: Sequence[int]
    """Tokens of the longer one of each record: what a network has to be built for."""


class Records(Protocol):
    """Sequences by index; all lengths are known before any sequence is read."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each record: what it takes of a batch's budget."""
        ...

    def __getitem__(self, index: int) -> Record: ...

    def name(self, index: int) -> str:
        """How the user knows this record."""
        ...


class StoreRecords:
    """Some records of a store, in the order of `indices`, with a target each; cheap to send to a worker process."""

    def __init__(
        self,
        store: Store,
        indices: ndarray,
        targets: ndarray,
        weights: ndarray | None = None,
        strands: int | None = None,
        crops: int | None = None,
    ) -> None:
        """`strands` is the seed by which training reads each record from one end or, as its complement, the other;
        `crops` the seed by which it reads a part of each series, scaled."""
        self.store, self.indices, self.strands, self.crops = store, indices, strands, crops
        self.lengths: list[int] = store.lengths[indices].tolist()
        self.targets, self.weights = torch.from_numpy(targets), weights
        self.epoch, self.turned = -1, torch.empty(0)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        return self._record(index, self.store.tokens(self.indices[index]))

    def drawn(self, index: int, epoch: int) -> Record:
        """Either strand with equal chance, where both are asked for."""
        tokens = self.store.tokens(self.indices[index])
        if self.strands is not None and self._turns(epoch)[index]:
            tokens = self.store.tokenizer.reverse_complement(tokens)
        if self.crops is not None:
            tokens = cropped(tokens, draws.key(self.crops, "crops", epoch, index))
        return self._record(index, tokens)

    def name(self, index: int) -> str:
        return self.store.id(int(self.indices[index]))

    def _record(self, index: int, tokens: ndarray) -> Record:
        return Record(as_tensor(tokens), self.targets[index])

    def _turns(self, epoch: int) -> Tensor:
        """Which records are turned round in this epoch."""
        if epoch != self.epoch:
            bits = draws.bits(draws.key(self.strands or 0, "strands", epoch), torch.arange(len(self)))
            self.epoch, self.turned = epoch, bits & 1
        return self.turned


def cropped(series: ndarray, key: int) -> ndarray:
    """A random stretch of `KEPT` to all of a series, of `SHORTEST` samples or more, times a factor within `FACTORS`.

    >>> part = cropped(np.arange(100, dtype=np.float32), key=3)
    >>> 60 <= len(part) <= 100, 0.8 <= float(part[1] - part[0]) <= 1.25
    (True, True)
    """
    share, where, factor = (draws.uniform(key, torch.arange(3)).double().numpy() + 1) / 2
    length = len(series)
    kept = min(length, max(SHORTEST, round(length * (KEPT + (1 - KEPT) * share))))
    first = int(where * (length - kept + 1))
    low, high = np.log(FACTORS)
    return series[first : first + kept] * np.float32(np.exp(low + (high - low) * factor))


def as_tensor(tokens: ndarray) -> Tensor:
    """A copy that torch may write to, of a type that it counts with: bytes stay bytes, since they travel fastest.

    >>> as_tensor(np.array([0, 300], dtype=np.uint16)).dtype
    torch.int32
    """
    return torch.from_numpy(tokens.astype(np.int32) if tokens.dtype == np.uint16 else tokens.copy())
