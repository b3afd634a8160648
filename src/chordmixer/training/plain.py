"""Plain baselines on a model's own splits: majority, length alone, and counts of k-mers with a linear model.

What a model is worth is what it adds to these. The validation part chooses how strongly each is fitted and how long
its k-mers are, by the model's own loss. They answer the test part in the model's layout, so that the same metrics
score both.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.counts import ENTRIES, Grams, gram_counts, kmer_frequencies

K = {"dna": (4, 6, 8, 10), "operations": (2,), "protein": (2, 3, 4), "text": (5,)}
"""Lengths of k-mers to choose from, of a kind of tokens. Of texts and operations others were no better."""
LETTERS = {"dna": 4, "operations": 15}
"""Of kinds that have few: the shares of all their k-mers are features, where these are not too many."""
FEW, ALL = 256, 4096
"""K-mers of which all are looked at, whatever the number of records, and where their table has room."""
KNOTS = 8
"""Lengths at which the slope of the length baseline may change."""
DENSE = (1e-3, 1e-2, 1e-1, 1.0)
SPARSE = (1.0, 10.0, 100.0)
"""Strengths to choose from, as scikit-learn's C: of standardised features, and of rows of length one."""
CONSTANT = ("majority class", "mean", "label shares")
"""How the names of those begin that answer the same for every record."""
NEVER = 1e-12
"""The probability of a class that no training record has."""

Parts = Mapping[str, Sequence[int] | ndarray]
Matrices = dict[str, Any]
"""Features of each part: arrays, or sparse matrices."""


@dataclass(frozen=True)
class Baseline:
    """A plain answer to the test part."""

    name: str
    sentence: str
    """What it is."""
    outputs: ndarray
    """A row a test record: log-probabilities of classes, log-odds of labels, or the number as a model has it."""


def plain_baselines(
    sequences: Sequence[ndarray] | None,
    lengths: Sequence[int] | ndarray,
    targets: ndarray,
    parts: Parts,
    target: Regression | Classification | MultiLabel,
    kind: str,
    k: int = 0,
) -> Iterator[Baseline]:
    """All that suit the kind of tokens (a key of `K`, or `real` for series), one after the other.

    `parts` names the records of `training`, `validation` and `test`; sequences are read record by record, in order,
    and where there are none, lengths alone are looked at. Records of one length have no baseline of length. Where no
    `k` is given, the validation part chooses it.

    >>> series = [np.full((n, 1), n % 2, dtype=np.float32) for n in range(2, 42)]
    >>> parts = {"training": range(20), "validation": range(20, 30), "test": range(30, 40)}
    >>> target, targets = Classification(["even", "odd"], [0, 1]), np.arange(40) % 2
    >>> found = list(plain_baselines(series, [len(s) for s in series], targets, parts, target, "real"))
    >>> [b.name for b in found], found[2].outputs.argmax(axis=1).tolist()
    (['majority class', 'length alone', 'moments'], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    """
    if kind not in (*K, "real"):
        raise ValueError(f"kind={kind!r} is not one of tokens: give one of {', '.join(K)}, real")
    indices = {part: np.asarray(parts[part], dtype=np.int64) for part in ("training", "validation", "test")}
    answers = {part: targets[own] for part, own in indices.items()}
    fit = regression(target)
    yield majority(answers["training"], len(indices["test"]), target)

    own_lengths = {part: np.asarray(lengths)[own] for part, own in indices.items()}
    if len(np.unique(own_lengths["training"])) > 1:
        fitted = linear(standardised(_length_features(own_lengths)), answers, target, DENSE)
        sentence = f"{fit} on the logarithm of the length, in {KNOTS + 1} straight pieces"
        yield Baseline("length alone", sentence, fitted.outputs)

    if sequences is None:
        return
    if kind == "real":
        moments = {part: np.array([_moments(sequences[i]) for i in own]) for part, own in indices.items()}
        sentence = f"{fit} on the mean, spread, least and greatest number of each channel"
        yield Baseline("moments", sentence, linear(standardised(moments), answers, target, DENSE).outputs)
        return
    yield _kmers(sequences, indices, answers, target, kind, (k,) if k else K[kind])


def majority(training: ndarray, count: int, target: Regression | Classification | MultiLabel) -> Baseline:
    """One answer for all, from the training part."""
    if isinstance(target, Regression):
        row = target.constant(training)
        return Baseline("mean", "the mean of the training targets, for every record", np.tile(row, (count, 1)))
    if isinstance(target, Classification):
        shares = np.bincount(training, minlength=target.outputs) / len(training)
        row, name = np.log(np.clip(shares, NEVER, None)), "majority class"
    else:
        shares = np.clip(training.mean(axis=0, dtype=np.float64), 1e-6, 1 - 1e-6)
        row, name = np.log(shares / (1 - shares)), "label shares"
    row = row - target.unweighted(np.zeros_like(row))  # as the training loss weighs classes: the scores take it back
    sentence = "the shares in the training part as probabilities, for every record"
    return Baseline(name, sentence, np.tile(row.astype(np.float32), (count, 1)))


# --- Features ---


def _kmers(
    sequences: Sequence[ndarray],
    parts: Mapping[str, ndarray],
    answers: Mapping[str, ndarray],
    target: Regression | Classification | MultiLabel,
    kind: str,
    lengths: Sequence[int],
) -> Baseline:
    """Counts of k-mers, of the length with the lowest validation loss."""
    tried = list[tuple[float, Baseline]]()
    for k in lengths:
        noun = f"{k}-mers" if kind in ("dna", "protein") else f"{k}-grams"
        features, strengths, what = _counts(sequences, parts, Grams(k, LETTERS.get(kind)), noun)
        loss, outputs = linear(features, answers, target, strengths)
        tried.append((loss, Baseline(noun, f"{regression(target)} on {what}", outputs)))
    _, best = min(tried, key=lambda own: own[0])
    if len(tried) == 1:
        return best
    said = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
    return replace(best, sentence=f"{best.sentence}; k chosen from {said} by the validation loss")


def _counts(
    sequences: Sequence[ndarray], parts: Mapping[str, ndarray], grams: Grams, noun: str
) -> tuple[Matrices, Sequence[float], str]:
    """Features, strengths to choose from, and in words: all k-mers where these are few, else hashed ones."""
    size = grams.letters**grams.k if grams.letters else math.inf
    if size <= FEW or (size <= ALL and size * sum(map(len, parts.values())) <= ENTRIES):
        shares = {part: kmer_frequencies(sequences, own, grams) for part, own in parts.items()}
        return standardised(shares), DENSE, f"the frequencies of all {size:,} {noun}, standardised"
    hashed = gram_counts(sequences, parts, grams)
    return hashed, SPARSE, f"hashed counts of {noun}, weighted by how rare each is (TF-IDF)"


def _length_features(lengths: Mapping[str, ndarray]) -> Matrices:
    """The logarithm of the length and how far it is beyond each of some knots, so that any trend can be fitted."""
    logs = {part: np.log(np.maximum(own, 1)) for part, own in lengths.items()}
    knots = np.unique(np.quantile(logs["training"], np.linspace(0, 1, KNOTS + 2)[1:-1]))
    return {part: np.maximum(own[:, None] - np.append(-1.0, knots), 0) for part, own in logs.items()}


def _moments(series: ndarray) -> ndarray:
    rows = series.reshape(len(series), -1).astype(np.float64)
    return np.concatenate([rows.mean(axis=0), rows.std(axis=0), rows.min(axis=0), rows.max(axis=0)])


def standardised(features: Matrices) -> Matrices:
    """Mean zero and spread one in the training part."""
    mean, spread = features["training"].mean(axis=0), features["training"].std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1)
    return {part: ((own - mean) / spread).astype(np.float32) for part, own in features.items()}


# --- Linear models ---


class Fitted(NamedTuple):
    """A model whose strength was chosen."""

    loss: float
    """On the validation part, by the model's own measure."""
    outputs: ndarray
    """On the test part."""


def regression(target: Regression | Classification | MultiLabel) -> str:
    """What a linear model for it is called."""
    return "ridge regression" if isinstance(target, Regression) else "logistic regression"


def linear(
    features: Matrices,
    answers: Mapping[str, ndarray],
    target: Regression | Classification | MultiLabel,
    strengths: Sequence[float],
) -> Fitted:
    """The model whose strength has the lowest validation loss."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # products this small wait longer for a second thread than it saves
        fitted = [_Linear(features["training"], answers["training"], target, strength) for strength in strengths]
    known = torch.from_numpy(answers["validation"])
    losses = [
        float(target.losses(torch.from_numpy(own.outputs(features["validation"])), known).mean()) for own in fitted
    ]
    best = int(np.argmin(losses))
    return Fitted(losses[best], fitted[best].outputs(features["test"]))


class _Linear:
    """A linear model of scikit-learn's, with the model's class weights, for each column that it needs."""

    def __init__(
        self, features: Any, answers: ndarray, target: Regression | Classification | MultiLabel, strength: float
    ) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge

        self.target = target
        self.models: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # stopped a little early, a model is as plain
            if isinstance(target, Regression):
                self.models = [Ridge(alpha=1 / strength).fit(features, target.standardised(answers))]
                return
            for column, weights in _columns(answers, target):
                settings = {"C": strength, "class_weight": dict(enumerate(weights)), "max_iter": 200, "tol": 1e-5}
                several = len(np.unique(column)) > 1
                self.models.append(LogisticRegression(**settings).fit(features, column) if several else column[0])

    def outputs(self, features: Any) -> ndarray:
        """In the model's layout."""
        if isinstance(self.target, Regression):
            return self.models[0].predict(features).reshape(-1, 1).astype(np.float32)
        if isinstance(self.target, Classification):
            return self._classes(features)
        odds = [
            model.decision_function(features)
            if hasattr(model, "coef_")
            else np.full(features.shape[0], 40 * model - 20)
            for model in self.models
        ]
        return np.stack(odds, axis=1).astype(np.float32)

    def _classes(self, features: Any) -> ndarray:
        """Log-probabilities; few training records may not have all classes."""
        (model,) = self.models
        outputs = np.full((features.shape[0], self.target.outputs), np.log(NEVER), np.float32)
        if not hasattr(model, "coef_"):
            outputs[:, model] = 0
            return outputs
        scores = torch.from_numpy(np.asarray(model.decision_function(features), dtype=np.float64))
        if scores.ndim == 1:
            scores = torch.stack([torch.zeros_like(scores), scores], dim=1)
        outputs[:, model.classes_] = scores.log_softmax(dim=1).numpy()
        return outputs


def _columns(answers: ndarray, target: Classification | MultiLabel) -> Iterator[tuple[ndarray, list[float]]]:
    """What to fit, with the weight of each class: one column of classes, or a column a label."""
    if isinstance(target, Classification):
        yield answers, target.weights.tolist()
        return
    for k in range(target.outputs):
        yield (answers[:, k] > 0.5).astype(int), [float(target.negative[k]), float(target.positive[k])]
