"""Records, the sampler of batches under a token budget, and the loader that packs them."""

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

KEPT, SHORTEST, FACTORS = 0.6, 32, (0.8, 1.25)
"""Limits of the random crops of a series, see `cropped`."""


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
class PairedRecords(Protocol):
    """Records of two sequences each, which follow each other in a batch; `lengths` counts the tokens of both."""

    longer: Sequence[int]
    """Tokens of the longer one of each record: what a network has to be built for."""


class Records(Protocol):
    """Sequences by index; all lengths are known before any sequence is read.

    Records that do not all count the same in the loss have `weights`, with mean one. Those that training sees in
    another form each epoch have `drawn(index, epoch)`, a function of the two numbers, so that a run can be resumed.
    """

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
        return Record(as_tensor(self.store.tokens(self.indices[index])), self.targets[index])

    def drawn(self, index: int, epoch: int) -> Record:
        """Either strand with equal chance, where both are asked for."""
        tokens = self.store.tokens(self.indices[index])
        if self.strands is not None and self._turns(epoch)[index]:
            tokens = self.store.tokenizer.reverse_complement(tokens)
        if self.crops is not None:
            tokens = cropped(tokens, draws.key(self.crops, "crops", epoch, index))
        return Record(as_tensor(tokens), self.targets[index])

    def name(self, index: int) -> str:
        return self.store.id(int(self.indices[index]))

    def _turns(self, epoch: int) -> Tensor:
        """Which records are turned round in this epoch."""
        if epoch != self.epoch:
            bits = draws.bits(draws.key(self.strands or 0, "strands", epoch), torch.arange(len(self)))
            self.epoch, self.turned = epoch, bits & 1
        return self.turned


def cropped(series: ndarray, key: int) -> ndarray:
    """A random part, of `KEPT` to all of a series and `SHORTEST` samples or more, times a factor within `FACTORS`."""
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


Shares = list[list[int]]
"""The records of a batch that each rank takes; with fewer records than ranks, some take none."""


class TokenSampler:
    """Batches of record indices; iterating gives one rank's shares of those from `start` on, its length counts them.

    Batches are the same for any number of ranks, which share each of them by tokens. Everything is a function of
    (seed, epoch), computed on every rank alike, so a position in a run is two numbers.

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
        """This rank's shares; one that is empty has the batch's shortest record, so that all ranks work in step."""
        for batch in self.batches[self.start :]:
            yield self.shares(batch)[self.rank] or [min(batch, key=self.lengths.__getitem__)]

    def __len__(self) -> int:
        return len(self.batches) - self.start

    def shares(self, batch: list[int]) -> Shares:
        """The records of a batch by rank: each, longest first, goes to the rank with the fewest tokens.

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
        """Batches in the order of the epoch: one is full when the next record has no room in it."""
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
    """Packed inputs, a target each, and which records they are."""

    inputs: Packed
    targets: Shaped[Tensor, "B"] | Shaped[Tensor, "B K"]
    indices: list[int]
    weights: Float[Tensor, "B"] | None = None
    """How much each counts in the loss; None: all the same."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each record, be it one sequence or a pair."""
        own, each = self.inputs.lengths, len(self.inputs) // len(self.indices)
        return [sum(own[i : i + each]) for i in range(0, len(own), each)]

    def to(self, device: torch.device) -> Batch:
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        return Batch(self.inputs.to(device), self.targets.to(device, non_blocking=True), self.indices, weights)

    def pin_memory(self) -> Batch:
        weights = None if self.weights is None else self.weights.pin_memory()
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory(), self.indices, weights)


class Loader:
    """Batches in the sampler's order, on `device`.

    Records that a rule makes are made there. Others are read by this process or by workers, which are spawned and
    never forked: a fork would copy the locks of torch's threads in whatever state they are. With `drawing`, records
    that have several forms come in that of the epoch, as training wants them.
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
        """The batches of one epoch, from number `start` on."""
        self.sampler.set_epoch(epoch, start)  # now, not at the first batch
        if isinstance(self.records, MadeRecords):
            return map(self.batch, self.sampler)
        return (batch.to(self.device) for batch in self.batches)

    def batch(self, indices: list[int], epoch: int = 0) -> Batch:
        """One batch of these records, out of order, made here."""
        if isinstance(self.records, MadeRecords):
            ordered = _longest_first(self.records, indices)
            return Batch(*self.records.batch(ordered, self.device), ordered)
        made: Batch = self.batches.dataset[epoch, indices]
        return made.to(self.device)

    def __len__(self) -> int:
        return len(self.sampler)


def _longest_first(records: Records, indices: list[int]) -> list[int]:
    """The order that the encoder works in, so that it need not sort."""
    return sorted(indices, key=lambda i: -records.lengths[i])


class _WithEpoch:
    """The sampler's batches, each with the epoch that it is of: worker processes are told nothing else."""

    def __init__(self, sampler: TokenSampler) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return ((self.sampler.epoch, indices) for indices in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


class _Collated(Dataset[Batch]):
    """Records as a torch data set whose index is an epoch and a whole batch's indices."""

    def __init__(self, records: Records, drawing: bool) -> None:
        self.records = records
        self.drawn = getattr(records, "drawn", None) if drawing else None

    def __getitem__(self, place: tuple[int, list[int]]) -> Batch:
        epoch, indices = place[0], _longest_first(self.records, place[1])
        chosen = [self.drawn(i, epoch) if self.drawn else self.records[i] for i in indices]
        if self.drawn:  # in another form it may have another length
            order = sorted(range(len(chosen)), key=lambda k: -len(chosen[k].values))
            indices, chosen = [indices[k] for k in order], [chosen[k] for k in order]
        for index, record in zip(indices, chosen, strict=True):
            values = record.values
            # The sum is quick, but large numbers overflow it too.
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
