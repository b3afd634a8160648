"""The way from files to rows, the same for predictions and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from chordmixer.data.columns import ABSENT, Columns
from chordmixer.data.entries import Account
from chordmixer.data.reading import Reading, read
from chordmixer.terminal import tell
from chordmixer.training import formats, outputs, speed
from chordmixer.training.inference import Item, OnBad, OverLength, Piece, Trained, check_choice
from chordmixer.training.progress import Pace
from chordmixer.version import __version__

RECORD = {"id": pa.string(), "length": pa.int64(), "windows": pa.int32()}
"""The first columns of every output: length in tokens, and in how many windows the record was cut, 1 for whole."""


class Work:
    """A trained run, and the files that it is to work on."""

    def __init__(
        self,
        trained: Trained,
        paths: Sequence[Path | str],
        reading: Reading,
        over_length: OverLength,
        on_bad: OnBad | None,
        say: Callable[[str], None],
    ) -> None:
        check_choice("over_length", over_length, get_args(OverLength))
        check_choice("on_bad", on_bad, (None, *get_args(OnBad)))
        self.trained, self.paths, self.reading = trained, paths, reading
        self.over_length, self.on_bad, self.say = over_length, on_bad, say

    def write(
        self,
        out: Path | str,
        schema: pa.Schema,
        rows: Callable[[Sequence[Item], Sequence[Piece]], list[Any]],
        settings: dict[str, Any],
        *,
        resume: bool,
        force: bool,
    ) -> Account:
        """`rows` gives the columns behind the first three."""
        account, pace = Account(), Pace(self.say)
        with outputs.opened(out, schema, self._settings() | settings, resume=resume, force=force) as sink:
            if chosen := speed.threads_line():
                self.say(chosen)
            entries = read(self.paths, self.reading, account)
            for window in self.trained.windows(entries, account, self.on_bad, self.say, self.over_length):
                pieces = self.trained.pieces(window, self.over_length)
                if not sink.has(window):
                    cuts = np.bincount([piece.record for piece in pieces], minlength=len(window))
                    first = [[e.id for e, _ in window], [len(tokens) for _, tokens in window], cuts.tolist()]
                    sink.write(formats.batch_of(schema, [*first, *rows(window, pieces)]))
                    pace.done(len(window), sum(first[1]))
        return account

    def _settings(self) -> dict[str, Any]:
        """All but the records that rows depend on, in plain values."""
        trained, reading = self.trained, asdict(self.reading)
        del reading["names"]  # of classes, which rows do not depend on
        return {
            "version": __version__,
            "run": trained.digest,
            "device": trained.device.type,
            "batch_tokens": trained.batch_tokens,
            "over_length": self.over_length,
            "on_bad": self.on_bad,
            "reading": reading,
        }


def unlabelled(reading: Reading) -> Reading:
    """Only ids and sequences: what is wrong with the labels of a file need not stop a prediction."""
    absent = dict.fromkeys(("label", "target", "split", "group", "weight"), ABSENT)
    columns = Columns(id=reading.columns.id, sequence=reading.columns.sequence, **absent)
    return replace(reading, columns=columns, labels=None, names=(), group=None, rank=None)


def to_stderr(line: str) -> None:
    tell(line, stderr=True)
