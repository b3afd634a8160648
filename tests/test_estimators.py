"""The estimators in scikit-learn's own tools and checks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks as checks

from chordmixer import ChordMixerClassifier, ChordMixerRegressor

SETTINGS = {"training.steps": 2, "training.device": "cpu"}


@pytest.fixture(autouse=True)
def quick(quick_runs: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch)


def waves(records: int = 48) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, records)
    fast = np.arange(records) % 2
    phases = rng.uniform(0, 6, records)
    series = [np.sin(np.arange(n) * (0.3 + 0.4 * f) + p) for n, f, p in zip(lengths, fast, phases, strict=True)]
    return [wave.astype(np.float32) for wave in series], fast


def test_cross_validation_search_and_pipeline() -> None:
    series, fast = waves()
    classifier = ChordMixerClassifier(settings=SETTINGS, random_state=0)
    assert cross_val_score(classifier, series, fast, cv=2).mean() > 0.9
    ragged = np.empty(len(series), dtype=object)
    ragged[:] = series
    search = GridSearchCV(classifier, {"baselines": [True]}, cv=2).fit(ragged, np.where(fast, "fast", "slow"))
    assert set(search.predict(ragged)) == {"fast", "slow"} and search.best_params_ == {"baselines": True}
    restored = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(restored.predict_proba(series), search.predict_proba(series))
    pipeline = make_pipeline(ChordMixerClassifier(settings=SETTINGS, baselines=False), LogisticRegression())
    assert pipeline.fit(series, fast).predict(series[:3]).shape == (3,)


def test_classes_keep_their_type_and_order() -> None:
    """Also classes that would be in another order as text."""
    series, _ = waves(66)
    classes = np.arange(66) % 11 * 10
    classifier = ChordMixerClassifier(settings=SETTINGS, random_state=0, fractions=(0.6, 0.2, 0.2)).fit(
        series, classes
    )
    assert classifier.classes_.tolist() == list(range(0, 110, 10))
    shares = classifier.predict_proba(series)
    np.testing.assert_array_equal(classifier.predict(series), classifier.classes_[shares.argmax(axis=1)])
    assert classifier.predictor_.classes == [f"{k:02}" for k in range(11)]


def test_a_regressor() -> None:
    series, _ = waves()
    numbers = [float(np.ptp(wave) * len(wave)) for wave in series]
    regressor = clone(ChordMixerRegressor(settings=SETTINGS, random_state=1)).fit(series, numbers)
    assert regressor.score(series, numbers) > 0.5 and regressor.predict(series).dtype == np.float64


class Rectangular(ChordMixerClassifier):
    """Also takes rows of equal length, as scikit-learn's checks give them: each row is a series."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = True, False
        return tags


APPLICABLE_CHECKS = {
    checks.check_estimator_cloneable,
    checks.check_estimator_repr,
    checks.check_no_attributes_set_in_init,
    checks.check_estimators_overwrite_params,
    checks.check_dont_overwrite_parameters,
    checks.check_estimators_fit_returns_self,
    checks.check_readonly_memmap_input,
    checks.check_estimators_unfitted,
    checks.check_do_not_raise_errors_in_init_or_set_params,
    checks.check_mixin_order,
    checks.check_sample_weights_list,
    checks.check_pipeline_consistency,
    checks.check_estimator_sparse_array,
    checks.check_estimators_pickle,
    checks.check_classifiers_one_label,
    checks.check_classifiers_classes,
    checks.check_supervised_y_2d,
    checks.check_classifiers_regression_target,
}
"""Left out are checks that count or name features, which sequences do not have; that fit on fewer than three records
of a class, which leave none for validation; that compare messages of `check_array` on complex, empty or missing
numbers, for which ours differ; and that expect sample weights to equal copies of records, which a split by records
does not give."""


def test_checks_of_scikit_learn() -> None:
    estimator = Rectangular(settings={"training.steps": 1, "training.epochs": 1}, baselines=False)
    for check in sorted(APPLICABLE_CHECKS, key=lambda check: check.__name__):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NumPy on the checks' own targets
            check("Rectangular", clone(estimator))


def test_invalid_input() -> None:
    series, fast = waves(12)
    with pytest.raises(NotFittedError):
        ChordMixerClassifier().predict(series)
    with pytest.raises(ValueError, match="y has one class"):
        ChordMixerClassifier().fit(series, [1] * 12)
    with pytest.raises(ValueError, match="11 values for label and 12 sequences"):
        ChordMixerClassifier().fit(series, fast[:11])
