from __future__ import annotations

import numpy as np
import pytest
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.combination import Combination, combine


def two_views(
    records: int, classes: int, noise: tuple[float, float], seed: int = 0
) -> tuple[ndarray, ndarray, ndarray]:
    """Targets, and two outputs that tell them with independent noise."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(classes, size=records)
    true = np.eye(classes)[targets]
    first, second = (2 * true + size * rng.normal(size=true.shape) for size in noise)
    return targets, first, second


def accuracy(outputs: ndarray, targets: ndarray) -> float:
    return float((outputs.argmax(axis=1) == targets).mean())


@pytest.mark.parametrize("classes", [2, 5])
def test_two_noisy_views_are_better_than_one(classes: int) -> None:
    targets, first, second = two_views(4000, classes, (2.0, 2.0))
    target, fitted = Classification([*map(str, range(classes))], targets), slice(0, 1000)
    found = combine(target, first[fitted], second[fitted], targets[fitted])
    held = slice(1000, None)
    scores = {
        using: accuracy(target.unweighted(found.outputs(target, first[held], second[held], using)), targets[held])
        for using in ("network", "baseline", "both")  # type: ignore[attr-defined]
    }
    assert found.using == "both" and scores["both"] > max(scores["network"], scores["baseline"]) + 0.02
    assert found.losses["both"] < min(found.losses["network"], found.losses["baseline"])


def test_noise_gets_no_weight() -> None:
    targets, good, _ = two_views(600, 3, (1.0, 1.0))
    noise = np.random.default_rng(1).normal(size=good.shape)
    target = Classification(["a", "b", "c"], targets)
    found = combine(target, noise, good, targets)
    assert found.weights["both"][0] < 0.1 < found.weights["both"][1]
    assert found.losses["baseline"] < found.losses["network"] and found.using != "network"
    assert np.isfinite(found.outputs(target, None, good, "baseline")).all()


def test_class_weights_are_taken_back_and_put_back() -> None:
    """On unequal classes two equal outputs, combined, are the same answer as each."""
    counts = [900, 100]
    target = Classification.of_counts(["no", "yes"], counts)
    rng = np.random.default_rng(0)
    targets = np.repeat([0, 1], counts)
    outputs = np.stack([np.zeros(1000), 2 * targets + rng.normal(size=1000)], axis=1)
    same = Combination("both", {"both": (0.5, 0.5, 0.0)}, {}).outputs(target, outputs, outputs)
    np.testing.assert_allclose(np.diff(same), np.diff(outputs), atol=1e-5)


def test_numbers_and_labels() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(1e6, 3.0, size=800)
    target = Regression.of(numbers)
    true = target.standardised(numbers)[:, None]
    first, second = (0.5 * true + 1 + 0.4 * rng.normal(size=true.shape) for _ in range(2))
    found = combine(target, first, second, numbers)
    r2 = {
        using: target.metrics(found.outputs(target, first, second, using), numbers)["r2"] for using in found.weights
    }  # type: ignore[arg-type]
    assert found.using == "both" and r2["both"] > r2["network"] + 0.1, "scale and offset are mended, noise is halved"

    labels = (rng.random((800, 3)) < 0.3).astype(np.uint8)
    several = MultiLabel.of(["a", "b", "c"], labels)
    views = [3.0 * labels + 1.5 * rng.normal(size=labels.shape) for _ in range(2)]
    both = combine(several, *views, labels)
    assert both.using == "both"
    assert both.losses["both"] < both.losses["network"]


def test_always_right_and_few_records_stay_finite() -> None:
    target = Classification(["a", "b"], [0, 1])
    outputs = np.array([[9.0, 0.0], [0.0, 9.0]])
    for records in (outputs, outputs[:1]):
        found = combine(target, records, records, np.arange(len(records)))
        assert all(np.isfinite(own).all() for own in found.weights.values())


def test_few_records_that_are_all_right_do_not_ask_for_ever_larger_weights() -> None:
    """Of 60 records one is answered wrongly by the network, and surely so: what is held out must not suffer."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=60)
    network = 6.0 * np.eye(3)[truth] + rng.normal(size=(60, 3))
    network[0] = 6.0 * np.eye(3)[(truth[0] + 1) % 3]
    baseline = 1.5 * np.eye(3)[truth] + rng.normal(size=(60, 3))
    found = combine(Classification(list("abc"), truth), network, baseline, truth)
    assert found.losses["both"] < 1.1 * min(found.losses["network"], found.losses["baseline"])
    assert max(found.weights["both"][:2]) < 3


def test_answers_that_help_nobody_have_a_row_for_each_record() -> None:
    target = Classification(["no", "yes"], [0, 1, 1])
    useless = Combination("network", {"network": (0.0, 0.0, 0.0)}, {})
    rows = useless.outputs(target, np.ones((5, 2)), None)
    assert rows.shape == (5, 2) and np.ptp(rows, axis=0).max() == 0
