from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from chordmixer.config import from_dict, override, to_dict
from chordmixer.data.features import complement
from chordmixer.data.splits import Split, SplitConfig, given_parts, grouped, split

LABELS = ["common"] * 700 + ["rare"] * 41 + ["middle"] * 200
FRACTIONS = [0.7, 0.1, 0.2]


def shares(parts: list[list[int]], labels: Any) -> np.ndarray:
    """The share of each label's records that each part (row) holds."""
    counts = np.array([[sum(labels[i] == label for i in part) for label in sorted({*labels})] for part in parts])
    return counts / counts.sum(axis=0)


@examples(st.lists(st.integers(0, 30), min_size=60, max_size=120), st.integers(0, 3))
def test_groups_stay_whole_and_records_come_once(groups: list[int], seed: int) -> None:
    if len(set(groups)) < 3:
        return
    parts = grouped(groups, ["a"] * len(groups), FRACTIONS, seed)
    assert sorted(i for part in parts for i in part) == list(range(len(groups)))
    owners = [{groups[i] for i in part} for part in parts]
    assert all(owners) and sum(map(len, owners)) == len(set(groups))


def test_groups_in_proportion() -> None:
    """Log-normal sizes, classes of 80, 15 and 5 %, groups of mixed classes."""
    rng = np.random.default_rng(0)
    sizes = np.ceil(rng.lognormal(1.5, 1.0, 800)).astype(int)
    groups = np.repeat(np.arange(800), sizes).tolist()
    labels = rng.choice(["a", "b", "c"], len(groups), p=[0.8, 0.15, 0.05]).tolist()
    proportions = shares(grouped(groups, labels, FRACTIONS, seed=0), labels)
    assert np.abs(proportions - np.array(FRACTIONS)[:, None]).max() < 0.01


def test_a_giant_group_goes_to_training() -> None:
    groups = ["giant"] * 60 + [f"small{i}" for i in range(40)]
    parts = grouped(groups, ["a", "b"] * 50, FRACTIONS, seed=0)
    assert {*range(60)} <= {*parts[0]} and [len(p) for p in parts] == pytest.approx([70, 10, 20], abs=1)


def test_a_rare_label_reaches_every_part() -> None:
    """There is one group for each part; the proportions alone would not distribute them like this."""
    labels = ["common"] * 97 + ["rare"] * 3
    for seed in range(5):
        parts = grouped(list(range(100)), labels, FRACTIONS, seed)
        assert all(any(labels[i] == "rare" for i in part) for part in parts)


def test_few_groups_of_different_sizes_change_with_the_seed() -> None:
    groups = [group for group in range(20) for _ in range(600 + 37 * group)]
    held_out = {
        tuple(sorted({groups[i] for i in grouped(groups, ["a"] * len(groups), FRACTIONS, seed)[2]}))
        for seed in range(5)
    }
    assert len(held_out) == 5


def test_groups_are_a_function_of_the_seed() -> None:
    groups = [i // 3 for i in range(300)]
    first, same, different = (grouped(groups, ["a"] * 300, FRACTIONS, seed) for seed in (1, 1, 2))
    assert first == same != different


def test_groups_the_same_on_every_machine() -> None:
    groups = [0, 0, 1, 2, 3, 3, 4, 5, 6, 7]
    assert grouped(groups, ["a", "b"] * 5, [0.5, 0.25, 0.25], seed=0) == [[0, 1, 2, 3, 6, 9], [4, 5], [7, 8]]


def test_too_few_groups() -> None:
    with pytest.raises(ValueError, match="label 'b' has 2 groups for 3 splits: each split needs one of its own; add"):
        grouped([*range(9), 9, 9, 10], ["a"] * 9 + ["b"] * 3, FRACTIONS, seed=0)
    with pytest.raises(ValueError, match="the data have 2 groups for 3 splits: each split needs one of its own; add"):
        grouped([0, 0, 1, 1], ["a"] * 4, FRACTIONS, seed=0)
    with pytest.raises(ValueError, match="must be above 0 and add up to 1"):
        grouped([0, 1, 2], ["a"] * 3, [0.5, 0.6], seed=0)


# --- The data's own split ---


def test_names_of_parts() -> None:
    parts = given_parts(["train", "Test", "dev", " training", "valid", "validation"])
    assert {part: rows.tolist() for part, rows in parts.items()} == {
        "training": [0, 3],
        "validation": [2, 4, 5],
        "test": [1],
    }


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (["train", "train"], "the data's own split has no test record: name some, or choose another split method"),
        (["test", "validation"], "the data's own split has no training record"),
        (["train", "test", "extra"], "split 'extra' of 1 records is not one of training, validation, test: name one"),
        (["train", "test", None, ""], "the split of 2 records is not one of training, validation, test: name one"),
    ],
)
def test_own_splits_that_do_not_split(splits: list[str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(["a"] * len(splits), SplitConfig(), splits=splits)


def test_validation_is_taken_from_training() -> None:
    splits = ["train"] * 800 + ["test"] * 100
    result = split(["a", "b"] * 450, SplitConfig(), splits=splits, groups=[i // 4 for i in range(900)])
    assert result.method == "given" and result.test.tolist() == list(range(800, 900))
    assert [len(result.training), len(result.validation)] == [700, 100]
    assert not {i // 4 for i in result.training} & {i // 4 for i in result.validation}


def test_a_whole_split_is_left_as_it_is() -> None:
    splits = ["train", "test", "val"] * 5
    result = split(["a"] * 15, SplitConfig(), splits=splits)
    assert result.training.tolist() == [0, 3, 6, 9, 12] and result.validation.tolist() == [2, 5, 8, 11, 14]


# --- The door ---


def dna(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint8)


def test_auto_takes_what_the_data_say() -> None:
    labels, splits, groups = ["a"] * 30, ["train", "test", "val"] * 10, [i // 2 for i in range(30)]
    none: list[str | None] = [None] * 30
    assert split(labels, SplitConfig(), splits=splits, groups=groups).method == "given"
    assert split(labels, SplitConfig(), splits=none, groups=groups).method == "grouped"
    assert split(labels, SplitConfig(), splits=none, groups=none).method == "random"
    assert split(labels, SplitConfig("random"), splits=splits, groups=groups).method == "random"


def test_records_without_a_group_stand_alone() -> None:
    groups = [*[f"g{i // 5}" for i in range(50)], *[None] * 50]
    result = split(["a"] * 100, SplitConfig(), groups=groups)
    assert [len(part) for part in result.parts.values()] == [70, 10, 20]
    for part in result.parts.values():
        counts = Counter(groups[i] for i in part if groups[i])
        assert {*counts.values()} <= {5}


def test_copies_do_not_cross_a_random_split() -> None:
    records = [dna(30, seed) for seed in range(60)]
    records += [complement(r) for r in records[:30]] + [r.copy() for r in records]
    result = split(["a", "b"] * 75, SplitConfig(), sequences=records, kind="dna")
    part_of = {i: name for name, part in result.parts.items() for i in part}
    assert all(part_of[i] == part_of[90 + i] for i in range(60))
    assert all(part_of[i] == part_of[60 + i] for i in range(30))


def test_near_copies_do_not_cross_a_split_by_similarity() -> None:
    founders = [dna(400, seed) for seed in range(40)]
    records = [np.roll(founder, 37 * copy)[copy:] for founder in founders for copy in range(5)]
    result = split(["a", "b"] * 100, SplitConfig("similarity"), sequences=records, kind="dna")
    assert result.method == "similarity"
    families = [{i // 5 for i in part} for part in result.parts.values()]
    assert sum(map(len, families)) == 40
    assert [len(part) for part in result.parts.values()] == [140, 20, 40]


def test_real_targets_are_spread() -> None:
    targets = np.random.default_rng(0).lognormal(0, 1, 500)
    result = split(targets, SplitConfig(), groups=[i // 2 for i in range(500)])
    for part, fraction in zip(result.parts.values(), FRACTIONS, strict=True):
        assert len(part) == pytest.approx(500 * fraction, abs=2)
        assert np.median(targets[part]) == pytest.approx(np.median(targets), rel=0.15)
    assert split(np.ones(5), SplitConfig()).training.size == 3  # fewer records than bins, and all alike


def test_several_labels_are_spread() -> None:
    targets = (np.random.default_rng(0).random((1000, 4)) < [0.5, 0.2, 0.05, 0.01]).astype(np.float32)
    result = split(targets, SplitConfig())
    counts = np.array([targets[part].sum(axis=0) for part in result.parts.values()])
    assert counts.min() >= 1
    assert np.abs(counts / counts.sum(axis=0) - np.array(FRACTIONS)[:, None])[:, :3].max() < 0.02


def test_class_numbers_are_labels() -> None:
    labels = np.array([0] * 70 + [1] * 30)
    result = split(labels, SplitConfig())
    assert [int((labels[part] == 1).sum()) for part in result.parts.values()] == [21, 3, 6]


def test_parts_are_ascending_and_whole() -> None:
    result = split(["a", "b"] * 50, SplitConfig())
    assert isinstance(result, Split)
    assert sorted(i for part in result.parts.values() for i in part) == list(range(100))
    assert all((np.diff(part) > 0).all() for part in result.parts.values())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SplitConfig("given"), "split method 'given' needs a split column, which the data lack: give them or"),
        (SplitConfig("grouped"), "split method 'grouped' needs groups, which the data lack"),
        (SplitConfig("similarity"), "split method 'similarity' needs sequences of letters, which the data lack"),
        (
            SplitConfig(),
            "label 'b' has 2 different records for 3 splits: each split needs one of its own; add records",
        ),
    ],
    ids=lambda value: getattr(value, "method", ""),
)
def test_splits_that_cannot_be_made(config: SplitConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(["a"] * 9 + ["b"] * 2, config)


def test_nothing_to_split() -> None:
    with pytest.raises(
        ValueError, match="0 records cannot be split: the data are empty, or all records were rejected"
    ):
        split([], SplitConfig())


def test_series_have_no_similarity() -> None:
    with pytest.raises(ValueError, match="'real' cannot be compared by k-mers, only dna, protein, text: give groups"):
        split([0] * 9, SplitConfig("similarity"), sequences=[np.zeros((3, 1), np.float32)] * 9, kind="real")


@pytest.mark.parametrize(
    ("fractions", "message"),
    [((0.5, 0.5), "are not three: give training, validation, test"), ((0.9, 0.1, 0.1), "must be above 0 and add up")],
)
def test_config_is_checked(fractions: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitConfig(fractions=fractions)


def test_config_goes_into_a_run_and_back() -> None:
    config = SplitConfig("grouped", (0.8, 0.1, 0.1), 7)
    assert from_dict(SplitConfig, to_dict(config), "split") == config


@pytest.mark.parametrize("fractions", [(math.nan, 0.5, 0.5), (math.inf, -math.inf, 1.0), (0.7, 0.3, math.nan)])
def test_fractions_are_numbers(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"split fractions .* must be above 0 and add up to 1: correct them"):
        SplitConfig(fractions=fractions)
    with pytest.raises(ValueError, match="is not finite"):
        override(SplitConfig(), {"fractions": list(fractions)})
    with pytest.raises(ValueError, match="seed=-1 is too small: give 0 or more"):
        SplitConfig(seed=-1)


@pytest.mark.parametrize("method", ["random", "grouped", "given"])
def test_folds_partition_training_and_validation(method: Any) -> None:
    """Each record is held out once, groups stay together, classes are spread, and the test part does not change."""
    labels = (["a"] * 6 + ["b"] * 2) * 20
    groups = [f"g{i // 2}" for i in range(160)]
    columns: dict[str, Any] = {"groups": groups if method == "grouped" else None}
    columns["splits"] = [("train", "test")[i % 5 == 0] for i in range(160)] if method == "given" else None
    plain = split(labels, SplitConfig(method, seed=3), **columns)
    pool = np.sort(np.concatenate([plain.training, plain.validation]))
    held_out = []
    for fold in range(4):
        fold_split = split(labels, SplitConfig(method, seed=3, folds=4, fold=fold), **columns)
        assert fold_split.test.tolist() == plain.test.tolist() and fold_split.method == method
        assert sorted([*fold_split.training, *fold_split.validation]) == pool.tolist()
        assert abs(len(fold_split.validation) - len(pool) / 4) <= 3
        share = np.mean([labels[i] == "b" for i in fold_split.validation])
        assert abs(share - 0.25) < 0.1
        if method == "grouped":
            assert not {groups[i] for i in fold_split.training} & {groups[i] for i in fold_split.validation}
        held_out += fold_split.validation.tolist()
    assert sorted(held_out) == pool.tolist()
    unfolded = split(labels, SplitConfig(method, seed=3, folds=4), **columns)
    assert all(np.array_equal(unfolded.parts[part], rows) for part, rows in plain.parts.items())


def test_folds_that_cannot_be() -> None:
    for settings, message in (
        ({"folds": 1}, "folds=1 leaves nothing to train on"),
        ({"folds": 21}, "folds=21 is too large"),
        ({"folds": 3, "fold": 3}, "fold=3 is not one of folds=3"),
        ({"fold": 0}, "fold=0 is not one of folds=0"),
    ):
        with pytest.raises(ValueError, match=message):
            SplitConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="5 folds are too many: label 'b' has 4 different records for 5 splits"):
        split(["a"] * 30 + ["b"] * 5, SplitConfig(folds=5, fold=0))
