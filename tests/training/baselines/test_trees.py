from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines import FittedBaseline, load, trees
from chordmixer.training.baselines.candidates import Candidate
from chordmixer.training.baselines.linear import ABSENT
from chordmixer.training.baselines.member_document import Member
from chordmixer.training.baselines.trees import Trees, fit_trees

ROWS = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)


def answers(classes: int) -> np.ndarray:
    return np.digitize(ROWS[:, 0] * ROWS[:, 1], [-0.3, 0.3][: classes - 1]).astype(np.int64)


def known(asked: Any, classifier: bool) -> Any:
    """scikit-learn's own, with the same settings."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings: dict[str, Any] = {"learning_rate": trees.RATE, "max_leaf_nodes": trees.LEAVES, "max_bins": trees.BINS}
    settings |= {"max_features": trees.SHARE, "l2_regularization": trees.PENALTY, "early_stopping": False}
    kind = HistGradientBoostingClassifier if classifier else HistGradientBoostingRegressor
    return kind(max_iter=trees.STAGES[-1], random_state=0, warm_start=True, **settings).fit(ROWS, asked)


@pytest.mark.parametrize("classes", [2, 3])
def test_scikit_learn_scores_the_same(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is taken from its private arrays is what it computes itself."""
    monkeypatch.setattr(trees, "STAGES", (30,))
    asked = answers(classes)
    target = Classification([str(k) for k in range(classes)], asked)
    (own,) = fit_trees(ROWS, asked, target)
    scores = target.unweighted(own.scores(ROWS, target))
    expected = known(asked, classifier=True).decision_function(ROWS)
    expected = np.stack([0 * expected, expected], axis=1) if classes == 2 else expected
    assert scores == pytest.approx(expected, abs=1e-4)


def test_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "STAGES", (30,))
    asked = 1000 + 50 * ROWS[:, 0] * ROWS[:, 1]
    target = Regression.of(asked)
    (own,) = fit_trees(ROWS, asked, target)
    expected = known(target.standardised(asked), classifier=False).predict(ROWS)
    assert own.scores(ROWS, target)[:, 0] == pytest.approx(expected, abs=1e-4)


def test_a_product_is_learnt_that_no_linear_model_sees() -> None:
    asked = answers(2)
    target = Classification(["low", "high"], asked)
    *_, own = fit_trees(ROWS[:300], asked[:300], target)
    assert (own.scores(ROWS[300:], target).argmax(axis=1) == asked[300:]).mean() > 0.85


def test_a_row_depends_on_its_record_alone_and_a_file_changes_nothing(tmp_path: Path) -> None:
    chance, asked = np.random.default_rng(1), np.arange(300) % 3
    proteins = [chance.integers(3 * c, 20, n).astype(np.uint8) for c, n in zip(asked, range(1, 301), strict=True)]
    target = Classification(["a", "b", "c"], asked)
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(proteins, room=100)
    for model in fit_trees(rows, asked, target):
        baseline = FittedBaseline(target, (Member(features, model.cooled(0.7, target)),))
        (tmp_path / "baseline").write_bytes(baseline.packed())
        again, outputs = load(tmp_path / "baseline", target), baseline.outputs(proteins)
        assert (again.outputs(proteins) == outputs).all() and again.packed() == baseline.packed()
        assert all((again.outputs([proteins[i]])[0] == outputs[i]).all() for i in range(0, 300, 17))
        assert again.outputs([]).shape == (0, 3)


def test_classes_that_training_has_not() -> None:
    target = Classification.of_counts(["a", "b", "c", "d"], [1, 1, 1, 1])
    own: Trees = next(fit_trees(ROWS, np.where(answers(2) == 1, 3, 1), target))
    scores = own.scores(ROWS, target)
    assert (
        own.known.tolist() == [1, 3] and (scores[:, [0, 2]] <= ABSENT + 10).all() and (scores[:, [1, 3]] > -50).all()
    )
    assert not [*fit_trees(ROWS, np.full(400, 2), target)], "one class asks for no tree"
    assert not [*fit_trees(ROWS[:255], answers(2)[:255], target)], "few records fill no leaves"


def test_work_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    each = 25 * ROWS.shape[1] * (len(ROWS) + trees.LEAVES * trees.BINS)
    asked, counts = answers(2), []
    target = Classification(["low", "high"], asked)
    for work in (each - 1, each, 3 * each):
        monkeypatch.setattr(trees, "WORK", work)
        counts.append([len(own.roots) for own in fit_trees(ROWS, asked, target)])
    assert counts == [[], [25], [25, 50]]
