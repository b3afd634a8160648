"""The search: short runs of settings that the journal's trials propose, each in a folder of its own.

A trial belongs to the process that holds STUDY/trials/N.lock. Where the lock is free and the trial not finished, its
process has died: the next one to look for work goes on with it, from its last checkpoint.
"""

from __future__ import annotations

import gc
import json
import logging
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState

from chordmixer import files, terminal
from chordmixer.config import first_difference
from chordmixer.data import draws
from chordmixer.recipes.files import APART, LEAST_STEPS, measured_seconds
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device, format_bytes
from chordmixer.training.forecast import forecast
from chordmixer.training.loop import TrainingRun
from chordmixer.training.memory import COUNTED_ENCODER
from chordmixer.training.progress import Interrupted
from chordmixer.training.run_folder import CONFIG
from chordmixer.training.speed import settle_precision
from chordmixer.tuning.journal import StudyClock, open_journal, quiet_optuna, seconds_of
from chordmixer.tuning.space import (
    WORDS,
    Space,
    default_values,
    search_space,
    settings_of,
    space_document,
    suggest,
    with_values,
)

logger = logging.getLogger(__name__)

TRIALS = "trials"
SHARES, FEWEST, SHORTEST = 20, 5, 10
"""Trials of the default network that fit into the time of a study; fewer, down to `FEWEST`, where each would be
shorter than one n-th of a full run, for n = `SHORTEST`: very short ones favour high learning rates and no dropout."""
EVALUATIONS = 10
"""On the validation records, in a trial; fewer in a short one, where they would take longer than its steps."""
CHECKPOINT_MINUTES = 0.5
"""Work of a trial that a kill may cost, at most."""
STARTUP, UNPRUNED = 8, 4
"""Trials before the sampler learns from their losses, and before any is pruned."""
STARTS = 3
"""Processes that may die over a trial before it counts as failed: it may be what kills them."""
FAILURES = 3
"""Failed trials in a row after which a process gives up: the fault is then hardly in their settings."""

ABOUT, DEFAULT, STARTED, REASON, SECONDS, MINUTE = "about", "default", "starts", "reason", "seconds", "minute"
"""Attributes: what a study is of; of a trial, whether it is the recipe itself, how often it was started, why it ended
early, how long it took, and the minute of the study in which it ended."""
OUT_OF_TIME, INFEASIBLE, WORSE = "out of time", "infeasible", "pruned"


class _Ended(Exception):
    """A trial that is not worth its remaining steps."""


class Search:
    """The work of one process on a study."""

    def __init__(
        self,
        experiment: Experiment,
        fixed: Collection[str],
        out: Path,
        seconds: float,
        trials: int | None = None,
        steps: int | None = None,
    ) -> None:
        """A study of so many seconds, for at most so many `trials`; `fixed` settings are not searched.

        `steps` are those of a trial; by default they follow from the time that the default network needs for them.
        """
        self.experiment, self.out, self.seconds, self.trials = experiment, out, seconds, trials
        self.task = experiment.build_task()
        self.lengths = self.task.records("training").lengths
        self.device = choose_device(experiment.training)
        self.space: Space = search_space(experiment, fixed)
        self.full = _full_steps(experiment, len(experiment.training.sampler(self.lengths)))
        self.study, self.lock = open_journal(out)
        self.clock = StudyClock(self.study)
        with self.lock:
            if ABOUT not in self.study.user_attrs:
                self._begin(steps or self._measured_steps())
            self._check(steps)
            self._sweep()
        self.steps = int(self.study.user_attrs[ABOUT]["steps"])
        self.study.pruner = MedianPruner(UNPRUNED, n_warmup_steps=self.steps // 3)

    # --- What the study is of ---

    def _measured_steps(self) -> int:
        """A share of the time, but not too short to tell settings apart, nor longer than a full run."""
        a_step, passes = measured_seconds(self._shortened(self.experiment, self.full), self.task, ("validation",))

        def within(trials: int) -> int:
            return int((self.seconds / trials - passes) / a_step)

        steps = max(within(SHARES), min(self.full // SHORTEST, within(FEWEST)))
        return min(max(LEAST_STEPS, within(self.trials) if self.trials else steps), self.full)

    def _begin(self, steps: int) -> None:
        """The recipe itself first, with and without words: its own short runs choose between the two."""
        default = default_values(self.experiment, self.space)
        others = [{**default, WORDS: False}] if WORDS in self.space else []
        for values in [default, *others]:
            self.study.enqueue_trial(values, {DEFAULT: True}, skip_if_exists=True)
        self.study.set_user_attr(ABOUT, self._about(steps))

    def _about(self, steps: int) -> dict[str, Any]:
        about = {
            "format": 1,
            "settings": self.experiment.settings(),
            "space": space_document(self.space),
            "steps": steps,
        }
        read: dict[str, Any] = json.loads(json.dumps(about))
        return read

    def _check(self, steps: int | None) -> None:
        """Refuse a study of other records, settings or trials."""
        theirs = self.study.user_attrs[ABOUT]
        ours = self._about(steps or theirs["steps"])
        if theirs["settings"]["data"].get("key") != ours["settings"]["data"].get("key"):
            raise ValueError(f"{self.out} is a study of other records: give the same files, or a new folder")
        if found := first_difference(theirs, ours):
            name, before, now = found
            raise ValueError(
                f"{self.out} is a study with {name.removeprefix('settings.')}={before}, not {now}: give the same "
                "options, or a new folder"
            )
        if {*theirs["space"]} != {*ours["space"]}:
            odd = min({*theirs["space"]} ^ {*ours["space"]})
            raise ValueError(
                f"{self.out} searches other settings ({odd} only in one of the two): give the same options, or a "
                "new folder"
            )

    def _sweep(self) -> None:
        """Remove what killed processes left: trials that have ended, and unfinished files."""
        files.sweep(self.out)
        running = {str(trial.number) for trial in self.study.get_trials(states=(TrialState.RUNNING,))}
        for path in (self.out / TRIALS).glob("[0-9]*"):
            if path.stem not in running:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _shortened(self, experiment: Experiment, steps: int) -> Experiment:
        """The same over so many steps."""
        every = max(1, min(APART, steps // 2), -(-steps // EVALUATIONS))
        short = replace(experiment.training, steps=steps, minutes=0.0, evaluate_every=every, trial=0.0)
        saved = min(short.checkpoint_minutes, CHECKPOINT_MINUTES)
        return replace(experiment, training=replace(short, checkpoint_minutes=saved, tensorboard=False))

    # --- Trials ---

    def run(self) -> Iterator[None]:
        """Run trials, one at each turn, until the study has taken its time, or has its trials."""
        failed: list[str] = []
        while (claimed := self._claim()) is not None:
            trial, held = claimed
            try:
                failed = [*failed, why] if (why := self._try(trial)) else []
            finally:
                held.release()
            gc.collect()  # the network and its optimiser, before the memory of the next trial is forecast
            if len(failed) == FAILURES:
                raise ValueError(f"{FAILURES} trials in a row failed, the last because: {failed[-1]}")
            yield

    def _claim(self) -> tuple[Trial, FileLock] | None:
        """A trial that a dead process has left, or a new one; None where the time or the trials are used up."""
        with self.lock:
            for old in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if (held := self._hold(old.number)) is not None:
                    if old.user_attrs.get(STARTED, 0) < STARTS:
                        return self._started(Trial(self.study, old._trial_id)), held
                    left = Trial(self.study, old._trial_id)
                    self._finish(left, TrialState.FAIL, "its processes were killed", time.monotonic())
                    held.release()
            if not self._goes_on():
                return None
            if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                self._propose()
            trial = self._started(self.study.ask())
            held = self._hold(trial.number)
            assert held is not None
            return trial, held

    def _hold(self, number: int) -> FileLock | None:
        """The lock of a trial, unless a living process has it."""
        (self.out / TRIALS).mkdir(exist_ok=True)
        lock = FileLock(self.out / TRIALS / f"{number}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def _propose(self) -> None:
        """Let the next trial have values that the sampler learns from the others.

        They are drawn on a copy and written as one line, so that a kill leaves all of them or none. Each trial has a
        sampler of its own: processes draw different values, and a restarted one the same.
        """
        trials = self.study.get_trials()
        seed = draws.key(self.experiment.training.seed, "tune", len(trials)) % 2**32
        with quiet_optuna():
            copy = optuna.create_study(sampler=TPESampler(seed=seed, n_startup_trials=STARTUP))
        copy.add_trials(trials)
        self.study.enqueue_trial(suggest(copy.ask(), self.space))

    def _started(self, trial: Trial) -> Trial:
        trial.set_user_attr(STARTED, trial.user_attrs.get(STARTED, 0) + 1)
        return trial

    def _goes_on(self) -> bool:
        """Whether another trial is asked for, and half of one would still fit into the time."""
        known = self.study.get_trials(deepcopy=False)
        if any(trial.state == TrialState.WAITING for trial in known) and not _losses(known):
            return True
        if self.trials and sum(trial.state != TrialState.WAITING for trial in known) >= self.trials:
            return False
        took = [trial.user_attrs.get(SECONDS, 0.0) for trial in known if trial.state == TrialState.COMPLETE]
        return self.clock.beat() + (median(took) / 2 if took else 0.0) < self.seconds

    def _try(self, trial: Trial) -> str:
        """Train with the settings of a trial; returns the reason of a failure."""
        folder = self.out / TRIALS / str(trial.number)
        default = DEFAULT in trial.user_attrs
        began = time.monotonic()
        try:
            experiment = self._shortened(with_values(self.experiment, suggest(trial, self.space)), self.steps)
            if not default:
                self._check_memory(experiment)
            loss = self._train(trial, experiment, folder)
        except _Ended as ended:
            self._finish(trial, TrialState.PRUNED, str(ended), began)
        except Interrupted:
            logger.info("stopped: the same command goes on with this study")
            raise
        except ValueError as error:
            if default:
                raise
            self._finish(trial, TrialState.FAIL, str(error), began)
            return str(error)
        else:
            self._finish(trial, TrialState.COMPLETE, "", began, loss)
        return ""

    def _check_memory(self, experiment: Experiment) -> None:
        """End a trial that needs more memory than is free, before any is allocated."""
        if experiment.model.encoder != COUNTED_ENCODER:  # others are refused by what their weights need
            return
        needs = forecast(experiment, self.lengths, self.device, limits=False)
        if not needs.fits:
            wanted, free = format_bytes(needs.peak + needs.retained), format_bytes(needs.free)
            raise _Ended(f"{INFEASIBLE}: needs about {wanted} of memory, {free} are free")

    def _train(self, trial: Trial, experiment: Experiment, folder: Path) -> float:
        console = terminal.console(quiet=True)
        reported = {*self.study.get_trials(deepcopy=False)[trial.number].intermediate_values}

        def watch(step: int, loss: float) -> None:
            now = self.clock.beat()
            if step not in reported:  # by a process that was killed
                trial.report(loss, step)
            if step >= self.steps or DEFAULT in trial.user_attrs:
                return
            if now > self.seconds:
                raise _Ended(OUT_OF_TIME)
            if trial.should_prune():
                raise _Ended(WORSE)

        resumed = (folder / CONFIG).exists()
        experiment = settle_precision(experiment, folder, measured=False)  # the same in all trials
        with closing(TrainingRun(experiment, folder, resumed, console, resumed_as=self.out)) as run:
            run.watch = watch
            return run.learn()

    def _finish(self, trial: Trial, state: TrialState, reason: str, began: float, loss: float | None = None) -> None:
        """Record how a trial ended, and remove its folder."""
        with self.lock:
            trial.set_user_attr(SECONDS, time.monotonic() - began)
            trial.set_user_attr(MINUTE, self.clock.beat() / 60)
            trial.set_user_attr(REASON, reason)
            self.study.tell(trial, loss, state)
            shutil.rmtree(self.out / TRIALS / str(trial.number), ignore_errors=True)
            with suppress(OSError):  # where files in use cannot be removed
                (self.out / TRIALS / f"{trial.number}.lock").unlink()
        self._tell(self.study.get_trials(deepcopy=False)[trial.number])

    def _tell(self, trial: FrozenTrial) -> None:
        """Log how a trial ended, and in what it differs from the recipe."""
        ended = f"validation loss {trial.value:.5g}" if trial.state == TrialState.COMPLETE else _why(trial)
        before = settings_of(default_values(self.experiment, self.space))
        own = {name: value for name, value in settings_of(trial.params).items() if before.get(name) != value}
        settings = ", ".join(f"{name}={value}" for name, value in own.items()) or "the default settings"
        logger.info(f"trial {trial.number}, {seconds_of(self.study) / 60:.1f} min: {ended}: {settings}")


def _why(trial: FrozenTrial) -> str:
    reason = str(trial.user_attrs.get(REASON, ""))
    return f"failed: {reason}" if trial.state == TrialState.FAIL else reason


def _losses(trials: list[FrozenTrial]) -> list[float]:
    return [trial.value for trial in trials if trial.value is not None and trial.state == TrialState.COMPLETE]


def _full_steps(experiment: Experiment, batches: int) -> int:
    """The steps of a full run of the recipe."""
    config = experiment.training
    steps = config.epochs * -(-batches // config.accumulate)
    return min(steps, config.steps or steps)
