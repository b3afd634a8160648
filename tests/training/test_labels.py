"""labels.json, the temperature, and the calibration error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.training.trained_runs import CLASSES, SEVERAL

from chordmixer.tasks.scores import log_losses
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.labels import (
    COLDEST,
    HOTTEST,
    OutputLabels,
    expected_calibration_error,
    fit_temperature,
    probabilities,
    reliability,
)


@pytest.mark.parametrize("target", [CLASSES, SEVERAL, Regression.of([1.0, 3.0])])
def test_there_and_back(tmp_path: Path, target: Regression) -> None:
    OutputLabels(target, "dna", 1.25, True).save(tmp_path)
    loaded = OutputLabels.load(tmp_path)
    assert loaded.to_json() == OutputLabels(target, "dna", 1.25, True).to_json()
    assert list(json.loads((tmp_path / "labels.json").read_text())) == [
        *("format", "target", "temperature", "both_strands", "tokenizer")
    ]


def test_probabilities_are_without_the_weights_of_the_training() -> None:
    """A model that has learned nothing but the weighted shares answers with the classes' own ones."""
    target = Classification.of_counts(["a", "b"], [7, 3])
    np.testing.assert_allclose(OutputLabels(target, "dna").probabilities(np.zeros((1, 2))), [[0.7, 0.3]], rtol=1e-6)
    classes = OutputLabels(CLASSES, "dna").probabilities(np.log([[0.5, 0.3, 0.2]]))
    np.testing.assert_allclose(classes, [[0.5, 0.3, 0.2]], rtol=1e-6)
    labels = OutputLabels(SEVERAL, "dna").probabilities(np.zeros((1, 2)))
    np.testing.assert_allclose(labels, [[0.3, 0.6]], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"labels\.json cannot be read as JSON"),
        ('{"format": 9}', r"labels\.json has format 9: this version reads 2"),
        (
            '{"format": 2, "target": {"kind": "regression"}}',
            r"labels\.json is not whole \(labels\.json\.tokenizer is missing",
        ),
        ('{"format": 2, "target": 3}', r"labels\.json is not whole"),
    ],
)
def test_damage(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        OutputLabels.load(tmp_path)


def test_a_run_that_is_not_of_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labels\.json does not exist: give the run folder of a training on files"):
        OutputLabels.load(tmp_path)


def calibrated(count: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Outputs with calibrated probabilities, and their targets."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(count, classes)) * 2
    targets = np.array([rng.choice(classes, p=row) for row in probabilities(outputs)])
    return outputs.astype(np.float32), targets


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("stretch", [0.25, 1, 4])
def test_the_temperature_is_recovered(classes: int, stretch: float) -> None:
    outputs, targets = calibrated(4000, classes)
    assert fit_temperature(outputs * stretch, targets) == pytest.approx(stretch, rel=0.1)


@given(st.integers(0, 50), st.sampled_from([0.5, 2, 6]))
def test_it_is_the_minimum(seed: int, stretch: float) -> None:
    outputs, targets = calibrated(300, 3, seed)
    best = fit_temperature(outputs * stretch, targets)
    losses = [log_losses(outputs * stretch / t, targets).mean() for t in (best, 1.2 * best, best / 1.2)]
    assert losses[0] < min(losses[1:])


@pytest.mark.parametrize("count", [3, 300])
def test_what_all_classes_have_in_common_does_not_matter(count: int) -> None:
    outputs, targets = calibrated(count, 3)
    shift = np.random.default_rng(1).normal(50, 20, (count, 1))
    assert fit_temperature(outputs + shift, targets) == pytest.approx(fit_temperature(outputs, targets), rel=1e-4)


def test_several_labels() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(4000, 3)) * 2
    targets = (rng.random((4000, 3)) < probabilities(outputs, multi_label=True)).astype(np.float32)
    assert fit_temperature(outputs * 3, targets) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_outputs_that_are_always_right(count: int) -> None:
    """More records allow more confidence, but never certainty."""
    targets = np.arange(count) % 2
    outputs = np.where(np.eye(2)[targets] > 0, 2.0, -2.0)
    temperature = fit_temperature(outputs, targets)
    assert COLDEST <= temperature < HOTTEST
    confidence = probabilities(outputs, temperature).max()
    assert confidence == pytest.approx((count + 0.5) / (count + 1), abs=1e-3)


def test_outputs_that_are_always_wrong() -> None:
    assert fit_temperature(np.array([[5.0, -5.0]] * 20), np.ones(20, int)) == HOTTEST


def test_outputs_that_say_nothing() -> None:
    assert fit_temperature(np.zeros((20, 2)), np.ones(20, int)) == 1.0


def test_huge_outputs() -> None:
    outputs, targets = calibrated(500, 3)
    assert fit_temperature(outputs * 1e6, targets) == HOTTEST
    assert fit_temperature(outputs * 1e-6, targets) == COLDEST


@pytest.mark.parametrize("outputs", [np.zeros((0, 2)), np.array([[np.nan, 1.0]])], ids=["none", "nan"])
def test_outputs_that_give_none(outputs: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"outputs give no temperature: it takes at least one, and all finite"):
        fit_temperature(outputs, np.zeros(len(outputs), int))


def test_probabilities() -> None:
    outputs = np.array([[1000.0, 0.0, -1000.0]], dtype=np.float32)
    assert probabilities(outputs).tolist() == [[1, 0, 0]]
    assert probabilities(outputs, multi_label=True).tolist() == [[1, 0.5, 0]]
    assert probabilities(outputs, 1000.0).sum() == pytest.approx(1)


def test_the_error_of_what_is_calibrated_is_small() -> None:
    outputs, targets = calibrated(20_000, 4)
    for stretch, low, high in ((1, 0, 0.015), (4, 0.15, 0.5)):
        shares = probabilities(outputs * stretch)
        correct = shares.argmax(axis=1) == targets
        assert low <= expected_calibration_error(shares.max(axis=1), correct) <= high


def test_bins_are_by_confidence() -> None:
    rows = reliability(np.array([0.0, 0.05, 0.55, 1.0]), np.array([0, 1, 1, 1]), bins=10)
    assert [(row.records, row.right) for row in rows] == [(2, 0.5), (1, 1), (1, 1)]
    assert [row.confidence for row in rows] == pytest.approx([0.025, 0.55, 1])
    assert expected_calibration_error(np.zeros(0), np.zeros(0)) == 0
