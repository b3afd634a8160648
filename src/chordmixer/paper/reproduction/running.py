"""Train every model and seed of an entry, each in a folder of its own; what is finished is not trained again.

Baselines are scored once, since all runs share their data, and lie in the folder of each. Several runs may train at
once on one device, each in a process of its own: small ones leave most of a GPU idle. They slow each other down and
change nothing else, as long as none ends by the clock.
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

STATE = "reproduction.json"  # beside the run folders: which entry it is, and the seconds of each run
SCORES = "evaluation-test.json"
PROCESS = f"{__name__}:train_folder"
LOGS = "logs"  # the folder of what each process printed, beside the run folders
POLL_SECONDS, REPORT_SECONDS = 0.2, 60.0

Losses = dict[str, dict[float, float]]
"""By model and learning rate: the lowest validation loss, the mean over its seeds."""


@dataclass(frozen=True)
class TrainedRun:
    """A run that is finished."""

    experiment: Experiment
    evaluation: Evaluation
    seconds: float  # of all its starts together
    killed: bool  # whether a start ended without a word, so that its seconds are not known
    steps: int  # that it made; where a time was given they tell how much of it each model got
    baselines: list[Scored] = field(default_factory=list)  # on the same records
    validation: float = float("nan")  # the lowest loss on the validation records
    folder: Path | None = None


@dataclass(frozen=True)
class DataSummary:
    """What the data are."""

    records: dict[str, int]  # of each part
    shortest: int
    longest: int
    classes: list[str]  # none where a number is asked for


def run_all(
    experiments: Mapping[str, Experiment],
    journal: RunsJournal,
    resume: bool,
    baselines: bool = True,
    at_once: int = 1,
) -> list[TrainedRun]:
    """Train into <model>-seed<k> beside the journal, or go on with what is there; then score baselines.

    One after the other in this process, or several `at_once` in processes of their own.
    """
    out = journal.path.parent
    scores = {name: finished(out / name, own) for name, own in experiments.items()}
    missing = {name: own for name, own in experiments.items() if scores[name] is None}
    if at_once > 1 and missing:
        ParallelRuns(missing, journal, at_once).train()
        scores |= {name: finished(out / name, own) for name, own in missing.items()}
    trained = []
    for number, (folder, experiment) in enumerate(experiments.items(), 1):
        evaluation = scores[folder]
        if evaluation is None:
            logger.info(f"{folder}, {number} of {len(experiments)}")
            with journal.timing(folder):
                evaluation = train(experiment, out / folder, resume=resume)
        elif folder not in missing:
            logger.info(f"{folder}, {number} of {len(experiments)}: finished before")
        scored = replace(evaluation, encoder=model_of(folder) or evaluation.encoder)  # of a version, where there are
        made, loss = steps(out / folder), lowest_loss(out / folder)
        known = journal.seconds(folder)
        trained.append(TrainedRun(experiment, scored, *known, made, validation=loss, folder=out / folder))
    if not baselines or not first_rank():
        return trained
    caches = [getattr(experiment.data, "cache", None) for experiment in experiments.values()]
    beside = scored_baselines([out / folder for folder in experiments], caches[0])
    return [replace(run, baselines=beside) for run in trained]


def scored_baselines(runs: Sequence[Path], cache: str | None = None) -> list[Scored]:
    """The baselines of runs on the same data: found in one of their folders or scored, and put into each."""
    needed = {BASELINES, results.BASELINE_ROWS}
    having = [run for run in runs if needed <= files.read_json(run / files.MANIFEST).keys()]
    if not having:
        logger.info("baselines on the same records, on the CPU")
        compare(runs[0], cache, announce=False)
        having = [runs[0]]
    files.verify(having[0], needed)
    target = Experiment.load(having[0]).build_task().target
    for run in runs:
        if run not in having:
            with RunLock(run, WAIT):
                files.write_recorded(run, {name: (having[0] / name).read_bytes() for name in needed})
            write_differences(run, target)
    return Run.load(having[0]).baselines


def differences(trained: Sequence[TrainedRun], metric: str) -> dict[str, Difference]:
    """Of each model, all its seeds together, to the best baseline on the same records; none without baselines."""
    best = best_baseline(trained[0].baselines, metric)
    if best is None:
        return {}
    target, runs = trained[0].experiment.build_task().target, dict[str, list[Path]]()
    for run in trained:
        runs.setdefault(run.evaluation.encoder, []).extend([run.folder] if run.folder else [])
    found = {model: results.differences(own, target, metric).get(best.name) for model, own in runs.items()}
    return {model: own for model, own in found.items() if own is not None}


def validation_losses(trained: Sequence[TrainedRun]) -> Losses:
    """The validation loss of each model at each rate."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in trained:
        if math.isnan(run.validation):
            raise ValueError(
                f"a run of {run.evaluation.encoder} has no validation loss in its metrics.jsonl, so no rate can be "
                "chosen for it: restore that file, or train it again"
            )
        found.setdefault(run.evaluation.encoder, {}).setdefault(run.experiment.training.learning_rate, []).append(
            run.validation
        )
    return {model: {rate: mean(own) for rate, own in by_rate.items()} for model, by_rate in found.items()}


def best_rates(trained: Sequence[TrainedRun], losses: Losses) -> list[TrainedRun]:
    """The runs of each model at its best rate."""
    best = {model: min(by_rate, key=lambda rate: by_rate[rate]) for model, by_rate in losses.items()}
    return [run for run in trained if run.experiment.training.learning_rate == best[run.evaluation.encoder]]


def summarise_data(experiment: Experiment) -> DataSummary:
    """Read all parts of the data, so that what is missing or wrong in them is said before anything is trained."""
    task = experiment.build_task()
    parts = {part: task.records(part) for part in ("training", "validation", "test")}
    for records in parts.values():
        check_lengths(records, experiment.model.network.max_length, experiment.training)
    lengths = [length for records in parts.values() for length in (min(records.lengths), max(records.lengths))]
    counts = {part: len(records.lengths) for part, records in parts.items()}
    return DataSummary(counts, min(lengths), max(lengths), list(getattr(task.target, "labels", [])))


def finished(folder: Path, experiment: Experiment) -> Evaluation | None:
    """The scores of a run that came to its end with these settings; None: it has to be trained."""
    if not (folder / SCORES).exists() or Experiment.load(folder) != experiment:
        return None
    files.verify(folder, ["model.safetensors", SCORES])
    return evaluation_from(files.read_json(folder / SCORES))


class RunsJournal:
    """The file that says what a folder of runs is, and how long each took.

    Several processes may train into one folder, each other models: what others wrote stays.
    """

    def __init__(self, path: Path, name: str, runs: dict[str, dict[str, float]]) -> None:
        self.path, self.name, self.runs = path, name, runs

    @staticmethod
    def open(out: Path, name: str, resume: bool) -> RunsJournal:
        """Of a new folder, or of one that holds runs of the same entry."""
        path = out / STATE
        free = not out.exists() or (out.is_dir() and {own.name for own in out.iterdir()} <= {costs.PACE_FILE})
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
        """Adds the seconds within it, also where the run is interrupted; a start that was killed has no end."""
        own = self.runs.setdefault(run, {"seconds": 0.0, "starts": 0, "ends": 0})
        own["starts"] += 1
        began = time.monotonic()
        self._save(run)
        try:
            yield
        finally:
            own["seconds"] += time.monotonic() - began
            own["ends"] += 1
            self._save(run)

    def seconds(self, run: str) -> tuple[float, bool]:
        """All that are known, and whether some are not."""
        own = self.runs.get(run, {"seconds": 0.0, "starts": 1, "ends": 0})
        return own["seconds"], own["starts"] > own["ends"]

    def _save(self, run: str) -> None:
        if first_rank():
            about, own = {"format": 1, "name": self.name}, {run: self.runs[run]}
            files.update_json(self.path, lambda known: about | {"runs": known.get("runs", {}) | own})


# --- Several runs at once ---


@dataclass(frozen=True)
class RunProcess:
    """A run that is being trained."""

    name: str
    process: Popen[bytes]
    log: Path
    timing: ExitStack  # its seconds, for the journal

    def last_line(self) -> str:
        """Of its log; of an empty one, how it ended."""
        return (self._lines() or [subprocesses.exit_reason(self.process.returncode)])[-1]

    def percent(self) -> int | None:
        """Per cent that are done, by its log."""
        shares = [int(line.split("%")[0]) for line in self._lines() if re.match(r"\d+%  ", line)]
        return shares[-1] if shares else None

    def _lines(self) -> list[str]:
        return [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]


class ParallelRuns:
    """Trains each run into its folder beside the journal, so many at a time, or resumes what is there.

    A run that fails holds up no other. A signal goes to all, which save where they are, and then ends this process.
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
                    self._fill()
                    time.sleep(POLL_SECONDS)
                    self._collect()
                    self._report()
            finally:
                for child in self.running:  # only after an error in this process
                    child.process.kill()
        if interrupts.caught:
            raise Interrupted(interrupts.caught)
        if self.failed:
            raise ValueError(
                f"{len(self.failed)} of {len(self.experiments)} runs came to no end, {'; '.join(self.failed)}: the "
                "others are kept; mend that, and go on with --resume"
            )

    def _fill(self) -> None:
        """Start as many as there is room for."""
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
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which passes it on once
            )
        return RunProcess(name, process, log, timing)

    def _pass_on(self, signal: int) -> None:
        logger.info(f"stopping {len(self.running)} runs, which save where they are")
        for child in self.running:
            child.process.send_signal(signal)
        self.waiting.clear()

    def _collect(self) -> None:
        """Runs that have ended."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            child.timing.close()
            self.done += 1
            if child.process.returncode:
                self.failed.append(f"{child.name} ({child.last_line()}; see {child.log})")
            how = "stopped" if child.process.returncode else "has ended"
            logger.info(f"{child.name} {how}, {self.done} of {len(self.experiments)}{self._left()}")

    def _left(self) -> str:
        """The time left, by all that is done so far, shares of unfinished runs included."""
        done = self.done + sum(child.percent() or 0 for child in self.running) / 100
        left = len(self.experiments) - done
        return f"; about {duration((time.monotonic() - self.began) / done * left)} left" if done and left else ""

    def _report(self) -> None:
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.reported = time.monotonic()
            shares = [(child.name, child.percent()) for child in self.running]
            names = ", ".join(name if percent is None else f"{name} {percent} %" for name, percent in shares)
            logger.info(f"training {names}; {len(self.waiting)} to come{self._left()}")


def train_folder(folder: str, cache: str | None = None) -> None:
    """In a child: train what the settings of a run folder say, or resume it; a user error is the last line."""
    try:
        with show_log():
            train(Experiment.load(Path(folder), cache=cache), Path(folder), resume=True)
    except ValueError as error:
        tell(" ".join(str(error).split()), stderr=True)
        raise SystemExit(2) from None
