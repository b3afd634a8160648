"""Kernel regression, nearest neighbours and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines import nonlinear
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.linear import ABSENT_SCORE, as_outputs
from chordmixer.training.baselines.nonlinear import NEAREST, Neighbours, Trees, fit_kernel, fit_trees
from chordmixer.training.baselines.stored import FittedBaseline, Member, load_baseline


def test_a_curve_that_no_line_follows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)).astype(np.float32)
    answers = 50 + 9 * np.sin(2 * rows[:, 0]) * rows[:, 1]
    target = Regression.of(answers[:200])
    models = list(fit_kernel(rows[:200], answers[:200], target, (0.5, 2.0), (1.0, 0.01)))
    losses = [
        float(target.losses(*_tensors(model.scores(rows[200:], target), answers[200:])).mean()) for model in models
    ]
    assert len(losses) == 4 and min(losses) < 0.1


def test_a_row_depends_on_its_record_alone() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 21)).astype(np.float32)
    model = next(fit_kernel(rows, rows[:, 0], Regression()))
    scores = model.scores(rows, Regression())
    assert all((model.scores(rows[i : i + 1], Regression()) == scores[i]).all() for i in range(64))


def _tensors(outputs: np.ndarray, answers: np.ndarray) -> tuple:
    import torch

    return torch.from_numpy(outputs), torch.from_numpy(answers)


RNG = np.random.default_rng(0)
CENTRES = np.abs(RNG.normal(size=(3, 12)))


def around(classes: np.ndarray) -> csr_matrix:
    rows = CENTRES[classes] + 0.1 * np.abs(RNG.normal(size=(len(classes), 12)))
    return csr_matrix((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))


CLASSES = RNG.integers(0, 3, 200)
NEAR_ROWS, TEST_ROWS, TEST_CLASSES = around(CLASSES), around(np.array([0, 1, 2])), np.array([0, 1, 2])


def test_classes_labels_and_numbers_of_the_nearest() -> None:
    labels = np.stack([CLASSES == 0, CLASSES > 0], axis=1).astype(np.float32)
    for answers, target in (
        (CLASSES, Classification(["a", "b", "c"], CLASSES)),
        (labels, MultiLabel.of(["first", "other"], labels)),
        (CLASSES * 10.0, Regression.of(CLASSES * 10.0)),
    ):
        outputs = as_outputs(Neighbours.fit(NEAR_ROWS, answers, target, 40.0).scores(TEST_ROWS, target), target)
        if isinstance(target, Regression):
            assert target.values(outputs) == pytest.approx([0, 10, 20], abs=0.5)
        elif isinstance(target, MultiLabel):
            assert (target.decided(outputs) == [[True, False], [False, True], [False, True]]).all()
        else:
            assert target.decided(outputs).tolist() == [0, 1, 2]


def test_a_record_like_none_gets_the_shares_of_classes_alone() -> None:
    """Without a common feature, every class is equally likely before class weights, and a number is the mean."""
    empty = csr_matrix((1, 12), dtype=np.float32)
    target = Classification(["a", "b", "c"], CLASSES)
    scores = Neighbours.fit(NEAR_ROWS, CLASSES, target, 40.0).scores(empty, target)
    assert target.unweighted(scores)[0] == pytest.approx(0, abs=1e-6)
    number = Regression.of(CLASSES * 1.0)
    assert Neighbours.fit(NEAR_ROWS, CLASSES * 1.0, number, 40.0).scores(empty, number)[0, 0] == 0


def test_fewer_records_than_neighbours_and_a_class_that_none_has() -> None:
    target = Classification.of_counts(["a", "b", "c"], [1, 1, 1])
    few = Neighbours.fit(NEAR_ROWS[:4], np.array([0, 0, 2, 0]), target, 40.0)
    outputs = as_outputs(few.scores(TEST_ROWS, target), target)
    assert NEAREST > 4 and np.exp(outputs[:, 1]).max() < 1e-11 and np.isfinite(outputs).all()


def test_votes_depend_on_a_record_alone() -> None:
    target = Classification(["a", "b", "c"], CLASSES)
    model = Neighbours.fit(NEAR_ROWS, CLASSES, target, 40.0)
    scores = model.scores(NEAR_ROWS, target)
    assert all((model.scores(NEAR_ROWS[i : i + 1], target) == scores[i]).all() for i in range(0, 200, 7))


ROWS = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)


def answers(classes: int) -> np.ndarray:
    return np.digitize(ROWS[:, 0] * ROWS[:, 1], [-0.3, 0.3][: classes - 1]).astype(np.int64)


def fit_reference(targets: Any, classifier: bool) -> Any:
    """Trees of scikit-learn with the same settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings: dict[str, Any] = {
        "learning_rate": nonlinear.LEARNING_RATE,
        "max_leaf_nodes": nonlinear.LEAVES,
        "max_bins": nonlinear.BINS,
    }
    settings |= {
        "max_features": nonlinear.FEATURE_SHARE,
        "l2_regularization": nonlinear.PENALTY,
        "early_stopping": False,
    }
    cls = HistGradientBoostingClassifier if classifier else HistGradientBoostingRegressor
    return cls(max_iter=nonlinear.TREE_COUNTS[-1], random_state=0, warm_start=True, **settings).fit(ROWS, targets)


@pytest.mark.parametrize("classes", [2, 3])
def test_scikit_learn_scores_the_same(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores from its private arrays are those that scikit-learn computes itself."""
    monkeypatch.setattr(nonlinear, "TREE_COUNTS", (30,))
    targets = answers(classes)
    target = Classification([str(k) for k in range(classes)], targets)
    (trees,) = fit_trees(ROWS, targets, target)
    scores = target.unweighted(trees.scores(ROWS, target))
    expected = fit_reference(targets, classifier=True).decision_function(ROWS)
    expected = np.stack([0 * expected, expected], axis=1) if classes == 2 else expected
    assert scores == pytest.approx(expected, abs=1e-4)


def test_trees_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonlinear, "TREE_COUNTS", (30,))
    targets = 1000 + 50 * ROWS[:, 0] * ROWS[:, 1]
    target = Regression.of(targets)
    (trees,) = fit_trees(ROWS, targets, target)
    expected = fit_reference(target.standardised(targets), classifier=False).predict(ROWS)
    assert trees.scores(ROWS, target)[:, 0] == pytest.approx(expected, abs=1e-4)


def test_a_product_is_learnt_that_no_linear_model_sees() -> None:
    targets = answers(2)
    target = Classification(["low", "high"], targets)
    *_, trees = fit_trees(ROWS[:300], targets[:300], target)
    assert (trees.scores(ROWS[300:], target).argmax(axis=1) == targets[300:]).mean() > 0.85


def test_a_row_depends_on_its_record_alone_and_a_file_changes_nothing(tmp_path: Path) -> None:
    rng, targets = np.random.default_rng(1), np.arange(300) % 3
    proteins = [rng.integers(3 * c, 20, n).astype(np.uint8) for c, n in zip(targets, range(1, 301), strict=True)]
    target = Classification(["a", "b", "c"], targets)
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(proteins, room=100)
    for model in fit_trees(rows, targets, target):
        baseline = FittedBaseline(target, (Member(features, model.cooled(0.7, target)),))
        (tmp_path / "baseline").write_bytes(baseline.packed())
        loaded, outputs = load_baseline(tmp_path / "baseline", target), baseline.outputs(proteins)
        assert (loaded.outputs(proteins) == outputs).all() and loaded.packed() == baseline.packed()
        assert all((loaded.outputs([proteins[i]])[0] == outputs[i]).all() for i in range(0, 300, 17))
        assert loaded.outputs([]).shape == (0, 3)


def test_classes_that_training_has_not() -> None:
    target = Classification.of_counts(["a", "b", "c", "d"], [1, 1, 1, 1])
    trees: Trees = next(fit_trees(ROWS, np.where(answers(2) == 1, 3, 1), target))
    scores = trees.scores(ROWS, target)
    assert (
        trees.known.tolist() == [1, 3]
        and (scores[:, [0, 2]] <= ABSENT_SCORE + 10).all()
        and (scores[:, [1, 3]] > -50).all()
    )
    assert not [*fit_trees(ROWS, np.full(400, 2), target)], "one class needs no tree"
    assert not [*fit_trees(ROWS[:255], answers(2)[:255], target)], "few records fill no leaves"


def test_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    tree_work = 25 * ROWS.shape[1] * (len(ROWS) + nonlinear.LEAVES * nonlinear.BINS)
    targets, counts = answers(2), []
    target = Classification(["low", "high"], targets)
    for work in (tree_work - 1, tree_work, 3 * tree_work):
        monkeypatch.setattr(nonlinear, "MAX_WORK", work)
        counts.append([len(trees.roots) for trees in fit_trees(ROWS, targets, target)])
    assert counts == [[], [25], [25, 50]]
