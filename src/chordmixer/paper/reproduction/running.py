"""Train every model and seed of an entry, each in a folder of its own; what is finished is not trained again.

Baselines are scored once, since all runs share their data, and lie in the folder of each.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from chordmixer import files
from chordmixer.paper.baselines import compare
from chordmixer.paper.reproduction import costs
from chordmixer.paper.reproduction.experiments import model_of
from chordmixer.paper.reproduction.parallel import train_parallel
from chordmixer.terminal import first_rank
from chordmixer.training import Evaluation, Experiment, results, train
from chordmixer.training.experiment import check_lengths
from chordmixer.training.intervals import Difference
from chordmixer.training.results import BASELINES, write_differences
from chordmixer.training.run_folder import WAIT, RunLock
from chordmixer.views.runs import Run, Scored, evaluation_from, lowest_loss, steps
from chordmixer.views.verdict import best_baseline

logger = logging.getLogger(__name__)

STATE = "reproduction.json"
"""Beside the run folders: which entry it is, and the seconds of each run."""
SCORES = "evaluation-test.json"

Losses = dict[str, dict[float, float]]
"""By model and learning rate: the lowest validation loss, the mean over its seeds."""


@dataclass(frozen=True)
class TrainedRun:
    """A run that is finished."""

    experiment: Experiment
    evaluation: Evaluation
    seconds: float
    """Of all its starts together."""
    killed: bool
    """Whether a start ended without a word, so that its seconds are not known."""
    steps: int
    """That it made; where a time was given they tell how much of it each model got."""
    baselines: list[Scored] = field(default_factory=list)
    """On the same records."""
    validation: float = float("nan")
    """The lowest loss on the validation records."""
    folder: Path | None = None
    """Where it lies."""


@dataclass(frozen=True)
class Seen:
    """What the data are."""

    records: dict[str, int]
    """Of each part."""
    shortest: int
    longest: int
    classes: list[str]
    """None where a number is asked for."""


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
        train_parallel(missing, journal, at_once)
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
        name = model_of(folder) or evaluation.encoder  # of a version, where an encoder has several
        scored = replace(evaluation, encoder=name)
        made, loss = steps(out / folder), lowest_loss(out / folder)
        seconds, killed = journal.seconds(folder)
        trained.append(TrainedRun(experiment, scored, seconds, killed, made, validation=loss, folder=out / folder))
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


def look(experiment: Experiment) -> Seen:
    """Read all parts of the data, so that what is missing or wrong in them is said before anything is trained."""
    task = experiment.build_task()
    parts = {part: task.records(part) for part in ("training", "validation", "test")}
    for records in parts.values():
        check_lengths(records, experiment.model.network.max_length, experiment.training)
    lengths = [length for records in parts.values() for length in (min(records.lengths), max(records.lengths))]
    counts = {part: len(records.lengths) for part, records in parts.items()}
    return Seen(counts, min(lengths), max(lengths), list(getattr(task.target, "labels", [])))


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
        if first_rank() and not resume and out.exists() and not _free(out):
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
            about = {"format": 1, "name": self.name}
            files.update_json(
                self.path, lambda known: about | {"runs": known.get("runs", {}) | {run: self.runs[run]}}
            )


def _free(out: Path) -> bool:
    """Whether nothing is there, but for what was measured before."""
    return out.is_dir() and all(path.name == costs.PACE_FILE for path in out.iterdir())
