"""Score a trained run on files with labels: on all records, and on records that it was not trained on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files
from chordmixer.data import leakage
from chordmixer.data.columns import is_missing_number, real_number
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.evaluation import Evaluation, Predictions, summarise
from chordmixer.training.experiment import Experiment
from chordmixer.training.inference import Engine, OnBad, OverLength, check_choice, open_run
from chordmixer.training.labels import OutputLabels, RecordTarget, label_names
from chordmixer.training.output_files import Tsv, batch_of
from chordmixer.training.prediction import RECORD, prediction_columns, prediction_schema, record_columns

SCORES, ROWS, PLOT = "evaluation.json", "predictions.tsv", "lengths.png"
"""Files in a folder of scores."""
UNKNOWN = "unknown"
FORMAT = 1


@dataclass(frozen=True)
class FilesEvaluation:
    """The result of `evaluate_files`."""

    overall: Evaluation
    """Scores of all records."""
    unseen: Evaluation | None
    """Scores of the records that the run was not trained on; None: there are none, or the run stores no hashes."""
    seen: dict[str, int] | None
    """Numbers of copies of training and of validation records; None: the run stores no hashes of these."""
    labels: OutputLabels
    rows: Rows


@dataclass
class Rows:
    """Columns with one row per record, in the order of the input."""

    names: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    truth: list[Any] = field(default_factory=list)
    """True values in the target's encoding."""
    outputs: list[ndarray] = field(default_factory=list)
    hashes: list[ndarray] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """`training`, `validation` or `no`; `unknown` if the run stores no hashes."""

    def predictions(self, inside: ndarray) -> Predictions:
        """The predictions for a subset of the records, given as a mask."""
        indices = np.flatnonzero(inside)
        outputs = np.concatenate(self.outputs).astype(np.float32)[indices]
        names = [self.names[i] for i in indices]
        return Predictions(names, np.array(self.lengths)[indices], np.array(self.truth)[indices], outputs)


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
    unverified: bool = False,
) -> FilesEvaluation:
    """Score a run on files with labels, in the same way as on its own test set.

    A record counts as seen if its tokens, or those of its reverse complement, equal a training or validation record;
    unseen records are also scored separately. A record without a label is an error, or with `on_unmatched="reject"`
    of the reading left out; if records may have several labels, it is a record with no label.
    """
    check_choice("over_length", over_length, get_args(OverLength))
    check_choice("on_bad", on_bad, (None, *get_args(OnBad)))
    engine, reading = open_run(run, device, batch_tokens, unverified=unverified), reading or Reading()
    account = Account() if account is None else account
    labelled = with_targets(
        read(paths, reading, account), engine.labels.target, reading.on_unmatched == "reject", account
    )
    return score_entries(engine, labelled, account, over_length, on_bad)


def score_entries(
    engine: Engine,
    entries: Iterable[Entry],
    account: Account,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
) -> FilesEvaluation:
    """Score a run on entries that all have a target."""
    target, separator, rows = engine.labels.target, engine.separator, Rows()
    seen_records = leakage.load_seen(engine.folder)
    for window in engine.windows(entries, account, on_bad, over_length):
        pieces = engine.pieces(window, over_length)
        rows.truth += [_target(entry, target, separator) for entry, _ in window]
        rows.outputs.append(engine.outputs(window, pieces))
        names, lengths, windows = record_columns(window, pieces)
        rows.names.extend(names)
        rows.lengths.extend(lengths)
        rows.windows.extend(windows)
        rows.hashes.append(leakage.seen_hashes((tokens for _, tokens in window), engine.tokenizer))
    if not rows.names:
        raise ValueError(f"no record is left of {account.read:,} read: there is nothing to score; see why above")
    rows.seen = (
        [UNKNOWN] * len(rows.names)
        if seen_records is None
        else leakage.find_seen(np.concatenate(rows.hashes), seen_records)
    )
    return _scored(rows, engine, seen_records is not None)


def _scored(rows: Rows, engine: Engine, has_hashes: bool) -> FilesEvaluation:
    """Score all records and the unseen ones; `has_hashes`: the run stores hashes of its training records."""
    target, experiment = engine.labels.target, Experiment("files", None, engine.model_config)
    is_unseen = np.array([part == leakage.UNSEEN for part in rows.seen])

    def score(inside: ndarray, split: str) -> Evaluation:
        return summarise(rows.predictions(inside), target, experiment, split)  # type: ignore[arg-type]  # read-only

    overall = score(np.ones(len(is_unseen), dtype=bool), "files")
    unseen = overall if is_unseen.all() else score(is_unseen, "unseen") if is_unseen.any() else None
    counts = Counter(rows.seen)
    return FilesEvaluation(
        overall,
        unseen,
        {part: counts[part] for part in leakage.SEEN_PARTS} if has_hashes else None,
        engine.labels,
        rows,
    )


# --- Output folder ---


def check_folder(folder: Path, force: bool) -> None:
    """Refuse, before anything is computed, a folder with files that would be replaced without `force`."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: scores are written into a folder; give another name with -o")
    existing = [name for name in (SCORES, ROWS, PLOT) if (folder / name).exists()]
    if existing and not force:
        raise ValueError(
            f"{folder / existing[0]} is there already: give another name with -o, or replace it with --force"
        )


def save(folder: Path, evaluation: FilesEvaluation, run: Path | str, paths: Sequence[Path | str]) -> None:
    """Write all scores as JSON, and a TSV with a row per record: true value, whether it was seen, and prediction."""
    files.write_json(
        folder / SCORES,
        {
            "format": FORMAT,
            "run": str(run),
            "files": [str(path) for path in paths],
            "seen": evaluation.seen,
            "all": asdict(evaluation.overall),
            "unseen": None if evaluation.unseen is None else asdict(evaluation.unseen),
        },
    )
    rows, target = evaluation.rows, evaluation.labels.target
    truth = pa.float64() if isinstance(target, Regression) else pa.list_(pa.string())
    truth = pa.string() if isinstance(target, Classification) else truth
    schema = prediction_schema(evaluation.labels, {**RECORD, "truth": truth, "seen": pa.string()})
    columns = [rows.names, rows.lengths, rows.windows, _named(rows.truth, target), rows.seen]
    batch = batch_of(schema, [*columns, *prediction_columns(evaluation.labels, np.concatenate(rows.outputs))])
    tsv = Tsv()
    files.write_bytes(folder / ROWS, tsv.head(schema) + tsv.rows(batch))


def _named(truth: Sequence[Any], target: RecordTarget) -> list[Any]:
    """True values as they are written in the input files: numbers, or names of classes or labels."""
    if isinstance(target, Regression):
        return list(truth)
    if isinstance(target, Classification):
        return [target.labels[k] for k in truth]
    return label_names(target, np.array(truth))


# --- Targets of entries ---


def with_targets(entries: Iterable[Entry], target: RecordTarget, reject: bool, account: Account) -> Iterator[Entry]:
    """The records that have a target; others are an error, or with `reject` counted in the account."""
    noun, where = "target", ""
    if not isinstance(target, Regression):
        noun, where = "label", f"name the class of a file, such as {target.labels[0]}=FILE, "
    for entry in entries:
        if isinstance(target, Regression):
            has_target = entry.target is not None or not is_missing_number(entry.label)
        else:
            has_target = entry.label is not None or isinstance(target, MultiLabel)
        if has_target:
            yield entry
        elif reject:
            account.reject(entry.id, f"without a {noun}")
        else:
            raise ValueError(
                f"{entry.place} ({entry.id}) has no {noun}: scoring needs one; {where}say where they are with "
                f"--labels or --column {noun}=NAME, or leave such records out with --on-unmatched reject"
            )


def _target(entry: Entry, target: RecordTarget, separator: str) -> Any:
    """The true value of a record in the target's encoding."""
    if isinstance(target, Regression):
        return entry.target if entry.target is not None else _number(entry)
    if isinstance(target, Classification):
        return _label_number(entry, entry.label or "", target.labels)
    names = [label for part in (entry.label or "").split(separator) if (label := part.strip())]
    row = np.zeros(target.outputs, dtype=np.uint8)
    row[[_label_number(entry, label, target.labels) for label in names]] = 1
    return row


def _number(entry: Entry) -> float:
    number = real_number(entry.label or "")
    if not math.isfinite(number):
        raise ValueError(f"{entry.place} ({entry.id}) has {entry.label!r} for a number: give a finite one")
    return number


def _label_number(entry: Entry, label: str, labels: Sequence[str]) -> int:
    if label not in labels:
        known = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
        raise ValueError(
            f"{entry.place} ({entry.id}) has label {label!r}, which this run never saw: it knows {known}; rename it, "
            f"name the class of a file, such as {labels[0]}=FILE, or leave the record out"
        )
    return list(labels).index(label)
