"""Baselines on a model's own split: majority, length alone, and models of what the sequences hold.

The validation part chooses features and regularisation by the model's own loss. Outputs for the test part are in the
model's layout, so that the same metrics score both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from chordmixer.data.features import TextWords
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.baselines.candidates import KINDS, Candidate, candidates
from chordmixer.training.baselines.choosing import Choice, Data, choose, loss_of, one_thread, regression
from chordmixer.training.baselines.linear import NEVER, as_outputs, fit_linear
from chordmixer.training.baselines.stored import FittedBaseline
from chordmixer.training.combination import fit_weights
from chordmixer.training.labels import RecordTarget

if TYPE_CHECKING:
    from chordmixer.data.alleles import Window
    from chordmixer.tasks.variants import VariantData, Variants

KNOTS = 8
"""Places at which the slope of the length baseline, or of a variant's position, may change."""
AROUND = 8
"""Letters on either side of a variant."""
VARIANT_KINDS = (*(f"{r}>{a}" for r in "ACGT" for a in "ACGT" if r != a), "insertion", "deletion", "other")
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Of standardised features, to choose from, as scikit-learn's C."""
CONSTANT = ("majority class", "mean", "label shares")
"""Beginnings of the names of constant predictions."""

Parts = Mapping[str, Sequence[int] | ndarray]
Matrices = dict[str, Any]
"""Features of each part."""


@dataclass(frozen=True)
class Baseline:
    """A simple model and its outputs."""

    name: str
    sentence: str
    """A description, with the choice of the validation part."""
    outputs: ndarray
    """One row per test record: log-probabilities of classes, log-odds of labels, or the number as a model has it."""
    validation: ndarray
    """The same of the validation part."""
    loss: float
    """Mean loss of the validation part."""
    fitted: FittedBaseline | None = None
    """Predicts new sequences, and can be saved; None where it does not use the sequences."""


def fit_baselines(
    sequences: Sequence[ndarray] | None,
    lengths: Sequence[int] | ndarray,
    targets: ndarray,
    parts: Parts,
    target: RecordTarget,
    kind: str,
    k: int = 0,
    single: bool = False,
    words: TextWords | None = None,
) -> Iterator[Baseline]:
    """Fit all baselines for a kind of tokens (one of `KINDS`; `real` are series), one after the other.

    `parts` names the records of `training`, `validation` and `test`; without sequences, lengths alone are used.
    Records of one length have no length baseline. Where no `k` is given, the validation part chooses it; `single`
    leaves out k-mers of several lengths together, trees and neighbours. `words` makes words of the tokens of a text;
    without it characters alone are counted.

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


def majority(answers: Mapping[str, ndarray], target: RecordTarget) -> Baseline:
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
    name: str, sentence: str, features: Matrices, answers: Mapping[str, ndarray], target: RecordTarget
) -> Baseline:
    """A linear model on any features of the three parts; the validation part chooses its regularisation."""
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
    """The logarithm of the length and its excess over each knot: a piecewise linear spline."""
    logs = {part: np.log(np.maximum(own, 1)) for part, own in lengths.items()}
    knots = np.unique(np.quantile(logs["training"], np.linspace(0, 1, KNOTS + 2)[1:-1]))
    return {part: np.maximum(own[:, None] - np.append(-1.0, knots), 0) for part, own in logs.items()}


# --- Features of sequences ---


def _content(tried: Sequence[Candidate], data: Data, test: Sequence[ndarray], neighbours: bool) -> Iterator[Baseline]:
    """The best model of each family, and their combination where the validation part prefers it."""
    chosen, scores = choose(tried, data, neighbours), []
    for own in chosen:
        fitted = FittedBaseline(data.target, (own.member,))
        scores.append(own.member.scores(test, data.target))
        kind = "neighbours by " if own.near else "trees by " if own.grown else ""
        name = f"{kind}{own.candidate.name}"
        yield Baseline(name, own.how + _options(tried), fitted.combined(scores[-1:]), own.outputs, own.loss, fitted)
    weights, shift = _combination_weights(chosen, data)
    if len(weights) > 1:
        used = [chosen[i] for i in sorted(weights)]
        combined = FittedBaseline(
            data.target, tuple(own.member for own in used), tuple(weights[i] for i in sorted(weights)), shift
        )
        validation = combined.combined([own.scores for own in used])
        loss = loss_of(validation, data.answers["validation"], data.target)
        sentence = f"the {len(used)} models together, each with the weight that the validation part gives it"
        outputs = combined.combined([scores[i] for i in sorted(weights)])
        yield Baseline(_joined(used), sentence, outputs, validation, loss, combined)


def _combination_weights(chosen: Sequence[Choice], data: Data) -> tuple[dict[int, float], float]:
    """The weight of each model, by its index, and the shift of a number: from the best one on, each of the others is
    added where it lowers the loss in cross-validation on the validation part."""
    first, *others = sorted(range(len(chosen)), key=lambda i: chosen[i].loss)
    weights, shift, outputs = {first: 1.0}, 0.0, chosen[first].outputs
    for i in others:
        found = fit_weights(data.target, outputs, chosen[i].outputs, data.answers["validation"])
        before, own, extra = found.weights["both"]
        if found.using == "both" and before and own:
            weights = {**{place: before * weight for place, weight in weights.items()}, i: own}
            shift = before * shift + extra
            outputs = found.outputs(data.target, outputs, chosen[i].outputs)
    return weights, shift


def _joined(used: Sequence[Choice]) -> str:
    """As in '5-grams, words and neighbours'."""
    short = {1: "words", 2: "positions", 3: "trees", 4: "neighbours"}
    *names, last = (short.get(own.family, own.candidate.name) for own in used)
    return f"{', '.join(names)} and {last}"


def _options(tried: Sequence[Candidate]) -> str:
    if len(tried) == 1:
        return ""
    return f"; chosen from {len(tried)} sets of features by the validation loss"


# --- Variants ---


def fit_variant_baselines(task: Variants) -> Iterator[Baseline]:
    """Of variants: where a change is, what it is, and the letters around it."""
    data, parts = task.data, task.split.parts
    answers = {part: data.question.targets[own] for part, own in parts.items()}
    yield majority(answers, task.target)

    fit = regression(task.target)
    contexts = np.eye(max(1, len(data.contexts)))[data.context]
    kinds = np.eye(len(VARIANT_KINDS))[[VARIANT_KINDS.index(variant_kind(window)) for window in data.windows]]
    changes = np.hstack([kinds, contexts])
    for name, sentence, features in (
        ("position alone", f"{fit} on the place in the contig, in {KNOTS + 1} straight pieces", _positions(data)),
        ("kind of change", f"{fit} on the letters that change, or insertion and deletion, and the context", changes),
        (
            "letters around",
            f"{fit} on the kind of change, the context, and {AROUND} letters on either side",
            np.hstack([changes, _letters(data)]),
        ),
    ):
        matrices = {part: features[own] for part, own in parts.items()}
        yield linear(name, sentence, matrices, answers, task.target)


def variant_kind(window: Window) -> str:
    """The kind of change of a variant.

    >>> from chordmixer.data.alleles import Window
    >>> variant_kind(Window("chr1", 0, 9, 4, "A", "T")), variant_kind(Window("chr1", 0, 9, 4, "A", "AT"))
    ('A>T', 'insertion')
    """
    grown = len(window.alt) - len(window.ref)
    if grown:
        return "insertion" if grown > 0 else "deletion"
    change = f"{window.ref}>{window.alt}"
    return change if change in VARIANT_KINDS else "other"


def _positions(data: VariantData) -> ndarray:
    contigs = data.alleles.reference.contigs
    place = np.array([(w.start + w.at) / contigs[w.contig].length for w in data.windows])
    return np.maximum(place[:, None] - np.linspace(0, 1, KNOTS + 2)[:-1], 0)


def _letters(data: VariantData) -> ndarray:
    """One-hot letters around each variant, four columns per place; zeros beyond a contig's end."""
    rows = np.zeros((len(data.windows), 2 * AROUND + 1, 5), dtype=np.float32)
    for row, window in zip(rows, data.windows, strict=True):
        at = window.start + window.at
        start, stop = max(window.start, at - AROUND), min(window.stop, at + AROUND + 1)
        ids = data.alleles.letters.encode(data.alleles.reference.fetch(window.contig, start, stop))
        row[np.arange(start - at + AROUND, stop - at + AROUND), ids] = 1
    return rows[:, :, :4].reshape(len(rows), -1)
