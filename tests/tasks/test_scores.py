"""The scores against those of scikit-learn, also with ties and missing classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from chordmixer.tasks import scores

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("decimals", [0, 1, 6], ids=["many-ties", "some-ties", "no-ties"])
def test_areas_of_each_row(decimals: int) -> None:
    positive = RNG.random((5, 300)) < 0.3
    values = (RNG.normal(size=(5, 300)) + positive).round(decimals)
    roc, precision = scores.areas(values, positive)
    assert roc == pytest.approx([metrics.roc_auc_score(y, s) for y, s in zip(positive, values, strict=True)])
    assert precision == pytest.approx(
        [metrics.average_precision_score(y, s) for y, s in zip(positive, values, strict=True)]
    )


@pytest.mark.parametrize("decimals", [0, 6], ids=["many-ties", "no-ties"])
def test_areas_of_many_classes(decimals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are those of each class alone, even if classes are absent from a resample or from all."""
    monkeypatch.setattr(scores, "MAX_PAIRS", 1000)
    values, targets = RNG.normal(size=(90, 40)).round(decimals), RNG.integers(0, 39, 90)
    weights = RNG.poisson(1, size=(20, 90)).astype(float)
    actual = scores.areas_of_many(values, targets, weights)
    for k, row in enumerate(actual):
        np.testing.assert_allclose(row, scores.weighted_areas(values[:, k], targets == k, weights)[0])
    assert np.isnan(actual[39]).all() and not np.isnan(actual[:39]).all()


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_areas_of_few(rows: list[tuple[int, bool]]) -> None:
    values, positive = np.array([s for s, _ in rows], float), np.array([y for _, y in rows])
    roc, precision = scores.areas(values[None], positive[None])
    wins = [(a > b) + (a == b) / 2 for a in values[positive] for b in values[~positive]]
    assert roc[0] == pytest.approx(np.mean(wins)) if wins else np.isnan(roc[0])
    assert np.isnan(precision[0]) or precision[0] == pytest.approx(metrics.average_precision_score(positive, values))


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("spread", [1, 30, 1000])
def test_log_odds_do_not_round(classes: int, spread: int) -> None:
    outputs = RNG.normal(size=(50, classes)) * spread
    expected = [[row[k] - np.logaddexp.reduce(np.delete(row, k)) for k in range(classes)] for row in outputs]
    assert scores.log_odds(outputs) == pytest.approx(np.array(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("case", ["good", "useless", "one answer", "a class absent"])
def test_answers(classes: int, case: str) -> None:
    targets = RNG.integers(0, classes - (case == "a class absent"), 200)
    answers = {
        "good": np.where(RNG.random(200) < 0.7, targets, RNG.integers(0, classes, 200)),
        "useless": RNG.integers(0, classes, 200),
        "one answer": np.zeros(200, int),
        "a class absent": RNG.integers(0, classes - 1, 200),
    }[case]
    table = scores.confusion(answers, targets, classes)
    result = scores.of_counts(table.diagonal(), table.sum(axis=1), table.sum(axis=0))
    assert result["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(targets, answers))
    assert result["f1_macro"] == pytest.approx(metrics.f1_score(targets, answers, average="macro", zero_division=0))
    assert result["mcc"] == pytest.approx(metrics.matthews_corrcoef(targets, answers))


def test_the_confusion_is_by_true_class() -> None:
    assert scores.confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2).tolist() == [[1, 1], [0, 1]]


def test_log_loss_is_sklearns() -> None:
    outputs, targets = RNG.normal(size=(100, 3)) * 3, RNG.integers(0, 3, 100)
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert scores.log_losses(outputs, targets).mean() == pytest.approx(metrics.log_loss(targets, shares))
    assert scores.log_losses(np.array([[0.0, 1e5]]), np.array([0])) == [1e5]


def test_regression() -> None:
    targets = RNG.normal(size=100)
    answers = targets + RNG.normal(size=100)
    assert scores.explained(answers, targets) == pytest.approx(metrics.r2_score(targets, answers), abs=1e-6)
    assert scores.pearson(answers, targets) == pytest.approx(np.corrcoef(answers, targets)[0, 1])


@pytest.mark.parametrize("decimals", [0, 6], ids=["many-ties", "no-ties"])
def test_spearman_is_scipys(decimals: int) -> None:
    targets = RNG.normal(size=200).round(decimals)
    answers = (np.exp(targets) + RNG.normal(size=200)).round(decimals)
    assert scores.spearman(answers, targets) == pytest.approx(stats.spearmanr(answers, targets).statistic)
    assert np.isnan(scores.spearman(np.ones(200), targets))


def test_the_mean_explains_nothing_to_the_last_digit() -> None:
    targets = RNG.normal(size=300)
    assert scores.explained(np.full(300, np.float32(targets.mean())), targets) == 0


def test_undefined_numbers_are_nan() -> None:
    ones = np.ones(3)
    assert np.isnan(
        [scores.explained(ones, ones), scores.pearson(ones, np.arange(3.0)), scores.mean_of_known(ones[:0])]
    ).all()
