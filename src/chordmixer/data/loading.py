"""Batches from records: packed, checked on the host, pinned, built by worker processes where asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from chordmixer.data.records import DrawnRecords, MadeRecords, Records, WeightedRecords
from chordmixer.data.sampling import TokenSampler
from chordmixer.packed import Packed


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
            _Collated(records, drawing),  # type: ignore[arg-type]
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
        return self._batches()

    def batch(self, indices: list[int], epoch: int = 0) -> Batch:
        """One batch of these records, out of order, made here."""
        if isinstance(self.records, MadeRecords):
            ordered = _longest_first(self.records, indices)
            return Batch(*self.records.batch(ordered, self.device), ordered)
        made: Batch = self.batches.dataset[epoch, indices]
        return made.to(self.device)

    def _batches(self) -> Iterator[Batch]:
        if isinstance(self.records, MadeRecords):
            yield from map(self.batch, self.sampler)
        else:
            for batch in self.batches:
                yield batch.to(self.device)

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


class _Collated:
    """Records as a torch data set whose index is an epoch and a whole batch's indices."""

    def __init__(self, records: Records, drawing: bool) -> None:
        self.records = records
        self.drawn = records.drawn if drawing and isinstance(records, DrawnRecords) else None

    def __getitem__(self, place: tuple[int, list[int]]) -> Batch:
        epoch, indices = place[0], _longest_first(self.records, place[1])
        chosen = [self.drawn(i, epoch) if self.drawn else self.records[i] for i in indices]
        for index, record in zip(indices, chosen, strict=True):
            if record.values.is_floating_point() and not _finite(record.values):
                raise ValueError(
                    f"record {self.records.name(index)} holds a NaN or infinite number: every input must be "
                    "finite; clean or leave out that record"
                )
        inputs, targets = Packed.from_list([r.values for r in chosen]), torch.stack([r.target for r in chosen])
        return Batch(inputs, targets, indices, self._weights(indices))

    def _weights(self, indices: list[int]) -> Float[Tensor, "B"] | None:
        if not isinstance(self.records, WeightedRecords) or self.records.weights is None:
            return None
        return torch.from_numpy(self.records.weights[indices]).float()


def _finite(values: Tensor) -> bool:
    """The sum is quick, but large numbers overflow it too."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
