"""Baselines on the split of a model: constant prediction, length alone, and models of the content of sequences.

Features and regularisation are chosen by the model's loss on the validation part. Outputs for the test part are in
the model's layout, so that the same metrics score both.
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
from chordmixer.training.baselines.choosing import FOLDS, Choice, Data, choose, loss_of, one_thread, regression
from chordmixer.training.baselines.linear import MIN_PROBABILITY, as_outputs, fit_linear
from chordmixer.training.baselines.stored import FittedBaseline
from chordmixer.training.combination import fit_weights
from chordmixer.training.labels import RecordTarget

if TYPE_CHECKING:
    from chordmixer.data.alleles import Window
    from chordmixer.tasks.variants import VariantData, Variants

KNOTS = 8
"""Number of knots of the piecewise linear functions of the length and of a variant's position."""
FLANK = 8
"""Number of letters on either side of a variant that are features."""
VARIANT_KINDS = (*(f"{r}>{a}" for r in "ACGT" for a in "ACGT" if r != a), "insertion", "deletion", "other")
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Candidate strengths (scikit-learn's C) for standardised features."""
CONSTANT_NAMES = ("majority class", "mean", "label shares")
"""Beginnings of the names of baselines with a constant prediction."""

Parts = Mapping[str, Sequence[int] | ndarray]
Matrices = dict[str, Any]
"""Feature matrices by part."""


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline and its outputs."""

    name: str
    sentence: str
    """A description for reports, including what was chosen on the validation part."""
    outputs: ndarray
    """One row per test record: log-probabilities of classes, log-odds of labels, or the standardised number."""
    validation: ndarray
    """The same outputs for the validation records."""
    loss: float
    """Mean loss on the validation records."""
    fitted: FittedBaseline | None = None
    """The model, which predicts new sequences and can be saved; None if it does not use the sequences."""


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
    groups: ndarray | None = None,
) -> Iterator[Baseline]:
    """Fit all baselines for a kind of tokens (one of `KINDS`; `real` are series), one after the other.

    `parts` has the indices of the records of `training`, `validation` and `test`. Without sequences, only lengths are
    used; if all records have the same length, there is no length baseline. By default `k` is chosen on the validation
    part. `single` omits sets of several k-mer lengths, trees and neighbours. `words` splits a text into words;
    without it only characters are counted. With `groups` of the training records, cross-validation on these chooses
    where the validation part is small.

    >>> series = [np.full((n, 1), n % 2, dtype=np.float32) for n in range(2, 42)]
    >>> parts = {"training": range(20), "validation": range(20, 30), "test": range(30, 40)}
    >>> target, targets = Classification(["even", "odd"], [0, 1]), np.arange(40) % 2
    >>> baselines = list(fit_baselines(series, [len(s) for s in series], targets, parts, target, "real"))
    >>> [b.name for b in baselines], baselines[2].outputs.argmax(axis=1).tolist()
    (['majority class', 'length alone', 'series features'], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of tokens: give one of {', '.join(KINDS)}")
    indices = {part: np.asarray(parts[part], dtype=np.int64) for part in ("training", "validation", "test")}
    answers = {part: targets[rows] for part, rows in indices.items()}
    yield majority(answers, target)

    part_lengths = {part: np.asarray(lengths)[rows] for part, rows in indices.items()}
    if len(np.unique(part_lengths["training"])) > 1:
        sentence = f"{regression(target)} on the logarithm of the length, in {KNOTS + 1} straight pieces"
        yield linear("length alone", sentence, _length_features(part_lengths), answers, target)
    if sequences is None:
        return
    part_sequences = {part: [sequences[i] for i in rows.tolist()] for part, rows in indices.items()}
    data = Data(part_sequences["training"], part_sequences["validation"], answers, target, groups)
    records, tokens = len(part_sequences["training"]), int(part_lengths["training"].sum())
    sets = list(candidates(kind, records, tokens, k, single, words))
    yield from _content(sets, data, part_sequences["test"], neighbours=not (k or single))


def majority(answers: Mapping[str, ndarray], target: RecordTarget) -> Baseline:
    """The best constant prediction on the training part."""
    training = answers["training"]
    sentence = "the shares in the training part as probabilities, for every record"
    if isinstance(target, Regression):
        row, name, sentence = target.constant(training), "mean", "the mean of the training targets, for every record"
    elif isinstance(target, Classification):
        shares = np.bincount(training, minlength=target.outputs) / len(training)
        row, name = np.log(np.clip(shares, MIN_PROBABILITY, None)), "majority class"
    else:
        shares = np.clip(training.mean(axis=0, dtype=np.float64), 1e-6, 1 - 1e-6)
        row, name = np.log(shares / (1 - shares)), "label shares"
    if not isinstance(target, Regression):
        row = row - target.unweighted(np.zeros_like(row))  # with the class weights of the loss, which scores remove
    test, validation = (np.tile(row.astype(np.float32), (len(answers[p]), 1)) for p in ("test", "validation"))
    return Baseline(name, sentence, test, validation, loss_of(validation, answers["validation"], target))


def linear(
    name: str, sentence: str, features: Matrices, answers: Mapping[str, ndarray], target: RecordTarget
) -> Baseline:
    """Fit a linear model on features of the three parts; its regularisation is chosen on the validation part."""
    rows, fits = standardised(features), []
    with one_thread():
        for model in fit_linear(rows["training"], answers["training"], target, STRENGTHS):
            validation = as_outputs(model.scores(rows["validation"], target), target)
            fits.append((loss_of(validation, answers["validation"], target), validation, model))
    loss, validation, model = min(fits, key=lambda fit: fit[0])
    return Baseline(name, sentence, as_outputs(model.scores(rows["test"], target), target), validation, loss)


def standardised(features: Matrices) -> Matrices:
    """Scale features to mean 0 and standard deviation 1 on the training part."""
    mean, spread = features["training"].mean(axis=0), features["training"].std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1)
    return {part: ((rows - mean) / spread).astype(np.float32) for part, rows in features.items()}


def _length_features(lengths: Mapping[str, ndarray]) -> Matrices:
    """Basis of a piecewise linear spline: the logarithm of the length and its excess over each knot."""
    logs = {part: np.log(np.maximum(values, 1)) for part, values in lengths.items()}
    knots = np.unique(np.quantile(logs["training"], np.linspace(0, 1, KNOTS + 2)[1:-1]))
    return {part: np.maximum(values[:, None] - np.append(-1.0, knots), 0) for part, values in logs.items()}


# --- Features of sequences ---


def _content(sets: Sequence[Candidate], data: Data, test: Sequence[ndarray], neighbours: bool) -> Iterator[Baseline]:
    """Fit the best model of each family, and their combination if it lowers the validation loss."""
    choices, scores = choose(sets, data, neighbours), []
    for choice in choices:
        fitted = FittedBaseline(data.target, (choice.member,))
        scores.append(choice.member.scores(test, data.target))
        kind = "neighbours by " if choice.is_neighbours else "trees by " if choice.is_trees else ""
        name = f"{kind}{choice.candidate.name}"
        yield Baseline(
            name,
            choice.description + _options(sets, choice.judging is not data.answers["validation"]),
            fitted.combined(scores[-1:]),
            choice.outputs,
            choice.loss,
            fitted,
        )
    weights, shift, judged = _combination_weights(choices, data.target)
    if len(weights) > 1:
        used = [choices[i] for i in sorted(weights)]
        combination = FittedBaseline(
            data.target, tuple(choice.member for choice in used), tuple(weights[i] for i in sorted(weights)), shift
        )
        validation = combination.combined([choice.scores for choice in used])
        folded = choices[0].judging is not data.answers["validation"]
        loss = loss_of(judged if folded else validation, choices[0].judging, data.target)
        judge = "cross-validation on the training records" if folded else "the validation part"
        sentence = f"the {len(used)} models together, each with the weight that {judge} gives it"
        outputs = combination.combined([scores[i] for i in sorted(weights)])
        yield Baseline(_joined(used), sentence, outputs, validation, loss, combination)


def _combination_weights(chosen: Sequence[Choice], target: RecordTarget) -> tuple[dict[int, float], float, ndarray]:
    """The weight of each model, by its index, the shift of a number, and the combined outputs.

    The other models are added to the best one in the order of their losses, if that lowers the loss in
    cross-validation on the records that choose.
    """
    first, *others = sorted(range(len(chosen)), key=lambda i: chosen[i].loss)
    weights, shift, outputs = {first: 1.0}, 0.0, chosen[first].judged
    for i in others:
        combination = fit_weights(target, outputs, chosen[i].judged, chosen[i].judging)
        kept_weight, added_weight, added_shift = combination.weights["both"]
        if combination.using == "both" and kept_weight and added_weight:
            weights = {**{index: kept_weight * weight for index, weight in weights.items()}, i: added_weight}
            shift = kept_weight * shift + added_shift
            outputs = combination.outputs(target, outputs, chosen[i].judged)
    return weights, shift, outputs


def _joined(choices: Sequence[Choice]) -> str:
    """The name of a combination, such as '5-grams, words and neighbours'."""
    short = {1: "words", 2: "positions", 3: "trees", 4: "neighbours"}
    *names, last = (short.get(choice.family, choice.candidate.name) for choice in choices)
    return f"{', '.join(names)} and {last}"


def _options(sets: Sequence[Candidate], folded: bool) -> str:
    if len(sets) == 1:
        return ""
    how = f"{FOLDS}-fold cross-validation on the training records" if folded else "the validation loss"
    return f"; chosen from {len(sets)} sets of features by {how}"


# --- Variants ---


def fit_variant_baselines(task: Variants) -> Iterator[Baseline]:
    """Fit the baselines of variants: position alone, kind of change, and the letters around it."""
    data, parts = task.data, task.split.parts
    answers = {part: data.question.targets[rows] for part, rows in parts.items()}
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
            f"{fit} on the kind of change, the context, and {FLANK} letters on either side",
            np.hstack([changes, _letters(data)]),
        ),
    ):
        matrices = {part: features[rows] for part, rows in parts.items()}
        yield linear(name, sentence, matrices, answers, task.target)


def variant_kind(window: Window) -> str:
    """The kind of change of a variant.

    >>> from chordmixer.data.alleles import Window
    >>> variant_kind(Window("chr1", 0, 9, 4, "A", "T")), variant_kind(Window("chr1", 0, 9, 4, "A", "AT"))
    ('A>T', 'insertion')
    """
    growth = len(window.alt) - len(window.ref)
    if growth:
        return "insertion" if growth > 0 else "deletion"
    change = f"{window.ref}>{window.alt}"
    return change if change in VARIANT_KINDS else "other"


def _positions(data: VariantData) -> ndarray:
    contigs = data.alleles.reference.contigs
    position = np.array([(w.start + w.at) / contigs[w.contig].length for w in data.windows])
    return np.maximum(position[:, None] - np.linspace(0, 1, KNOTS + 2)[:-1], 0)


def _letters(data: VariantData) -> ndarray:
    """One-hot letters around each variant, four columns per position; zeros beyond the end of the contig."""
    rows = np.zeros((len(data.windows), 2 * FLANK + 1, 5), dtype=np.float32)
    for row, window in zip(rows, data.windows, strict=True):
        at = window.start + window.at
        start, stop = max(window.start, at - FLANK), min(window.stop, at + FLANK + 1)
        ids = data.alleles.letters.encode(data.alleles.reference.fetch(window.contig, start, stop))
        row[np.arange(start - at + FLANK, stop - at + FLANK), ids] = 1
    return rows[:, :, :4].reshape(len(rows), -1)
