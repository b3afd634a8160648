"""Baselines for variants, on a run's own split: where a change is, what it is, what stands around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy import ndarray

from chordmixer.data.alleles import Window
from chordmixer.tasks.variants import VariantData, Variants
from chordmixer.terminal import tell
from chordmixer.training.baselines.choosing import regression
from chordmixer.training.baselines.fitting import Baseline, linear, majority
from chordmixer.training.evaluation import Evaluation, Predictions
from chordmixer.training.experiment import Experiment
from chordmixer.training.outcome import write_baselines

AROUND = 8
"""Letters on either side of a variant."""
KNOTS = 8
"""Places at which the slope of the position may change."""
KINDS = (*(f"{r}>{a}" for r in "ACGT" for a in "ACGT" if r != a), "insertion", "deletion", "other")


def compare(run: Path | str, say: Callable[[str], None] = tell, cache: Path | str | None = None) -> list[Evaluation]:
    """Score them on the test part by the model's own code; leaves baselines.json in the run folder."""
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    task = experiment.build_task()
    if not isinstance(task, Variants):
        raise ValueError(f"{folder} is a run of {experiment.task}: give one of chordmixer variants")
    test = task.records("test")
    names, lengths = [test.name(i) for i in range(len(test))], np.array(test.lengths)
    answered = (
        (
            own.name,
            own.sentence,
            Predictions(names, lengths, test.targets.numpy(), own.outputs, task.groups("test")),
        )
        for own in baselines(task)
    )
    return write_baselines(folder, experiment, task.target, answered)


def baselines(task: Variants) -> Iterator[Baseline]:
    """One after the other; each answers the test part in the model's layout."""
    data, parts = task.data, task.split.parts
    answers = {part: data.question.targets[own] for part, own in parts.items()}
    yield majority(answers, task.target)

    fit = regression(task.target)
    contexts = np.eye(max(1, len(data.contexts)))[data.context]
    kinds = np.eye(len(KINDS))[[KINDS.index(kind(window)) for window in data.windows]]
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


def kind(window: Window) -> str:
    """What a variant does.

    >>> kind(Window("chr1", 0, 9, 4, "A", "T")), kind(Window("chr1", 0, 9, 4, "A", "AT"))
    ('A>T', 'insertion')
    """
    grown = len(window.alt) - len(window.ref)
    if grown:
        return "insertion" if grown > 0 else "deletion"
    change = f"{window.ref}>{window.alt}"
    return change if change in KINDS else "other"


def _positions(data: VariantData) -> ndarray:
    contigs = data.alleles.reference.contigs
    place = np.array([(w.start + w.at) / contigs[w.contig].length for w in data.windows])
    return np.maximum(place[:, None] - np.linspace(0, 1, KNOTS + 2)[:-1], 0)


def _letters(data: VariantData) -> ndarray:
    """A, C, G or T at each place around, as four columns a place; none of them beyond a contig's end."""
    rows = np.zeros((len(data.windows), 2 * AROUND + 1, 5), dtype=np.float32)
    for row, window in zip(rows, data.windows, strict=True):
        at = window.start + window.at
        start, stop = max(window.start, at - AROUND), min(window.stop, at + AROUND + 1)
        ids = data.alleles.letters.encode(data.alleles.reference.fetch(window.contig, start, stop))
        row[np.arange(start - at + AROUND, stop - at + AROUND), ids] = 1
    return rows[:, :, :4].reshape(len(rows), -1)
