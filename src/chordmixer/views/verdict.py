"""Summarise a run in sentences: its task, its scores compared with baselines, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from chordmixer.tasks.scores import BY_CLASS
from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.combination import NETWORK
from chordmixer.training.ensemble import Ensemble
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.intervals import Difference, Score
from chordmixer.training.labels import COLDEST, HOTTEST
from chordmixer.training.results import DELIVERED, LOCAL, NETWORKS, LadderStep
from chordmixer.views import inspection, metrics
from chordmixer.views.page import short
from chordmixer.views.runs import Run, Scored

MIN_TEST_RECORDS = 100  # number of test records below which a warning says that intervals are wide


def purpose(run: Run) -> str:
    """The purpose of the model, to complete a sentence that begins with `trained to`."""
    if run.task == "adding":
        return "add the two marked numbers of a sequence (the Adding problem)"
    if isinstance(run.target, Classification):
        if len(run.labels) == 2:
            first, second = (short(label, 40) for label in run.labels)
            return f"distinguish {second} from {first}"
        return f"distinguish {len(run.labels):,} classes"
    if isinstance(run.target, MultiLabel):
        return f"predict which of {len(run.labels):,} labels a sequence has"
    return "predict a number from a sequence"


def headline(run: Run) -> Iterator[str]:
    """Sentences on the model, on what is delivered, the best baseline, the ladder and the constant prediction."""
    if run.test is None:
        yield (
            f"A model to {purpose(run)}; this folder holds no test scores yet (evaluation-test.json is missing): "
            f"train to the end, or run chordmixer evaluate {run.folder}."
        )
        return
    metric = run.test.headline
    yield (
        f"The model was trained to {purpose(run)}; on {run.test.records:,} test records it reaches "
        f"{metrics.name(metric)} {metrics.sentence(run.test.scores[metric])}."
    )
    yield from _delivered(run)
    yield from ensemble_sentences(run)
    cure = "Use the baseline" + (" (--using baseline)" if run.delivered else "") + ", or train differently."
    yield from baseline_sentence(run.baselines, metric, cure)
    yield from ladder_sentences(run.ladder)
    yield from _constant_prediction(run.test)


def _delivered(run: Run) -> Iterator[str]:
    """A sentence on whether network, baseline or both predict, and why."""
    document = run.delivered
    if document is None:
        return
    baseline = short(document.baseline, 60)
    names = {
        "network": "the network alone",
        "baseline": f"a baseline ({baseline})",
        "both": f"the network and a baseline ({baseline}) together",
    }
    lowest = document.losses[document.using] <= min(document.losses.values())
    why = "by the validation loss" if lowest else "since neither alone is clearly better on the validation records"
    yield (
        f"Predictions are made by {names[document.using]}, {why}: "
        f"{document.losses['network']:.3f} for the network, {document.losses['baseline']:.3f} for the baseline, "
        f"{document.losses['both']:.3f} for both."
    )


def ensemble_sentences(run: Run) -> Iterator[str]:
    """Sentences on the scores of the members of an ensemble, and their spread."""
    ensemble = run.ensemble
    if ensemble is None:
        return
    name = metrics.name(ensemble.metric)
    if run.held_out and ensemble.kind == "folds" and ensemble.metric in run.held_out.scores:
        yield (
            f"{ensemble.size}-fold cross-validation on {run.held_out.records:,} records of training and validation: "
            f"{name} {metrics.sentence(run.held_out.scores[ensemble.metric])}; "
            f"{_spread(ensemble, 'validation')} over the folds."
        )
    noun = "folds" if ensemble.kind == "folds" else "seeds"
    yield (
        f"Predictions are the mean of {ensemble.size} members. {metrics.title(ensemble.metric)} of single members on "
        f"the test records: {_spread(ensemble, 'test')} over the {noun}."
    )


def _spread(ensemble: Ensemble, part: Literal["validation", "test"]) -> str:
    mean, deviation = ensemble.spread(part)
    return f"mean {metrics.number(mean)} and standard deviation {metrics.number(deviation)}"


def ladder_sentences(ladder: Sequence[LadderStep]) -> Iterator[str]:
    """Sentences on the gain of each step of the ladder over the previous one.

    >>> gain = Difference("accuracy", 0.021, 0.010, 0.032, "records")
    >>> steps = [LadderStep("6-mers"), LadderStep("local network", gain), LadderStep("network alone", gain)]
    >>> list(ladder_sentences(steps))
    ['Local patterns add 0.021 (0.010 to 0.032) to 6-mers.', 'Long-range structure adds 0.021 (0.010 to 0.032).']
    """
    for previous, step in pairwise(ladder):
        sign, by = _outcome(step.gain)
        if sign is None:
            records = _records(step.gain)
            yield f"There are too few {records} to compare {step.name} with {short(previous.name, 60)}."
            continue
        sentences = _STEPS[step.name if previous.name == LOCAL or step.name != NETWORK else NETWORK_ONLY]
        yield sentences[sign].format(by=by, before=short(previous.name, 60))


NETWORK_ONLY = "network over baseline"
_STEPS = {
    LOCAL: {
        1: "Local patterns add {by} to {before}.",
        0: "A local network and {before} are tied: counts are enough for local patterns.",
        -1: "A local network is worse than {before} by {by}: counts are enough for local patterns.",
    },
    NETWORK: {
        1: "Long-range structure adds {by}.",
        0: "Local patterns are enough: the test set shows no gain from long-range structure.",
        -1: "Local patterns are enough: the whole network is worse by {by}.",
    },
    NETWORK_ONLY: {
        1: "The network alone adds {by} to {before}.",
        0: "The network alone and {before} are tied; --ladder separates local patterns from long range.",
        -1: "The network alone is worse than {before} by {by}: counts say more here, or there are too few records.",
    },
    DELIVERED: {
        1: "Combining both adds {by} to the network alone.",
        0: "Both combined and the network alone are tied.",
        -1: "Both combined are worse than the network alone by {by}: choose it with --using network.",
    },
}
"""Sentences on a step of the ladder that gains (1), is tied (0), or loses (-1)."""


def best_baseline(baselines: Sequence[Scored], metric: str) -> Scored | None:
    """The baseline with the highest value of a headline metric; networks are not included."""
    scored = [b for b in baselines if metric in b.evaluation.scores and b.name not in NETWORKS]
    scored = [b for b in scored if math.isfinite(b.evaluation.scores[metric].value)]
    return max(scored, key=lambda b: b.evaluation.scores[metric].value, default=None)


def baseline_sentence(baselines: Sequence[Scored], metric: str, cure: str) -> Iterator[str]:
    """Compare the model with the best baseline; `cure` says what to do if it is worse."""
    best = best_baseline(baselines, metric)
    if best is not None:
        score = metrics.number(best.evaluation.scores[metric].value)
        worse = _outcome(best.difference)[0] == -1
        yield (
            f"The best baseline, {short(best.name, 60)}, reaches {score}. {compared(best.difference)}."
            f"{f' {cure}' if worse else ''}"
        )


def compared(difference: Difference | None, name: str = "") -> str:
    """Describe how a model compares with a baseline on the same records. All verdicts are worded here.

    >>> compared(Difference("roc_auc", 0.043, 0.020, 0.065, "records"))
    'The model is better by 0.043 (0.020 to 0.065)'
    >>> compared(Difference("roc_auc", 0.010, -0.020, 0.041, "records"))
    'Tied: the test set cannot separate them'
    """
    model = f" with {name}" if name else ""
    if difference is None:
        return f"No comparison on the same records is kept{model}"
    sign, by = _outcome(difference)
    if sign is None:
        return f"Too few {_records(difference)} for a comparison{model}"
    if sign == 0:
        return f"Tied{model}: the test set cannot separate them"
    return f"{name or 'The model'} is {'better' if sign > 0 else 'worse'} by {by}"


def _records(difference: Difference | None) -> str:
    """What a comparison needs more of."""
    return "test records" + (" of each class" if difference and difference.metric in BY_CLASS else "")


def _outcome(difference: Difference | None) -> tuple[int | None, str]:
    """The sign of a difference (1 better, 0 tied, -1 worse, None unknown) and its size, with the interval."""
    if difference is None or difference.low is None or difference.high is None:
        return None, ""
    sign = 1 if difference.low > 0 else -1 if difference.high < 0 else 0
    low, high = sorted((abs(difference.low), abs(difference.high)))
    resampled = ", resampling groups" if difference.over == "groups" else ""
    value, interval = metrics.texts(Score(abs(difference.value), low, high))
    return sign, f"{value} ({interval}{resampled})"


def _constant_prediction(test: Evaluation) -> Iterator[str]:
    guess, score = test.guessing.get(test.headline, math.nan), test.scores[test.headline]
    if math.isfinite(guess):
        doubt = (
            ", which is not below the model's interval: the test set does not show that the model learned anything"
            if score.low is not None and score.low <= guess
            else ""
        )
        yield f"A constant prediction reaches {metrics.number(guess)}{doubt}."


def warnings(run: Run) -> Iterator[str]:
    """Warnings about what may mislead a reader of the scores."""
    if run.data and run.data.inspection:
        yield from inspection.warnings(run.data.inspection)
    for part, leak in (run.data.leakage if run.data else {}).items():
        if leak.total:
            yield (
                f"{leak.total:,} of {leak.records:,} {part} records {'has' if leak.total == 1 else 'have'} a copy or "
                "near-copy among the training records: scores on these partly show recall; --split similarity keeps "
                "copies together."
            )
    if run.test and run.test.records < MIN_TEST_RECORDS:
        yield f"There are only {run.test.records:,} test records: the intervals are wide; rely on them."
    heat = run.output_labels.temperature if run.output_labels else None
    if heat is not None and not COLDEST * 1.01 < heat < HOTTEST * 0.99:
        yield (
            f"The temperature {heat:.3g} is at the end of its range: the probabilities are not reliable; give more "
            "validation records."
        )
