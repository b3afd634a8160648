"""scikit-learn estimators whose X is a list, or an array of objects, of sequences of unequal lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy import ndarray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from chordmixer.dataset import Dataset
from chordmixer.fitting import fit
from chordmixer.predictor import Predictor

FRACTIONS = (0.88, 0.1, 0.02)
"""Fractions for training, validation and test; the last is small, since callers hold out test records themselves."""


class _ChordMixerEstimator(TransformerMixin, BaseEstimator):
    """Base class of classifier and regressor; the arguments are those of `fit` and of `Dataset`."""

    def __init__(
        self,
        *,
        minutes: float | None = None,
        folds: int | None = None,
        tokenizer: str = "auto",
        both_strands: bool = False,
        baselines: bool = True,
        fractions: tuple[float, float, float] = FRACTIONS,
        settings: Mapping[str, Any] | None = None,
        device: str | None = None,
        random_state: int | None = None,
        out: Path | str | None = None,
        verbose: bool = False,
    ) -> None:
        self.minutes = minutes
        self.folds = folds
        self.tokenizer = tokenizer
        self.both_strands = both_strands
        self.baselines = baselines
        self.fractions = fractions
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.out = out
        self.verbose = verbose

    def _fit(
        self, X: Iterable[Any], targets: list[Any], target_type: Any, sample_weight: Iterable[float] | None
    ) -> Self:
        data = Dataset.from_lists(
            _sequences(X),
            targets,
            weights=sample_weight,
            target_type=target_type,
            tokenizer=self.tokenizer,
            both_strands=self.both_strands,
            fractions=self.fractions,
        )
        self.predictor_: Predictor = fit(
            data,
            self.out,
            minutes=self.minutes,
            folds=self.folds,
            baselines=self.baselines,
            settings=self.settings,
            device=self.device,
            seed=self.random_state,
            verbose=self.verbose,
        )
        return self

    def _fitted(self) -> Predictor:
        check_is_fitted(self, "predictor_")
        return self.predictor_

    def transform(self, X: Iterable[Any]) -> ndarray:
        """Compute the network's vector for each sequence, (sequences, C)."""
        vectors = self._fitted().embed(_sequences(X))
        assert isinstance(vectors, ndarray)
        return vectors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.non_deterministic = False
        return tags


class ChordMixerClassifier(ClassifierMixin, _ChordMixerEstimator):
    """A classifier of sequences.

    `ChordMixerClassifier(minutes=2).fit(sequences, labels).predict(new)`; also in `cross_val_score`, `Pipeline` and
    `GridSearchCV`. X is a list, or an array of objects, of strings, bytes or arrays of numbers. A tenth of the
    records given to `fit` are for validation and the choice of network or baseline. `settings` changes any setting
    of a run, such as `{"training.steps": 500}`; `predictor_` is the trained `Predictor`.
    """

    def fit(self, X: Iterable[Any], y: Iterable[Any], sample_weight: Iterable[float] | None = None) -> Self:
        """Train on sequences and their classes."""
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[:1].tolist()}: a classifier needs two or more")
        width = len(str(len(self.classes_) - 1))  # names that sort like the classes
        return self._fit(X, [f"{number:0{width}}" for number in numbers], "classes", sample_weight)

    def predict(self, X: Iterable[Any]) -> ndarray:
        """Predict the most probable class of each sequence."""
        shares = self.predict_proba(X)
        classes: ndarray = self.classes_[shares.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Iterable[Any]) -> ndarray:
        """Predict calibrated probabilities, in the order of `classes_`."""
        return self._fitted().predict_proba(_sequences(X))


class ChordMixerRegressor(RegressorMixin, _ChordMixerEstimator):
    """A regressor of sequences; used like `ChordMixerClassifier`, with one number per sequence."""

    def fit(self, X: Iterable[Any], y: Iterable[float], sample_weight: Iterable[float] | None = None) -> Self:
        """Train on sequences and their numbers."""
        numbers = column_or_1d(y, dtype=np.float64, warn=True)
        return self._fit(X, numbers.tolist(), "number", sample_weight)

    def predict(self, X: Iterable[Any]) -> ndarray:
        """Predict the number of each sequence."""
        return self._fitted().predict(_sequences(X))


def _sequences(X: Any) -> Iterable[Any]:
    """Return X if it is iterable, or else convert it to an array."""
    if hasattr(X, "toarray"):
        raise TypeError("sparse data is not supported: X is a list of sequences, each a text or an array of numbers")
    return X if hasattr(X, "__iter__") else np.asarray(X)
