from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.linear import as_outputs
from chordmixer.training.baselines.neighbours import NEAREST, Neighbours

CHANCE = np.random.default_rng(0)
CENTRES = np.abs(CHANCE.normal(size=(3, 12)))


def around(classes: np.ndarray) -> csr_matrix:
    rows = CENTRES[classes] + 0.1 * np.abs(CHANCE.normal(size=(len(classes), 12)))
    return csr_matrix((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))


CLASSES = CHANCE.integers(0, 3, 200)
ROWS, HELD, OWN = around(CLASSES), around(np.array([0, 1, 2])), np.array([0, 1, 2])


def test_classes_labels_and_numbers_of_the_nearest() -> None:
    labels = np.stack([CLASSES == 0, CLASSES > 0], axis=1).astype(np.float32)
    for answers, target in (
        (CLASSES, Classification(["a", "b", "c"], CLASSES)),
        (labels, MultiLabel.of(["first", "other"], labels)),
        (CLASSES * 10.0, Regression.of(CLASSES * 10.0)),
    ):
        outputs = as_outputs(Neighbours.fit(ROWS, answers, target, 40.0).scores(HELD, target), target)
        if isinstance(target, Regression):
            assert target.values(outputs) == pytest.approx([0, 10, 20], abs=0.5)
        elif isinstance(target, MultiLabel):
            assert (target.decided(outputs) == [[True, False], [False, True], [False, True]]).all()
        else:
            assert target.decided(outputs).tolist() == [0, 1, 2]


def test_a_record_like_none_gets_the_shares_of_classes_alone() -> None:
    """Nothing in common: every class is as likely before class weights, a number is the mean."""
    nothing = csr_matrix((1, 12), dtype=np.float32)
    target = Classification(["a", "b", "c"], CLASSES)
    scores = Neighbours.fit(ROWS, CLASSES, target, 40.0).scores(nothing, target)
    assert target.unweighted(scores)[0] == pytest.approx(0, abs=1e-6)
    number = Regression.of(CLASSES * 1.0)
    assert Neighbours.fit(ROWS, CLASSES * 1.0, number, 40.0).scores(nothing, number)[0, 0] == 0


def test_fewer_records_than_neighbours_and_a_class_that_none_has() -> None:
    target = Classification.of_counts(["a", "b", "c"], [1, 1, 1])
    few = Neighbours.fit(ROWS[:4], np.array([0, 0, 2, 0]), target, 40.0)
    outputs = as_outputs(few.scores(HELD, target), target)
    assert NEAREST > 4 and np.exp(outputs[:, 1]).max() < 1e-11 and np.isfinite(outputs).all()


def test_a_row_depends_on_its_record_alone() -> None:
    target = Classification(["a", "b", "c"], CLASSES)
    model = Neighbours.fit(ROWS, CLASSES, target, 40.0)
    every = model.scores(ROWS, target)
    assert all((model.scores(ROWS[i : i + 1], target) == every[i]).all() for i in range(0, 200, 7))
