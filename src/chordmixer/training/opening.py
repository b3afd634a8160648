"""A run folder is made or taken up again: by the first rank alone, which locks it and tells the others."""

from __future__ import annotations

import shlex
from pathlib import Path

from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

from chordmixer import files
from chordmixer.training import checkpoints
from chordmixer.training.checkpoints import State
from chordmixer.training.devices import from_main_rank
from chordmixer.training.experiment import Experiment
from chordmixer.training.run_folder import CONFIG, JOURNAL, LOCK, PROVENANCE, RunLock


class OpenRun:
    """The folder of a run that is trained; only the first rank holds its lock and writes."""

    def __init__(
        self, experiment: Experiment, out: Path, resume: bool, accelerator: Accelerator, unverified: bool = False
    ) -> None:
        self.experiment, self.out = experiment, out
        self.lock: RunLock | None = None
        self.found: Path | None
        """The newest checkpoint that is whole, on every rank."""
        self.refused: list[str]
        """Why newer ones are not used."""
        try:
            self.found, self.refused = from_main_rank(accelerator, lambda: self._open(resume, unverified))
        except BaseException:
            self.close()
            raise

    def _open(self, resume: bool, unverified: bool) -> tuple[Path | None, list[str]]:
        self.lock = open_folder(self.experiment, self.out, resume, unverified)
        found, refused = checkpoints.newest_good(self.out)
        if found:
            checkpoints.check_settings(found, self.experiment.settings(), unverified)
        if not found or not found.name.endswith(checkpoints.FINISHED):  # these grow again
            files.unrecord(self.out, [JOURNAL, PROVENANCE])
        return found, refused

    def said(self) -> list[str]:
        """What a user is told of its checkpoints."""
        return [
            *(f"refused: {why}" for why in self.refused),
            *([f"going on from {self.found}"] if self.found else []),
        ]

    def check(self) -> None:
        """Refuse to go on where the folder is gone."""
        if self.lock:
            self.lock.check()

    def save(self, state: State, model: nn.Module, optimizer: Optimizer) -> None:
        """Write a checkpoint, on the first rank."""
        if self.lock:
            self.lock.check()
            checkpoints.save(self.out, state, model, optimizer, self.experiment.settings())

    def close(self) -> None:
        """Let others write into the folder."""
        if self.lock:
            self.lock.release()


def open_folder(experiment: Experiment, out: Path, resume: bool, unverified: bool = False) -> RunLock:
    """A new run starts in a new folder; an old one must be the same experiment. Nobody else writes until release."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be made a folder ({error.strerror}): give another --out") from None
    there = (out / CONFIG).exists()
    _check_takes(experiment, out, resume, unverified) if there else _check_new(out)
    lock = RunLock(out)
    try:
        if (out / CONFIG).exists() != there:
            raise ValueError(f"{out} was begun by another process: give a new folder, or add --resume")
        files.sweep_run(out)
        if not there:
            experiment.save(out)
    except BaseException:
        lock.release()
        raise
    return lock


def _check_new(out: Path) -> None:
    """Refuse a folder with anything in it but what a kill leaves of a run's first moment."""
    there = {path.name for path in out.iterdir() if not path.name.startswith(files.TEMPORARY)} - {LOCK}
    if there and not (there == {files.MANIFEST} and {*files.read_json(out / files.MANIFEST)} == {CONFIG}):
        raise ValueError(f"{out} is not empty and holds no run: give a new folder")


def _check_takes(experiment: Experiment, out: Path, resume: bool, unverified: bool) -> None:
    """Refuse to go on with a run that is another one, or that leads elsewhere."""
    if not resume:
        raise ValueError(f"{out} already holds a run: give a new folder, or add --resume to go on with it")
    if Experiment.load(out, unverified=unverified) != experiment:
        raise ValueError(
            f"{out} was started with other settings: resume with the same ones, or with "
            f"chordmixer train --resume {shlex.quote(str(out))} alone"
        )
    for name in ("checkpoints", "tensorboard", "members", JOURNAL):
        if (out / name).is_symlink():
            raise ValueError(f"{out / name} is a symbolic link: a run is written into its own folder; remove it")
