"""A run folder is read through one door, which checks its manifest, and written by one process at a time."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from filelock import FileLock, Timeout

from chordmixer import files

CONFIG, WEIGHTS, JOURNAL, PROVENANCE = "config.json", "model.safetensors", "metrics.jsonl", "run.json"
MODEL = (
    CONFIG,
    WEIGHTS,
    "tokenizer.json",
    "labels.json",
    "data.json",
    "combination.json",
    "baseline.safetensors",
    "ensemble.json",
)
"""What a run is used by."""
EXPLANATIONS = "explanations.json"
RESULTS = (
    "evaluation-*.json",
    "predictions*.parquet",
    "baselines.json",
    "baselines.parquet",
    "trials.json",
    EXPLANATIONS,
)
"""Patterns of what a report reads beside it."""
LOCK = ".lock"
WAIT = 5.0
"""Seconds that a command which writes for a moment waits for another one."""


def check(folder: Path, names: Iterable[str] = MODEL, unverified: bool = False) -> None:
    """Refuse a run folder unless these of its files, where they are there, are those that its manifest records."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the --out folder of a training run")
    if CONFIG not in files.recorded(folder):
        if unverified or not (folder / CONFIG).exists():  # whoever reads it says what is missing
            return
        raise ValueError(
            f"{folder} has no {files.MANIFEST} that records its {CONFIG}: nothing tells whether its files are whole "
            "and of one run; use another copy, or add --unverified to read it as it is"
        )
    files.verify(folder, [name for name in names if (folder / name).exists()])


def check_all(folder: Path, unverified: bool = False) -> None:
    """Every file that a report reads, the weights too; the journal and run.json once the run is finished."""
    results = sorted(path.name for pattern in RESULTS for path in folder.glob(pattern))
    recorded = files.recorded(folder) if folder.is_dir() else {}
    finished = [name for name in (JOURNAL, PROVENANCE) if name in recorded]
    check(folder, [*MODEL, *results, *finished], unverified)


class RunLock:
    """Held by the process that writes into a run folder; that of a killed process is free again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, RunLock(Path(folder)):
    ...     RunLock(Path(folder))
    Traceback (most recent call last):
    ...
    ValueError: ... is in use by process ...
    """

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        self.folder = folder
        self._lock = FileLock(folder / LOCK)
        try:
            self._lock.acquire(timeout=wait)
            self._write(str(os.getpid()))
        except Timeout:
            raise ValueError(
                f"{folder} is in use by {self._holder()}: two at once would spoil the run; wait for it, or end it"
            ) from None
        except OSError as error:
            raise ValueError(f"{folder} cannot be locked ({error.strerror}): choose another folder") from None
        self._identity = folder.stat()

    def check(self) -> None:
        """Refuse to go on where the folder is no longer the one that was locked."""
        with suppress(OSError):
            if os.path.samestat(self._identity, self.folder.stat()):
                return
        raise ValueError(
            f"{self.folder} was removed, moved or replaced while it was written: nothing more is saved; put it back "
            f"and go on with chordmixer train --resume {shlex.quote(str(self.folder))}, or train again"
        )

    def release(self) -> None:
        if self._lock.is_locked:
            with suppress(OSError, ValueError):  # the folder may be gone
                self._write("")
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _write(self, text: str) -> None:
        with files.open_own(self.folder / LOCK, os.O_TRUNC) as file:
            file.write(text.encode())

    def _holder(self) -> str:
        with suppress(OSError, ValueError):
            return f"process {int((self.folder / LOCK).read_bytes()[:20])}"
        return "another process"
