"""Forecasts of the memory and time of runs on this device, and the number of steps that fit into a given time.

`--minutes` gives every model the same training time: each trains for the number of steps that it makes in that time
when it runs alone. The time of a step is measured once before training, by the training loop on the actual data, and
stored beside the runs. Runs can therefore be resumed exactly, and sharing a device changes only how long they take.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from chordmixer import files, terminal
from chordmixer.config import to_dict, typed
from chordmixer.data.splits import PARTS
from chordmixer.models.chordmixer import depth
from chordmixer.paper.reproduction.entries import Figure, RunEntry
from chordmixer.paper.reproduction.experiments import build, model_of, records_of
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device, device_name, format_bytes
from chordmixer.training.forecast import forecast, scored_lengths, with_times
from chordmixer.training.loop import TrainingRun
from chordmixer.training.memory import COUNTED_ENCODER
from chordmixer.version import __version__
from chordmixer.views.charts import compact
from chordmixer.views.metrics import duration

logger = logging.getLogger(__name__)

SAMPLE, GENERATED = 2_000, 64
"""Number of training records whose lengths represent generated data. Where generating takes time, `GENERATED` records
are generated and their lengths repeated."""
WIDE_TERMINAL = 120  # terminal width from which on the list is a table
PACE_FILE = "pace.json"
"""File beside the run folders: the step time of each model, with a hash of settings, device and versions."""
WARM_SECONDS, TIMED_SECONDS, MIN_STEPS = 1.0, 3.0, 5
"""Seconds of warm-up, seconds of timing, and the smallest number of steps of either."""


@dataclass(frozen=True)
class Cost:
    """Forecast of one run of a model."""

    device: str
    records: int
    tokens: int  # per epoch
    epochs: int
    memory: int  # bytes of a training step on the largest batch; 0: not counted, as for all but ChordMixer
    free: int  # bytes of free memory
    seconds: float | None = None  # upper limit, about, with validation and test; None: not measured


class PartLengths(NamedTuple):
    """Number of records of a part of the data, and the lengths of a sample of them."""

    lengths: Sequence[int]
    records: int

    @property
    def share(self) -> float:
        """Number of records that each sampled length represents."""
        return self.records / len(self.lengths)


class Planned(NamedTuple):
    """Number and cost of the runs of one model."""

    model: str
    runs: int
    cost: Cost  # of each run


def plan_runs(experiments: Mapping[str, Experiment], parts: Mapping[str, PartLengths]) -> list[Planned]:
    """Forecast runs on the same data; one run per model is measured."""
    names = [model_of(name) for name in experiments]
    runs = {model_of(name): experiment for name, experiment in experiments.items()}
    return [
        Planned(model, names.count(model), cost(runs[model], parts, timed=True)) for model in dict.fromkeys(names)
    ]


def cost(experiment: Experiment, parts: Mapping[str, PartLengths], timed: bool) -> Cost:
    """Forecast one run of an experiment on data of these lengths; `timed` measures a few steps."""
    training, lengths = experiment.training, parts["training"].lengths
    if training.steps:  # the sample has fewer records, so fewer steps make the same number of epochs
        training = replace(training, steps=-(-training.steps // max(1, round(parts["training"].share))))
    experiment, device = replace(experiment, training=training), choose_device(training)
    counted = experiment
    if experiment.model.encoder != COUNTED_ENCODER:
        counted = replace(experiment, model=experiment.model.with_encoder(COUNTED_ENCODER))
    estimate = forecast(counted, lengths, device)
    if timed:
        scored_parts = {name: part.lengths for name, part in parts.items() if name != "training"}
        estimate = with_times(estimate, experiment, lengths, device, scored_parts)
    seconds = None
    if estimate.seconds is not None:
        seconds = estimate.seconds * estimate.epochs * parts["training"].share
        seconds += estimate.validation * parts["validation"].share + estimate.test * parts["test"].share
    records, tokens = parts["training"].records, round(sum(lengths) * parts["training"].share)
    memory = estimate.peak if counted is experiment else 0
    return Cost(estimate.device, records, tokens, estimate.epochs, memory, estimate.free, seconds)


def all_costs(entries: Mapping[str, RunEntry | Figure], timed: bool) -> dict[str, Cost]:
    """Forecast all entries with generated data. Only the first is measured; other times are proportional to the work.

    On two cores this was within 4 % of measurements for other Adding problems, and 2.3 times too little for ListOps.
    """
    costs: dict[str, Cost] = {}
    seconds_per_work = 0.0
    for name, entry in entries.items():
        if isinstance(entry, Figure) or not entry.data.by_rule:
            continue
        experiment = build(entry)
        parts = generated_parts(experiment)
        entry_cost = cost(experiment, parts, timed and not seconds_per_work)
        work = _work(experiment, parts["training"].lengths) * parts["training"].share * entry_cost.epochs
        if timed:
            seconds_per_work = seconds_per_work or (entry_cost.seconds or 0.0) / work
            entry_cost = replace(entry_cost, seconds=entry_cost.seconds or seconds_per_work * work)
        costs[name] = entry_cost
    return costs


def read_parts(experiment: Experiment) -> dict[str, PartLengths]:
    """Lengths of all records, of data that exist or are to be read."""
    task = experiment.build_task()
    lengths = {"training": list(task.records("training").lengths), **scored_lengths(task)}
    return {part: PartLengths(values, len(values)) for part, values in lengths.items()}


def generated_parts(experiment: Experiment) -> dict[str, PartLengths]:
    """Lengths of generated data, where a sample of training records represents all parts."""
    lengths, data = sample_lengths(experiment), experiment.data
    orders = {"training": getattr(data, "orders", 1)}
    return {part: PartLengths(lengths, records_of(data, part) * orders.get(part, 1)) for part in PARTS}


def sample_lengths(experiment: Experiment) -> list[int]:
    """Lengths of a sample of training records, which are generated in a temporary folder."""
    total = records_of(experiment.data, "training")
    with tempfile.TemporaryDirectory() as folder:
        cache = {"cache": folder} if "cache" in {f.name for f in fields(experiment.data)} else {}
        settings: dict[str, Any] = {"training": min(GENERATED if cache else SAMPLE, total), **cache}
        task = replace(experiment, data=replace(experiment.data, **settings)).build_task()
        lengths = list(task.records("training").lengths)
    return (lengths * -(-SAMPLE // len(lengths)))[: min(SAMPLE, total)]


def _work(experiment: Experiment, lengths: Sequence[int]) -> float:
    """Number of multiplications up to a constant factor: tokens x blocks x channels x hidden."""
    network = experiment.model.network
    return sum(n * depth(n) for n in lengths) * float(network.width * network.hidden)


# --- In words ---


def listing(entries: Mapping[str, RunEntry | Figure], costs: Mapping[str, Cost], width: int) -> RenderableType:
    """Table or list of all entries: title, the paper's number, the data needed, and the cost on this device."""
    facts = {name: _facts(entry, costs.get(name)) for name, entry in entries.items()}
    if width < WIDE_TERMINAL:
        return Group(*(_lines(name, *cells) for name, cells in facts.items()))
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    grid.add_column("name", style="bold", no_wrap=True)
    for title, ratio in (("what", 4), ("the paper", 4), ("data", 6), ("a run here takes about", 4)):
        grid.add_column(title, ratio=ratio, overflow="fold")
    for name, cells in facts.items():
        grid.add_row(name, *map(Text, cells))
    return grid


def _lines(name: str, what: str, paper: str, data: str, cost: str) -> Group:
    labelled = {"paper": paper, "data": data, "takes": cost}
    rows = [Padding(Text(f"{key}: {value}"), (0, 0, 0, 4)) for key, value in labelled.items() if value]
    return Group(Text.assemble((name, "bold"), f"  {what}"), *rows)


def _facts(entry: RunEntry | Figure, cost: Cost | None) -> tuple[str, str, str, str]:
    paper, data = entry.claim or "not in it", entry.data
    if isinstance(entry, RunEntry) and "chordmixer" in entry.paper:
        paper = f"{entry.metric} {entry.paper['chordmixer']:.2f} %"
    source = f"--data {data.needs}; {data.get}"
    if data.by_rule:
        source = "generated" + (", or --data FOLDER of the release" if data.setting else "")
    unknown = f"depends on the data ({data.size})" if data.size else "seconds"
    return f"{entry.title} ({entry.where or 'ours'})", paper, source, describe(cost) if cost else unknown


def describe(cost: Cost) -> str:
    """The cost of a run in words."""
    time = "" if cost.seconds is None else f"{duration(cost.seconds)}, "
    passes = f"{cost.epochs} epoch{'' if cost.epochs == 1 else 's'}"
    excess = "" if cost.memory <= cost.free else ", too much"
    memory = f"{format_bytes(cost.memory)} of {format_bytes(cost.free)}" if cost.memory else "memory not counted,"
    return (
        f"{time}{memory} on {cost.device}{excess}; {passes} of "
        f"{compact(cost.records)} records, {compact(float(f'{cost.tokens:.2g}'))} tokens"
    )


def plan_lines(name: str, plans: Sequence[Planned]) -> Iterator[str]:
    """Lines that `--plan` prints for an entry: one per model, and the total time of several runs."""
    for model, _, cost in plans:
        yield f"a run of {name} with {model} takes about {describe(cost)}"
    runs = sum(plan.runs for plan in plans)
    if runs > 1 and all(plan.cost.seconds is not None for plan in plans):
        total = sum(plan.runs * (plan.cost.seconds or 0.0) for plan in plans)
        yield f"{runs} runs one after the other take about {duration(total)}"
    yield "Validation and test are counted, baselines are not; a run may end earlier."


# --- The same time for every model ---


@dataclass(frozen=True)
class StepTime:
    """Time of a training step of a run that does not share the device."""

    milliseconds: float  # per step, including loading its batches
    an_epoch: int  # steps of the first epoch; others may have a few more or less
    of: str = ""  # a hash of the settings, device and versions

    def steps(self, minutes: float) -> int:
        """Number of steps within `minutes`, at least one.

        >>> StepTime(30.0, 781).steps(0.5), StepTime(1e6, 781).steps(0.5)
        (1000, 1)
        """
        return max(1, round(60_000 * minutes / self.milliseconds))


def equal_time(experiments: Mapping[str, Experiment], minutes: float, out: Path) -> dict[str, Experiment]:
    """Limit runs to the number of steps that each makes in `minutes`, with enough epochs for these steps.

    Step times in `out` of the same settings, device and versions are reused.
    """
    for experiment in experiments.values():
        check_minutes(experiment, minutes)
    times = dict[str, StepTime]()
    limited = {}
    for name, experiment in experiments.items():
        model, training = model_of(name), experiment.training
        if model not in times:
            step = times[model] = _step_time(model, experiment, out / PACE_FILE)
            logger.info(
                f"{model}: {step.milliseconds:.3g} ms a step alone, {step.steps(minutes):,} in {minutes:g} min"
            )
        steps = times[model].steps(minutes)
        epochs = -(-steps // times[model].an_epoch) + 1  # one more, since some epochs have fewer steps
        training = replace(training, steps=steps, epochs=max(training.epochs, epochs))
        limited[name] = replace(experiment, training=training)
    return limited


def check_minutes(experiment: Experiment, minutes: float) -> None:
    """Refuse runs whose length is set in another way, and several processes."""
    training = experiment.training
    if not 0 < minutes < float("inf"):
        raise ValueError(f"--minutes {minutes:g} is not a time to train for: give a number above 0, such as 1")
    if training.steps or training.minutes:
        name = "steps" if training.steps else "minutes"
        raise ValueError(
            f"--minutes {minutes:g} and training.{name}={getattr(training, name):g} are both the end of a run: leave "
            "one of them out"
        )
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(f"--minutes {minutes:g} on {ranks} processes is not possible: use one")


def _step_time(model: str, experiment: Experiment, path: Path) -> StepTime:
    """Read the step time for these settings from `path`, or measure it; seed and learning rate do not matter."""
    settings = to_dict(replace(experiment, training=replace(experiment.training, seed=0, learning_rate=1.0)))
    origin = [device_name(choose_device(experiment.training)), torch.__version__, __version__]
    digest = hashlib.sha256(json.dumps([settings, *origin], sort_keys=True).encode()).hexdigest()
    try:
        stored = files.read_json(path)["models"] if path.exists() else {}
        known: dict[str, StepTime] = typed(dict[str, StepTime], stored, "models")
    except (KeyError, ValueError):
        raise ValueError(f"{path} holds no paces of models: remove it, and they are measured again") from None
    if model in known and known[model].of == digest:
        return known[model]
    try:
        measured = replace(step_time(experiment), of=digest)
    except ValueError as error:  # out of memory, or a loss that is not finite
        raise ValueError(f"{model} cannot be measured: {error}") from error
    new = {model: to_dict(measured)}
    files.update_json(path, lambda before: {"format": 1, "models": before.get("models", {}) | new})
    return measured


def step_time(experiment: Experiment) -> StepTime:
    """Measure the time of a training step after warm-up; the device should be idle otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(experiment, Path(folder) / "run", resume=False, console=terminal.console(quiet=True))
        an_epoch = -(-len(run.loader.sampler.batches) // experiment.training.accumulate)
        steps = _steps(run)
        with run.display:
            _run_steps(run, steps, 0.0, 1)
            _run_steps(run, steps, WARM_SECONDS, MIN_STEPS)
            measured = StepTime(1e3 * _run_steps(run, steps, TIMED_SECONDS, MIN_STEPS), an_epoch)
        run.folder.close()
        del run, steps
        gc.collect()  # frees its memory before the next measurement
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return measured


def _steps(run: TrainingRun) -> Iterator[None]:
    """Make one training step per iteration, epoch after epoch."""
    run.wrapped.train()
    while True:
        batches = run.loader.epoch(run.state.epoch)
        while run.state.batch < len(run.loader.sampler.batches):
            run.advance(batches)
            yield
        run.state.epoch, run.state.batch = run.state.epoch + 1, 0


def _run_steps(run: TrainingRun, steps: Iterator[None], seconds: float, minimum: int) -> float:
    """Make steps for `seconds`, at least `minimum`, and return the seconds per step."""
    start, first = time.perf_counter(), run.state.step
    while run.state.step < first + minimum or time.perf_counter() < start + seconds:
        next(steps)
    run.read_results()  # synchronises with the device
    return (time.perf_counter() - start) / (run.state.step - first)
