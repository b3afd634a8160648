"""What runs cost on this device: memory and time before they start, and how many steps a model makes in a given time.

`--minutes` gives every model the same time: each trains for as many steps as it makes alone in so many minutes. Steps
are measured once, before anything trains, by the training loop on the data themselves, and kept beside the runs. So
runs are resumed exactly after a kill, and several may share a device, which changes when they end and nothing else.
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

SAMPLE, MADE = 2_000, 64
"""Training records of generated data whose lengths stand for those of all, and how many of them are made where
that takes time; these then stand for the others."""
WIDE = 120  # columns of a terminal from which on the list is a table
PACE_FILE = "pace.json"
"""Beside the run folders: the step time of each model, and a hash of the settings, device and versions behind it."""
WARM_SECONDS, TIMED_SECONDS, LEAST_STEPS = 1.0, 3.0, 5
"""Seconds of warming up, seconds that are timed, and the fewest steps of either."""


@dataclass(frozen=True)
class Cost:
    """Of one run of a model."""

    device: str
    records: int
    tokens: int  # an epoch
    epochs: int
    memory: int  # bytes of a training step over the largest batch; 0: not counted, as of all but ChordMixer
    free: int
    seconds: float | None = None  # of the whole run at most, about, with validation and test; None: not measured


class PartLengths(NamedTuple):
    """Records of a part of the data, by the lengths of some of them."""

    lengths: Sequence[int]
    records: int

    @property
    def share(self) -> float:
        """Records for each of the lengths."""
        return self.records / len(self.lengths)


class Planned(NamedTuple):
    """What the runs of one model take."""

    model: str
    runs: int
    cost: Cost  # of each of them


def planned(experiments: Mapping[str, Experiment], parts: Mapping[str, PartLengths]) -> list[Planned]:
    """Of runs on the same data; one of each model is measured."""
    names = [model_of(name) for name in experiments]
    one = {model_of(name): experiment for name, experiment in experiments.items()}
    return [Planned(model, names.count(model), cost(one[model], parts, timed=True)) for model in dict.fromkeys(names)]


def cost(experiment: Experiment, parts: Mapping[str, PartLengths], timed: bool) -> Cost:
    """Of a run of an experiment on such data."""
    training, lengths = experiment.training, parts["training"].lengths
    if training.steps:  # as many epochs of fewer records
        training = replace(training, steps=-(-training.steps // max(1, round(parts["training"].share))))
    experiment, device = replace(experiment, training=training), choose_device(training)
    counted = experiment
    if experiment.model.encoder != COUNTED_ENCODER:
        counted = replace(experiment, model=experiment.model.with_encoder(COUNTED_ENCODER))
    made = forecast(counted, lengths, device)
    if timed:
        scored = {name: part.lengths for name, part in parts.items() if name != "training"}
        made = with_times(made, experiment, lengths, device, scored)
    seconds = None
    if made.seconds is not None:
        seconds = made.seconds * made.epochs * parts["training"].share
        seconds += made.validation * parts["validation"].share + made.test * parts["test"].share
    records, tokens = parts["training"].records, round(sum(lengths) * parts["training"].share)
    memory = made.peak if counted is experiment else 0
    return Cost(made.device, records, tokens, made.epochs, memory, made.free, seconds)


def all_costs(entries: Mapping[str, RunEntry | Figure], timed: bool) -> dict[str, Cost]:
    """Of all entries whose data are generated. One step is measured, and others take as long as they have work:
    on two cores within 4 % of their own measurement for other Adding problems, 2.3 times too little for ListOps.
    """
    found: dict[str, Cost] = {}
    pace = 0.0
    for name, entry in entries.items():
        if isinstance(entry, Figure) or not entry.data.by_rule:
            continue
        experiment = build(entry)
        parts = made_parts(experiment)
        own = cost(experiment, parts, timed and not pace)
        work = _work(experiment, parts["training"].lengths) * parts["training"].share * own.epochs
        if timed:
            pace = pace or (own.seconds or 0.0) / work
            own = replace(own, seconds=own.seconds or pace * work)
        found[name] = own
    return found


def read_parts(experiment: Experiment) -> dict[str, PartLengths]:
    """Of data that are there."""
    task = experiment.build_task()
    lengths = {"training": list(task.records("training").lengths), **scored_lengths(task)}
    return {part: PartLengths(own, len(own)) for part, own in lengths.items()}


def made_parts(experiment: Experiment) -> dict[str, PartLengths]:
    """Of data that a rule makes: some training records stand for all parts."""
    lengths, data = sampled(experiment), experiment.data
    orders = {"training": getattr(data, "orders", 1)}
    return {part: PartLengths(lengths, records_of(data, part) * orders.get(part, 1)) for part in PARTS}


def sampled(experiment: Experiment) -> list[int]:
    """Lengths of some training records, which are made in a temporary folder."""
    most = records_of(experiment.data, "training")
    with tempfile.TemporaryDirectory() as folder:
        kept = {"cache": folder} if "cache" in {f.name for f in fields(experiment.data)} else {}
        few: dict[str, Any] = {"training": min(MADE if kept else SAMPLE, most), **kept}
        task = replace(experiment, data=replace(experiment.data, **few)).build_task()
        lengths = list(task.records("training").lengths)
    return (lengths * -(-SAMPLE // len(lengths)))[: min(SAMPLE, most)]


def _work(experiment: Experiment, lengths: Sequence[int]) -> float:
    """Products of numbers, but for a constant: tokens x blocks x channels x hidden."""
    network = experiment.model.network
    return sum(n * depth(n) for n in lengths) * float(network.width * network.hidden)


# --- In words ---


def listing(entries: Mapping[str, RunEntry | Figure], costs: Mapping[str, Cost], width: int) -> RenderableType:
    """Every entry: what it is, the paper's number, the data that it needs, what it costs here."""
    facts = {name: _facts(entry, costs.get(name)) for name, entry in entries.items()}
    if width < WIDE:
        return Group(*(_lines(name, *own) for name, own in facts.items()))
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    grid.add_column("name", style="bold", no_wrap=True)
    for title, ratio in (("what", 4), ("the paper", 4), ("data", 6), ("a run here takes about", 4)):
        grid.add_column(title, ratio=ratio, overflow="fold")
    for name, own in facts.items():
        grid.add_row(name, *map(Text, own))
    return grid


def _lines(name: str, what: str, paper: str, data: str, cost: str) -> Group:
    named = {"paper": paper, "data": data, "takes": cost}
    rows = [Padding(Text(f"{key}: {value}"), (0, 0, 0, 4)) for key, value in named.items() if value]
    return Group(Text.assemble((name, "bold"), f"  {what}"), *rows)


def _facts(entry: RunEntry | Figure, cost: Cost | None) -> tuple[str, str, str, str]:
    paper, data = entry.claim or "not in it", entry.data
    if isinstance(entry, RunEntry) and "chordmixer" in entry.paper:
        paper = f"{entry.metric} {entry.paper['chordmixer']:.2f} %"
    needed = f"--data {data.needs}; {data.get}"
    if data.by_rule:
        needed = "generated" + (", or --data FOLDER of the release" if data.setting else "")
    unknown = f"depends on the data ({data.size})" if data.size else "seconds"
    return f"{entry.title} ({entry.where or 'ours'})", paper, needed, words(cost) if cost else unknown


def words(cost: Cost) -> str:
    time = "" if cost.seconds is None else f"{duration(cost.seconds)}, "
    passes = f"{cost.epochs} epoch{'' if cost.epochs == 1 else 's'}"
    short = "" if cost.memory <= cost.free else ", too much"
    memory = f"{format_bytes(cost.memory)} of {format_bytes(cost.free)}" if cost.memory else "memory not counted,"
    return (
        f"{time}{memory} on {cost.device}{short}; {passes} of "
        f"{compact(cost.records)} records, {compact(float(f'{cost.tokens:.2g}'))} tokens"
    )


def plan_lines(name: str, plans: Sequence[Planned]) -> Iterator[str]:
    """What `--plan` says of an entry: a line a model, and the time of all runs where there are several."""
    for model, _, cost in plans:
        yield f"a run of {name} with {model} takes about {words(cost)}"
    runs = sum(own.runs for own in plans)
    if runs > 1 and all(own.cost.seconds is not None for own in plans):
        whole = sum(own.runs * (own.cost.seconds or 0.0) for own in plans)
        yield f"{runs} runs one after the other take about {duration(whole)}"
    yield "Validation and test are counted, baselines are not; a run may end earlier."


# --- The same time for every model ---


@dataclass(frozen=True)
class StepTime:
    """Of a run that has the device for itself."""

    milliseconds: float  # of a step, its batch included
    an_epoch: int  # steps of the first one; others may have a few more or less
    of: str = ""  # a hash of the settings, device and versions

    def steps(self, minutes: float) -> int:
        """Within so many minutes, at least one.

        >>> StepTime(30.0, 781).steps(0.5), StepTime(1e6, 781).steps(0.5)
        (1000, 1)
        """
        return max(1, round(60_000 * minutes / self.milliseconds))


def equal_time(experiments: Mapping[str, Experiment], minutes: float, out: Path) -> dict[str, Experiment]:
    """The same runs with the steps that each makes in so many minutes, and epochs enough for them.

    What the file in `out` has of the same settings, device and versions is not measured again.
    """
    for experiment in experiments.values():
        check_minutes(experiment, minutes)
    times = dict[str, StepTime]()
    limited = {}
    for name, experiment in experiments.items():
        model, training = model_of(name), experiment.training
        if model not in times:
            own = times[model] = _step_time(model, experiment, out / PACE_FILE)
            logger.info(f"{model}: {own.milliseconds:.3g} ms a step alone, {own.steps(minutes):,} in {minutes:g} min")
        steps = times[model].steps(minutes)
        epochs = -(-steps // times[model].an_epoch) + 1  # one more, since some have a few steps less
        training = replace(training, steps=steps, epochs=max(training.epochs, epochs))
        limited[name] = replace(experiment, training=training)
    return limited


def check_minutes(experiment: Experiment, minutes: float) -> None:
    """Refuse runs whose length is set otherwise."""
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
    """As it was measured of the same settings, but for seed and learning rate, which do not change it; or now."""
    settings = to_dict(replace(experiment, training=replace(experiment.training, seed=0, learning_rate=1.0)))
    place = [device_name(choose_device(experiment.training)), torch.__version__, __version__]
    wanted = hashlib.sha256(json.dumps([settings, *place], sort_keys=True).encode()).hexdigest()
    try:
        kept = files.read_json(path)["models"] if path.exists() else {}
        known: dict[str, StepTime] = typed(dict[str, StepTime], kept, "models")
    except (KeyError, ValueError):
        raise ValueError(f"{path} holds no paces of models: remove it, and they are measured again") from None
    if model in known and known[model].of == wanted:
        return known[model]
    try:
        measured = replace(step_time(experiment), of=wanted)
    except ValueError as error:  # memory that ran out, a loss that is not finite
        raise ValueError(f"{model} cannot be measured: {error}") from error
    own = {model: to_dict(measured)}
    files.update_json(path, lambda before: {"format": 1, "models": before.get("models", {}) | own})
    return measured


def step_time(experiment: Experiment) -> StepTime:
    """Measured on a device that should do nothing else; kernels are loaded or compiled before it begins."""
    with tempfile.TemporaryDirectory() as folder:
        run = TrainingRun(experiment, Path(folder) / "run", resume=False, console=terminal.console(quiet=True))
        an_epoch = -(-len(run.loader.sampler.batches) // experiment.training.accumulate)
        steps = _steps(run)
        with run.display:
            _take(run, steps, 0.0, 1)
            _take(run, steps, WARM_SECONDS, LEAST_STEPS)
            measured = StepTime(1e3 * _take(run, steps, TIMED_SECONDS, LEAST_STEPS), an_epoch)
        run.folder.close()
        del run, steps
        gc.collect()  # its memory is not the next one's
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return measured


def _steps(run: TrainingRun) -> Iterator[None]:
    """One after the other, over the epochs."""
    run.wrapped.train()
    while True:
        batches = run.loader.epoch(run.state.epoch)
        while run.state.batch < len(run.loader.sampler.batches):
            run.advance(batches)
            yield
        run.state.epoch, run.state.batch = run.state.epoch + 1, 0


def _take(run: TrainingRun, steps: Iterator[None], seconds: float, least: int) -> float:
    """Steps for so many seconds; the seconds of each."""
    start, first = time.perf_counter(), run.state.step
    while run.state.step < first + least or time.perf_counter() < start + seconds:
        next(steps)
    run.read_results()  # waits for the device
    return (time.perf_counter() - start) / (run.state.step - first)
