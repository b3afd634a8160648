"""Run folders: verification by a manifest, locking, opening for training, and saving as a model to share."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from filelock import FileLock, Timeout
from torch import nn
from torch.optim import Optimizer

from chordmixer import files
from chordmixer.models.model import read_config
from chordmixer.training import checkpoints
from chordmixer.training.devices import device_name
from chordmixer.training.ranks import from_main_rank

if TYPE_CHECKING:
    from chordmixer.training.experiment import Experiment

CONFIG, WEIGHTS, JOURNAL, PROVENANCE = "config.json", "model.safetensors", "metrics.jsonl", "run.json"
ENSEMBLE, MEMBERS = "ensemble.json", "members"
MODEL = (
    CONFIG,
    WEIGHTS,
    "tokenizer.json",
    "labels.json",
    "data.json",
    "combination.json",
    "baseline.safetensors",
    ENSEMBLE,
)
"""Files that are needed for predictions."""
EXPLANATIONS = "explanations.json"
RESULTS = (
    "evaluation-*.json",
    "predictions*.parquet",
    "baselines.json",
    "baselines.parquet",
    "trials.json",
    EXPLANATIONS,
)
"""Name patterns of further files that a report reads."""
CARD = "README.md"
SHARED = tuple(name for name in MODEL if name != "data.json")
"""Files of a saved model; data.json is left out, since it names records of the training set."""
PATTERNS = (*SHARED, files.MANIFEST, CARD, *(f"{MEMBERS}/*/{name}" for name in (*SHARED, files.MANIFEST)))
"""Files that are downloaded from a model repository."""
LOCK = ".lock"
WAIT = 5.0
"""Seconds that a command with a short write waits for the lock."""


def check(folder: Path, names: Iterable[str] = MODEL, unverified: bool = False) -> None:
    """Refuse a run folder in which one of these files exists and differs from the manifest."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: give the --out folder of a training run")
    if CONFIG not in files.recorded(folder):
        if unverified or not (folder / CONFIG).exists():  # its reader reports a missing file
            return
        raise ValueError(
            f"{folder} has no {files.MANIFEST} that records its {CONFIG}: nothing tells whether its files are whole "
            "and of one run; use another copy, or add --unverified to read it as it is"
        )
    files.verify(folder, [name for name in names if (folder / name).exists()])


def stored_precision(folder: Path) -> str | None:
    """The precision of the run in a folder; None if there is no run."""
    if not (folder / CONFIG).exists():
        return None
    precision: str | None = (read_config(folder).get("training") or {}).get("precision")
    return precision


def check_all(folder: Path, unverified: bool = False) -> None:
    """Check the weights and every file that a report reads; metrics.jsonl and run.json only of a finished run."""
    results = sorted(path.name for pattern in RESULTS for path in folder.glob(pattern))
    recorded = files.recorded(folder) if folder.is_dir() else {}
    finished = [name for name in (JOURNAL, PROVENANCE) if name in recorded]
    check(folder, [*MODEL, *results, *finished], unverified)


class RunLock:
    """Lock of the process that writes into a run folder; it is released when the process ends or is killed.

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
        """Refuse to continue if the folder is no longer the one that was locked."""
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


# --- Training ---


class RunFolder:
    """The folder of a run in training; only the main rank holds its lock and writes."""

    def __init__(self, experiment: Experiment, out: Path, resume: bool, unverified: bool = False) -> None:
        self.experiment, self.out = experiment, out
        self.lock: RunLock | None = None
        self.checkpoint: Path | None
        """The newest intact checkpoint, on every rank; None if there is none."""
        self.refused: list[str]
        """Reasons why newer checkpoints are not used."""
        try:
            self.checkpoint, self.refused = from_main_rank(lambda: self._open(resume, unverified))
        except BaseException:
            self.close()
            raise

    def _open(self, resume: bool, unverified: bool) -> tuple[Path | None, list[str]]:
        self.lock = open_folder(self.experiment, self.out, resume, unverified)
        checkpoint, refused = checkpoints.newest_good(self.out)
        if checkpoint:
            checkpoints.check_settings(checkpoint, self.experiment.settings(), unverified)
        if not checkpoint or not checkpoint.name.endswith(checkpoints.FINISHED):  # both files will change
            files.unrecord(self.out, [JOURNAL, PROVENANCE])
        return checkpoint, refused

    def messages(self) -> list[str]:
        """Messages for the user about the checkpoints."""
        resuming = [f"going on from {self.checkpoint}"] if self.checkpoint else []
        return [*(f"refused: {reason}" for reason in self.refused), *resuming]

    def check(self) -> None:
        """Refuse to continue if the folder was removed or replaced."""
        if self.lock:
            self.lock.check()

    def save(self, state: checkpoints.State, model: nn.Module, optimizer: Optimizer) -> None:
        """Write a checkpoint, on the main rank."""
        if self.lock:
            self.lock.check()
            checkpoints.save(self.out, state, model, optimizer, self.experiment.settings())

    def close(self) -> None:
        if self.lock:
            self.lock.release()


def open_folder(experiment: Experiment, out: Path, resume: bool, unverified: bool = False) -> RunLock:
    """Lock a new folder, or the folder of the same experiment to resume; the caller releases the lock."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be made a folder ({error.strerror}): give another --out") from None
    has_run = (out / CONFIG).exists()
    _check_resumable(experiment, out, resume, unverified) if has_run else _check_new(out)
    lock = RunLock(out)
    try:
        if (out / CONFIG).exists() != has_run:
            raise ValueError(f"{out} was begun by another process: give a new folder, or add --resume")
        files.sweep_run(out)
        if not has_run:
            experiment.save(out)
    except BaseException:
        lock.release()
        raise
    return lock


@contextmanager
def main_folder(experiment: Experiment, out: Path, resume: bool, unverified: bool = False) -> Iterator[None]:
    """Lock the folder that contains several runs, on the main rank, for the block."""
    locks: list[RunLock] = []
    from_main_rank(lambda: locks.append(open_folder(experiment, out, resume, unverified)))
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def _check_new(out: Path) -> None:
    """Refuse a folder that is not empty, except for files of a run that was killed when it had just begun."""
    names = {path.name for path in out.iterdir() if not path.name.startswith(files.TEMPORARY)} - {LOCK}
    if names and not (names == {files.MANIFEST} and {*files.read_json(out / files.MANIFEST)} == {CONFIG}):
        raise ValueError(f"{out} is not empty and holds no run: give a new folder")


def _check_resumable(experiment: Experiment, out: Path, resume: bool, unverified: bool) -> None:
    """Refuse to resume another experiment, or to write through a symbolic link."""
    if not resume:
        raise ValueError(f"{out} already holds a run: give a new folder, or add --resume to go on with it")
    if experiment.load(out, unverified=unverified) != experiment:
        raise ValueError(
            f"{out} was started with other settings: resume with the same ones, or with "
            f"chordmixer train --resume {shlex.quote(str(out))} alone"
        )
    for name in ("checkpoints", "tensorboard", MEMBERS, JOURNAL):
        if (out / name).is_symlink():
            raise ValueError(f"{out / name} is a symbolic link: a run is written into its own folder; remove it")


@contextmanager
def recording_provenance(folder: Path, device: torch.device) -> Iterator[None]:
    """Write run.json (date, command, device) when training starts, and its seconds when it ends or fails.

    It is the only file in which two runs with the same settings differ, and nothing is computed from it. Its seconds
    are the sum over all starts that were not killed. A full disk does not stop the training.
    """
    path, start = folder / PROVENANCE, time.monotonic()
    with suppress(ValueError):
        files.update_json(path, lambda document: _started(document, device))
    try:
        yield
    finally:
        seconds = time.monotonic() - start
        if path.exists():  # a folder that was deleted meanwhile is not created again
            with suppress(ValueError):
                files.update_json(path, lambda document: _ended(document, seconds))


def _started(document: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """run.json at a start: date and command of the first start, device of the last."""
    first: dict[str, Any] = {"started": _now(), "command": _command(), "seconds": 0.0, "starts": 0, "ends": 0}
    first |= {key: document[key] for key, value in first.items() if type(document.get(key)) is type(value)}
    return {"format": 1, **first, "device": device_name(device), "starts": first["starts"] + 1}


def _ended(document: dict[str, Any], seconds: float) -> dict[str, Any]:
    seconds, ends = round(document["seconds"] + seconds, 1), document["ends"] + 1
    return {**document, "ended": _now(), "seconds": seconds, "ends": ends}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _command() -> str:
    """The command line; empty if the library was called from Python."""
    program, *words = sys.argv or [""]
    return shlex.join(["chordmixer", *words]) if Path(program).name in ("chordmixer", "__main__.py") else ""


# --- Sharing ---


def save_model(run: Path, out: Path, card: str) -> None:
    """Copy the files that predictions of a finished run need into a new or empty folder, with a model card.

    The folder has neither file paths nor record ids of the user.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: a model is saved into a new or empty folder; give another name")
    members = sorted((run / MEMBERS).glob("[0-9]*")) if (run / ENSEMBLE).exists() else []
    for folder in [run, *members]:
        target = out / folder.relative_to(run)
        target.mkdir(parents=True, exist_ok=True)
        contents = {name: (folder / name).read_bytes() for name in SHARED if (folder / name).exists()}
        contents[CONFIG] = files.json_bytes(_without_paths(read_config(folder)))
        files.write_recorded(target, contents)
    files.write_text(out / CARD, card)


def _without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """The config with file names instead of paths."""
    data, training = dict(config.get("data") or {}), dict(config.get("training") or {})
    if "files" in data:
        data["files"] = [PurePath(path).name for path in data["files"]]
    labels = (data.get("reading") or {}).get("labels")
    if labels is not None and not labels.startswith("header:"):
        data["reading"] = {**data["reading"], "labels": PurePath(labels).name}
    if training.get("start"):
        training["start"] = PurePath(training["start"]).name
    return {**config, "data": data, "training": training}
