"""The search space of `tune`: the settings of an experiment that apply to its data, and how trials change them."""

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
"""The possible values of each setting, by dotted name."""
USES_WORDS = "model.words"
"""Whether the network has words. All other names in a space are those of settings."""
POSITIONS = "model.positions"
WORD_LENGTHS = "model.words.lengths"
HEADS = ("mean_maximum_attention", "mean_maximum", "attention", "standard")


def search_space(experiment: Experiment, fixed: Collection[str] = ()) -> Space:
    """The settings of this recipe to search; `fixed` has the dotted names of those that the user has set.

    All settings are in all trials, also the dropout of words in trials without words: only then can the importance
    of each setting be computed over all trials.
    """
    network, stem, words = experiment.model.network, experiment.model.stem, experiment.model.words
    space: Space = {
        "training.learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
        "training.weight_decay": FloatDistribution(1e-3, 1.0, log=True),
        "model.head": CategoricalDistribution(HEADS),
        "model.head_dropout": FloatDistribution(0.0, 0.5, step=0.05),
    }
    if experiment.training.start is None:  # else the network is taken from another run
        for name in ("track_size", "hidden"):
            if hasattr(network, name):
                space[f"model.network.{name}"] = _around(getattr(network, name))
        if hasattr(network, "dropout"):
            space["model.network.dropout"] = FloatDistribution(0.0, 0.5, step=0.05)
        if stem.layers:
            space |= {"model.stem.layers": IntDistribution(1, 4), "model.stem.width": _around(stem.width)}
        if words.lengths:
            space |= {
                USES_WORDS: CategoricalDistribution((True, False)),
                "model.words.dropout": FloatDistribution(0.1, 0.9, step=0.1),
            }
        if experiment.model.positions:
            space[POSITIONS] = CategoricalDistribution((0, experiment.model.positions))
    if experiment.model.embedding == "real":
        space["data.augment"] = CategoricalDistribution((True, False))
    names = {*fixed} | ({USES_WORDS} if WORD_LENGTHS in fixed else set())
    return {name: values for name, values in space.items() if name not in names}


def _around(default: int) -> CategoricalDistribution:
    """Half the default size, the default, and twice the default."""
    return CategoricalDistribution((max(1, default // 2), default, 2 * default))


def space_document(space: Space) -> dict[str, str]:
    """Convert a space to JSON."""
    return {name: distribution_to_json(values) for name, values in space.items()}


def default_values(experiment: Experiment, space: Space) -> dict[str, Any]:
    """The values of the recipe."""
    return {
        name: bool(experiment.model.words.lengths) if name == USES_WORDS else _setting(experiment, name)
        for name in space
    }


def _setting(experiment: Experiment, name: str) -> Any:
    return reduce(getattr, name.split("."), experiment)


def suggest(trial: Trial, space: Space) -> dict[str, Any]:
    """Suggest a value for each setting; values that a killed process has already chosen are kept."""
    return {name: _suggested(trial, name, values) for name, values in space.items()}


def _suggested(trial: Trial, name: str, values: BaseDistribution) -> Any:
    if isinstance(values, CategoricalDistribution):
        return trial.suggest_categorical(name, values.choices)
    if isinstance(values, IntDistribution):
        return trial.suggest_int(name, values.low, values.high)
    assert isinstance(values, FloatDistribution)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)


def settings_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a trial to settings of `train`, with three digits, and without trial runs.

    >>> settings_of({"model.words": False, "model.words.dropout": 0.5, "training.learning_rate": 0.00123456})
    {'training.learning_rate': 0.00123, 'model.words.lengths': [], 'training.trial': 0.0}
    """
    settings = {name: float(f"{value:.3g}") if isinstance(value, float) else value for name, value in values.items()}
    words = settings.pop(USES_WORDS, None)
    if words is False:
        settings.pop("model.words.dropout", None)
        settings[WORD_LENGTHS] = []
    decided = words is not None or POSITIONS in settings
    return {**settings, "training.trial": 0.0} if decided else settings


def with_values(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """The recipe with the settings of a trial."""
    return override(experiment, nested(settings_of(values)))
