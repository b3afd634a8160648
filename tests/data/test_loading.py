from __future__ import annotations

from collections import UserList
from collections.abc import Iterable, Iterator
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import Batch, Loader, Record, Records, TokenSampler
from chordmixer.data.loading import GeneratedRecords, cropped
from chordmixer.packed import Packed
from chordmixer.paper.adding import AddingConfig, AddingRecords


def test_adding_records_are_records() -> None:
    """A loader needs no more than the protocol promises."""
    records: Records = AddingRecords(AddingConfig(validation=5), "validation")
    record = records[3]
    assert isinstance(record, Record) and isinstance(records.name(3), str)
    assert record.values.shape == (records.lengths[3], 2) and record.target.shape == ()
    (batch,) = Loader(records, TokenSampler(records.lengths, tokens=10**6, sequences=5)).epoch()
    assert torch.equal(batch.inputs.to_list()[batch.indices.index(3)], record.values)


def test_made_at_once_or_one_by_one() -> None:
    records = AddingRecords(AddingConfig(validation=5), "validation")
    assert isinstance(records, GeneratedRecords)
    inputs, targets = records.batch([4, 0, 4, 2], torch.device("cpu"))
    for index, values, target in zip([4, 0, 4, 2], inputs.to_list(), targets, strict=True):
        assert torch.equal(values, records[index].values) and torch.equal(target, records[index].target)


def test_crops_are_a_function_of_their_key() -> None:
    """All positions and factors occur; short series are kept whole; the input does not change."""
    series = np.arange(200, dtype=np.float32)[:, None] + 1
    crops = [cropped(series, key) for key in range(400)]
    factors = np.array([part[1, 0] - part[0, 0] for part in crops])
    lengths = np.array([len(part) for part in crops])
    starts = np.array([round(part[0, 0] / factor) for part, factor in zip(crops, factors, strict=True)])
    assert lengths.min() < 130 and lengths.max() > 190 and 120 <= lengths.min() <= lengths.max() <= 200
    assert starts.min() == 1 and starts.max() > 60 and (starts + lengths <= 201).all()
    assert factors.min() < 0.82 and factors.max() > 1.22
    assert np.array_equal(crops[7], cropped(series, 7)) and series[0, 0] == 1
    assert len(cropped(series[:9], 0)) == 9 and len(cropped(series[:1], 0)) == 1


LOG_NORMAL = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.7 + 5.5).exp().round().int().tolist()


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=60))
    return {
        "lengths": lengths,
        "tokens": draw(st.integers(max(lengths), 200)),
        "sequences": draw(st.integers(1, 8)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }


@given(plans(), st.integers(0, 3))
def test_one_rank_sees_every_record_once_within_budget(plan: dict[str, Any], epoch: int) -> None:
    sampler = TokenSampler(**plan)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(plan["lengths"])))
    assert all(1 <= len(batch) <= plan["sequences"] for batch in batches)
    assert all(sum(plan["lengths"][i] for i in batch) <= plan["tokens"] for batch in batches)
    assert len(sampler) == len(batches)


@given(plans(), st.integers(2, 5), st.integers(0, 3))
def test_ranks_share_the_batches_of_one_process(plan: dict[str, Any], ranks: int, epoch: int) -> None:
    """If a batch has fewer records than ranks, some ranks repeat one of them."""
    ref, *ranked = [TokenSampler(**plan)] + [TokenSampler(**plan, rank=rank, ranks=ranks) for rank in range(ranks)]
    for sampler in (ref, *ranked):
        sampler.set_epoch(epoch)
    for batch, *rank_batches in zip(ref, *ranked, strict=True):
        shares = ranked[0].shares(batch)
        assert sorted(i for share in shares for i in share) == sorted(batch)
        assert all(b == share or (not share and b[0] in batch) for b, share in zip(rank_batches, shares, strict=True))


@given(plans(), st.integers(0, 2), st.data())
def test_start_gives_the_tail(plan: dict[str, Any], epoch: int, data: st.DataObject) -> None:
    sampler = TokenSampler(**plan)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    start = data.draw(st.integers(0, len(batches)))
    sampler.set_epoch(epoch, start)
    assert list(sampler) == batches[start:] and len(sampler) == len(batches) - start


def test_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, *epochs: int) -> list[list[int]]:
        sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=16, seed=seed)
        for epoch in epochs:
            sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 2) == order(0, 0, 1, 2) == order(0, 5, 2)
    assert order(0, 2) != order(0, 3) and order(0, 2) != order(1, 2)


def test_without_shuffle_every_epoch_is_in_order() -> None:
    sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=16, shuffle=False)
    sampler.set_epoch(3)
    assert [i for batch in sampler for i in batch] == list(range(len(LOG_NORMAL)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tokens_are_balanced(ranks: int) -> None:
    """Ranks wait for each other in each step; there, loads differ by at most the longest record of the batch."""
    sampler, busiest, total = TokenSampler(LOG_NORMAL, tokens=20_000, sequences=128, ranks=ranks), 0, 0
    for batch in sampler.batches:
        loads = [sum(LOG_NORMAL[i] for i in share) for share in sampler.shares(batch)]
        assert max(loads) - min(loads) <= max(LOG_NORMAL[i] for i in batch)
        busiest, total = busiest + max(loads), total + sum(loads)
    assert busiest < 1.25 * total / ranks


def test_lengths_are_mixed_and_batches_full() -> None:
    sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=1000)
    *full, _ = [[LOG_NORMAL[i] for i in batch] for batch in sampler]
    assert all(max(batch) > 2 * min(batch) for batch in full)
    assert sum(map(sum, full)) / len(full) > 9_000


def test_a_sequence_over_the_budget_is_named() -> None:
    message = "budget of 1,000 tokens a batch cannot hold record 2 of 1,234 tokens: .* set training.batch_tokens=1234"
    with pytest.raises(ValueError, match=message):
        TokenSampler([5, 1000, 1234, 1001], tokens=1000, sequences=2)


def listed(records: Iterable[Record]) -> Any:
    """Records that are read one by one, like those of a file, and named by letters; workers can import them."""
    wrapped = UserList(records)
    wrapped.lengths = [len(record.values) for record in wrapped]  # type: ignore[attr-defined]
    wrapped.name = ascii_letters.__getitem__  # type: ignore[attr-defined]
    return wrapped


GENERATED = AddingRecords(AddingConfig(base_length=40, max_length=400, training=30), "training")
LISTED = listed(GENERATED)


def loader(records: Any = LISTED, workers: int = 0) -> Loader:
    return Loader(records, TokenSampler(records.lengths, tokens=800, sequences=4), workers=workers)


def assert_same(actual: Iterator[Batch], expected: Iterator[Batch]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert a.indices == b.indices and a.inputs.lengths == b.inputs.lengths
        assert torch.equal(a.inputs.values, b.inputs.values) and torch.equal(a.targets, b.targets)


both_kinds = pytest.mark.parametrize("records", [LISTED, GENERATED], ids=["read", "made"])


@both_kinds
def test_batches_hold_the_records(records: Any) -> None:
    batch_loader = loader(records)
    batches = list(batch_loader.epoch(1))
    assert len(batches) == len(batch_loader)
    assert sorted(i for batch in batches for i in batch.indices) == list(range(30))
    for batch in batches:
        assert batch.inputs.lengths == tuple(GENERATED.lengths[i] for i in batch.indices)
        assert list(batch.inputs.lengths) == sorted(batch.inputs.lengths, reverse=True)
        for i, values, target in zip(batch.indices, batch.inputs.to_list(), batch.targets, strict=True):
            assert torch.equal(values, GENERATED[i].values) and torch.equal(target, GENERATED[i].target)


@both_kinds
def test_start_resumes_the_epoch(records: Any) -> None:
    batch_loader = loader(records)
    tail = list(batch_loader.epoch(2))[3:]
    rest = batch_loader.epoch(2, start=3)
    assert len(batch_loader) == len(tail), "the length is that of the requested epoch, even before its first batch"
    assert_same(iter(tail), rest)


def test_workers_build_the_same_batches() -> None:
    """This also holds after an interrupted epoch, which leaves batches in the queue."""
    in_process, in_worker = loader(GENERATED), loader(LISTED, workers=1)
    assert_same(in_worker.epoch(0), in_process.epoch(0))
    assert_same(iter([next(in_worker.epoch(1))]), iter([next(in_process.epoch(1))]))
    assert_same(in_worker.epoch(1, start=2), in_process.epoch(1, start=2))


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
    """They pass although their sum overflows."""
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


class EpochRecords:
    """Records whose values are the epoch they were drawn for."""

    lengths = (2, 3, 4)
    weights = np.array([0.5, 1.0, 1.5])

    def __getitem__(self, index: int) -> Record:
        return self.drawn(index, -1)

    def drawn(self, index: int, epoch: int) -> Record:
        return Record(torch.full((self.lengths[index],), epoch), torch.tensor(index))

    def name(self, index: int) -> str:
        return str(index)


def test_records_are_drawn_for_the_epoch_where_training_asks() -> None:
    records = EpochRecords()
    sampler = TokenSampler(records.lengths, tokens=20, sequences=2)
    for drawing, expected in ((True, 5), (False, -1)):
        batches = list(Loader(records, sampler, drawing=drawing).epoch(5))
        assert {int(v) for batch in batches for v in batch.inputs.values} == {expected}
        for batch in batches:
            assert batch.weights is not None and batch.weights.tolist() == records.weights[batch.indices].tolist()


def test_records_without_weights_have_none() -> None:
    assert all(batch.weights is None for batch in loader().epoch())
