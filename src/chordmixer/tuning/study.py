"""The search: a short run for each trial of the journal, in a folder of its own.

A trial belongs to the process that holds STUDY/trials/N.lock. If the lock is free and the trial not finished, its
process was killed: the next process that looks for work resumes the trial from its last checkpoint.
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
from chordmixer.recipes.files import MIN_INTERVAL, MIN_STEPS, measured_seconds
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
    POSITIONS,
    USES_WORDS,
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
MAX_TRIALS_BY_TIME, MIN_TRIALS_BY_TIME, SHORTENING = 20, 5, 10
"""Number of trials of the default network that fit into the time of a study; fewer, down to the second number, if
each were shorter than 1 / `SHORTENING` of a full run: very short ones favour high learning rates and no dropout."""
MAX_EVALUATIONS = 10
"""Maximum number of evaluations in a trial; short trials have fewer, since they would take longer than the steps."""
CHECKPOINT_MINUTES = 0.5
"""Maximum number of minutes between checkpoints of a trial, which are lost if a process is killed."""
STARTUP_TRIALS, UNPRUNED_TRIALS = 8, 4
"""Number of trials before the sampler uses their losses, and before any trial is pruned."""
MAX_STARTS = 3
"""Number of starts of a trial after which it counts as failed, since it may itself be what kills its processes."""
MAX_FAILURES = 3
"""Number of failed trials in a row after which a process stops: their settings are then not the likely cause."""

ABOUT, DEFAULT, STARTED, REASON, SECONDS, MINUTE = "about", "default", "starts", "reason", "seconds", "minute"
"""Attribute names: of a study, its settings and space; of a trial, whether it is the recipe itself, how often it was
started, why it ended early, its seconds, and the minute of the study in which it ended."""
OUT_OF_TIME, INFEASIBLE, WORSE = "out of time", "infeasible", "pruned"


class _Ended(Exception):
    """Ends a trial before its last step."""


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
        """Open or begin a study of `seconds` and at most `trials`; `fixed` settings are not searched.

        `steps` are the steps of a trial, by default computed from the measured speed of the default network.
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
        self.study.pruner = MedianPruner(UNPRUNED_TRIALS, n_warmup_steps=self.steps // 3)

    # --- Settings of the study ---

    def _measured_steps(self) -> int:
        """Steps of a trial by its share of the time: enough to distinguish settings, and at most a full run."""
        step_seconds, passes = measured_seconds(
            self._shortened(self.experiment, self.full), self.task, ("validation",)
        )

        def steps_for(trials: int) -> int:
            return int((self.seconds / trials - passes) / step_seconds)

        steps = max(steps_for(MAX_TRIALS_BY_TIME), min(self.full // SHORTENING, steps_for(MIN_TRIALS_BY_TIME)))
        return min(max(MIN_STEPS, steps_for(self.trials) if self.trials else steps), self.full)

    def _begin(self, steps: int) -> None:
        """Enqueue the recipe first, with and without words and positions, of which its own short runs choose."""
        variants = [default_values(self.experiment, self.space)]
        for name, absent in ((USES_WORDS, False), (POSITIONS, 0)):
            variants += [{**values, name: absent} for values in variants] if name in self.space else []
        for values in variants:
            self.study.enqueue_trial(values, {DEFAULT: True}, skip_if_exists=True)
        self.study.set_user_attr(ABOUT, self._about(steps))

    def _about(self, steps: int) -> dict[str, Any]:
        about = {
            "format": 1,
            "settings": self.experiment.settings(),
            "space": space_document(self.space),
            "steps": steps,
        }
        decoded: dict[str, Any] = json.loads(json.dumps(about))
        return decoded

    def _check(self, steps: int | None) -> None:
        """Refuse a study of other records, settings or trials."""
        stored = self.study.user_attrs[ABOUT]
        current = self._about(steps or stored["steps"])
        if stored["settings"]["data"].get("key") != current["settings"]["data"].get("key"):
            raise ValueError(f"{self.out} is a study of other records: give the same files, or a new folder")
        if difference := first_difference(stored, current):
            name, before, now = difference
            raise ValueError(
                f"{self.out} is a study with {name.removeprefix('settings.')}={before}, not {now}: give the same "
                "options, or a new folder"
            )
        if {*stored["space"]} != {*current["space"]}:
            odd = min({*stored["space"]} ^ {*current["space"]})
            raise ValueError(
                f"{self.out} searches other settings ({odd} only in one of the two): give the same options, or a "
                "new folder"
            )

    def _sweep(self) -> None:
        """Remove files of killed processes: folders of trials that have ended, and temporary files."""
        files.sweep(self.out)
        running = {str(trial.number) for trial in self.study.get_trials(states=(TrialState.RUNNING,))}
        for path in (self.out / TRIALS).glob("[0-9]*"):
            if path.stem not in running:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _shortened(self, experiment: Experiment, steps: int) -> Experiment:
        """The experiment with this number of steps, and without short runs for words."""
        interval = max(1, min(MIN_INTERVAL, steps // 2), -(-steps // MAX_EVALUATIONS))
        short = replace(experiment.training, steps=steps, minutes=0.0, evaluate_every=interval, trial=0.0)
        checkpoint_minutes = min(short.checkpoint_minutes, CHECKPOINT_MINUTES)
        return replace(experiment, training=replace(short, checkpoint_minutes=checkpoint_minutes, tensorboard=False))

    # --- Trials ---

    def run(self) -> Iterator[None]:
        """Run a trial per iteration, until the time or the number of trials is used up."""
        failed: list[str] = []
        while (claimed := self._claim()) is not None:
            trial, lock = claimed
            try:
                failed = [*failed, reason] if (reason := self._try(trial)) else []
            finally:
                lock.release()
            gc.collect()  # the network and its optimiser, before the memory of the next trial is forecast
            if len(failed) == MAX_FAILURES:
                raise ValueError(f"{MAX_FAILURES} trials in a row failed, the last because: {failed[-1]}")
            yield

    def _claim(self) -> tuple[Trial, FileLock] | None:
        """Claim a trial of a killed process, or a new one; None if the time or the number of trials is used up."""
        with self.lock:
            for running in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if (lock := self._hold(running.number)) is not None:
                    if running.user_attrs.get(STARTED, 0) < MAX_STARTS:
                        return self._started(Trial(self.study, running._trial_id)), lock
                    abandoned = Trial(self.study, running._trial_id)
                    self._finish(abandoned, TrialState.FAIL, "its processes were killed", time.monotonic())
                    lock.release()
            if not self._has_work():
                return None
            if not self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                self._propose()
            trial = self._started(self.study.ask())
            lock = self._hold(trial.number)
            assert lock is not None
            return trial, lock

    def _hold(self, number: int) -> FileLock | None:
        """The lock of a trial, or None if another process holds it."""
        (self.out / TRIALS).mkdir(exist_ok=True)
        lock = FileLock(self.out / TRIALS / f"{number}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def _propose(self) -> None:
        """Enqueue the next trial with values that the sampler derives from the others.

        They are drawn on a copy and written as one line, so that a killed process leaves all of them or none. Each
        trial has its own sampler: processes draw different values, and a restarted process the same.
        """
        trials = self.study.get_trials()
        seed = draws.key(self.experiment.training.seed, "tune", len(trials)) % 2**32
        with quiet_optuna():
            copy = optuna.create_study(sampler=TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS))
        copy.add_trials(trials)
        self.study.enqueue_trial(suggest(copy.ask(), self.space))

    def _started(self, trial: Trial) -> Trial:
        trial.set_user_attr(STARTED, trial.user_attrs.get(STARTED, 0) + 1)
        return trial

    def _has_work(self) -> bool:
        """Whether another trial is needed, and half of a typical one still fits into the time."""
        trials = self.study.get_trials(deepcopy=False)
        if any(trial.state == TrialState.WAITING for trial in trials) and not _losses(trials):
            return True
        if self.trials and sum(trial.state != TrialState.WAITING for trial in trials) >= self.trials:
            return False
        seconds = [trial.user_attrs.get(SECONDS, 0.0) for trial in trials if trial.state == TrialState.COMPLETE]
        return self.clock.beat() + (median(seconds) / 2 if seconds else 0.0) < self.seconds

    def _try(self, trial: Trial) -> str:
        """Train with the settings of a trial; return the reason of a failure, or an empty string."""
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
        """End a trial that needs more memory than is free, before it allocates any."""
        if experiment.model.encoder != COUNTED_ENCODER:  # other encoders are refused by the memory of their weights
            return
        expected = forecast(experiment, self.lengths, self.device, limits=False)
        if not expected.fits:
            wanted, free = format_bytes(expected.peak + expected.retained), format_bytes(expected.free)
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
            with suppress(OSError):  # on systems that cannot remove files in use
                (self.out / TRIALS / f"{trial.number}.lock").unlink()
        self._tell(self.study.get_trials(deepcopy=False)[trial.number])

    def _tell(self, trial: FrozenTrial) -> None:
        """Log how a trial ended, and its differences from the recipe."""
        outcome = f"validation loss {trial.value:.5g}" if trial.state == TrialState.COMPLETE else _why(trial)
        default = settings_of(default_values(self.experiment, self.space))
        changed = {name: value for name, value in settings_of(trial.params).items() if default.get(name) != value}
        settings = ", ".join(f"{name}={value}" for name, value in changed.items()) or "the default settings"
        logger.info(f"trial {trial.number}, {seconds_of(self.study) / 60:.1f} min: {outcome}: {settings}")


def _why(trial: FrozenTrial) -> str:
    reason = str(trial.user_attrs.get(REASON, ""))
    return f"failed: {reason}" if trial.state == TrialState.FAIL else reason


def _losses(trials: list[FrozenTrial]) -> list[float]:
    return [trial.value for trial in trials if trial.value is not None and trial.state == TrialState.COMPLETE]


def _full_steps(experiment: Experiment, batches: int) -> int:
    """The number of steps of a full run of the recipe."""
    config = experiment.training
    steps = config.epochs * -(-batches // config.accumulate)
    return min(steps, config.steps or steps)
