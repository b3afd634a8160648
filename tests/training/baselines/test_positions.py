"""Letters by position: what they can learn, and that a saved model answers as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.fitting import Baseline, fit_baselines
from chordmixer.training.baselines.positions import MAX_REACH, Positions
from chordmixer.training.baselines.stored import load_baseline

PARTS = {"training": np.arange(200), "validation": np.arange(200, 300), "test": np.arange(300, 400)}


def variants(records: int = 400) -> tuple[list[np.ndarray], np.ndarray]:
    """Variants of one protein with two changed letters each, and the sums of the effects of both changes."""
    rng = np.random.default_rng(0)
    parent, effects = rng.integers(0, 20, 40), rng.normal(size=(40, 20))
    sequences, measured = [], np.zeros(records)
    for i in range(records):
        sequence = parent.copy()
        for position in rng.choice(8, 2, replace=False):
            sequence[position] = rng.integers(0, 20)
            measured[i] += effects[position, sequence[position]]
        sequences.append(sequence.astype(np.uint8))
    return sequences, measured.astype(np.float32)


def fitted(sequences: list[np.ndarray], answers: np.ndarray, target: Any) -> dict[str, Baseline]:
    lengths = [len(sequence) for sequence in sequences]
    return {b.name: b for b in fit_baselines(sequences, lengths, answers, PARTS, target, "protein")}


def test_variants_of_one_protein_are_told_by_position() -> None:
    sequences, measured = variants()
    target = Regression.of(measured[PARTS["training"]])
    losses = {name: baseline.loss for name, baseline in fitted(sequences, measured, target).items()}
    others = [loss for name, loss in losses.items() if "position" not in name]
    assert losses["letters by position"] < 0.75 * min(others) and losses["mean"] > 0.5


def test_only_records_of_different_lengths_are_read_from_the_end() -> None:
    """The classes differ in their last letter alone."""
    rng = np.random.default_rng(0)
    answers = np.arange(400) % 2
    sequences = [
        np.append(rng.integers(0, 20, n), 3 + kind).astype(np.uint8)
        for n, kind in zip(rng.integers(5, 60, 400), answers, strict=True)
    ]
    target = Classification(["a", "b"], answers[PARTS["training"]])
    baseline = fitted(sequences, answers, target)["letters by position"]
    assert (baseline.outputs.argmax(axis=1) == answers[PARTS["test"]]).mean() > 0.95
    assert not Positions.fit([sequence[-5:] for sequence in sequences], 20).ends


def test_rows_do_not_depend_on_other_records_nor_on_letters_that_training_has_not() -> None:
    rng = np.random.default_rng(0)
    training = [rng.integers(0, 4, n).astype(np.uint8) for n in rng.integers(1, 3 * MAX_REACH, 50)]
    features = Positions.fit(training, letters=4)
    unseen = [np.array([9], np.uint8), np.zeros(0, np.uint8), np.zeros(4 * MAX_REACH, np.uint8), *training[:3]]
    rows = features(unseen)
    assert rows.shape == (6, features.width) and rows[:2].nnz == 0 and rows.nnz > 0
    for sequence, row in zip(unseen, rows, strict=True):
        assert (features([sequence]).toarray() == row.toarray()).all()
    assert features([]).shape == (0, features.width)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reach": 0}, "reach=0 or scale="),
        ({"reach": 1 << 30}, "reach=1073741824 or scale="),
        ({"scale": 2.0}, "scale=2.0 is out of range"),
        ({"letters": 1}, "kept has numbers out of range"),
        ({"model": "trees"}, "trees have no positions"),
        ({"model": "kernel"}, "kernel regression has no positions"),
        ({"model": "neighbours"}, "neighbours are not found by positions"),
    ],
)
def test_a_saved_model_answers_as_before_and_a_damaged_one_is_refused(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    sequences, measured = variants()
    path, target = tmp_path / "baseline", Regression()
    baseline = fitted(sequences, measured, target)["letters by position"].fitted
    assert baseline is not None
    path.write_bytes(baseline.packed())
    records = [sequences[i] for i in PARTS["test"]]
    assert (load_baseline(path, target).outputs(records) == baseline.outputs(records)).all()
    with safe_open(path, "np") as file:
        document = json.loads(file.metadata()["baseline"])
    document["members"][0] |= change
    save_file(load_file(path), path, metadata={"baseline": json.dumps(document)})
    with pytest.raises(ValueError, match=reason):
        load_baseline(path, target)
