from __future__ import annotations

from collections import UserList
from collections.abc import Iterable, Iterator
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.data import Batch, Loader, Record, TokenSampler
from chordmixer.data.records import DrawnRecords
from chordmixer.packed import Packed
from chordmixer.paper.adding import AddingConfig, AddingRecords


def listed(records: Iterable[Record]) -> Any:
    """Records that are read one by one, as those of a file, named by letters; a worker process can import them."""
    made = UserList(records)
    made.lengths = [len(record.values) for record in made]  # type: ignore[attr-defined]
    made.name = ascii_letters.__getitem__  # type: ignore[attr-defined]
    return made


MADE = AddingRecords(AddingConfig(base_length=40, max_length=400, training=30), "training")
READ = listed(MADE)


def loader(records: Any = READ, workers: int = 0) -> Loader:
    return Loader(records, TokenSampler(records.lengths, tokens=800, sequences=4), workers=workers)


def assert_same(ours: Iterator[Batch], theirs: Iterator[Batch]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.indices == b.indices and a.inputs.lengths == b.inputs.lengths
        assert torch.equal(a.inputs.values, b.inputs.values) and torch.equal(a.targets, b.targets)


both = pytest.mark.parametrize("records", [READ, MADE], ids=["read", "made"])


@both
def test_batches_hold_the_records(records: Any) -> None:
    loaded = loader(records)
    batches = list(loaded.epoch(1))
    assert len(batches) == len(loaded)
    assert sorted(i for batch in batches for i in batch.indices) == list(range(30))
    for batch in batches:
        assert batch.inputs.lengths == tuple(MADE.lengths[i] for i in batch.indices)
        assert list(batch.inputs.lengths) == sorted(batch.inputs.lengths, reverse=True)
        for i, values, target in zip(batch.indices, batch.inputs.to_list(), batch.targets, strict=True):
            assert torch.equal(values, MADE[i].values) and torch.equal(target, MADE[i].target)


@both
def test_start_resumes_the_epoch(records: Any) -> None:
    loaded = loader(records)
    tail = list(loaded.epoch(2))[3:]
    rest = loaded.epoch(2, start=3)
    assert len(loaded) == len(tail), "the length is that of the epoch asked for, before its first batch too"
    assert_same(iter(tail), rest)


def test_workers_build_the_same_batches() -> None:
    """Also after an epoch that was broken off, which leaves batches under way."""
    inside, outside = loader(MADE), loader(READ, workers=1)
    assert_same(outside.epoch(0), inside.epoch(0))
    assert_same(iter([next(outside.epoch(1))]), iter([next(inside.epoch(1))]))
    assert_same(outside.epoch(1, start=2), inside.epoch(1, start=2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_number_names_the_record(bad: float) -> None:
    records = listed(Record(torch.ones(n, 2), torch.tensor(0)) for n in (5, 3, 9))
    records[1].values[2, 0] = bad
    with pytest.raises(ValueError, match="record b holds a NaN or infinite number: every input must be finite"):
        list(Loader(records, TokenSampler(records.lengths, tokens=100, sequences=3)).epoch())


@pytest.mark.parametrize(
    "values", [torch.full((90, 1), 1000.0).half(), torch.full((4, 1), 3e38)], ids=["half", "large"]
)
def test_large_numbers_are_finite(values: torch.Tensor) -> None:
    """Their sum is not."""
    records = listed([Record(values, torch.tensor(0))])
    (batch,) = Loader(records, TokenSampler(records.lengths, tokens=100, sequences=1)).epoch()
    assert torch.equal(batch.inputs.values, values)


def test_token_ids() -> None:
    records = listed(
        [Record(torch.tensor([1, 2]), torch.tensor(0)), Record(torch.tensor([3, 4, 5]), torch.tensor(1))]
    )
    (batch,) = Loader(records, TokenSampler(records.lengths, tokens=9, sequences=2, shuffle=False)).epoch()
    assert batch.inputs.values.tolist() == [3, 4, 5, 1, 2] and batch.targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("sequences", "lengths"), [([3, 1, 2, 5], [3, 1, 2, 5]), ([3, 1, 2, 5, 4, 4, 1, 1], [4, 7, 8, 2])]
)
def test_a_batch_knows_the_tokens_of_its_records(sequences: list[int], lengths: list[int]) -> None:
    inputs = Packed.from_lengths(torch.zeros(sum(sequences)), sequences)
    assert Batch(inputs, torch.zeros(4), [7, 8, 9, 5]).lengths == lengths


def test_a_batch_moves_whole() -> None:
    (batch, *_) = loader().epoch()
    moved = batch.to(torch.device("meta"))
    assert {moved.inputs.device.type, moved.inputs.offsets.device.type, moved.targets.device.type} == {"meta"}
    assert moved.indices == batch.indices


def test_a_batch_is_pinned_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    (batch, *_) = loader().epoch()
    batch.pin_memory()
    assert {id(t) for t in pinned} == {id(t) for t in (batch.inputs.values, batch.inputs.offsets, batch.targets)}


class Turning:
    """Records that say which epoch they were drawn for."""

    lengths = (2, 3, 4)
    weights = np.array([0.5, 1.0, 1.5])

    def __getitem__(self, index: int) -> Record:
        return self.drawn(index, -1)

    def drawn(self, index: int, epoch: int) -> Record:
        return Record(torch.full((self.lengths[index],), epoch), torch.tensor(index))

    def name(self, index: int) -> str:
        return str(index)


def test_records_are_drawn_for_the_epoch_where_training_asks() -> None:
    records = Turning()
    assert isinstance(records, DrawnRecords)
    sampler = TokenSampler(records.lengths, tokens=20, sequences=2)
    for drawing, expected in ((True, 5), (False, -1)):
        batches = list(Loader(records, sampler, drawing=drawing).epoch(5))
        assert {int(v) for batch in batches for v in batch.inputs.values} == {expected}
        for batch in batches:
            assert batch.weights is not None and batch.weights.tolist() == records.weights[batch.indices].tolist()


def test_records_without_weights_have_none() -> None:
    assert all(batch.weights is None for batch in loader().epoch())
