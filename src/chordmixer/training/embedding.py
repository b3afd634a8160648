"""A vector a record, or a token, from a trained run: what its head reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from chordmixer import ops
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading
from chordmixer.packed import Packed
from chordmixer.training import outputs
from chordmixer.training.inference import Item, OnBad, OverLength, Piece, Trained
from chordmixer.training.rows import RECORD, Work, to_stderr, unlabelled

KINDS = (".parquet", ".npy", ".tsv", ".csv")
TOKEN_KINDS = (".parquet",)
"""Where a record has a vector a token."""
MOST_BYTES = 2**31 - 1
"""Of one row: what readers of Parquet can be trusted with."""


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
    say: Callable[[str], None] = to_stderr,
) -> Account:
    """Write id, length, windows and embedding, a row a record, in the order of the input, to a .parquet file.

    A .tsv or .csv file has a column for each number of the embedding, and a .npy file the embeddings alone, of shape
    (records, C), with the ids of its rows in the file NAME.ids.txt beside it.
    An embedding is the mean of the encoder's tokens, as the average head takes it: a list of C float32; over both
    strands and over windows it is the mean of theirs, as of outputs in `predict`. With `per_token` it is a list of N
    such lists, of the strand that the file has.
    """
    if not outputs.check(out, paths, TOKEN_KINDS if per_token else KINDS, resume, force):
        say(f"{out} is whole already: nothing is left to do")
        return Account()
    if per_token and over_length == "windows":
        raise ValueError("--over-length windows gives a token several embeddings: leave it out, or --per-token")
    trained = Trained(run, device, batch_tokens, using="network", unverified=unverified)
    width = width_of(trained)
    vector = pa.list_(pa.float32(), width)
    schema = pa.schema({**RECORD, "embedding": pa.list_(vector) if per_token else vector})

    def rows(window: Sequence[Item], pieces: Sequence[Piece]) -> list[Any]:
        if per_token:
            return [_lists(token_vectors(trained, window, pieces), width)]
        return [_vectors(record_vectors(trained, window, pieces), width)]

    work = Work(trained, paths, unlabelled(reading or Reading()), over_length, on_bad, say)
    return work.write(out, schema, rows, {"per_token": per_token}, resume=resume, force=force)


def width_of(trained: Trained) -> int:
    """Numbers of an embedding."""
    return int(trained.model.encoder.width)  # type: ignore[arg-type]  # every encoder has one


def record_vectors(trained: Trained, window: Sequence[Item], pieces: Sequence[Piece]) -> Float[ndarray, "B C"]:
    """The embedding of each record of a window."""

    def pooled(packed: Packed) -> Float[Tensor, "B C"]:
        y = trained.model.encode(packed)
        return ops.segment_mean(y.values, y.offsets)

    return trained.averages(window, pieces, pooled, width_of(trained)).astype(np.float32)


def token_vectors(trained: Trained, window: Sequence[Item], pieces: Sequence[Piece]) -> list[Float[ndarray, "N C"]]:
    """The embeddings of each record's tokens."""
    width = width_of(trained)
    for entry, tokens in window:
        if (size := 4 * len(tokens) * width) > MOST_BYTES:
            raise ValueError(
                f"{entry.place} ({entry.id}) would be a row of {size:,} bytes, {len(tokens):,} tokens of {width} "
                f"numbers: a row has up to {MOST_BYTES:,}; leave out --per-token, or cut the record"
            )
    found: list[ndarray] = [np.empty(0)] * len(window)
    for batch, packed in trained.batches(window, pieces):
        with trained.computing(packed, window[batch[0].record].entry):
            vectors = [y.float().cpu().numpy() for y in trained.model.encode(packed).to_list()]
        for piece, own in zip(batch, vectors, strict=True):
            found[piece.record] = own[: piece.stop]  # without what a head adds behind the record
    return found


def _vectors(rows: Float[ndarray, "B C"], width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.astype(np.float32).ravel()), width)


def _lists(rows: Sequence[Float[ndarray, "N C"]], width: int) -> pa.Array:
    ends = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return pa.ListArray.from_arrays(ends, _vectors(np.concatenate(rows), width))
