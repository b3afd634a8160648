"""Train every model and seed of an entry, each in its own folder; finished runs are not trained again.

Baselines are scored once, since all runs share their data, and copied to each run folder. Several runs can train at
the same time on one device, each in its own process, because small ones leave most of a GPU idle. This slows them
down but does not change their results, unless a run has a time limit.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from subprocess import DEVNULL, STDOUT, Popen

from chordmixer import files
from chordmixer.paper import subprocesses
from chordmixer.paper.baselines import compare
from chordmixer.paper.reproduction import costs
from chordmixer.paper.reproduction.experiments import model_of
from chordmixer.terminal import first_rank, show_log, tell
from chordmixer.training import Experiment, results
from chordmixer.training.devices import choose_device
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.experiment import check_lengths
from chordmixer.training.intervals import Difference
from chordmixer.training.loop import train
from chordmixer.training.progress import Interrupted, Interrupts
from chordmixer.training.results import BASELINES, write_differences
from chordmixer.training.run_folder import WAIT, RunLock, open_folder
from chordmixer.views.metrics import duration
from chordmixer.views.runs import Run, Scored, evaluation_from, lowest_loss, steps
from chordmixer.views.verdict import best_baseline

logger = logging.getLogger(__name__)

STATE = "reproduction.json"  # file beside the run folders: name of the entry, and seconds of each run
SCORES = "evaluation-test.json"
PROCESS = f"{__name__}:train_folder"
LOGS = "logs"  # folder beside the run folders with the output of each process
POLL_SECONDS, REPORT_SECONDS = 0.2, 60.0

Losses = dict[str, dict[float, float]]
"""Lowest validation loss, averaged over seeds, by model and learning rate."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run and its scores."""

    experiment: Experiment
    evaluation: Evaluation
    seconds: float  # of training, summed over all starts
    killed: bool  # whether a start was killed, so that `seconds` is incomplete
    steps: int  # training steps made
    baselines: list[Scored] = field(default_factory=list)  # on the same records
    validation: float = float("nan")  # lowest validation loss
    folder: Path | None = None


@dataclass(frozen=True)
class DataSummary:
    """Size, lengths and classes of the data."""

    records: dict[str, int]  # by part
    shortest: int
    longest: int
    classes: list[str]  # empty for regression


def run_all(
    experiments: Mapping[str, Experiment],
    journal: RunsJournal,
    resume: bool,
    baselines: bool = True,
    at_once: int = 1,
) -> list[TrainedRun]:
    """Train or resume runs in folders <model>-seed<k> beside the journal, then score baselines.

    Runs are trained one after the other in this process, or `at_once` at a time in other processes.
    """
    out = journal.path.parent
    scores = {name: load_finished(out / name, experiment) for name, experiment in experiments.items()}
    missing = {name: experiment for name, experiment in experiments.items() if scores[name] is None}
    if at_once > 1 and missing:
        ParallelRuns(missing, journal, at_once).train()
        scores |= {name: load_finished(out / name, experiment) for name, experiment in missing.items()}
    trained = []
    for number, (folder, experiment) in enumerate(experiments.items(), 1):
        evaluation = scores[folder]
        if evaluation is None:
            logger.info(f"{folder}, {number} of {len(experiments)}")
            with journal.timing(folder):
                evaluation = train(experiment, out / folder, resume=resume)
        elif folder not in missing:
            logger.info(f"{folder}, {number} of {len(experiments)}: finished before")
        scored = replace(evaluation, encoder=model_of(folder) or evaluation.encoder)  # includes the version
        steps_made, loss = steps(out / folder), lowest_loss(out / folder)
        time_spent = journal.seconds(folder)
        trained.append(TrainedRun(experiment, scored, *time_spent, steps_made, validation=loss, folder=out / folder))
    if not baselines or not first_rank():
        return trained
    caches = [getattr(experiment.data, "cache", None) for experiment in experiments.values()]
    baseline_scores = shared_baselines([out / folder for folder in experiments], caches[0])
    return [replace(run, baselines=baseline_scores) for run in trained]


def shared_baselines(runs: Sequence[Path], cache: str | None = None) -> list[Scored]:
    """Read the baselines from one of the run folders, or score them, and copy them to all runs on the same data."""
    needed = {BASELINES, results.BASELINE_ROWS}
    scored = [run for run in runs if needed <= files.read_json(run / files.MANIFEST).keys()]
    if not scored:
        logger.info("baselines on the same records, on the CPU")
        compare(runs[0], cache, announce=False)
        scored = [runs[0]]
    files.verify(scored[0], needed)
    target = Experiment.load(scored[0]).build_task().target
    for run in runs:
        if run not in scored:
            with RunLock(run, WAIT):
                files.write_recorded(run, {name: (scored[0] / name).read_bytes() for name in needed})
            write_differences(run, target)
    return Run.load(scored[0]).baselines


def differences(trained: Sequence[TrainedRun], metric: str) -> dict[str, Difference]:
    """Difference of each model, over all its seeds, from the best baseline on the same records; empty without one."""
    best = best_baseline(trained[0].baselines, metric)
    if best is None:
        return {}
    target, runs = trained[0].experiment.build_task().target, dict[str, list[Path]]()
    for run in trained:
        runs.setdefault(run.evaluation.encoder, []).extend([run.folder] if run.folder else [])
    differences = {model: results.differences(paths, target, metric).get(best.name) for model, paths in runs.items()}
    return {model: difference for model, difference in differences.items() if difference is not None}


def validation_losses(trained: Sequence[TrainedRun]) -> Losses:
    """Validation loss of each model at each learning rate, averaged over seeds."""
    losses: dict[str, dict[float, list[float]]] = {}
    for run in trained:
        if math.isnan(run.validation):
            raise ValueError(
                f"a run of {run.evaluation.encoder} has no validation loss in its metrics.jsonl, so no rate can be "
                "chosen for it: restore that file, or train it again"
            )
        losses.setdefault(run.evaluation.encoder, {}).setdefault(run.experiment.training.learning_rate, []).append(
            run.validation
        )
    return {model: {rate: mean(values) for rate, values in by_rate.items()} for model, by_rate in losses.items()}


def best_rates(trained: Sequence[TrainedRun], losses: Losses) -> list[TrainedRun]:
    """The runs of each model at the learning rate of its lowest validation loss."""
    best = {model: min(by_rate, key=lambda rate: by_rate[rate]) for model, by_rate in losses.items()}
    return [run for run in trained if run.experiment.training.learning_rate == best[run.evaluation.encoder]]


def summarise_data(experiment: Experiment) -> DataSummary:
    """Read all parts of the data, so that errors in them are reported before training."""
    task = experiment.build_task()
    parts = {part: task.records(part) for part in ("training", "validation", "test")}
    for records in parts.values():
        check_lengths(records, experiment.model.network.max_length, experiment.training)
    lengths = [length for records in parts.values() for length in (min(records.lengths), max(records.lengths))]
    counts = {part: len(records.lengths) for part, records in parts.items()}
    return DataSummary(counts, min(lengths), max(lengths), list(getattr(task.target, "labels", [])))


def load_finished(folder: Path, experiment: Experiment) -> Evaluation | None:
    """Test scores of a run that was finished with these settings; None if it has to be trained."""
    if not (folder / SCORES).exists() or Experiment.load(folder) != experiment:
        return None
    files.verify(folder, ["model.safetensors", SCORES])
    return evaluation_from(files.read_json(folder / SCORES))


class RunsJournal:
    """The file that records the entry of a folder of runs, and how long each run took.

    Several processes may train different models in one folder; entries of other processes are kept.
    """

    def __init__(self, path: Path, name: str, runs: dict[str, dict[str, float]]) -> None:
        self.path, self.name, self.runs = path, name, runs

    @staticmethod
    def open(out: Path, name: str, resume: bool) -> RunsJournal:
        """Open the journal of a new folder, or of one with runs of the same entry."""
        path = out / STATE
        free = not out.exists() or (out.is_dir() and {item.name for item in out.iterdir()} <= {costs.PACE_FILE})
        if first_rank() and not resume and not free:
            raise ValueError(f"{out} is there already: give a new --out, or add --resume to go on with it")
        if not path.exists():
            return RunsJournal(path, name, {})
        known = files.read_json(path)
        if known.get("name") != name or not isinstance(known.get("runs"), dict):
            raise ValueError(f"{out} holds {known.get('name')!r}, not {name!r}: give another --out")
        return RunsJournal(path, name, known["runs"])

    @contextmanager
    def timing(self, run: str) -> Iterator[None]:
        """Add the seconds spent in the context, also if it is interrupted; a killed start has no recorded end."""
        entry = self.runs.setdefault(run, {"seconds": 0.0, "starts": 0, "ends": 0})
        entry["starts"] += 1
        began = time.monotonic()
        self._save(run)
        try:
            yield
        finally:
            entry["seconds"] += time.monotonic() - began
            entry["ends"] += 1
            self._save(run)

    def seconds(self, run: str) -> tuple[float, bool]:
        """Recorded seconds of a run, and whether a killed start is missing from them."""
        entry = self.runs.get(run, {"seconds": 0.0, "starts": 1, "ends": 0})
        return entry["seconds"], entry["starts"] > entry["ends"]

    def _save(self, run: str) -> None:
        if first_rank():
            header, entry = {"format": 1, "name": self.name}, {run: self.runs[run]}
            files.update_json(self.path, lambda known: header | {"runs": known.get("runs", {}) | entry})


# --- Several runs at the same time ---


@dataclass(frozen=True)
class RunProcess:
    """A run that is training in another process."""

    name: str
    process: Popen[bytes]
    log: Path
    timing: ExitStack  # records its seconds in the journal when closed

    def last_line(self) -> str:
        """The last line of its log, or how the process ended if the log is empty."""
        return (self._lines() or [subprocesses.exit_reason(self.process.returncode)])[-1]

    def percent(self) -> int | None:
        """Progress in per cent according to its log."""
        shares = [int(line.split("%")[0]) for line in self._lines() if re.match(r"\d+%  ", line)]
        return shares[-1] if shares else None

    def _lines(self) -> list[str]:
        return [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]


class ParallelRuns:
    """Train or resume runs in folders beside the journal, `at_once` at a time.

    A failed run does not stop the others. A signal is passed on to all runs, which save their state and stop; then
    this process ends.
    """

    def __init__(self, experiments: Mapping[str, Experiment], journal: RunsJournal, at_once: int) -> None:
        self.experiments, self.journal, self.at_once = experiments, journal, at_once
        self.waiting, self.running, self.failed = [*experiments], list[RunProcess](), list[str]()
        self.done = 0
        self.began = self.reported = time.monotonic()

    def train(self) -> None:
        stopped = False
        with Interrupts() as interrupts:
            try:
                while self.running or self.waiting:
                    if interrupts.caught and not stopped:
                        stopped = True
                        self._pass_on(interrupts.caught)
                    self._start_waiting()
                    time.sleep(POLL_SECONDS)
                    self._collect()
                    self._report()
            finally:
                for child in self.running:  # empty unless this process failed
                    child.process.kill()
        if interrupts.caught:
            raise Interrupted(interrupts.caught)
        if self.failed:
            raise ValueError(
                f"{len(self.failed)} of {len(self.experiments)} runs came to no end, {'; '.join(self.failed)}: the "
                "others are kept; mend that, and go on with --resume"
            )

    def _start_waiting(self) -> None:
        """Start waiting runs until `at_once` are running."""
        while self.waiting and len(self.running) < self.at_once:
            name = self.waiting.pop(0)
            self.running.append(self._start(name))
            logger.info(f"{name} begins, {len(self.waiting)} to come")

    def _start(self, name: str) -> RunProcess:
        experiment, out = self.experiments[name], self.journal.path.parent
        open_folder(experiment, out / name, resume=True).release()
        log, timing = out / LOGS / f"{name}.log", ExitStack()
        log.parent.mkdir(exist_ok=True)
        timing.enter_context(self.journal.timing(name))
        environment = {"PYTHONUNBUFFERED": "1"}
        if choose_device(experiment.training).type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.at_once))
        with files.open_own(log, os.O_TRUNC) as output:
            process = subprocesses.start(
                PROCESS,
                str(out / name),
                *filter(None, [getattr(experiment.data, "cache", None)]),
                environment=environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches this process only, which passes it on once
            )
        return RunProcess(name, process, log, timing)

    def _pass_on(self, signal: int) -> None:
        logger.info(f"stopping {len(self.running)} runs, which save where they are")
        for child in self.running:
            child.process.send_signal(signal)
        self.waiting.clear()

    def _collect(self) -> None:
        """Handle runs that have ended."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            child.timing.close()
            self.done += 1
            if child.process.returncode:
                self.failed.append(f"{child.name} ({child.last_line()}; see {child.log})")
            outcome = "stopped" if child.process.returncode else "has ended"
            logger.info(f"{child.name} {outcome}, {self.done} of {len(self.experiments)}{self._time_left()}")

    def _time_left(self) -> str:
        """Estimate the remaining time from progress so far, unfinished runs included."""
        done = self.done + sum(child.percent() or 0 for child in self.running) / 100
        left = len(self.experiments) - done
        return f"; about {duration((time.monotonic() - self.began) / done * left)} left" if done and left else ""

    def _report(self) -> None:
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.reported = time.monotonic()
            shares = [(child.name, child.percent()) for child in self.running]
            names = ", ".join(name if percent is None else f"{name} {percent} %" for name, percent in shares)
            logger.info(f"training {names}; {len(self.waiting)} to come{self._time_left()}")


def train_folder(folder: str, cache: str | None = None) -> None:
    """Entry point of the process: train or resume the run of a folder; a user error is printed as the last line."""
    try:
        with show_log():
            train(Experiment.load(Path(folder), cache=cache), Path(folder), resume=True)
    except ValueError as error:
        tell(" ".join(str(error).split()), stderr=True)
        raise SystemExit(2) from None
