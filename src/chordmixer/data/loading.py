"""Batches from records: packed, checked on the host, pinned, built by worker processes where asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.utils.data import DataLoader

from chordmixer.data.records import Records
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
    """Batches in the sampler's order, from this process or from workers that are spawned, never forked.

    A fork would copy the locks of torch's threads in whatever state they are.
    """

    def __init__(self, records: Records, sampler: TokenSampler, workers: int = 0, pin: bool = False) -> None:
        self.sampler = sampler
        self.batches: DataLoader[Batch] = DataLoader(
            _Collated(records),  # type: ignore[arg-type]
            sampler=sampler,
            batch_size=None,
            num_workers=workers,
            pin_memory=pin,
            multiprocessing_context="spawn" if workers else None,
            persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of one epoch, from number `start` on."""
        self.sampler.set_epoch(epoch, start)
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.sampler)


class _Collated:
    """Records as a torch data set whose index is a whole batch's indices."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def __getitem__(self, indices: list[int]) -> Batch:
        """Longest first, which is the order that the encoder works in."""
        indices = sorted(indices, key=lambda i: -self.records.lengths[i])
        chosen = [self.records[i] for i in indices]
        for index, record in zip(indices, chosen, strict=True):
            if record.values.is_floating_point() and not bool(torch.isfinite(record.values.sum())):
                raise ValueError(
                    f"record {self.records.name(index)} holds a NaN or infinite number: every input must be "
                    "finite; clean or leave out that record"
                )
        return Batch(Packed.from_list([r.values for r in chosen]), torch.stack([r.target for r in chosen]), indices)
