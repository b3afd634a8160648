"""What a run amounts to, in plain sentences: what was learnt, how well, beside what plain means can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.calibration import COLDEST, HOTTEST
from chordmixer.training.delivery import NETWORK
from chordmixer.training.ensemble import Ensemble
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.intervals import Difference
from chordmixer.training.ladder import DELIVERED, LOCAL, NETWORKS, Step
from chordmixer.views import inspection, metrics
from chordmixer.views.page import short
from chordmixer.views.runs import Run, Scored

FEW = 100
"""Test records below which intervals are said to be wide."""


def asked(run: Run) -> str:
    """What the model is for, as the end of a sentence that begins with `trained to`."""
    if run.task == "adding":
        return "add the two marked numbers of a sequence (the Adding problem)"
    if isinstance(run.target, Classification):
        if len(run.labels) == 2:
            first, second = (short(label, 40) for label in run.labels)
            return f"tell {second} from {first}"
        return f"tell {len(run.labels):,} classes apart"
    if isinstance(run.target, MultiLabel):
        return f"say which of {len(run.labels):,} labels a sequence has"
    return "predict a number from a sequence"


def headline(run: Run) -> Iterator[str]:
    """One sentence on the model, one on who answers, one on the best baseline, what the data need, and guessing."""
    if run.test is None:
        yield (
            f"A model to {asked(run)}; this folder holds no test scores yet (evaluation-test.json is missing): "
            f"train to the end, or run chordmixer evaluate {run.folder}."
        )
        return
    metric = run.test.headline
    own = run.test.scores[metric]
    yield (
        f"The model was trained to {asked(run)}; on {run.test.records:,} test records it reaches "
        f"{metrics.name(metric)} {metrics.sentence(own)}."
    )
    yield from _delivered(run)
    yield from together(run)
    best = best_baseline(run.baselines, metric)
    if best:
        reached = metrics.number(best.evaluation.scores[metric].value)
        worse = best.difference is not None and best.difference.high is not None and best.difference.high < 0
        cure = " Use the baseline" + (" (--using baseline)" if run.delivered else "") + ", or train differently."
        yield (
            f"The best baseline, {short(best.name, 60)}, reaches {reached}. {compared(best.difference)}."
            f"{cure if worse else ''}"
        )
    yield from needed(run.ladder)
    yield from _beside_guessing(run.test)


def _delivered(run: Run) -> Iterator[str]:
    """Who answers, and why."""
    known = run.delivered
    if known is None:
        return
    baseline = short(known.baseline, 60)
    who = {
        "network": "the network alone",
        "baseline": f"the baseline, {baseline}",
        "both": f"network and {baseline} together",
    }
    yield (
        f"Its answers are those of {who[known.using]}, as the validation records chose: loss "
        f"{known.losses['network']:.3f} of the network, {known.losses['baseline']:.3f} of {baseline}, "
        f"{known.losses['both']:.3f} of both."
    )


def together(run: Run) -> Iterator[str]:
    """How good the members of an ensemble are, and how far apart."""
    known = run.ensemble
    if known is None:
        return
    name = metrics.name(known.metric)
    if run.held_out and known.kind == "folds" and known.metric in run.held_out.scores:
        yield (
            f"{known.size}-fold cross-validation on {run.held_out.records:,} records of training and validation: "
            f"{name} {metrics.sentence(run.held_out.scores[known.metric])}; "
            f"{_spread(known, 'validation')} over the folds."
        )
    what = "folds" if known.kind == "folds" else "seeds"
    yield (
        f"Its answers are the mean of {known.size} members. {metrics.title(known.metric)} of single members on the "
        f"test records: {_spread(known, 'test')} over the {what}."
    )


def _spread(known: Ensemble, part: Literal["validation", "test"]) -> str:
    mean, deviation = known.spread(part)
    return f"mean {metrics.number(mean)} and standard deviation {metrics.number(deviation)}"


def needed(ladder: Sequence[Step]) -> Iterator[str]:
    """What the data need, from what each step adds to the one before.

    >>> gain = Difference("accuracy", 0.021, 0.010, 0.032, "records")
    >>> list(needed([Step("6-mers"), Step("local network", gain), Step("network alone", gain)]))
    ['Local patterns add 0.021 (0.010 to 0.032) to 6-mers.', 'Long-range structure adds 0.021 (0.010 to 0.032).']
    """
    for before, step in pairwise(ladder):
        if step.gain is None or step.gain.low is None or step.gain.high is None:
            yield f"There are too few test records to tell {step.name} from {short(before.name, 60)}."
            continue
        sign = 1 if step.gain.low > 0 else -1 if step.gain.high < 0 else 0
        low, high = sorted((abs(step.gain.low), abs(step.gain.high)))
        by = f"{metrics.number(abs(step.gain.value))} ({metrics.number(low)} to {metrics.number(high)})"
        yield _NEEDS[step.name if before.name == LOCAL or step.name != NETWORK else NETWORK_ONLY][sign].format(
            by=by, before=short(before.name, 60)
        )


NETWORK_ONLY = "network over baseline"
_NEEDS = {
    LOCAL: {
        1: "Local patterns add {by} to {before}.",
        0: "A local network and {before} are level: counts are enough for local patterns.",
        -1: "A local network is worse than {before} by {by}: counts are enough for local patterns.",
    },
    NETWORK: {
        1: "Long-range structure adds {by}.",
        0: "Local patterns are enough: long-range structure adds nothing that this test set can show.",
        -1: "Local patterns are enough: the whole network is worse by {by}.",
    },
    NETWORK_ONLY: {
        1: "The network alone adds {by} to {before}.",
        0: "The network alone and {before} are level; --ladder would tell local patterns from long range.",
        -1: "The network alone is worse than {before} by {by}: counts tell more here, or there are too few records.",
    },
    DELIVERED: {
        1: "Both together add {by} to the network alone.",
        0: "Both together are level with the network alone.",
        -1: "Both together are worse than the network alone by {by}: ask for it with --using network.",
    },
}
"""What is said of a step that adds, changes nothing, or takes away."""


def best_baseline(baselines: Sequence[Scored], metric: str) -> Scored | None:
    """The one with the highest value of a headline metric, of which more is better."""
    known = [b for b in baselines if metric in b.evaluation.scores and b.name not in NETWORKS]
    known = [b for b in known if math.isfinite(b.evaluation.scores[metric].value)]
    return max(known, key=lambda b: b.evaluation.scores[metric].value, default=None)


def compared(difference: Difference | None, name: str = "") -> str:
    """How a model stands to a baseline on the same records: the one place that says who wins.

    >>> compared(Difference("roc_auc", 0.043, 0.020, 0.065, "records"))
    'The model is better by 0.043 (0.020 to 0.065)'
    >>> compared(Difference("roc_auc", 0.010, -0.020, 0.041, "records"))
    'Tied: the test set cannot separate them'
    """
    beside = f" with {name}" if name else ""
    if difference is None:
        return f"No comparison on the same records is kept{beside}"
    if difference.low is None or difference.high is None:
        return f"Too few test records for a comparison{beside}"
    if difference.low <= 0 <= difference.high:
        return f"Tied{beside}: the test set cannot separate them"
    sign, word = (1, "better") if difference.low > 0 else (-1, "worse")
    low, high = sorted((sign * difference.low, sign * difference.high))
    drawn = ", resampling groups" if difference.over == "groups" else ""
    by = f"{metrics.number(sign * difference.value)} ({metrics.number(low)} to {metrics.number(high)}{drawn})"
    return f"{name or 'The model'} is {word} by {by}"


def _beside_guessing(test: Evaluation) -> Iterator[str]:
    guess, own = test.guessing.get(test.headline, math.nan), test.scores[test.headline]
    if not math.isfinite(guess):
        return
    said = f"A constant prediction would reach {metrics.number(guess)}"
    if own.low is None or own.low > guess:
        yield f"{said}."
    else:
        yield (
            f"{said}, which is not below the model's interval: the model has not been shown to have learnt anything."
        )


def warnings(run: Run) -> Iterator[str]:
    """What may mislead who reads the scores."""
    if run.data and run.data.inspection:
        yield from inspection.warnings(run.data.inspection)
    for part, leak in (run.data.leakage if run.data else {}).items():
        if leak.total:
            yield (
                f"{leak.total:,} of {leak.records:,} {part} records have a copy or near-copy among the training "
                "records: scores on them are partly recall; split by group or similarity to keep copies together."
            )
    if run.test and run.test.records < FEW:
        yield f"The test part has only {run.test.records:,} records: the intervals are wide; go by them."
    heat = run.answers.temperature if run.answers else None
    if heat is not None and not COLDEST * 1.01 < heat < HOTTEST * 0.99:
        yield (
            f"The temperature {heat:.3g} is at the end of what is tried: the probabilities are not to be trusted; "
            "give more validation records."
        )
