"""Words or no words: two short runs before the run itself, and the validation records decide.

Words help some data and hurt others, and nothing tells beforehand which. The short runs are runs like any other, in
RUN/trials, so that a kill costs no more there. What they gave stands in RUN/trials.json; they are then removed.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from chordmixer import files, terminal
from chordmixer.config import from_dict, to_dict
from chordmixer.models.words import WordsConfig
from chordmixer.training.devices import choose_device
from chordmixer.training.experiment import Experiment, check_lengths
from chordmixer.training.forecast import check_memory
from chordmixer.training.loop import TrainingRun
from chordmixer.training.run_folder import open_folder

FILE, FOLDER = "trials.json", "trials"
WITH, WITHOUT = "words", "no words"


@dataclass(frozen=True)
class Trials:
    """What the short runs gave."""

    losses: dict[str, float]
    """The lowest validation loss of each, at the temperature that suits it best."""
    chosen: str
    format: int = 1

    def line(self) -> str:
        """For the terminal and the report.

        >>> Trials({"words": 0.3104, "no words": 0.3777}, "words").line()
        'tried words and no words in short runs: validation loss 0.3104 and 0.3777; it goes on with words'
        """
        losses = " and ".join(f"{loss:.4f}" for loss in self.losses.values())
        tried = f"tried {' and '.join(self.losses)} in short runs"
        return f"{tried}: validation loss {losses}; it goes on with {self.chosen}"


def read(folder: Path) -> Trials | None:
    """What a run's short runs gave; None where it had none, or they are not finished."""
    path = folder / FILE
    return from_dict(Trials, files.read_json(path), str(path)) if path.exists() else None


def settle(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    console: Console | None = None,
    unverified: bool = False,
    resumed_as: Path | None = None,
) -> tuple[Experiment, bool]:
    """The experiment without a trial, and whether its run is already begun in `out`; `--resume` takes `resumed_as`.

    With several ranks there is no trial, and the words stay.
    """
    if not experiment.training.trial:
        return experiment, resume
    if not experiment.model.words.lengths or os.environ.get("WORLD_SIZE", "1") != "1":
        return _decided(experiment, WITH), resume
    known = read(out) if resume and FILE in files.recorded(out) else None
    if known is None:
        known = _hold(experiment, out, resume, console or terminal.console(), unverified, resumed_as or out)
    decided = _decided(experiment, known.chosen)
    if Experiment.load(out, unverified=unverified).training.trial:
        decided.save(out)
    return decided, True


def _hold(
    experiment: Experiment, out: Path, resume: bool, console: Console, unverified: bool, resumed_as: Path
) -> Trials:
    """Make the short runs, or go on with them."""
    _check(experiment)
    lock = open_folder(experiment, out, resume, unverified)
    try:
        losses = {}
        for name in (WITH, WITHOUT):
            console.print(f"a short run with {name}", markup=False, highlight=False)
            own = out / FOLDER / name.replace(" ", "-")
            short = _short(_decided(experiment, name), experiment.training.trial)
            losses[name] = _loss(short, own, resumed_as, console)
        made = Trials(losses, min(losses, key=losses.__getitem__))
        files.write_recorded(out, {FILE: files.json_bytes(to_dict(made))})
        _remove(out / FOLDER)
    finally:
        lock.release()
    console.print(made.line(), markup=False, highlight=False, soft_wrap=True)
    return made


def _check(experiment: Experiment) -> None:
    """Refuse before a folder is made what a run would refuse."""
    task = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training = task.records("training")
    check_memory(experiment, training.lengths, choose_device(experiment.training), training.name)


def _loss(experiment: Experiment, folder: Path, run: Path, console: Console) -> float:
    """The lowest validation loss of a short run; the test records are not looked at."""
    own = TrainingRun(experiment, folder, (folder / "config.json").exists(), console, resumed_as=run)
    try:
        return own.learn()
    finally:
        own.folder.close()


def _decided(experiment: Experiment, chosen: str) -> Experiment:
    model = experiment.model if chosen == WITH else replace(experiment.model, words=WordsConfig())
    return replace(experiment, model=model, training=replace(experiment.training, trial=0.0))


def _short(experiment: Experiment, share: float) -> Experiment:
    """The same over a share of the run's length, by whatever ends it."""
    config = experiment.training
    return replace(
        experiment,
        training=replace(
            config,
            epochs=max(1, round(share * config.epochs)) if not config.steps + config.minutes else config.epochs,
            steps=max(1, round(share * config.steps)) if config.steps else 0,
            minutes=share * config.minutes,
            evaluate_every=-(-config.evaluate_every // round(1 / share)),
        ),
    )


def _remove(folder: Path) -> None:
    """The short runs, which say nothing more than trials.json; only what is theirs."""
    for own in (folder / name for name in ("words", "no-words")):
        if not own.is_symlink() and "config.json" in files.recorded(own):
            shutil.rmtree(own)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()
