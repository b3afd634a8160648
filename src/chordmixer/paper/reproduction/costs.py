"""What an entry takes on this device, before it is run: memory is counted, time told by steps that are measured."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from chordmixer.data.splits import PARTS
from chordmixer.models.chordmixer import depth
from chordmixer.paper.reproduction.entries import Figure, RunEntry
from chordmixer.paper.reproduction.entry_experiments import build, model_of, records_of
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device
from chordmixer.training.forecast import forecast, scored_lengths, with_times
from chordmixer.training.memory import COUNTED

SAMPLE, MADE = 2_000, 64
"""Training records of data made by rule whose lengths stand for those of all, and how many of them are made where
that takes time; these then stand for the others."""


@dataclass(frozen=True)
class Cost:
    """Of one run of a model."""

    device: str
    records: int
    tokens: int
    """An epoch."""
    epochs: int
    memory: int
    """Bytes of a training step over the largest batch; 0: not counted, as of other encoders than ChordMixer."""
    free: int
    seconds: float | None = None
    """Of the whole run at most, about, with validation and test; None: not measured."""


class PartLengths(NamedTuple):
    """Records of a part of the data, by the lengths of some of them."""

    lengths: Sequence[int]
    records: int

    @property
    def share(self) -> float:
        """Records that stand behind each length."""
        return self.records / len(self.lengths)


class Planned(NamedTuple):
    """What the runs of one model take."""

    model: str
    runs: int
    cost: Cost
    """Of each of them."""


def planned(experiments: Mapping[str, Experiment], parts: Mapping[str, PartLengths]) -> list[Planned]:
    """Of those of `each` or `tried` on the same data; a run of each model is measured."""
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
    if experiment.model.encoder != COUNTED:
        counted = replace(experiment, model=experiment.model.with_encoder(COUNTED))
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
    """Of all entries whose data are made by rule. One step is measured, and others take as long as they have work:
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
    """Lengths of some training records; they are made aside, and leave nothing behind."""
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
