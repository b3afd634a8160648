"""Metrics of many resamples at once are those of the resamples one by one."""

from __future__ import annotations

import numpy as np
import pytest

from chordmixer.tasks.resampled import resampled
from chordmixer.tasks.targets import Classification, MultiLabel, Regression

CHANCE = np.random.default_rng(1)
RECORDS = 90


def two(decimals: int) -> tuple[Classification, np.ndarray, np.ndarray]:
    targets = (CHANCE.random(RECORDS) < 0.1).astype(np.int64)
    outputs = (targets[:, None] * [-1, 1] + CHANCE.normal(size=(RECORDS, 2))).round(decimals)
    return Classification.of_counts(["no", "yes"], [9, 1]), outputs.astype(np.float32), targets


def five() -> tuple[Classification, np.ndarray, np.ndarray]:
    targets = CHANCE.integers(0, 4, RECORDS)  # the fifth class has no record
    outputs = np.eye(5)[targets] + CHANCE.normal(size=(RECORDS, 5))
    return Classification.of_counts(list("abcde"), [5, 4, 3, 2, 1]), outputs.astype(np.float32), targets


def labels() -> tuple[MultiLabel, np.ndarray, np.ndarray]:
    targets = (CHANCE.random((RECORDS, 3)) < [0.5, 0.1, 0.02]).astype(np.float32)
    outputs = targets + CHANCE.normal(size=(RECORDS, 3)).round(1)
    return MultiLabel(["x", "y", "z"], [50, 10, 2], 100), outputs.astype(np.float32), targets


def number() -> tuple[Regression, np.ndarray, np.ndarray]:
    targets = CHANCE.normal(size=RECORDS).astype(np.float32)
    return Regression(), (targets[:, None] + CHANCE.normal(size=(RECORDS, 1))).astype(np.float32), targets


CASES = {"no ties": two(6), "ties": two(0), "five classes": five(), "labels": labels(), "a number": number()}


@pytest.mark.parametrize("name", CASES)
def test_all_at_once_are_one_by_one(name: str) -> None:
    target, outputs, targets = CASES[name]
    draws = CHANCE.integers(RECORDS, size=(40, RECORDS))
    draws[0], draws[1] = np.arange(RECORDS), 3  # all records once, and one record alone
    weights = np.array([np.bincount(rows, minlength=RECORDS) for rows in draws], dtype=np.float64)
    found = resampled(target, outputs, targets, weights)
    expected = [target.metrics(outputs[rows], targets[rows]) for rows in draws]
    assert [*found] == [*expected[0]]
    for metric, values in found.items():
        np.testing.assert_allclose(values, [one[metric] for one in expected], rtol=1e-6, atol=1e-9, err_msg=metric)
