"""From an entry to experiments: its recipe on given data, changed or shortened, one for each model, seed and rate.

One learning rate for all favours the model that it was found for. With several rates each model is trained with all
of them, and its validation loss chooses, as in the paper.
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
    """Which runs of an entry of the catalogue, of which models, on which data, with which settings."""

    name: str
    data: Sequence[str] = ()
    models: Sequence[str] = ("chordmixer",)
    seeds: int = 1  # runs of each model
    scale: float = 1.0  # times the epochs
    minutes: float | None = None  # in place of epochs: the steps that each model makes alone in this time
    rates: Sequence[float] = ()  # each model is trained with all of them, and the validation records choose
    like: str = "ours"  # whose settings: our recipes', the paper's or its released code's
    start: Path | None = None  # a run whose network and weights are the first
    unverified: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)  # in `data`, `model` and `training`

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
    """The recipe's experiment on these data, with changes in `data`, `model` and `training`.

    `like` takes the settings of the paper or of its released code in place of the recipe's, and `start` the network
    and the first weights of a trained run.
    """
    changed, hyper = dict(changes or {}), _hyper(entry, like)
    data = override(load(entry.config)(), entry.settings, "data")
    if paths:
        assert entry.data.setting is not None, "checked before"
        data = override(data, {entry.data.setting: list(paths) if entry.data.several else paths[0]}, "data")
    data = override(data, changed.pop("data", {}), "data")
    experiment: Experiment = load(entry.recipe)(data)
    experiment = override(experiment, {"training": entry.training})
    experiment = entries.like(experiment, hyper) if hyper else experiment
    return override(start_from(experiment, start, unverified=unverified) if start else experiment, changed)


def _hyper(entry: RunEntry, like: str) -> entries.Hyper | None:
    """The settings of the paper or of its released code; None: ours."""
    if like not in entries.WHOSE:
        raise ValueError(f"--like {like} is not known: choose from {', '.join(entries.WHOSE)}")
    hyper = {"ours": None, "paper": entry.hyper, "released": entry.released}[like]
    if hyper is None and like != "ours":
        said = "paper says nothing of" if like == "paper" else "released code has no settings for"
        raise ValueError(f"--like {like}: the {said} {entry.title}; leave it out")
    return hyper


def scaled(experiment: Experiment, share: float, by_rule: bool) -> Experiment:
    """With so many times the epochs, at least one; below one, with fewer training records where a rule makes them."""
    if not 0 < share < float("inf"):
        raise ValueError(f"--scale {share:g} is not a share of a run: give a number above 0, such as 0.1")
    if share == 1:
        return experiment
    wanted = experiment.training.epochs * share
    training = replace(experiment.training, epochs=max(1, round(wanted)))
    data = experiment.data
    if wanted < 1 and by_rule:
        data = replace(data, training=max(1, round(records_of(data, "training") * wanted)))
    return replace(experiment, data=data, training=training)


def records_of(data: Any, part: str) -> int:
    """Of data that are generated; a config may say 0 for the paper's number, and then knows it."""
    return int(getattr(data, part) or data.sizes[part])


def with_encoder(experiment: Experiment, name: str) -> Experiment:
    """The same with another encoder in place of its own, in that one's default sizes."""
    return replace(experiment, model=experiment.model.with_encoder(name))


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """Other first weights, order of the data and dropout; the data and their split stay."""
    return replace(experiment, training=replace(experiment.training, seed=seed))


def each(experiment: Experiment, models: Sequence[str], seeds: int, versions: str = "") -> dict[str, Experiment]:
    """One a model, version and seed, by the name of its folder; seeds count up from the experiment's own.

    Of an entry with `versions`, an encoder's name stands for all that the paper has of it.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds} is too few: a model needs one run; give 1 or more")
    named = {name: own for model in models for name, own in _named(experiment, model, versions).items()}
    if not models or len(set(models)) < len(models):
        raise ValueError(f"--models {','.join(models)} names one twice or none: name each once")
    numbers = range(experiment.training.seed, experiment.training.seed + seeds)
    return {f"{name}-seed{n}": with_seed(own, n) for name, own in named.items() for n in numbers}


def check_rates(rates: Sequence[float], changes: Mapping[str, Any]) -> None:
    """Refuse rates that are no choice: equal ones, or beside a rate of its own."""
    names = [f"{rate:g}" for rate in rates]  # of folders too
    given = ",".join(names)
    if not all(0 < rate < math.inf for rate in rates) or len(set(names)) < len(names):
        raise ValueError(f"--rates {given} are not different numbers above 0: give some such as 3e-4,1e-3")
    if rates and "learning_rate" in changes.get("training", {}):
        raise ValueError(
            f"--rates {given} and --set training.learning_rate are both the rate of a run: leave one of them out"
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
    """The runs of `each` with each of the rates; without any, as they are.

    A run with the experiment's own rate keeps its folder, so that rates can be added later.
    """
    found = {}
    for name, own in experiments.items():
        model, _, seed = name.rpartition("-seed")
        for rate in rates or [own.training.learning_rate]:
            folder = name if rate == own.training.learning_rate else f"{model}-rate{rate:g}-seed{seed}"
            found[folder] = replace(own, training=replace(own.training, learning_rate=rate))
    return found


def model_of(folder: str) -> str:
    """The model that a run's folder is named after.

    >>> model_of("cnn-average-seed0"), model_of("cnn-average-rate0.0003-seed1")
    ('cnn-average', 'cnn-average')
    """
    return folder.rpartition("-seed")[0].partition("-rate")[0]


def _named(experiment: Experiment, name: str, versions: str) -> dict[str, Experiment]:
    """What a name in --models stands for: an encoder, or encoder-version."""
    encoder, _, version = name.partition("-")
    if encoder not in ENCODERS or (version and not versions):
        raise ValueError(f"--models {name} is not known: choose from {', '.join(ENCODERS)}")
    if experiment.training.start and encoder != experiment.model.encoder:
        raise ValueError(
            f"--models {name} cannot start from {experiment.training.start}, which is a {experiment.model.encoder}: "
            "leave --from out, or name that model alone"
        )
    own = with_encoder(experiment, encoder)
    found: dict[str, Experiment] = load(versions).experiments(own, version) if versions else {encoder: own}
    return found


def warnings(
    request: Request, entry: RunEntry, full: Experiment, run: Experiment, classes: Sequence[str]
) -> list[str]:
    """How a run differs from the paper's, for the head of its page; `classes` are those of the data."""
    found = []
    if {name.lower() for name in entry.classes} - {name.lower() for name in classes}:
        found.append(f"The classes are {', '.join(classes)}, not {', '.join(entry.classes)}: not the paper's data.")
    if request.scale != 1:
        was, now = full.training.epochs, run.training.epochs
        what = f"{now:,} epoch{'' if now == 1 else 's'} in place of {was:,}"
        if run.data != full.data:
            fewer, everything = (records_of(own.data, "training") for own in (run, full))
            what += f", over {fewer:,} of {everything:,} training records"
        found.append(f"This is a run of {request.scale:g} of the epochs ({what}): not the paper's number.")
    if request.minutes is not None:
        found.append(
            f"Each model trained for the steps that it makes in {request.minutes:g} min alone on this device, "
            "measured before: the same time for all, and not the paper's number."
        )
    if request.like != "ours":
        whose = "paper" if request.like == "paper" else "released code"
        found.append(f"Trained with the settings of the {whose}.")
    if run.training.start:
        found.append(f"The first weights are those of {', which itself began with those of '.join(_past(run))}.")
    if request.changes:
        found.append(f"Settings were changed with --set: {', '.join(_flat(request.changes))}.")
    if request.rates:
        named = listed([f"{rate:g}" for rate in request.rates])
        found.append(
            f"Each model was trained with rates of {named}, a run each, and the lowest validation loss chose."
        )
    return found


def listed(names: Sequence[str]) -> str:
    """
    >>> listed(["luna"]), listed(["luna", "cnn"]), listed(["luna", "cnn", "tcn"])
    ('luna', 'luna and cnn', 'luna, cnn and tcn')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _past(experiment: Experiment) -> Iterator[str]:
    """The run that an experiment starts from, the one that that started from, and so on, by how their data differ."""
    task, data, start = experiment.task, to_dict(experiment.data), experiment.training.start
    while start:
        folder = Path(start)
        if not (folder / "config.json").exists():
            yield f"{folder.name}, which is no longer there"
            return
        earlier = Experiment.load(folder, unverified=True)  # only for this sentence
        own = to_dict(earlier.data).items() if earlier.task == task else ()
        apart = _flat({name: value for name, value in own if value != data.get(name) and name != "cache"})
        epochs = earlier.training.epochs
        passes = f"a run of {epochs} epoch{'' if epochs == 1 else 's'} of {earlier.task}"
        yield f"{passes} with {', '.join(apart)}" if apart else passes
        start = earlier.training.start


def _flat(changes: Mapping[str, Any], before: str = "") -> list[str]:
    found = []
    for name, value in changes.items():
        found += _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else [f"{before}{name}={value}"]
    return found
