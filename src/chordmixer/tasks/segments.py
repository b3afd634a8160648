"""What pre-training reads: whole records, or segments that are drawn from them, each with the key of its mask."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from chordmixer.data import draws
from chordmixer.data.records import Record, as_tensor
from chordmixer.data.store import Store


class Stretches(NamedTuple):
    """Consecutive tokens of a store, whole records as a rule."""

    records: ndarray
    """The number of the record that each is of."""
    starts: ndarray
    """In the store's `values`."""
    lengths: ndarray


class Drawn(NamedTuple):
    """What is drawn for one epoch, by index."""

    masks: Int[Tensor, "n"]
    """The masks' keys."""
    places: Int[Tensor, "n"]
    """Of a segment, among all that there are for its length."""


class WholeRecords:
    """The stretches of one part as they are. The target of each is the key of its mask, drawn for each epoch.

    All that is drawn is a function of (seed, part, index, epoch), so that a run can be resumed.
    """

    def __init__(self, store: Store, own: Stretches, seed: int, part: str) -> None:
        self.store, self.own, self.part = store, own, part
        self.key = draws.key(seed, "masking", part)
        self._hold(own.lengths.tolist(), torch.ones(len(own.lengths), dtype=torch.long))

    def _hold(self, lengths: list[int], limits: Int[Tensor, "n"]) -> None:
        self.lengths, self.limits = lengths, limits
        self.first = self._draw(0)
        self.epoch, self.latest = 0, self.first

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        """As in the first epoch."""
        return self.drawn(index, 0)

    def drawn(self, index: int, epoch: int) -> Record:
        """The sequence of this epoch, and its mask's key."""
        if epoch != self.epoch:
            self.epoch, self.latest = epoch, self._draw(epoch)
        start = self._where(index, self.latest)[1]
        return Record(as_tensor(self.store.values[start : start + self.lengths[index]]), self.latest.masks[index])

    def name(self, index: int) -> str:
        """The record's id; where it is not whole also the first and last token, from 1."""
        number, start = self._where(index, self.first)
        record, length = int(self.own.records[number]), self.lengths[index]
        if length == self.store.lengths[record]:
            return self.store.id(record)
        before = start - int(self.store.offsets[record])
        return f"{self.store.id(record)}:{before + 1}-{before + length}"

    def _draw(self, epoch: int) -> Drawn:
        index = torch.arange(len(self.lengths))
        masks = draws.bits(draws.key(self.key, "masks", epoch), index)
        return Drawn(masks, draws.below(draws.key(self.key, "places", epoch), index, self.limits))

    def _where(self, index: int, drawn: Drawn) -> tuple[int, int]:
        """Which stretch, and where in the store it is read from."""
        return index, int(self.own.starts[index])


class SegmentRecords(WholeRecords):
    """Segments of the stretches. An index has a length, and a kind; its place is drawn for each epoch.

    Of all places where a segment of this length fits into a stretch of its kind, each has the same chance. A kind
    with n such places is chosen in proportion to n ** balance: with 1, all places of all kinds have the same chance.
    """

    def __init__(
        self, store: Store, own: Stretches, seed: int, part: str, count: int, shortest: int, longest: int,
        kinds: ndarray | None = None, balance: float = 1.0,
    ) -> None:  # fmt: skip
        kinds = np.zeros(len(own.lengths), np.int64) if kinds is None or balance == 1 else kinds
        order = np.lexsort((-own.lengths, kinds))
        super().__init__(store, Stretches(*(column[order] for column in own)), seed, part)
        lengths = log_uniform(draws.key(self.key, "lengths"), count, shortest, longest)
        self.ends = torch.from_numpy(np.concatenate([[0], np.cumsum(self.own.lengths)]))
        """Tokens before each stretch."""
        starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        """The longest stretch of each kind."""
        firsts = torch.from_numpy(starts)[:, None]
        fitting = torch.stack([_fitting(of_kind, lengths) for of_kind in np.split(self.own.lengths, starts[1:])])
        places = self.ends[firsts + fitting] - self.ends[firsts] - (lengths - 1) * fitting
        kind = self._kinds(places, balance)[None]
        self.firsts, self.fitting = firsts[kind[0], 0], fitting.gather(0, kind)[0]
        """Of each segment, the first stretch of its kind, and how many from there on are long enough."""
        self._hold(lengths.tolist(), places.gather(0, kind)[0])

    def name(self, index: int) -> str:
        """One of training is another in each epoch."""
        return f"{self.part}-{index}" if self.part == "training" else super().name(index)

    def _kinds(self, places: Int[Tensor, "kinds n"], balance: float) -> Int[Tensor, "n"]:
        """Drawn for each segment, once for all epochs; a kind in which it does not fit has no chance."""
        shares = torch.where(places > 0, places.double() ** balance, 0.0).cumsum(0)
        drawn = draws.uniform(draws.key(self.key, "kinds"), torch.arange(places.shape[1])).double().add_(1).div_(2)
        return (shares <= drawn * shares[-1]).sum(0)

    def _where(self, index: int, drawn: Drawn) -> tuple[int, int]:
        place, lost, first = int(drawn.places[index]), self.lengths[index] - 1, int(self.firsts[index])

        def before(stretch: int) -> int:
            """Places in the stretches of its kind before this one; in each the last few tokens are none."""
            return int(self.ends[stretch] - self.ends[first]) - lost * (stretch - first)

        fitting = range(first, first + int(self.fitting[index]))
        stretch = fitting[bisect_right(fitting, place, key=before) - 1]
        return stretch, int(self.own.starts[stretch]) + place - before(stretch)


def _fitting(lengths: ndarray, segments: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
    """How many of these lengths, the longest first, are as long as each segment."""
    return torch.from_numpy(np.searchsorted(-lengths, -segments.numpy(), side="right"))


def log_uniform(key: int, count: int, shortest: int, longest: int) -> Int[Tensor, "n"]:
    """Lengths of which each doubling of the range has as many.

    >>> log_uniform(draws.key(1), 5, 64, 1024).tolist()
    [77, 84, 467, 630, 368]
    """
    share = draws.uniform(key, torch.arange(count)).double().add_(1).div_(2)
    return (shortest * ((longest + 1) / shortest) ** share).long().clamp_(shortest, longest)


def mean_length(shortest: int, longest: int) -> float:
    """Of lengths that are log-uniform.

    >>> mean_length(64, 64), round(mean_length(64, 16_384))
    (64.0, 2943)
    """
    return float(shortest) if longest == shortest else (longest - shortest) / math.log(longest / shortest)
