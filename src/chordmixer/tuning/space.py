"""What `tune` searches: the settings of an experiment that apply to its data, and how trials change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import Trial

from chordmixer.config import override
from chordmixer.fitting import nested
from chordmixer.training import Experiment

Space = dict[str, BaseDistribution]
"""The values that a setting may take, by its dotted name."""
WORDS = "model.words"
"""Whether the network has words; the one name that is not that of a setting."""
LENGTHS = "model.words.lengths"
HEADS = ("mean_maximum_attention", "mean_maximum", "attention", "standard")


def search_space(experiment: Experiment, fixed: Collection[str] = ()) -> Space:
    """The settings to search from this recipe; `fixed` has the dotted names of those that the user has set.

    All settings are in all trials, also the dropout of words in trials without words: only then has each setting an
    importance, and is compared over all trials.
    """
    network, stem, words = experiment.model.network, experiment.model.stem, experiment.model.words
    found: Space = {
        "training.learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "training.weight_decay": FloatDistribution(1e-3, 1.0, log=True),
        "model.head": CategoricalDistribution(HEADS),
        "model.head_dropout": FloatDistribution(0.0, 0.5, step=0.05),
    }
    if experiment.training.start is None:  # else the network is that of another run
        for name in ("track_size", "hidden"):
            if hasattr(network, name):
                found[f"model.network.{name}"] = _around(getattr(network, name))
        if hasattr(network, "dropout"):
            found["model.network.dropout"] = FloatDistribution(0.0, 0.5, step=0.05)
        if stem.layers:
            found |= {"model.stem.layers": IntDistribution(1, 4), "model.stem.width": _around(stem.width)}
        if words.lengths:
            found |= {
                WORDS: CategoricalDistribution((True, False)),
                "model.words.dropout": FloatDistribution(0.1, 0.9, step=0.1),
            }
    if experiment.model.embedding == "real":
        found["data.augment"] = CategoricalDistribution((True, False))
    names = {*fixed} | ({WORDS} if LENGTHS in fixed else set())
    return {name: values for name, values in found.items() if name not in names}


def _around(default: int) -> CategoricalDistribution:
    """Half of a size, the size, and twice as much."""
    return CategoricalDistribution((max(1, default // 2), default, 2 * default))


def space_document(space: Space) -> dict[str, str]:
    """A space as JSON."""
    return {name: distribution_to_json(values) for name, values in space.items()}


def default_values(experiment: Experiment, space: Space) -> dict[str, Any]:
    """The values of the recipe itself."""
    return {
        name: bool(experiment.model.words.lengths) if name == WORDS else _setting(experiment, name) for name in space
    }


def _setting(experiment: Experiment, name: str) -> Any:
    return reduce(getattr, name.split("."), experiment)


def suggest(trial: Trial, space: Space) -> dict[str, Any]:
    """A value for each setting; one that a killed process had already chosen stays."""
    return {name: _suggested(trial, name, values) for name, values in space.items()}


def _suggested(trial: Trial, name: str, values: BaseDistribution) -> Any:
    if isinstance(values, CategoricalDistribution):
        return trial.suggest_categorical(name, values.choices)
    if isinstance(values, IntDistribution):
        return trial.suggest_int(name, values.low, values.high)
    assert isinstance(values, FloatDistribution)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a trial as settings of `train`, to three digits; no short runs are to decide about words then.

    >>> settings_of({"model.words": False, "model.words.dropout": 0.5, "training.learning_rate": 0.00123456})
    {'training.learning_rate': 0.00123, 'model.words.lengths': [], 'training.trial': 0.0}
    """
    settings = {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in values.items()}
    words = settings.pop(WORDS, None)
    if words is False:
        settings.pop("model.words.dropout", None)
        settings[LENGTHS] = []
    return settings if words is None else {**settings, "training.trial": 0.0}


def with_values(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The recipe with the settings of a trial."""
    return override(experiment, nested(settings_of(values)))
