"""A trained run on files that it has not seen: a row a record, or its scores where the files have labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import outputs
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Evaluation, Predictions, summarise
from chordmixer.training.experiment import Experiment
from chordmixer.training.inference import Item, OnBad, OverLength, Piece, Trained, check_choice
from chordmixer.training.rows import RECORD, Work, to_stderr, unlabelled

UNCLASSIFIED = "unclassified"
KINDS = ("-", ".tsv", ".jsonl", ".parquet")


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
    resume: bool = False,
    force: bool = False,
    say: Callable[[str], None] = to_stderr,
) -> Account:
    """Write a row a record, in the order of the input, to a .tsv, .jsonl or .parquet file, or as TSV for `-`.

    Columns: id, length, windows; then for classes the most probable one with its calibrated probability, and that of
    each class under its name; for several labels those above 0.5, and the probability of each; or the value.
    A record above the model's max_length is an error, or with `over_length="windows"` cut into windows of max_length
    that overlap by half: its outputs are the mean of the windows', each weighted by its length.
    Labels that stand in the files are not looked at. Records read = rows + those that the account has as rejected.
    """
    if not outputs.check(out, paths, KINDS, resume, force):
        say(f"{out} is whole already: nothing is left to do")
        return Account()
    trained = Trained(run, device, batch_tokens)
    _check_confidence(min_confidence, trained.answers)
    schema = schema_of(trained.answers)

    def rows(window: Sequence[Item], pieces: Sequence[Piece]) -> list[Any]:
        return columns_of(trained.answers, trained.outputs(window, pieces), min_confidence)

    work = Work(trained, paths, unlabelled(reading or Reading()), over_length, on_bad, say)
    return work.write(out, schema, rows, {"min_confidence": min_confidence}, resume=resume, force=force)


def evaluate_files(
    run: Path | str,
    paths: Sequence[Path | str],
    *,
    reading: Reading | None = None,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    account: Account | None = None,
    say: Callable[[str], None] = to_stderr,
) -> Evaluation:
    """Score a run on new files with labels, as it was scored on its own test set; the split is called `files`.

    A record without a label is an error, or with `on_unmatched="reject"` of the reading left out; where a record may
    have several labels, none is an answer too.
    """
    check_choice("over_length", over_length, get_args(OverLength))
    check_choice("on_bad", on_bad, (None, *get_args(OnBad)))
    trained, reading = Trained(run, device, batch_tokens), reading or Reading()
    target, separator = trained.answers.target, trained.config.get("data", {}).get("separator", ";")
    account = Account() if account is None else account
    names: list[str] = []
    lengths: list[int] = []
    asked: list[Any] = []
    answered: list[ndarray] = []
    entries = _answered(read(paths, reading, account), target, reading.on_unmatched == "reject", account)
    for window in trained.windows(entries, account, on_bad, say):
        asked += [_target(entry, target, separator) for entry, _ in window]
        answered.append(trained.outputs(window, trained.pieces(window, over_length)))
        names += [entry.id for entry, _ in window]
        lengths += [len(tokens) for _, tokens in window]
    if not names:
        raise ValueError(f"no record is left of {account.read:,} read: there is nothing to score; see why above")
    scored = Predictions(names, np.array(lengths), np.array(asked), np.concatenate(answered).astype(np.float32))
    experiment = Experiment("files", None, trained.model.config)
    return summarise(scored, target, experiment, "files")  # type: ignore[arg-type]  # a target's own are read-only


# --- Columns ---


def schema_of(answers: Answers) -> pa.Schema:
    target = answers.target
    if isinstance(target, Regression):
        return pa.schema({**RECORD, "value": pa.float64()})
    first = {"class": pa.string(), "probability": pa.float64()}
    if isinstance(target, MultiLabel):
        first = {"labels": pa.list_(pa.string())}
    taken = {*RECORD, "class", "probability", "labels", "value"}
    named = {f"p({label})" if label in taken else label: pa.float64() for label in target.labels}
    return pa.schema({**RECORD, **first, **named})


def columns_of(answers: Answers, given: ndarray, min_confidence: float | None) -> list[Any]:
    """The answers' columns; numbers are rounded here, so that all formats hold the same."""
    target = answers.target
    if isinstance(target, Regression):
        return [[float(f"{value:.7g}") for value in target.values(given).tolist()]]
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
        raise ValueError("min_confidence is for a choice between classes: this run gives none; leave it out")
    if not 0 <= least <= 1:
        raise ValueError(f"min_confidence={least} is not a probability: give one from 0 to 1")


# --- What the files say ---


def _answered(
    entries: Iterable[Entry], target: Regression | Classification | MultiLabel, reject: bool, account: Account
) -> Iterator[Entry]:
    """The records that say what the model should."""
    noun = "target" if isinstance(target, Regression) else "label"
    for entry in entries:
        number = entry.target is not None and noun == "target"
        if number or entry.label is not None or isinstance(target, MultiLabel):
            yield entry
        elif reject:
            account.reject(entry.id, f"without a {noun}")
        else:
            raise ValueError(
                f"{entry.place} ({entry.id}) has no {noun}: scoring needs one; say where they are with --labels or "
                f"--column {noun}=NAME, or leave such records out with --on-unmatched reject"
            )


def _target(entry: Entry, target: Regression | Classification | MultiLabel, separator: str) -> Any:
    """What the file says of a record, as the target counts it."""
    if isinstance(target, Regression):
        return entry.target if entry.target is not None else _number(entry)
    if isinstance(target, Classification):
        return _place(entry, entry.label or "", target.labels)
    given = [label for part in (entry.label or "").split(separator) if (label := part.strip())]
    row = np.zeros(target.outputs, dtype=np.uint8)
    row[[_place(entry, label, target.labels) for label in given]] = 1
    return row


def _number(entry: Entry) -> float:
    try:
        number = float(entry.label or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{entry.place} ({entry.id}) has {entry.label!r} for a number: give a finite one")
    return number


def _place(entry: Entry, label: str, labels: Sequence[str]) -> int:
    if label not in labels:
        known = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        raise ValueError(
            f"{entry.place} ({entry.id}) has label {label!r}, which this run never saw: it knows {known}; rename it "
            "or leave the record out"
        )
    return list(labels).index(label)
