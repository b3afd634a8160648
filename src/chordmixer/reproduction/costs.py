"""What an entry takes on this device, before it is run: memory is counted, time told by a step that is measured."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from chordmixer.models.chordmixer import depth
from chordmixer.reproduction.building import build, training_records
from chordmixer.reproduction.entries import Entry, Figure
from chordmixer.training import Experiment
from chordmixer.training.forecast import device_of, forecast
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
    """Bytes of a training step over the largest batch."""
    free: int
    seconds: float | None = None
    """Of the whole run, about, without validation; None: not measured."""


def cost(experiment: Experiment, lengths: Sequence[int], records: int, timed: bool) -> Cost:
    """Of an experiment with so many training records of such lengths."""
    if experiment.model.encoder != COUNTED:
        experiment = replace(experiment, model=replace(experiment.model, encoder=COUNTED))
    made = forecast(experiment, lengths, device_of(experiment.training), timed=timed)
    share = records / len(lengths)
    seconds = None if made.seconds is None else made.seconds * share * made.epochs
    return Cost(made.device, records, round(sum(lengths) * share), made.epochs, made.peak, made.free, seconds)


def all_costs(entries: Mapping[str, Entry | Figure], timed: bool) -> dict[str, Cost]:
    """Of all entries whose data are made by rule. One step is measured, and others take as long as they have work:
    on two cores within 4 % of their own measurement for other Adding problems, 2.3 times too little for ListOps.
    """
    found: dict[str, Cost] = {}
    pace = 0.0
    for name, entry in entries.items():
        if isinstance(entry, Figure) or not entry.data.by_rule:
            continue
        experiment = build(entry)
        lengths = sampled(experiment)
        own = cost(experiment, lengths, training_records(experiment.data), timed and not pace)
        work = _work(experiment, lengths) * own.records / len(lengths) * own.epochs
        if timed:
            pace = pace or (own.seconds or 0.0) / work
            own = replace(own, seconds=own.seconds or pace * work)
        found[name] = own
    return found


def sampled(experiment: Experiment) -> list[int]:
    """Lengths of some training records; they are made aside, and leave nothing behind."""
    most = training_records(experiment.data)
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
