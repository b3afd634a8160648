from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import stratified

LABELS = ["common"] * 700 + ["rare"] * 41 + ["middle"] * 200
FRACTIONS = [0.7, 0.1, 0.2]


def test_every_record_once() -> None:
    parts = stratified(LABELS, FRACTIONS, seed=0)
    assert sorted(i for part in parts for i in part) == list(range(len(LABELS)))
    assert all(part == sorted(part) for part in parts)


def test_every_label_in_proportion() -> None:
    for part, fraction in zip(stratified(LABELS, FRACTIONS, seed=0), FRACTIONS, strict=True):
        counts = Counter(LABELS[i] for i in part)
        for label, whole in Counter(LABELS).items():
            assert abs(counts[label] - fraction * whole) <= 1


@given(st.lists(st.integers(3, 30), min_size=1, max_size=4), st.integers(0, 9))
def test_no_label_misses_a_part(counts: list[int], seed: int) -> None:
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    for part in stratified(labels, [0.98, 0.01, 0.01], seed):
        assert {labels[i] for i in part} == set(labels)


def test_is_a_function_of_the_seed() -> None:
    assert stratified(LABELS, FRACTIONS, seed=3) == stratified(LABELS, FRACTIONS, seed=3)
    assert stratified(LABELS, FRACTIONS, seed=3) != stratified(LABELS, FRACTIONS, seed=4)


def test_is_shuffled() -> None:
    first, _ = stratified(["a"] * 100, [0.5, 0.5], seed=0)
    assert 15 < sum(i < 50 for i in first) < 35


def test_the_same_on_every_machine() -> None:
    assert stratified(["a"] * 8, [0.5, 0.25, 0.25], seed=0) == [[0, 2, 3, 4], [1, 5], [6, 7]]


def test_labels_with_too_few_records() -> None:
    with pytest.raises(ValueError, match="label 'b' has 2 records for 3 splits: each split needs one; add records"):
        stratified(["a"] * 9 + ["b"] * 2, FRACTIONS, seed=0)


@pytest.mark.parametrize("fractions", [[0.5, 0.4], [1.2, -0.2], [1.0, 0.0]], ids=str)
def test_fractions_that_do_not_split(fractions: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0 and add up to 1"):
        stratified(LABELS, fractions, seed=0)
