"""Batches from records: packed, checked on the host, pinned, built by worker processes where asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from chordmixer.data.records import MadeRecords, Records
from chordmixer.data.sampling import TokenSampler
from chordmixer.packed import Packed


@dataclass(frozen=True)
class Batch:
    """Packed inputs, a target each, and which records they are."""

    inputs: Packed
    targets: Shaped[Tensor, "B"]
    indices: list[int]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.inputs.to(device), self.targets.to(device, non_blocking=True), self.indices)

    def pin_memory(self) -> Batch:
        return Batch(self.inputs.pin_memory(), self.targets.pin_memory(), self.indices)


class Loader:
    """Batches in the sampler's order, on `device`.

    Records that a rule makes are made there. Others are read by this process or by workers, which are spawned and
    never forked: a fork would copy the locks of torch's threads in whatever state they are.
    """

    def __init__(
        self, records: Records, sampler: TokenSampler, workers: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.records, self.sampler, self.device = records, sampler, torch.device(device)
        self.batches: DataLoader[Batch] = DataLoader(
            _Collated(records),  # type: ignore[arg-type]
            sampler=sampler,
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

    def _batches(self) -> Iterator[Batch]:
        if isinstance(self.records, MadeRecords):
            for indices in self.sampler:
                ordered = _longest_first(self.records, indices)
                yield Batch(*self.records.batch(ordered, self.device), ordered)
        else:
            for batch in self.batches:
                yield batch.to(self.device)

    def __len__(self) -> int:
        return len(self.sampler)


def _longest_first(records: Records, indices: list[int]) -> list[int]:
    """The order that the encoder works in, so that it need not sort."""
    return sorted(indices, key=lambda i: -records.lengths[i])


class _Collated:
    """Records as a torch data set whose index is a whole batch's indices."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __getitem__(self, indices: list[int]) -> Batch:
        indices = _longest_first(self.records, indices)
        chosen = [self.records[i] for i in indices]
        for index, record in zip(indices, chosen, strict=True):
            if record.values.is_floating_point() and not _finite(record.values):
                raise ValueError(
                    f"record {self.records.name(index)} holds a NaN or infinite number: every input must be "
                    "finite; clean or leave out that record"
                )
        return Batch(Packed.from_list([r.values for r in chosen]), torch.stack([r.target for r in chosen]), indices)


def _finite(values: Tensor) -> bool:
    """The sum is quick, but large numbers overflow it too."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
