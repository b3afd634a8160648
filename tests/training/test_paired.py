"""The baselines' answers beside the model's, on the same records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chordmixer import files
from chordmixer.tasks.targets import Classification, MultiLabel, Target
from chordmixer.training import paired
from chordmixer.training.evaluation import Predictions

pytestmark = pytest.mark.usefixtures("quick_scores")

CHANCE = np.random.default_rng(0)


def answered(targets: np.ndarray, skill: float, columns: int = 2) -> Predictions:
    true = targets if targets.ndim == 2 else np.eye(columns)[targets]
    outputs = skill * true + CHANCE.normal(size=true.shape)
    names = [f"r{i}" for i in range(len(targets))]
    return Predictions(names, np.arange(len(targets)) + 9, targets, outputs.astype(np.float32))


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
def test_answers_are_read_as_they_were_written(tmp_path: Path, several: bool) -> None:
    targets = CHANCE.integers(0, 2, (40, 3)) if several else CHANCE.integers(0, 2, 40)
    groups = np.arange(40) // 2
    known = {name: replace(answered(targets, skill), groups=groups) for name, skill in (("a", 1), ("b", 2))}
    files.write_bytes(tmp_path / paired.ROWS, paired.packed(known))
    found = paired.read(tmp_path)
    assert [*found] == ["a", "b"]
    for name, own in found.items():
        assert own.same_records(known[name]) and own.groups is not None
        assert (own.outputs == known[name].outputs).all() and (own.groups == known[name].groups).all()
    target: Target = MultiLabel(list("xyz"), [9, 9, 9], 40) if several else Classification(["x", "y"], targets)  # type: ignore[assignment]
    assert paired.differences([tmp_path], target, "roc_auc") == {}  # no model yet
    files.write_bytes(tmp_path / paired.MODEL, replace(answered(targets, 9), groups=groups).parquet())
    differences = paired.differences([tmp_path], target, "roc_auc")
    assert {own.over for own in differences.values()} == {"groups"}
    assert differences["a"].value > differences["b"].value > 0


def test_other_records_are_not_compared(tmp_path: Path) -> None:
    targets = np.arange(40) % 2
    model = answered(targets, 2)
    files.write_bytes(tmp_path / paired.MODEL, model.parquet())
    known = {"same": answered(targets, 1), "others": replace(model, names=model.names[::-1])}
    files.write_bytes(tmp_path / paired.ROWS, paired.packed(known))
    found = paired.differences([tmp_path], Classification(["x", "y"], targets), "accuracy")  # type: ignore[arg-type]
    assert [*found] == ["same"]
