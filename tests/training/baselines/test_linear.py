from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines import linear
from chordmixer.training.baselines.linear import PENALTIES, Linear, as_outputs, fit_left_out, fit_linear

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(300, 6)).astype(np.float32)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("sparse", [False, True])
def test_scikit_learn_finds_the_same(classes: int, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given enough steps, the probabilities agree for the same penalty and class weights."""
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(linear, "SPARSE_STEPS", 300)
    monkeypatch.setattr(linear, "DENSE_STEPS", 300)
    monkeypatch.setattr(linear, "TOLERANCE", 1e-13)
    odds = ROWS @ np.random.default_rng(1).normal(size=(6, classes)) + np.arange(classes)
    answers = (odds + np.random.default_rng(2).gumbel(size=odds.shape)).argmax(axis=1)
    target = Classification([str(k) for k in range(classes)], answers)
    rows = csr_matrix(ROWS) if sparse else ROWS
    *_, model = fit_linear(rows, answers, target, (0.01, 0.5))
    weights = dict(enumerate(target.weights.tolist()))
    reference = LogisticRegression(C=0.5, class_weight=weights, tol=1e-9, max_iter=1000).fit(ROWS, answers)
    outputs = as_outputs(model.scores(rows, target), target)
    assert np.abs(np.exp(outputs) - reference.predict_proba(ROWS)).max() < 1e-3


@pytest.mark.parametrize("sparse", [False, True])
def test_ratios_are_features_times_their_log_ratio(sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in NB-SVM, the model is that of scikit-learn on columns scaled by their log ratio."""
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(linear, "SPARSE_STEPS", 300)
    monkeypatch.setattr(linear, "DENSE_STEPS", 300)
    monkeypatch.setattr(linear, "TOLERANCE", 1e-13)
    counts = np.maximum(ROWS, 0)
    answers = (counts[:, 0] - counts[:, 1] + np.random.default_rng(3).normal(size=300) > 0).astype(np.int64)
    shares = [(counts[answers == k] > 0).sum(axis=0) + 1 for k in (0, 1)]
    ratio = np.log(shares[1] / shares[1].sum()) - np.log(shares[0] / shares[0].sum())
    target = Classification.of_counts(["no", "yes"], [1, 1])
    rows = csr_matrix(counts) if sparse else counts
    *_, model = fit_linear(rows, answers, target, (50.0,), ratios=True)
    reference = LogisticRegression(C=50.0, tol=1e-9, max_iter=1000).fit(counts * ratio, answers)
    outputs = as_outputs(model.scores(rows, target), target)
    assert np.abs(np.exp(outputs) - reference.predict_proba(counts * ratio)).max() < 1e-3
    *_, plain = fit_linear(rows, answers, target, (50.0,))
    assert np.abs(model.weights - plain.weights).max() > 0.05


def test_ratios_of_many_outputs() -> None:
    """For three classes and for labels, the feature that marks an output has its largest weight."""
    classes = np.arange(300) % 3
    rows = csr_matrix(
        (np.arange(3) == classes[:, None]) | (np.random.default_rng(4).random((300, 3)) < 0.3), dtype="f4"
    )
    labels = (classes[:, None] == np.arange(3)).astype(np.float32)
    for target, answers in (
        (Classification(["a", "b", "c"], classes), classes),
        (MultiLabel.of(["a", "b", "c"], labels), labels),
    ):
        *_, model = fit_linear(rows, answers, target, (1.0, 10.0), ratios=True)
        assert model.weights.argmax(axis=0).tolist() == [0, 1, 2]


def test_labels_at_once_are_those_of_each_alone() -> None:
    answers = (ROWS[:, :3] + RNG.normal(size=(300, 3)) > 0.5).astype(np.float32)
    target = MultiLabel.of(["a", "b", "c"], answers)
    *_, joint = fit_linear(ROWS, answers, target, (0.1,))
    for k in range(3):
        *_, separate = fit_linear(ROWS, answers[:, k : k + 1], MultiLabel.of(["x"], answers[:, k : k + 1]), (0.1,))
        assert joint.weights[:, k] == pytest.approx(separate.weights[:, 0], abs=0.02)


def test_a_temperature_divides_the_odds_without_class_weights() -> None:
    target = Classification.of_counts(["a", "b", "c"], [1, 2, 30])
    model = Linear(ROWS[:6, :3].copy(), np.array([0.1, -1, 2], np.float32))
    before, after = (target.unweighted(m.scores(ROWS, target)) for m in (model, model.cooled(2.0, target)))
    assert after == pytest.approx(before / 2, abs=1e-5)


def test_a_row_depends_on_its_record_alone() -> None:
    target = Regression()
    model = next(fit_linear(ROWS, ROWS[:, 0], target, (1.0,)))
    scores = model.scores(ROWS, target)
    assert all((model.scores(ROWS[i : i + 1], target) == scores[i]).all() for i in range(0, 300, 7))


def test_left_out_records_choose_as_refits_without_each_of_them_do() -> None:
    from sklearn.linear_model import Ridge

    rows = ROWS[:25] - ROWS[:25].mean(axis=0)
    numbers = rows[:, 0] + 0.8 * np.random.default_rng(3).normal(size=25)
    target = Regression.of(numbers)
    standardised, unit = target.standardised(numbers), float(np.linalg.eigvalsh(rows @ rows.T).mean())
    losses = {}
    for penalty in PENALTIES:
        subsets = [np.delete(np.arange(25), i) for i in range(25)]
        fits = [Ridge(alpha=penalty * unit).fit(rows[subset], standardised[subset]) for subset in subsets]
        losses[penalty] = np.mean([(fit.predict(rows[[i]])[0] - standardised[i]) ** 2 for i, fit in enumerate(fits)])
    best = Ridge(alpha=min(losses, key=losses.__getitem__) * unit).fit(rows, standardised)
    assert 0 < [*losses].index(min(losses, key=losses.__getitem__)) < len(losses) - 1, "not at an end of the list"
    np.testing.assert_allclose(fit_left_out(rows, numbers, target).weights[:, 0], best.coef_, atol=1e-4)


def test_few_separable_records_are_not_certain() -> None:
    """Twelve records of two classes far apart: new ones at the same place are clear, one between them is not."""
    rows = (np.repeat([[-1.0], [1.0]], 6, axis=0) * np.linspace(0.9, 1.1, 12)[:, None]).astype(np.float32)
    answers = np.repeat([0, 1], 6)
    target = Classification(["a", "b"], answers)
    model = fit_left_out(rows, answers, target)
    shares = np.exp(as_outputs(model.scores(np.array([[-1.0], [0.1], [1.0]]), target), target))[:, 1]
    assert shares[0] < 0.1 and shares[2] > 0.9 and 0.1 < shares[1] < 0.9
