from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chordmixer.paper.adding import Adding, AddingConfig, AddingRecords
from chordmixer.tasks import task_class

PAPER = [
    (200, 6_700, (50_000, 5_000, 5_000)),
    (1_000, 31_800, (50_000, 5_000, 5_000)),
    (16_000, 242_400, (50_000, 5_000, 5_000)),
    (128_000, 1_500_000, (10_000, 1_000, 1_000)),
]
SPLITS = ("training", "validation", "test")


@pytest.fixture(scope="module")
def records() -> AddingRecords:
    return AddingRecords(AddingConfig(base_length=1_000), "training")


@pytest.mark.parametrize(("base_length", "longest", "sizes"), PAPER)
def test_sizes_and_bounds_are_the_papers(base_length: int, longest: int, sizes: tuple[int, ...]) -> None:
    config = AddingConfig(base_length)
    assert tuple(config.sizes[s] for s in SPLITS) == sizes
    task = Adding(config)
    assert task.max_length == longest
    lengths = task.records("training").lengths
    assert len(lengths) == sizes[0]
    assert min(lengths) >= 32 and 0.5 * longest < max(lengths) <= longest


def test_lengths_are_log_normal(records: AddingRecords) -> None:
    """At this base length the bounds lie four deviations out and cut nothing that shows."""
    logs = np.log(np.array(records.lengths) / 1_000)
    assert logs.mean() == pytest.approx(0.5, abs=0.01)
    assert logs.std() == pytest.approx(0.7, abs=0.01)
    skewness = (((logs - logs.mean()) / logs.std()) ** 3).mean()
    assert skewness == pytest.approx(0, abs=0.05)
    quartiles = np.quantile(logs, [0.25, 0.5, 0.75])
    assert quartiles == pytest.approx([0.5 - 0.6745 * 0.7, 0.5, 0.5 + 0.6745 * 0.7], abs=0.015)


def test_draws_outside_the_bounds_are_drawn_again() -> None:
    lengths = AddingRecords(AddingConfig(100, min_length=150, max_length=200, training=2_000), "training").lengths
    assert min(lengths) == 150 and max(lengths) == 200
    assert sum(n in (150, 200) for n in lengths) < 200, "lengths are clipped, not drawn again"


def test_target_is_of_the_two_marks(records: AddingRecords) -> None:
    for index in range(50):
        values, target = records[index]
        assert values.shape == (records.lengths[index], 2) and values.dtype == torch.float32
        numbers, marks = values.T
        assert set(marks.tolist()) == {0.0, 1.0} and marks.sum() == 2
        assert numbers.min() >= -1 and numbers.max() < 1
        assert target.item() == pytest.approx(0.5 + numbers[marks == 1].double().sum().item() / 4, abs=1e-6)
        assert 0 <= target <= 1


def test_numbers_are_uniform(records: AddingRecords) -> None:
    numbers = torch.cat([records[i].values[:, 0] for i in range(60)])
    assert len(numbers) > 60_000
    assert numbers.mean().item() == pytest.approx(0, abs=0.01)
    assert numbers.var().item() == pytest.approx(1 / 3, abs=0.01)


def test_marks_lie_anywhere_and_never_on_each_other(records: AddingRecords) -> None:
    first, second = (records.marks / torch.tensor(records.lengths)[:, None]).T
    assert (records.marks[:, 0] != records.marks[:, 1]).all()
    for mark in (first, second):
        assert mark.min() < 0.001 and mark.max() > 0.999
        assert mark.mean().item() == pytest.approx(0.5, abs=0.01)
        assert mark.var().item() == pytest.approx(1 / 12, abs=0.003)
    assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 0.02


def test_the_shortest_sequences_have_room_for_two_marks() -> None:
    records = AddingRecords(AddingConfig(1, min_length=2, max_length=3, training=200), "training")
    assert set(records.lengths) == {2, 3}
    assert all(record.values[:, 1].sum() == 2 for record in records)


def test_the_same_on_every_machine() -> None:
    records = AddingRecords(AddingConfig(base_length=200, seed=0), "test")
    assert records.lengths[:5] == [661, 1278, 616, 515, 722]
    assert records.marks[0].tolist() == [623, 351]
    values, target = records[0]
    assert values[:3, 0].tolist() == [0.5317211151123047, 0.6542290449142456, 0.49285781383514404]
    assert target.item() == 0.4844658672809601
    assert records[4_999].target.item() == 0.7553575038909912
    assert records.name(4_999) == "test-4999"


def test_splits_and_seeds_differ() -> None:
    sets = [AddingRecords(AddingConfig(seed=seed), split) for seed in (0, 1) for split in SPLITS]
    assert len({tuple(r.lengths[:100]) for r in sets}) == 6
    assert len({tuple(r[0].values[:32, 0].tolist()) for r in sets}) == 6


def test_a_record_is_the_same_each_time(records: AddingRecords) -> None:
    assert torch.equal(records[7].values, records[7].values)
    fewer = AddingRecords(AddingConfig(base_length=1_000, training=8), "training")
    assert torch.equal(fewer[7].values, records[7].values), "a smaller set must be the beginning of the larger"


def test_the_task() -> None:
    assert task_class("adding") is Adding
    task = Adding(AddingConfig())
    assert (task.embedding, task.inputs, task.target.outputs, task.target.tolerance) == ("real", 2, 1, 0.04)
    with pytest.raises(ValueError, match="task 'subtracting' is not known: choose one of adding"):
        task_class("subtracting")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base_length": 0}, "base_length=0 is too small: give 1 or more"),
        ({"min_length": 1}, "lengths from 1 to 6700 are not a range of at least 2 tokens"),
        ({"max_length": 31}, "lengths from 32 to 31 are not a range"),
        ({"base_length": 10, "min_length": 1000, "max_length": 2000}, r"base_length=10 puts the median length at 16"),
        ({"base_length": 10_000, "max_length": 100}, "median length at 16500, far from the range 32 to 100"),
        ({"training": -5}, "training=-5"),
        ({"validation": -5}, "validation=-5"),
        ({"test": -5}, "test=-5"),
    ],
    ids=str,
)
def test_config_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AddingConfig(**settings)
