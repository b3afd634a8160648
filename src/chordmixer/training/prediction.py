"""A trained run on files: a row a record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import outputs
from chordmixer.training.answers import Answers
from chordmixer.training.combination import Using
from chordmixer.training.ensemble_inference import open_run
from chordmixer.training.inference import Item, OnBad, OverLength, Piece
from chordmixer.training.rows import RECORD, Work, to_stderr, unlabelled

UNCLASSIFIED = "unclassified"
KINDS = ("-", ".tsv", ".csv", ".jsonl", ".parquet")


def predict(
    run: Path | str,
    paths: Sequence[Path | str],
    out: Path | str = "-",
    *,
    min_confidence: float | None = None,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    reading: Reading | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    safe_cells: bool = False,
    using: Using | None = None,
    resume: bool = False,
    force: bool = False,
    unverified: bool = False,
    say: Callable[[str], None] = to_stderr,
) -> Account:
    """Write a row a record, in the order of the input, to a .tsv, .csv, .jsonl or .parquet file, or as TSV for `-`.

    Columns: id, length, windows; then for classes the most probable one with its calibrated probability, and that of
    each class under its name; for several labels those above 0.5, and the probability of each; or the value. A class
    that is called as another column is has the column p(NAME). Ids and classes stay as they are, unless `safe_cells`
    puts an apostrophe before those that a spreadsheet would run as formulas (TSV and CSV).
    A record above the model's max_length is an error, or with `over_length="windows"` cut into windows of max_length
    that overlap by half: its outputs are the mean of the windows', each weighted by its length. With
    `over_length="reject"` it has no row and stands in the account.
    Answers are those that the run delivers, by its network, its baseline or both; `using` asks for one of these.
    Labels that stand in the files are not looked at. Records read = rows + those that the account has as rejected.
    """
    outputs.check_cells(out, safe_cells)
    if not outputs.check(out, paths, KINDS, resume, force):
        say(f"{out} is whole already: nothing is left to do")
        return Account()
    trained = open_run(run, device, batch_tokens, using=using, unverified=unverified)
    _check_confidence(min_confidence, trained.answers)
    schema = schema_of(trained.answers)

    def rows(window: Sequence[Item], pieces: Sequence[Piece]) -> list[Any]:
        return columns_of(trained.answers, trained.outputs(window, pieces), min_confidence)

    work = Work(trained, paths, unlabelled(reading or Reading()), over_length, on_bad, say)
    settings = {"min_confidence": min_confidence, "safe_cells": safe_cells}
    return work.write(out, schema, rows, settings, resume=resume, force=force)


# --- Columns ---


def schema_of(answers: Answers, first: Mapping[str, pa.DataType] = RECORD) -> pa.Schema:
    """The columns of an answer behind those of a record, or others that come `first`."""
    target = answers.target
    if isinstance(target, Regression):
        return pa.schema({**first, "value": pa.float64()})
    own = {"class": pa.string(), "probability": pa.float64()}
    if isinstance(target, MultiLabel):
        own = {"labels": pa.list_(pa.string())}
    fixed = {**first, **own}
    names = column_names(target.labels, {*fixed, "labels", "value"})
    return pa.schema({**fixed, **dict.fromkeys(names, pa.float64())})


def column_names(labels: Sequence[str], taken: Collection[str]) -> list[str]:
    """A column for each label: its name, or p(NAME) where that is taken, or p(p(NAME)) and so on.

    >>> column_names(["class", "p(class)", "worm"], {"id", "class"})
    ['p(p(class))', 'p(class)', 'worm']
    """
    used, found = {*taken, *labels}, []
    for label in labels:
        name = label
        while name in taken or (name != label and name in used):
            name = f"p({name})"
        used.add(name)
        found.append(name)
    return found


def columns_of(answers: Answers, given: ndarray, min_confidence: float | None) -> list[Any]:
    """The answers' columns; numbers are rounded here, so that all formats hold the same."""
    target = answers.target
    if isinstance(target, Regression):
        return [[target.rounded(value) for value in target.values(given).tolist()]]
    shares = answers.probabilities(given)
    shown = [[round(share, 6) for share in column] for column in shares.T.tolist()]
    if isinstance(target, MultiLabel):
        return [[[target.labels[k] for k in np.flatnonzero(row > 0.5)] for row in shares], *shown]
    best = shares.argmax(axis=1).tolist()
    sure = shares.max(axis=1) >= (min_confidence or 0)
    classes = [target.labels[k] if known else UNCLASSIFIED for k, known in zip(best, sure, strict=True)]
    return [classes, [shown[k][row] for row, k in enumerate(best)], *shown]


def _check_confidence(least: float | None, answers: Answers) -> None:
    if least is None:
        return
    if not isinstance(answers.target, Classification):
        raise ValueError("--min-confidence is for a choice between classes: this run gives none; leave it out")
    if not 0 <= least <= 1:
        raise ValueError(f"--min-confidence {least:g} is not a probability: give one from 0 to 1")
