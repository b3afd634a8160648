"""The journal of a study: a file that processes and machines share, and that stays valid if a process is killed.

It has a lock of the operating system, like a run folder, which is released when its process ends.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from filelock import FileLock
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from chordmixer.training.run_folder import LOCK

FILE = "journal.jsonl"
NAME = "tune"
SPAN = "span "
"""Prefix of the study's attributes with the start and end time of the work of a process."""


class JournalLock(JournalFileOpenLock):
    """Lock that is held while the journal is written; a process may hold it longer, and write in the meantime.

    optuna's own lock is a file that a killed process leaves, so that all others wait for half a minute.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / FILE))
        self.journal = folder / FILE
        self.lock = FileLock(folder / LOCK)

    def acquire(self) -> bool:
        self.lock.acquire()
        if self.lock.lock_counter == 1:
            drop_unfinished_line(self.journal)
        return True

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def drop_unfinished_line(path: Path) -> None:
    """Remove an unfinished line of a killed process, to which the next line would be appended."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def open_journal(folder: Path) -> tuple[optuna.Study, JournalLock]:
    """Open the study in a folder, or create it; return it with the lock of its journal."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made a folder ({error.strerror}): give another --out") from None
    lock = JournalLock(folder)
    with lock, quiet_optuna():
        if not (folder / FILE).exists() and {path.name for path in folder.iterdir()} - {LOCK}:
            raise ValueError(f"{folder} is not empty and holds no study: give a new folder")
        try:
            storage = JournalStorage(JournalFileBackend(str(folder / FILE), lock))
            return optuna.create_study(storage=storage, study_name=NAME, load_if_exists=True), lock
        except (ValueError, KeyError, AssertionError) as error:
            raise ValueError(
                f"{folder / FILE} cannot be read as a study ({error}): use another copy, or give a new folder"
            ) from None


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Let optuna log only warnings; otherwise it logs a line for each new study."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class StudyClock:
    """Measures the seconds that processes have worked on a study; parallel work counts once, pauses do not count."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self.name = f"{SPAN}{secrets.token_hex(8)}"
        self.start = time.time()

    def beat(self) -> float:
        """Record that this process is working; return the seconds of all processes so far."""
        now = time.time()
        self.study.set_user_attr(self.name, [self.start, now])
        return seconds_of(self.study)


def seconds_of(study: optuna.Study) -> float:
    """The seconds of work that the journal records."""
    return covered(span for name, span in study.user_attrs.items() if name.startswith(SPAN))


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans.

    >>> covered([(5, 7), (0, 2), (1, 3)])
    5.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
