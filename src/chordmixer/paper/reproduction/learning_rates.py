"""A rate of its own for each model: all are tried with the same ones, and the validation records choose.

One rate for all favours the model that it was found for. The paper gives each model its own, by the validation loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any

from chordmixer.training import Experiment

if TYPE_CHECKING:
    from chordmixer.paper.reproduction.running import TrainedRun

Losses = dict[str, dict[float, float]]
"""Of each model at each rate: the lowest validation loss, of several seeds the mean of theirs."""


def check(rates: Sequence[float], changes: Mapping[str, Any]) -> None:
    """Refuse what is no choice between rates."""
    names = [f"{rate:g}" for rate in rates]  # which end up in those of folders
    said = ",".join(names)
    if not all(0 < rate < math.inf for rate in rates) or len(set(names)) < len(names):
        raise ValueError(f"--rates {said} are not different numbers above 0: give some such as 3e-4,1e-3")
    if rates and "rate" in changes.get("training", {}):
        raise ValueError(f"--rates {said} and --set training.rate are both the rate of a run: leave one of them out")


def tried(experiments: Mapping[str, Experiment], rates: Sequence[float]) -> dict[str, Experiment]:
    """Those of `each` with each of the rates; without any, as they are.

    A run with the experiment's own rate keeps its folder, so that rates can be added to what is trained.
    """
    found = {}
    for name, own in experiments.items():
        model, _, seed = name.rpartition("-seed")
        for rate in rates or [own.training.rate]:
            folder = name if rate == own.training.rate else f"{model}-rate{rate:g}-seed{seed}"
            found[folder] = replace(own, training=replace(own.training, rate=rate))
    return found


def warnings(rates: Sequence[float]) -> list[str]:
    """What a page says of the choice."""
    if not rates:
        return []
    named = " and ".join(filter(None, [", ".join(f"{rate:g}" for rate in rates[:-1]), f"{rates[-1]:g}"]))
    return [f"Each model was trained with rates of {named}, a run each, and the lowest validation loss chose."]


def losses(trained: Sequence[TrainedRun]) -> Losses:
    """How good each model was at each rate, by the validation records."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in trained:
        if math.isnan(run.validation):
            raise ValueError(
                f"a run of {run.evaluation.encoder} has no validation loss in its metrics.jsonl, so no rate can be "
                "chosen for it: restore that file, or train it again"
            )
        found.setdefault(run.evaluation.encoder, {}).setdefault(run.experiment.training.rate, []).append(
            run.validation
        )
    return {model: {rate: mean(own) for rate, own in by_rate.items()} for model, by_rate in found.items()}


def chosen(trained: Sequence[TrainedRun], found: Losses) -> list[TrainedRun]:
    """The runs of each model at its best rate."""
    best = {model: min(by_rate, key=lambda rate: by_rate[rate]) for model, by_rate in found.items()}
    return [run for run in trained if run.experiment.training.rate == best[run.evaluation.encoder]]
