"""Records, the sampler of batches under a token budget, and the loader that packs batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from numpy import ndarray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from chordmixer.data import draws
from chordmixer.data.store import Store
from chordmixer.packed import Packed

MIN_SHARE, MIN_SAMPLES, SCALES = 0.6, 32, (0.8, 1.25)
"""Limits of the random crops of a series and of their scale, see `cropped`."""


class Record(NamedTuple):
    """One sequence and its target."""

    values: Tensor
    """Token ids of shape (N,) or real channels of shape (N, channels)."""
    target: Tensor
    """A class index, a real number, or for a multi-label task a row of zeros and ones."""


@runtime_checkable
class GeneratedRecords(Protocol):
    """Records that are computed instead of read: a batch at a time, on the device that needs it."""

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Tensor]:
        """Inputs and targets of the records at these indices."""
        ...


@runtime_checkable
class AugmentedRecords(GeneratedRecords, Protocol):
    """Generated records with random augmentation, a deterministic function of record and epoch."""

    def drawn_batch(self, indices: Sequence[int], device: torch.device, epoch: int) -> tuple[Packed, Tensor]:
        """Inputs and targets of the records at these indices, as training sees them in this epoch."""
        ...


@runtime_checkable
class PairedRecords(Protocol):
    """Records of two sequences, which are consecutive in a batch; `lengths` counts the tokens of both."""

    longer: Sequence[int]
    """Length of the longer sequence of each record, which the network has to support."""


class Records(Protocol):
    """Sequences by index. All lengths are known before any sequence is read.

    Records that are weighted in the loss have `weights`, with mean one. Records with random augmentation have
    `drawn(index, epoch)`, a deterministic function of both numbers, so that a run can be resumed.
    """

    @property
    def lengths(self) -> Sequence[int]:
        """Number of tokens of each record, which counts towards a batch's budget."""
        ...

    def __getitem__(self, index: int) -> Record: ...

    def name(self, index: int) -> str:
        """The record's id in the user's data."""
        ...


class StoreRecords:
    """The records of a store at `indices`, with a target each; cheap to send to a worker process."""

    def __init__(
        self,
        store: Store,
        indices: ndarray,
        targets: ndarray,
        weights: ndarray | None = None,
        strands: int | None = None,
        crops: int | None = None,
    ) -> None:
        """`strands` is the seed by which training chooses a strand of each record; `crops` is the seed by which it
        takes a random part of each series and scales it. None: no such augmentation."""
        self.store, self.indices, self.strands, self.crops = store, indices, strands, crops
        self.lengths: list[int] = store.lengths[indices].tolist()
        self.targets, self.weights = torch.from_numpy(targets), weights
        self.epoch, self.reversed = -1, torch.empty(0)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        return Record(as_tensor(self.store.tokens(self.indices[index])), self.targets[index])

    def drawn(self, index: int, epoch: int) -> Record:
        """The record as training sees it in this epoch: either strand with equal probability, a random crop."""
        tokens = self.store.tokens(self.indices[index])
        if self.strands is not None and self._reversed_records(epoch)[index]:
            tokens = self.store.tokenizer.reverse_complement(tokens)
        if self.crops is not None:
            tokens = cropped(tokens, draws.key(self.crops, "crops", epoch, index))
        return Record(as_tensor(tokens), self.targets[index])

    def name(self, index: int) -> str:
        return self.store.id(int(self.indices[index]))

    def _reversed_records(self, epoch: int) -> Tensor:
        """Which records are read as their reverse complement in this epoch, as zeros and ones."""
        if epoch != self.epoch:
            bits = draws.bits(draws.key(self.strands or 0, "strands", epoch), torch.arange(len(self)))
            self.epoch, self.reversed = epoch, bits & 1
        return self.reversed


def cropped(series: ndarray, key: int) -> ndarray:
    """A random crop of a series, scaled by a random factor within `SCALES`.

    Its length is `MIN_SHARE` to all of the series, but at least `MIN_SAMPLES` samples if the series has as many.
    """
    share, position, factor = (draws.uniform(key, torch.arange(3)).double().numpy() + 1) / 2
    length = len(series)
    size = min(length, max(MIN_SAMPLES, round(length * (MIN_SHARE + (1 - MIN_SHARE) * share))))
    first = int(position * (length - size + 1))
    low, high = np.log(SCALES)
    return series[first : first + size] * np.float32(np.exp(low + (high - low) * factor))


def as_tensor(tokens: ndarray) -> Tensor:
    """A writable tensor of the tokens: uint16 becomes int32, uint8 stays, since it is fastest to transfer.

    >>> as_tensor(np.array([0, 300], dtype=np.uint16)).dtype
    torch.int32
    """
    return torch.from_numpy(tokens.astype(np.int32) if tokens.dtype == np.uint16 else tokens.copy())


Shares = list[list[int]]
"""Record indices of a batch by rank. With fewer records than ranks, some shares are empty."""


class TokenSampler:
    """Batches of record indices under a token budget; iterates over one rank's shares of the batches from `start` on.

    Batches are the same for any number of ranks, which share each batch by tokens. All batches are a function of
    (seed, epoch) and the same on every rank, so that epoch and batch number are a position in a run.

    >>> sampler = TokenSampler([5, 3, 9, 4], tokens=10, sequences=2, shuffle=False)
    >>> list(sampler), len(sampler)
    ([[0, 1], [2], [3]], 3)
    """

    def __init__(
        self,
        lengths: Sequence[int],
        tokens: int,
        sequences: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        longest = max(lengths)
        if longest > tokens:
            raise ValueError(
                f"a budget of {tokens:,} tokens a batch cannot hold record {list(lengths).index(longest)} of "
                f"{longest:,} tokens: no sequence is ever cut; set training.batch_tokens={longest} or more"
            )
        self.lengths, self.tokens, self.sequences = [int(n) for n in lengths], tokens, sequences
        self.shuffle, self.seed, self.rank, self.ranks = shuffle, seed, rank, ranks
        self.set_epoch(0)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Plan this epoch; iteration begins with its batch number `start`."""
        self.epoch, self.start = epoch, start
        self.batches = self._plan()

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's shares; the shortest record stands in for an empty one, so that all ranks stay in step."""
        for batch in self.batches[self.start :]:
            yield self.shares(batch)[self.rank] or [min(batch, key=self.lengths.__getitem__)]

    def __len__(self) -> int:
        return len(self.batches) - self.start

    def shares(self, batch: list[int]) -> Shares:
        """The records of a batch by rank: longest first, each goes to the rank with the fewest tokens so far.

        >>> TokenSampler([5, 3, 9, 4], tokens=30, sequences=4, ranks=2).shares([0, 1, 2, 3])
        [[2, 1], [0, 3]]
        """
        if self.ranks == 1:
            return [batch]
        shares: Shares = [[] for _ in range(self.ranks)]
        loads = [0] * self.ranks
        for index in sorted(batch, key=lambda i: -self.lengths[i]):
            rank = min(range(self.ranks), key=loads.__getitem__)
            shares[rank].append(index)
            loads[rank] += self.lengths[index]
        return shares

    def _plan(self) -> list[list[int]]:
        """The batches of the epoch; a batch ends when the next record would exceed its budget."""
        batches: list[list[int]] = []
        load, count, key = 0, len(self.lengths), draws.key(self.seed, "epoch", self.epoch)
        for index in draws.permutation(key, count).tolist() if self.shuffle else range(count):
            length = self.lengths[index]
            if not batches or len(batches[-1]) == self.sequences or load + length > self.tokens:
                batches.append([])
                load = 0
            batches[-1].append(index)
            load += length
        return batches


@dataclass(frozen=True)
class Batch:
    """Packed inputs, targets, and the indices of the records."""

    inputs: Packed
    targets: Shaped[Tensor, "B"] | Shaped[Tensor, "B K"]
    indices: list[int]
    weights: Float[Tensor, "B"] | None = None
    """Weight of each record in the loss; None: all weights are one."""

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each record, which may be one sequence or a pair."""
        lengths, size = self.inputs.lengths, len(self.inputs) // len(self.indices)
        return [sum(lengths[i : i + size]) for i in range(0, len(lengths), size)]

    def to(self, device: torch.device) -> Batch:
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Batch(self.inputs.to(device), self.targets.to(device, non_blocking=True), self.indices, weights)

    def pin_memory(self) -> Batch:
        weights = None if self.weights is None else self.weights.pin_memory()
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory(), self.indices, weights)


class Loader:
    """Loads batches in the sampler's order onto `device`.

    Generated records are computed there. Others are read by this process or by workers, which are spawned and never
    forked: a fork would copy the locks of torch's threads in whatever state they are. With `drawing`, records have
    the random augmentation of the epoch, for training.
    """

    def __init__(
        self,
        records: Records,
        sampler: TokenSampler,
        workers: int = 0,
        device: torch.device | str = "cpu",
        *,
        drawing: bool = False,
    ) -> None:
        self.records, self.sampler, self.device = records, sampler, torch.device(device)
        self.drawing = drawing
        self.batches: DataLoader[Batch] = DataLoader(
            _Collated(records, drawing),
            sampler=_WithEpoch(sampler),
            batch_size=None,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from batch number `start` on."""
        self.sampler.set_epoch(epoch, start)  # at once, not when the iterator is first used
        if isinstance(self.records, GeneratedRecords):
            return (self.batch(indices, epoch) for indices in self.sampler)
        return (batch.to(self.device) for batch in self.batches)

    def batch(self, indices: list[int], epoch: int = 0) -> Batch:
        """One batch of the records at these indices, outside the sampler's order, loaded in this process."""
        if isinstance(self.records, GeneratedRecords):
            ordered = _longest_first(self.records, indices)
            if self.drawing and isinstance(self.records, AugmentedRecords):
                return Batch(*self.records.drawn_batch(ordered, self.device, epoch), ordered)
            return Batch(*self.records.batch(ordered, self.device), ordered)
        batch: Batch = self.batches.dataset[epoch, indices]
        return batch.to(self.device)

    def __len__(self) -> int:
        return len(self.sampler)


def _longest_first(records: Records, indices: list[int]) -> list[int]:
    """Indices by descending length, the order in which the encoder computes, so that it need not sort."""
    return sorted(indices, key=lambda i: -records.lengths[i])


class _WithEpoch:
    """The sampler's batches, each with its epoch, which worker processes do not know otherwise."""

    def __init__(self, sampler: TokenSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return ((self.sampler.epoch, indices) for indices in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class _Collated(Dataset[Batch]):
    """Records as a torch data set, indexed by an epoch and all indices of a batch."""

    def __init__(self, records: Records, drawing: bool) -> None:
        self.records = records
        self.drawn = getattr(records, "drawn", None) if drawing else None

    def __getitem__(self, key: tuple[int, list[int]]) -> Batch:
        epoch, indices = key[0], _longest_first(self.records, key[1])
        chosen = [self.drawn(i, epoch) if self.drawn else self.records[i] for i in indices]
        if self.drawn:  # augmentation may change the lengths
            order = sorted(range(len(chosen)), key=lambda k: -len(chosen[k].values))
            indices, chosen = [indices[k] for k in order], [chosen[k] for k in order]
        for index, record in zip(indices, chosen, strict=True):
            values = record.values
            # The sum is a fast test, but it also overflows with large finite numbers.
            if values.is_floating_point() and not (torch.isfinite(values.sum()) or torch.isfinite(values).all()):
                raise ValueError(
                    f"record {self.records.name(index)} holds a NaN or infinite number: every input must be "
                    "finite; clean or leave out that record"
                )
        inputs, targets = Packed.from_list([r.values for r in chosen]), torch.stack([r.target for r in chosen])
        weights = getattr(self.records, "weights", None)
        return Batch(
            inputs, targets, indices, None if weights is None else torch.from_numpy(weights[indices]).float()
        )
