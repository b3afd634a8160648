"""Build the experiments of an entry: one for each model, seed and learning rate, with changed or shortened settings.

A single learning rate favours the model that it was tuned for. With several rates each model is trained with all of
them and the lowest validation loss selects one, as in the paper.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chordmixer.config import override, to_dict
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.reproduction import entries
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.recipes import load
from chordmixer.training import Experiment
from chordmixer.training.fine_tuning import start_from


@dataclass(frozen=True)
class Request:
    """A request to reproduce an entry of the catalogue: models, data, and settings of its runs."""

    name: str
    data: Sequence[str] = ()
    models: Sequence[str] = ("chordmixer",)
    seeds: int = 1  # runs per model
    scale: float = 1.0  # factor on the number of epochs
    minutes: float | None = None  # instead of epochs: as many steps as each model makes alone in this time
    rates: Sequence[float] = ()  # learning rates to try; the validation loss selects one per model
    like: str = "ours"  # one of `entries.SETTINGS_OF`
    start: Path | None = None  # a run to start from, with its network and weights
    unverified: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)  # of `data`, `model` and `training`

    def __post_init__(self) -> None:
        for name in ("data", "models", "rates"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def build(self, entry: RunEntry) -> Experiment:
        return build(entry, self.data, self.changes, self.like, self.start, self.unverified)


def build(
    entry: RunEntry,
    paths: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    like: str = "ours",
    start: Path | None = None,
    unverified: bool = False,
) -> Experiment:
    """Build the recipe's experiment on these data, with changes of `data`, `model` and `training`.

    `like` chooses the settings of the paper or of its released code instead of the recipe's, or puts the parts of
    `train` on files around the recipe's network; `start` takes the network and initial weights of a trained run.
    """
    changed, hyper = dict(changes or {}), _hyper(entry, like)
    data = override(load(entry.config)(), entry.settings, "data")
    if paths:
        assert entry.data.setting is not None, "checked before"
        data = override(data, {entry.data.setting: list(paths) if entry.data.several else paths[0]}, "data")
    data = override(data, changed.pop("data", {}), "data")
    experiment: Experiment = load(entry.recipe)(data)
    experiment = override(experiment, {"training": entry.training})
    if like == "files":
        experiment = entries.with_parts(experiment)
    experiment = entries.with_published(experiment, hyper) if hyper else experiment
    return override(start_from(experiment, start, unverified=unverified) if start else experiment, changed)


def _hyper(entry: RunEntry, like: str) -> entries.Hyper | None:
    """The settings of the paper or of its released code; None for those of our recipes."""
    if like not in entries.SETTINGS_OF:
        raise ValueError(f"--like {like} is not known: choose from {', '.join(entries.SETTINGS_OF)}")
    if like in ("ours", "files"):
        return None
    hyper = entry.hyper if like == "paper" else entry.released
    if hyper is None:
        missing = "paper says nothing of" if like == "paper" else "released code has no settings for"
        raise ValueError(f"--like {like}: the {missing} {entry.title}; leave it out")
    return hyper


def scaled(experiment: Experiment, share: float, by_rule: bool) -> Experiment:
    """Multiply the number of epochs by `share`; below one epoch, reduce generated training records instead."""
    if not 0 < share < float("inf"):
        raise ValueError(f"--scale {share:g} is not a share of a run: give a number above 0, such as 0.1")
    if share == 1:
        return experiment
    epochs = experiment.training.epochs * share
    training = replace(experiment.training, epochs=max(1, round(epochs)))
    data = experiment.data
    if epochs < 1 and by_rule:
        data = replace(data, training=max(1, round(records_of(data, "training") * epochs)))
    return replace(experiment, data=data, training=training)


def records_of(data: Any, part: str) -> int:
    """Number of generated records of a part; a config with 0 for the paper's number has it in `sizes`."""
    return int(getattr(data, part) or data.sizes[part])


def with_encoder(experiment: Experiment, name: str) -> Experiment:
    """Replace the encoder by another one of default size."""
    return replace(experiment, model=experiment.model.with_encoder(name))


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """Change the seed of initial weights, data order and dropout, but not the data and their split."""
    return replace(experiment, training=replace(experiment.training, seed=seed))


def expand(experiment: Experiment, models: Sequence[str], seeds: int, versions: str = "") -> dict[str, Experiment]:
    """One experiment per model, version and seed, by folder name; seeds count up from the seed of `experiment`.

    In an entry with `versions` the name of an encoder stands for all versions of it in the paper.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds} is too few: a model needs one run; give 1 or more")
    named = {name: run for model in models for name, run in _named(experiment, model, versions).items()}
    if not models or len(set(models)) < len(models):
        raise ValueError(f"--models {','.join(models)} names one twice or none: name each once")
    numbers = range(experiment.training.seed, experiment.training.seed + seeds)
    return {f"{name}-seed{n}": with_seed(run, n) for name, run in named.items() for n in numbers}


def check_rates(rates: Sequence[float], changes: Mapping[str, Any]) -> None:
    """Refuse equal or non-positive rates, and rates together with a changed learning rate."""
    names = [f"{rate:g}" for rate in rates]  # also part of folder names
    text = ",".join(names)
    if not all(0 < rate < math.inf for rate in rates) or len(set(names)) < len(names):
        raise ValueError(f"--rates {text} are not different numbers above 0: give some such as 3e-4,1e-3")
    if rates and "learning_rate" in changes.get("training", {}):
        raise ValueError(
            f"--rates {text} and --set training.learning_rate are both the rate of a run: leave one of them out"
        )


def check_at_once(experiments: Mapping[str, Experiment], at_once: int) -> None:
    """Refuse runs that cannot share a device."""
    if at_once < 1:
        raise ValueError(f"--at-once {at_once} is too few: give 1 or more runs")
    if at_once > 1 and (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(f"--at-once {at_once} on {ranks} processes is not possible: use one")
    for experiment in experiments.values():
        if at_once > 1 and experiment.training.minutes:
            raise ValueError(
                f"training.minutes={experiment.training.minutes:g} ends a run by the clock, and runs at once slow "
                "each other down: leave it out and give --minutes, which counts the steps of a run alone"
            )


def with_rates(experiments: Mapping[str, Experiment], rates: Sequence[float]) -> dict[str, Experiment]:
    """Multiply the runs of `expand` by learning rates; without rates, return them as they are.

    A run with the experiment's own rate keeps its folder, so that rates can be added later.
    """
    runs = {}
    for name, experiment in experiments.items():
        model, _, seed = name.rpartition("-seed")
        for rate in rates or [experiment.training.learning_rate]:
            folder = name if rate == experiment.training.learning_rate else f"{model}-rate{rate:g}-seed{seed}"
            runs[folder] = replace(experiment, training=replace(experiment.training, learning_rate=rate))
    return runs


def model_of(folder: str) -> str:
    """The model in the name of a run folder.

    >>> model_of("cnn-average-seed0"), model_of("cnn-average-rate0.0003-seed1")
    ('cnn-average', 'cnn-average')
    """
    return folder.rpartition("-seed")[0].partition("-rate")[0]


def _named(experiment: Experiment, name: str, versions: str) -> dict[str, Experiment]:
    """Experiments that a name in --models stands for: an encoder, or encoder-version."""
    encoder, _, version = name.partition("-")
    if encoder not in ENCODERS or (version and not versions):
        raise ValueError(f"--models {name} is not known: choose from {', '.join(ENCODERS)}")
    if experiment.training.start and encoder != experiment.model.encoder:
        raise ValueError(
            f"--models {name} cannot start from {experiment.training.start}, which is a {experiment.model.encoder}: "
            "leave --from out, or name that model alone"
        )
    changed = with_encoder(experiment, encoder)
    named: dict[str, Experiment] = load(versions).experiments(changed, version) if versions else {encoder: changed}
    return named


def warnings(
    request: Request, entry: RunEntry, full: Experiment, run: Experiment, classes: Sequence[str]
) -> list[str]:
    """Sentences for the head of a page on how a run differs from the paper's; `classes` are those of the data."""
    notes = []
    if {name.lower() for name in entry.classes} - {name.lower() for name in classes}:
        notes.append(f"The classes are {', '.join(classes)}, not {', '.join(entry.classes)}: not the paper's data.")
    if request.scale != 1:
        before, after = full.training.epochs, run.training.epochs
        change = f"{after:,} epoch{'' if after == 1 else 's'} in place of {before:,}"
        if run.data != full.data:
            used, total = (records_of(experiment.data, "training") for experiment in (run, full))
            change += f", over {used:,} of {total:,} training records"
        notes.append(f"This is a run of {request.scale:g} of the epochs ({change}): not the paper's number.")
    if request.minutes is not None:
        notes.append(
            f"Each model trained for the steps that it makes in {request.minutes:g} min alone on this device, "
            "measured before: the same time for all, and not the paper's number."
        )
    if request.like == "files":
        notes.append(
            "The network has parts around its blocks that the paper's has not: those of `chordmixer train` on files."
        )
    elif request.like != "ours":
        source = "paper" if request.like == "paper" else "released code"
        notes.append(f"Trained with the settings of the {source}.")
    if run.training.start:
        notes.append(f"The first weights are those of {', which itself began with those of '.join(_ancestors(run))}.")
    if request.changes:
        notes.append(f"Settings were changed with --set: {', '.join(_flat(request.changes))}.")
    if request.rates:
        rates = join_names([f"{rate:g}" for rate in request.rates])
        notes.append(
            f"Each model was trained with rates of {rates}, a run each, and the lowest validation loss chose."
        )
    return notes


def join_names(names: Sequence[str]) -> str:
    """
    >>> join_names(["luna"]), join_names(["luna", "cnn"]), join_names(["luna", "cnn", "tcn"])
    ('luna', 'luna and cnn', 'luna, cnn and tcn')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ancestors(experiment: Experiment) -> Iterator[str]:
    """Describe the run that an experiment starts from, the run that that one started from, and so on."""
    task, data, start = experiment.task, to_dict(experiment.data), experiment.training.start
    while start:
        folder = Path(start)
        if not (folder / "config.json").exists():
            yield f"{folder.name}, which is no longer there"
            return
        earlier = Experiment.load(folder, unverified=True)  # used for this sentence only
        settings = to_dict(earlier.data).items() if earlier.task == task else ()
        changed = _flat({name: value for name, value in settings if value != data.get(name) and name != "cache"})
        epochs = earlier.training.epochs
        passes = f"a run of {epochs} epoch{'' if epochs == 1 else 's'} of {earlier.task}"
        yield f"{passes} with {', '.join(changed)}" if changed else passes
        start = earlier.training.start


def _flat(changes: Mapping[str, Any], prefix: str = "") -> list[str]:
    lines = []
    for name, value in changes.items():
        lines += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}={value}"]
    return lines
