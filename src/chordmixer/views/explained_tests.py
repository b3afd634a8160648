"""Explanations of a few test records of a run, for its report: made once, when the run is trained.

They are kept in the run folder as explanations.json, so that the report needs neither the data nor the network. The
work has a bound, which depends on nothing but the sizes, so that the same run gives the same file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from torch import nn

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.entries import Entry
from chordmixer.tasks.files import Files
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.answers import Answers
from chordmixer.training.attribution import from_tokens
from chordmixer.training.ensemble_inference import open_run
from chordmixer.training.evaluation import Predictions, predictions_file
from chordmixer.training.experiment import Experiment
from chordmixer.training.explanation import BLOCKS, explain, members_of
from chordmixer.training.inference import Trained
from chordmixer.training.run_folder import EXPLANATIONS, WAIT, RunLock
from chordmixer.views import metrics
from chordmixer.views.explanations import Explained, Picture
from chordmixer.views.page import short

RIGHT = 3
"""Records that are answered right, each of another class; one that is answered wrong comes behind them."""
LEAST = 16
"""Blocks that a record is hidden in, at least: records too long for that are left out."""
WORK, TOKENS = 15e9, 150_000
"""Multiplications, and tokens answered, at most: about three seconds of one core."""
SERIES = 100_000
"""Multiplications of the baseline of series for each sample, about."""


class Chosen(NamedTuple):
    """A test record to explain."""

    record: int
    label: str | None
    """The class or label to explain; None: the number."""
    said: str


def explain_tests(run: Path | str, cache: Path | str | None = None) -> Explained:
    """Explain some test records of a run on files, and write explanations.json into its folder."""
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    task: Any = experiment.build_task()
    if not isinstance(task, Files):
        raise ValueError(f"{folder} is a run of {experiment.task}: only runs on files are explained")
    engine = open_run(folder, "cpu" if experiment.training.device == "cpu" else None)
    predictions = Predictions.read(folder / predictions_file("test"))
    allowed = affordable(engine)
    longest = allowed // ((RIGHT + 1) * (LEAST + 1))
    chosen = [*choose(engine.answers, predictions, predictions.lengths <= longest)]
    tokens = task.tokens("test")
    total = sum(len(tokens[own.record]) for own in chosen)
    blocks = min(BLOCKS, allowed // max(total, 1) - 1)
    pictures = []
    for own in chosen:
        name = predictions.names[own.record]
        entry = Entry(name, from_tokens(tokens[own.record], engine.tokenizer), f"test record {name}")
        pictures += [
            Picture.of(found, own.said) for found in explain(engine, [entry], target=own.label, blocks=blocks)
        ]
    made = Explained(tuple(pictures), (*_said(predictions.lengths, longest, blocks, bool(chosen)),))
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {EXPLANATIONS: files.json_bytes(to_dict(made))})
    return made


def affordable(engine: Trained) -> int:
    """Tokens that may be answered."""
    cost = 0
    for own in members_of(engine):
        if own.network:
            parts: list[nn.Module | None] = [own.model.encoder, own.model.stem]
            weights = sum(p.numel() for part in parts if part is not None for p in part.parameters())
            cost += weights * (2 if own.both_strands else 1)
        if own.delivery is not None and own.delivery.using != "network" and own.tokenizer.dtype.kind == "f":
            cost += SERIES
    return int(min(TOKENS / len(members_of(engine)), WORK / max(cost, 1)))


def _said(lengths: ndarray, longest: int, blocks: int, some: bool) -> Iterator[str]:
    if some:
        yield (
            f"Each record was cut into {blocks} parts or fewer; each part was hidden in turn, and the run was asked "
            "again."
        )
    if left_out := int((lengths > longest).sum()):
        yield (
            f"{left_out:,} of {len(lengths):,} test records are left out, being longer than {longest:,} tokens; "
            "chordmixer explain takes any."
        )


# --- Which records --------------------------------------------------------------------------------------


def choose(answers: Answers, predictions: Predictions, fits: ndarray) -> Iterator[Chosen]:
    """Of those that fit: the most confident right answer of up to three classes, and the most confident wrong one.

    Of labels the same, by label. Of numbers the largest and the smallest predicted, and the one farthest off.
    """
    target = answers.target
    if isinstance(target, Regression):
        yield from _numbers(target, predictions, fits)
        return
    shares, decided = answers.probabilities(predictions.outputs), target.decided(predictions.outputs)
    true, given = predictions.targets > 0.5, decided
    if isinstance(target, Classification):
        classes = np.arange(target.outputs)
        true, given = predictions.targets[:, None] == classes, decided[:, None] == classes
    right = np.where(true & given & fits[:, None], shares, -1)
    wrong = np.where(~true & given & fits[:, None], shares, -1)
    frequent = np.argsort(-true.sum(axis=0), kind="stable")
    for label in [k for k in frequent.tolist() if right[:, k].max(initial=-1) >= 0][:RIGHT]:
        yield Chosen(int(right[:, label].argmax()), target.labels[label], "That is right.")
    if wrong.max(initial=-1) >= 0:
        index, label = divmod(int(wrong.argmax()), target.outputs)
        known = "the record does not have this label"
        if isinstance(target, Classification):
            known = f"the record's class is {short(target.labels[int(predictions.targets[index])], 60)}"
        yield Chosen(index, target.labels[label], f"That is wrong: {known}.")


def _numbers(target: Regression, predictions: Predictions, fits: ndarray) -> Iterator[Chosen]:
    given, truth = target.values(predictions.outputs).astype(np.float64), predictions.targets.astype(np.float64)
    if not fits.any():
        return
    found = {
        "The largest prediction": np.where(fits, given, -np.inf).argmax(),
        "The smallest prediction": np.where(fits, -given, -np.inf).argmax(),
        "The prediction that is farthest off": np.where(fits, np.abs(given - truth), -np.inf).argmax(),
    }
    for index in dict.fromkeys(int(own) for own in found.values()):
        name = next(name for name, own in found.items() if own == index)
        yield Chosen(index, None, f"{name}; true is {metrics.number(truth[index])}.")
