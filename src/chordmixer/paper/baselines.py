"""Baselines of any task: those of files, and as much for records that a rule makes or a release holds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from chordmixer.data import Records, draws
from chordmixer.data.loading import MadeRecords
from chordmixer.data.splits import PARTS
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training import results
from chordmixer.training.baselines.candidates import SINGLE_LENGTHS
from chordmixer.training.baselines.features import Grams, gram_counts
from chordmixer.training.baselines.fitting import Baseline, fit_baselines, linear
from chordmixer.training.evaluation import Evaluation, Predictions
from chordmixer.training.experiment import Experiment
from chordmixer.training.results import LARGE_TOKENS

logger = logging.getLogger(__name__)

KINDS = {"fragments": "dna", "listops": "operations", "retrieval": "text", "text": "text"}
"""What the tokens of a task are; of any other, which has real numbers, lengths and answers alone are looked at."""
OWN = ("files", "masking", "variants")  # tasks whose baselines `results.compare` knows
TOKENS = 120_000_000
"""Of training records that are read, at most: some minutes. All of ListOps and Text, one in ten of AAN's pairs."""
STEP = 1_000_000  # tokens that are read at a time, about


def compare(run: Path | str, cache: Path | str | None = None, *, announce: bool = True) -> list[Evaluation]:
    """Score baselines on the test part of a run, by the model's own code; leaves baselines.json in its folder.

    Where the training records have more than `TOKENS`, so many of them are drawn, and the baselines' names say it.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    if experiment.task in OWN:
        return results.compare(folder, cache, announce=announce)
    task, kind = experiment.build_task(), KINDS.get(experiment.task, "real")
    target: Any = task.target  # one answer a record, all of them
    parts = {part: task.records(part) for part in PARTS}
    chosen = {part: np.arange(len(records.lengths)) for part, records in parts.items()}
    chosen["training"] = sample(parts["training"].lengths, TOKENS)
    if announce and sum(int(np.array(parts[part].lengths)[own].sum()) for part, own in chosen.items()) > LARGE_TOKENS:
        logger.info("baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines")
    read = {part: _read(parts[part], own, kind != "real") for part, own in chosen.items()}
    test, names = read["test"], [parts["test"].name(i) for i in chosen["test"].tolist()]
    stated = _stating(_baselines(read, target, kind), len(chosen["training"]), parts["training"])
    answered = (
        (own.name, own.sentence, Predictions(names, test.lengths, test.targets, own.outputs)) for own in stated
    )
    return results.write_baselines(folder, experiment, target, answered)


def sample(lengths: Sequence[int], tokens: int) -> ndarray:
    """Records of no more tokens than that, drawn without a look at them, in order; all where they fit.

    >>> sample([5, 5, 5, 5], 20).tolist(), len(sample([5, 5, 5, 5], 12)), len(sample([50, 50], 12))
    ([0, 1, 2, 3], 2, 1)
    """
    order = draws.permutation(draws.key("plain"), len(lengths)).numpy()
    fitting = int((np.cumsum(np.asarray(lengths)[order]) <= tokens).sum())
    return np.sort(order[: max(fitting, 1)])


class PartRead(NamedTuple):
    """What was read of a part's records."""

    sequences: list[ndarray]  # one after the other, two of each pair; none where they are not looked at
    lengths: ndarray
    targets: ndarray


def _read(records: Records, chosen: ndarray, symbols: bool) -> PartRead:
    """Some at a time, as training does: what a rule makes is made faster so."""
    lengths = np.array(records.lengths)[chosen]
    steps = np.flatnonzero(np.diff(np.cumsum(lengths) // STEP)) + 1
    sequences, targets = [], []
    for indices in np.split(chosen, steps):
        if isinstance(records, MadeRecords):
            inputs, answers = records.batch(indices.tolist(), torch.device("cpu"))
            sequences += inputs.to_list() if symbols else []
        else:
            own = [records[i] for i in indices.tolist()]
            sequences += [record.values for record in own] if symbols else []
            answers = torch.stack([record.target for record in own])
        targets.append(answers.numpy())
    return PartRead([sequence.numpy() for sequence in sequences], lengths, np.concatenate(targets))


def _baselines(read: Mapping[str, PartRead], target: Regression | Classification, kind: str) -> Iterator[Baseline]:
    ends = np.cumsum([0, *(len(own.lengths) for own in read.values())])
    parts = {part: np.arange(*ends[i : i + 2]) for i, part in enumerate(read)}
    sequences = [sequence for own in read.values() for sequence in own.sequences]
    lengths, targets = (np.concatenate([own[i] for own in read.values()]) for i in (1, 2))
    single = len(sequences) == len(lengths)
    yield from fit_baselines(sequences if single else None, lengths, targets, parts, target, kind, single=True)
    if sequences and not single:
        yield in_common(sequences, {part: targets[own] for part, own in parts.items()}, parts, target)


def in_common(
    sequences: Sequence[ndarray],
    answers: Mapping[str, ndarray],
    parts: Mapping[str, ndarray],
    target: Regression | Classification,
) -> Baseline:
    """How alike the two texts of a pair are: pair i has the sequences 2i and 2i + 1."""
    grams = Grams(SINGLE_LENGTHS["text"][0])
    both = {part: (2 * own[:, None] + [0, 1]).ravel() for part, own in parts.items()}
    alike: dict[str, Any] = {
        part: np.asarray(rows[::2].multiply(rows[1::2]).sum(axis=1)).reshape(-1, 1)
        for part, rows in gram_counts(sequences, both, grams).items()
    }
    sentence = (
        f"logistic regression on the cosine between the two texts' hashed counts of {grams.k}-grams, weighted by how "
        "rare each is (TF-IDF)"
    )
    return linear(f"{grams.k}-grams in common", sentence, alike, answers, target)


def _stating(baselines: Iterator[Baseline], used: int, training: Records) -> Iterator[Baseline]:
    """With the number of training records, where some were left out."""
    every = len(training.lengths)
    for own in baselines:
        if used < every:
            said = f"{own.sentence}, fitted on {used:,} of {every:,} training records"
            own = replace(own, name=f"{own.name} ({used:,} records)", sentence=said)
        yield own
