"""The chapter on calibration."""

from __future__ import annotations

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.views.chapters import confidence

EVEN = Classification.of_counts(["no", "yes"], [5, 5])


def sure(right: int, wrong: int, loud: float) -> Predictions:
    """Answers that are all as sure, of which some are wrong."""
    truth = np.array([1] * right + [0] * wrong)
    outputs = np.tile(np.array([0, loud], dtype=np.float32), (right + wrong, 1))
    return Predictions([str(i) for i in range(len(truth))], truth + 5, truth, outputs)


def test_the_error_before_and_after() -> None:
    rows = sure(80, 20, 4.0)
    shown = confidence.chapter(Answers(EVEN, "dna", temperature=4 / np.log(4)), rows)
    assert "are 0.0 percentage points apart" in shown and "18.2 percentage points" in shown
    assert "after the temperature" in shown and "before the temperature" in shown and "did not help" not in shown


def test_a_temperature_that_did_not_help_is_said_to() -> None:
    assert "On the test part it did not help." in confidence.chapter(Answers(EVEN, "dna", 0.2), sure(80, 20, 4.0))


def test_without_a_temperature_it_says_so() -> None:
    shown = confidence.chapter(Answers(EVEN, "dna"), sure(80, 20, 4.0))
    assert "No temperature was fitted" in shown and "after the temperature" not in shown


def test_class_weights_are_taken_back() -> None:
    """Outputs of zero mean the classes' own shares."""
    uneven = Answers(Classification.of_counts(["no", "yes"], [20, 80]), "dna")
    assert "are 0.0 percentage points apart" in confidence.chapter(uneven, sure(80, 20, 0.0))


def test_several_labels_are_pooled() -> None:
    target = MultiLabel(["a", "b"], [5, 5], 10)
    rows = Predictions(["r"], np.array([3]), np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]], dtype=np.float32))
    assert "are 0.0 percentage points apart" in confidence.chapter(Answers(target, "dna"), rows)
