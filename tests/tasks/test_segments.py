"""Whole records and segments: where they come from, and what they depend on."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from chordmixer.data.gathering import TokenizerConfig, gather
from chordmixer.data.reading import Reading
from chordmixer.data.store import Store
from chordmixer.tasks.segments import SegmentRecords, Stretches, WholeRecords, log_uniform, mean_length


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Five records whose tokens tell where they stand: an even number of each letter would not."""
    folder, chance = tmp_path_factory.mktemp("segments"), np.random.default_rng(0)
    lengths = [50, 300, 2, 120, 31]
    records = [f">r{i}\n{''.join(chance.choice(list('ACGT'), n))}\n" for i, n in enumerate(lengths)]
    (folder / "five.fa").write_text("".join(records))
    return gather([str(folder / "five.fa")], Reading(), TokenizerConfig("dna"), folder, lambda _: None)[0]


@pytest.fixture
def own(store: Store) -> Stretches:
    """All records but the second but last."""
    numbers = np.array([0, 1, 2, 4])
    return Stretches(numbers, store.offsets[numbers], store.lengths[numbers])


def test_whole_records(store: Store, own: Stretches) -> None:
    records = WholeRecords(store, own, 0, "training")
    assert records.lengths == [50, 300, 2, 31] and len(records) == 4 and records.name(3) == "r4"
    for i, number in enumerate(own.records):
        assert np.array_equal(records.drawn(i, 5).values.numpy(), store.tokens(int(number)))


def test_a_part_of_a_record_is_named_by_its_place(store: Store) -> None:
    part = Stretches(np.array([1]), store.offsets[[1]] + 100, np.array([50]))
    assert WholeRecords(store, part, 0, "test").name(0) == "r1:101-150"


def test_segments_lie_within_one_stretch(store: Store, own: Stretches) -> None:
    records = SegmentRecords(store, own, 0, "test", 300, 5, 250)
    assert min(records.lengths) >= 5 and max(records.lengths) <= 250
    for i in range(300):
        name, _, span = records.name(i).partition(":")
        first, last = map(int, span.split("-"))
        number = int(name[1:])
        assert number in (0, 1, 4) and last - first + 1 == records.lengths[i]
        assert np.array_equal(records[i].values.numpy(), store.tokens(number)[first - 1 : last])


def test_every_place_has_the_same_chance(store: Store, own: Stretches) -> None:
    """Segments of 30 letters fit at 271 places of one record, 21 of another, 2 of a third."""
    records = SegmentRecords(store, own, 0, "validation", 30_000, 30, 30)
    named = Counter(records.name(i) for i in range(30_000))
    assert len(named) == 294
    counts = np.array(list(named.values()))
    assert abs(counts - 30_000 / 294).max() < 5 * np.sqrt(30_000 / 294)


@pytest.mark.parametrize(("balance", "shares"), [(0.0, (1, 1)), (0.5, (271**0.5, 23**0.5)), (1.0, (271, 23))])
def test_kinds_count_by_a_power_of_their_places(
    store: Store, own: Stretches, balance: float, shares: tuple[float, float]
) -> None:
    """One kind has the record with 271 places, the other those with 21 and 2, and one in which nothing fits."""
    kinds = np.array([1, 0, 0, 1])
    records = SegmentRecords(store, own, 0, "validation", 30_000, 30, 30, kinds, balance)
    named = Counter(records.name(i).split(":")[0] for i in range(30_000))
    expected = 30_000 * np.array([shares[0], shares[1] * 21 / 23, shares[1] * 2 / 23]) / sum(shares)
    counts = np.array([named["r1"], named["r0"], named["r4"]])
    assert counts.sum() == 30_000
    assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_a_long_segment_is_of_a_kind_that_has_room(store: Store, own: Stretches) -> None:
    kinds = np.array([0, 1, 2, 0])
    records = SegmentRecords(store, own, 0, "test", 500, 2, 300, kinds, 0.0)
    for i, n in enumerate(records.lengths):
        name, _, span = records.name(i).partition(":")
        first, last = map(int, span.split("-")) if span else (1, n)
        assert np.array_equal(records[i].values.numpy(), store.tokens(int(name[1:]))[first - 1 : last])
        assert name == "r1" or n <= 50


@pytest.mark.parametrize("segments", [False, True])
def test_index_and_epoch_alone_make_a_record(store: Store, own: Stretches, segments: bool) -> None:
    def build(seed: int = 3, part: str = "training") -> WholeRecords:
        return (
            SegmentRecords(store, own, seed, part, 40, 5, 200) if segments else WholeRecords(store, own, seed, part)
        )

    first, second = build(), build()
    travelled = pickle.loads(pickle.dumps(second))
    made = {(i, epoch): first.drawn(i, epoch) for epoch in (0, 1, 7) for i in range(4)}
    for (i, epoch), record in reversed(made.items()):
        for other in (second.drawn(i, epoch), travelled.drawn(i, epoch)):
            assert torch.equal(other.values, record.values) and torch.equal(other.target, record.target)
    keys = {int(record.target) for record in made.values()}
    assert len(keys) == 12, "a mask of its own for every record and epoch"
    assert torch.equal(first[2].target, made[2, 0].target)
    for other in (build(seed=4), build(part="test")):
        assert int(other[0].target) not in keys


def test_names_stay_when_others_are_drawn(store: Store, own: Stretches) -> None:
    records = SegmentRecords(store, own, 0, "test", 20, 5, 200)
    name = records.name(4)
    records.drawn(4, 9)
    assert records.name(4) == name
    assert SegmentRecords(store, own, 0, "training", 20, 5, 200).name(4) == "training-4"


def test_lengths_are_log_uniform() -> None:
    lengths = log_uniform(7, 20_000, 64, 4096).numpy()
    assert lengths.min() == 64 and lengths.max() > 4000 and lengths.max() <= 4096
    counts = np.histogram(np.log2(lengths), bins=np.arange(6, 13))[0]
    assert abs(counts - 20_000 / 6).max() < 300
    assert lengths.mean() == pytest.approx(mean_length(64, 4096), rel=0.02)
    assert set(log_uniform(7, 50, 9, 9).tolist()) == {9}
