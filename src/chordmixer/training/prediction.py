"""Predict or embed every record of files: one row per record, in the order of the input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from chordmixer import ops
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.terminal import rank_count
from chordmixer.training import ranks, speed
from chordmixer.training.combination import Using
from chordmixer.training.inference import Engine, Item, OnBad, OverLength, Piece, check_choice, open_run
from chordmixer.training.labels import OutputLabels, label_names
from chordmixer.training.output_files import batch_of, check_output, open_shared_output
from chordmixer.training.progress import Throughput
from chordmixer.version import __version__

logger = logging.getLogger(__name__)

ENDINGS = ("-", ".tsv", ".csv", ".jsonl", ".parquet")
"""File name endings for predictions; `-` is standard output."""
VECTOR_ENDINGS = (".parquet", ".npy", ".tsv", ".csv")
"""File name endings for embeddings of records; embeddings of tokens are written as .parquet."""
RECORD = {"id": pa.string(), "length": pa.int64(), "windows": pa.int32()}
"""First columns of every output: id, length in tokens, and number of windows (1 if the record was not cut)."""
UNCLASSIFIED = "unclassified"
MOST_BYTES = 2**31 - 1
"""Maximum size of one row: Parquet readers may fail on more."""


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
) -> Account:
    """Predict a class, labels or a number for every record; `out` is .tsv, .csv, .jsonl, .parquet, or `-` for TSV.

    Columns: id, length, windows; then for classes the most probable class, its calibrated probability, and the
    probability of each class under its name; for several labels those above 0.5, and the probability of each; for
    numbers the value. A class with the name of another column has the column p(NAME). `safe_cells` puts an apostrophe
    before ids and classes that a spreadsheet would run as formulas (TSV and CSV).
    A record longer than the model's max_length is an error. With `over_length="windows"` it is cut into windows of
    max_length that overlap by half, and its outputs are the mean over the windows, weighted by length. With
    `over_length="reject"` it has no row and is counted in the account.
    `using` selects the network, the baseline or both instead of the run's own choice. Labels in the files are not
    read. Records read = rows + records rejected in the account.
    """
    if not _check(out, paths, ENDINGS, resume=resume, force=force, safe_cells=safe_cells):
        logger.info(f"{out} is whole already: nothing is left to do")
        return Account()
    engine = open_run(run, device, batch_tokens, using=using, unverified=unverified)
    _check_confidence(min_confidence, engine.labels)

    def columns(window: Sequence[Item], pieces: Sequence[Piece]) -> list[Any]:
        return prediction_columns(engine.labels, engine.outputs(window, pieces), min_confidence)

    schema, settings = prediction_schema(engine.labels), {"min_confidence": min_confidence, "safe_cells": safe_cells}
    options: dict[str, Any] = {"reading": reading, "over_length": over_length, "on_bad": on_bad}
    return _write_rows(engine, paths, out, schema, columns, settings, resume=resume, force=force, **options)


def embed(
    run: Path | str,
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    per_token: bool = False,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    reading: Reading | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    resume: bool = False,
    force: bool = False,
    unverified: bool = False,
) -> Account:
    """Write id, length, windows and embedding of every record to a .parquet file.

    A .tsv or .csv file has a column for each number of the embedding. A .npy file has the embeddings alone, of shape
    (records, C), and the ids of its rows are in the file NAME.ids.txt.
    An embedding is the mean over the encoder's output tokens, as in the average head: a list of C float32. Embeddings
    of both strands and of windows are averaged as outputs are in `predict`. With `per_token` it is a list of N such
    lists, for the strand in the file only.
    """
    if not _check(out, paths, (".parquet",) if per_token else VECTOR_ENDINGS, resume=resume, force=force):
        logger.info(f"{out} is whole already: nothing is left to do")
        return Account()
    if per_token and over_length == "windows":
        raise ValueError("--over-length windows gives a token several embeddings: leave it out, or --per-token")
    engine = Engine(run, device, batch_tokens, using="network", unverified=unverified)
    width = engine.width
    vector = pa.list_(pa.float32(), width)
    kind = pa.list_(vector) if per_token else vector

    def columns(window: Sequence[Item], pieces: Sequence[Piece]) -> list[Any]:
        if not per_token:
            return [_vectors(record_vectors(engine, window, pieces), width)]
        rows = token_vectors(engine, window, pieces)
        ends = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        return [pa.ListArray.from_arrays(ends, _vectors(np.concatenate(rows), width))]

    schema, settings = pa.schema({**RECORD, "embedding": kind}), {"per_token": per_token}
    options: dict[str, Any] = {"reading": reading, "over_length": over_length, "on_bad": on_bad}
    return _write_rows(engine, paths, out, schema, columns, settings, resume=resume, force=force, **options)


def _check(out: Path | str, paths: Sequence[Path | str], endings: Sequence[str], **options: bool) -> bool:
    """Call `check_output` on the main rank and return its result on every rank."""
    if rank_count() > 1 and "-" in map(str, paths):
        raise ValueError(f"{rank_count()} ranks cannot share standard input: name a file")
    return ranks.from_main_rank(lambda: check_output(out, paths, endings, **options))


def _write_rows(
    engine: Engine,
    paths: Sequence[Path | str],
    out: Path | str,
    schema: pa.Schema,
    columns: Callable[[Sequence[Item], Sequence[Piece]], list[Any]],
    settings: dict[str, Any],
    *,
    reading: Reading | None,
    over_length: OverLength,
    on_bad: OnBad | None,
    resume: bool,
    force: bool,
) -> Account:
    """Write a row for each record of the files; `columns` computes the columns after those of `RECORD`.

    Every rank reads all records and computes every n-th window. Windows and their batches do not depend on the number
    of ranks, and so the rows do not either. The main rank writes them.
    """
    check_choice("over_length", over_length, get_args(OverLength))
    check_choice("on_bad", on_bad, (None, *get_args(OnBad)))
    reading = (reading or Reading()).unlabelled
    reading_settings = asdict(reading)
    del reading_settings["names"]  # class names, which do not affect rows
    settings = {
        "version": __version__,
        "run": engine.digest,
        "device": engine.device.type,
        "batch_tokens": engine.batch_tokens,
        "over_length": over_length,
        "on_bad": on_bad,
        "reading": reading_settings,
        **settings,
    }
    account, pace = Account(), Throughput()

    def rows(window: Sequence[Item]) -> pa.RecordBatch:
        pieces = engine.pieces(window, over_length)
        return batch_of(schema, [*record_columns(window, pieces), *columns(window, pieces)])

    with open_shared_output(out, schema, settings, resume=resume, force=force) as sink:
        if line := speed.threads_line():
            logger.info(line)
        windows = engine.windows(read(paths, reading, account), account, on_bad, over_length)
        todo = (window for window in windows if not sink.has(window))
        while group := list(islice(todo, rank_count())):
            rank_rows = rows(group[rank]) if (rank := ranks.this_rank()) < len(group) else None
            for batch in ranks.gather(rank_rows)[: len(group)]:
                assert batch is not None, "each window of the turn has a rank"
                sink.write(batch)
                pace.done(batch.num_rows, sum(batch.column("length").to_pylist()))
    return account


# --- Columns ---


def record_columns(window: Sequence[Item], pieces: Sequence[Piece]) -> list[list[Any]]:
    """The columns of `RECORD`."""
    windows = np.bincount([piece.record for piece in pieces], minlength=len(window))
    return [[entry.id for entry, _ in window], [len(tokens) for _, tokens in window], windows.tolist()]


def prediction_schema(labels: OutputLabels, first: Mapping[str, pa.DataType] = RECORD) -> pa.Schema:
    """The columns of a prediction, after the `first` ones."""
    target = labels.target
    if isinstance(target, Regression):
        return pa.schema({**first, "value": pa.float64()})
    predicted = {"class": pa.string(), "probability": pa.float64()}
    if isinstance(target, MultiLabel):
        predicted = {"labels": pa.list_(pa.string())}
    fixed = {**first, **predicted}
    names = column_names(target.labels, {*fixed, "labels", "value"})
    return pa.schema({**fixed, **dict.fromkeys(names, pa.float64())})


def column_names(labels: Sequence[str], taken: Collection[str]) -> list[str]:
    """A column name for each label: its name, or if that is taken p(NAME), or p(p(NAME)) and so on.

    >>> column_names(["class", "p(class)", "worm"], {"id", "class"})
    ['p(p(class))', 'p(class)', 'worm']
    """
    used, names = {*taken, *labels}, []
    for label in labels:
        name = label
        while name in taken or (name != label and name in used):
            name = f"p({name})"
        used.add(name)
        names.append(name)
    return names


def prediction_columns(labels: OutputLabels, outputs: ndarray, min_confidence: float | None = None) -> list[Any]:
    """The columns of predictions; numbers are rounded here, so that all formats have the same values."""
    target = labels.target
    if isinstance(target, Regression):
        return [[target.rounded(value) for value in target.values(outputs).tolist()]]
    probabilities = labels.probabilities(outputs)
    columns = [[round(probability, 6) for probability in column] for column in probabilities.T.tolist()]
    if isinstance(target, MultiLabel):
        return [label_names(target, probabilities > 0.5), *columns]
    best = probabilities.argmax(axis=1).tolist()
    confident = probabilities.max(axis=1) >= (min_confidence or 0)
    classes = [target.labels[k] if sure else UNCLASSIFIED for k, sure in zip(best, confident, strict=True)]
    return [classes, [columns[k][row] for row, k in enumerate(best)], *columns]


def _check_confidence(min_confidence: float | None, labels: OutputLabels) -> None:
    if min_confidence is None:
        return
    if not isinstance(labels.target, Classification):
        raise ValueError("--min-confidence is for a choice between classes: this run gives none; leave it out")
    if not 0 <= min_confidence <= 1:
        raise ValueError(f"--min-confidence {min_confidence:g} is not a probability: give one from 0 to 1")


# --- Embeddings ---


def record_vectors(engine: Engine, window: Sequence[Item], pieces: Sequence[Piece]) -> Float[ndarray, "B C"]:
    """The embedding of each record of a window."""

    def pooled(packed: Packed) -> Float[Tensor, "B C"]:
        y = engine.model.encode(packed)
        return ops.segment_mean(y.values, y.offsets)

    return engine.averages(window, pieces, pooled, engine.width).astype(np.float32)


def token_vectors(engine: Engine, window: Sequence[Item], pieces: Sequence[Piece]) -> list[Float[ndarray, "N C"]]:
    """The embeddings of each record's tokens."""
    width = engine.width
    for entry, tokens in window:
        if (size := 4 * len(tokens) * width) > MOST_BYTES:
            raise ValueError(
                f"{entry.place} ({entry.id}) would be a row of {size:,} bytes, {len(tokens):,} tokens of {width} "
                f"numbers: a row has up to {MOST_BYTES:,}; leave out --per-token, or cut the record"
            )
    embeddings: list[ndarray] = [np.empty(0)] * len(window)
    for batch, packed in engine.batches(window, pieces):
        with engine.computing(packed, window[batch[0].record].entry):
            vectors = [y.float().cpu().numpy() for y in engine.model.encode(packed).to_list()]
        for piece, rows in zip(batch, vectors, strict=True):
            embeddings[piece.record] = rows[: piece.stop]  # without tokens that a head appends to the record
    return embeddings


def _vectors(rows: Float[ndarray, "B C"], width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(np.float32).ravel()), width)
