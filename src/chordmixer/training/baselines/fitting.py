"""Baselines on a model's own splits: majority, length alone, and what sequences hold, by linear models or neighbours.

What a model is worth is what it adds to these. The validation part chooses how strongly each is fitted and how long
its k-mers are, by the model's own loss. They answer the test part in the model's layout, so that the same metrics
score both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer.data.features import TextWords
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.candidates import KINDS, Candidate, candidates
from chordmixer.training.baselines.choosing import Choice, Data, choose, loss_of, one_thread, regression
from chordmixer.training.baselines.linear import NEVER, AnyTarget, as_outputs, fit_linear
from chordmixer.training.baselines.stored import FittedBaseline
from chordmixer.training.combination import combine

KNOTS = 8
"""Lengths at which the slope of the length baseline may change."""
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Of standardised features, to choose from, as scikit-learn's C."""
CONSTANT = ("majority class", "mean", "label shares")
"""How the names of those begin that answer the same for every record."""

Parts = Mapping[str, Sequence[int] | ndarray]
Matrices = dict[str, Any]
"""Features of each part."""


@dataclass(frozen=True)
class Baseline:
    """A simple model's answers."""

    name: str
    sentence: str
    """What it is, with what the validation part chose."""
    outputs: ndarray
    """One row per test record: log-probabilities of classes, log-odds of labels, or the number as a model has it."""
    validation: ndarray
    """The same of the validation part."""
    loss: float
    """Mean of the validation part, by the target's own loss."""
    fitted: FittedBaseline | None = None
    """Answers new sequences, and can be saved; None where it does not look at what sequences hold."""


def fit_baselines(
    sequences: Sequence[ndarray] | None,
    lengths: Sequence[int] | ndarray,
    targets: ndarray,
    parts: Parts,
    target: AnyTarget,
    kind: str,
    k: int = 0,
    single: bool = False,
    words: TextWords | None = None,
) -> Iterator[Baseline]:
    """All that suit the kind of tokens (one of `KINDS`; `real` are series), one after the other.

    `parts` names the records of `training`, `validation` and `test`; where there are no sequences, lengths alone are
    looked at. Records of one length have no baseline of length. Where no `k` is given, the validation part chooses
    it; `single` leaves out k-mers of several lengths together, trees and neighbours. `words` makes words of tokens of
    a text; without it characters alone are counted.

    >>> series = [np.full((n, 1), n % 2, dtype=np.float32) for n in range(2, 42)]
    >>> parts = {"training": range(20), "validation": range(20, 30), "test": range(30, 40)}
    >>> target, targets = Classification(["even", "odd"], [0, 1]), np.arange(40) % 2
    >>> found = list(fit_baselines(series, [len(s) for s in series], targets, parts, target, "real"))
    >>> [b.name for b in found], found[2].outputs.argmax(axis=1).tolist()
    (['majority class', 'length alone', 'series features'], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of tokens: give one of {', '.join(KINDS)}")
    indices = {part: np.asarray(parts[part], dtype=np.int64) for part in ("training", "validation", "test")}
    answers = {part: targets[own] for part, own in indices.items()}
    yield majority(answers, target)

    own_lengths = {part: np.asarray(lengths)[own] for part, own in indices.items()}
    if len(np.unique(own_lengths["training"])) > 1:
        sentence = f"{regression(target)} on the logarithm of the length, in {KNOTS + 1} straight pieces"
        yield linear("length alone", sentence, _length_features(own_lengths), answers, target)
    if sequences is None:
        return
    held = {part: [sequences[i] for i in own.tolist()] for part, own in indices.items()}
    data = Data(held["training"], held["validation"], answers, target)
    records, tokens = len(held["training"]), int(own_lengths["training"].sum())
    tried = list(candidates(kind, records, tokens, k, single, words))
    yield from _content(tried, data, held["test"], neighbours=not (k or single))


def majority(answers: Mapping[str, ndarray], target: AnyTarget) -> Baseline:
    """A constant prediction, from the training part."""
    training = answers["training"]
    sentence = "the shares in the training part as probabilities, for every record"
    if isinstance(target, Regression):
        row, name, sentence = target.constant(training), "mean", "the mean of the training targets, for every record"
    elif isinstance(target, Classification):
        shares = np.bincount(training, minlength=target.outputs) / len(training)
        row, name = np.log(np.clip(shares, NEVER, None)), "majority class"
    else:
        shares = np.clip(training.mean(axis=0, dtype=np.float64), 1e-6, 1 - 1e-6)
        row, name = np.log(shares / (1 - shares)), "label shares"
    if not isinstance(target, Regression):
        row = row - target.unweighted(np.zeros_like(row))  # as the training loss weighs classes: scores take it back
    test, validation = (np.tile(row.astype(np.float32), (len(answers[p]), 1)) for p in ("test", "validation"))
    return Baseline(name, sentence, test, validation, loss_of(validation, answers["validation"], target))


def linear(
    name: str, sentence: str, features: Matrices, answers: Mapping[str, ndarray], target: AnyTarget
) -> Baseline:
    """A linear model on any features of the three parts, as strong as the validation part wants it."""
    rows, tried = standardised(features), []
    with one_thread():
        for model in fit_linear(rows["training"], answers["training"], target, STRENGTHS):
            validation = as_outputs(model.scores(rows["validation"], target), target)
            tried.append((loss_of(validation, answers["validation"], target), validation, model))
    loss, validation, model = min(tried, key=lambda own: own[0])
    return Baseline(name, sentence, as_outputs(model.scores(rows["test"], target), target), validation, loss)


def standardised(features: Matrices) -> Matrices:
    """Mean zero and spread one in the training part."""
    mean, spread = features["training"].mean(axis=0), features["training"].std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1)
    return {part: ((own - mean) / spread).astype(np.float32) for part, own in features.items()}


def _length_features(lengths: Mapping[str, ndarray]) -> Matrices:
    """The logarithm of the length and how far it is beyond each of some knots, so that any trend can be fitted."""
    logs = {part: np.log(np.maximum(own, 1)) for part, own in lengths.items()}
    knots = np.unique(np.quantile(logs["training"], np.linspace(0, 1, KNOTS + 2)[1:-1]))
    return {part: np.maximum(own[:, None] - np.append(-1.0, knots), 0) for part, own in logs.items()}


# --- What sequences hold ---


def _content(tried: Sequence[Candidate], data: Data, test: Sequence[ndarray], neighbours: bool) -> Iterator[Baseline]:
    """The best linear models, the best neighbours, and those together that the validation part prefers to one."""
    chosen, scores = choose(tried, data, neighbours), []
    for own in chosen:
        fitted = FittedBaseline(data.target, (own.member,))
        scores.append(own.member.scores(test, data.target))
        kind = "neighbours by " if own.near else "trees by " if own.grown else ""
        name = f"{kind}{own.candidate.name}"
        yield Baseline(name, own.how + _options(tried), fitted.combined(scores[-1:]), own.outputs, own.loss, fitted)
    weights, shift = _together(chosen, data)
    if len(weights) > 1:
        used = [chosen[i] for i in sorted(weights)]
        together = FittedBaseline(
            data.target, tuple(own.member for own in used), tuple(weights[i] for i in sorted(weights)), shift
        )
        validation = together.combined([own.scores for own in used])
        loss = loss_of(validation, data.answers["validation"], data.target)
        sentence = f"the {len(used)} models together, each with the weight that the validation part gives it"
        outputs = together.combined([scores[i] for i in sorted(weights)])
        yield Baseline(_joined(used), sentence, outputs, validation, loss, together)


def _together(chosen: Sequence[Choice], data: Data) -> tuple[dict[int, float], float]:
    """The weight of each model, by its place, and what is added to a number: from the best one on, each of the others
    joins where it lowers the loss in cross-validation on the validation part."""
    first, *others = sorted(range(len(chosen)), key=lambda i: chosen[i].loss)
    weights, shift, outputs = {first: 1.0}, 0.0, chosen[first].outputs
    for i in others:
        found = combine(data.target, outputs, chosen[i].outputs, data.answers["validation"])
        before, own, extra = found.weights["both"]
        if found.using == "both" and before and own:
            weights = {**{place: before * weight for place, weight in weights.items()}, i: own}
            shift = before * shift + extra
            outputs = found.outputs(data.target, outputs, chosen[i].outputs)
    return weights, shift


def _joined(used: Sequence[Choice]) -> str:
    """As in '5-grams, words and neighbours'."""
    short = {1: "words", 2: "trees", 3: "neighbours"}
    *names, last = (short.get(own.family, own.candidate.name) for own in used)
    return f"{', '.join(names)} and {last}"


def _options(tried: Sequence[Candidate]) -> str:
    if len(tried) == 1:
        return ""
    return f"; chosen from {len(tried)} sets of features by the validation loss"
