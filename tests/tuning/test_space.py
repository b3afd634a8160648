"""The search space has what applies to the data, and the recipe itself is a point of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import optuna
import pytest

from chordmixer import Dataset, Experiment, recipes
from chordmixer.tuning.space import USES_WORDS, default_values, search_space, settings_of, suggest, with_values

GENERAL = {"training.learning_rate", "training.weight_decay", "model.head", "model.head_dropout"}
NETWORK = {"model.network.track_size", "model.network.hidden", "model.network.dropout"} | {
    f"model.stem.{name}" for name in ("layers", "width")
}


@pytest.fixture(scope="module")
def letters() -> Experiment:
    rng = random.Random(0)
    sequences = ["".join(rng.choices("ACGT", k=30)) for _ in range(40)]
    return recipes.files(Dataset.from_lists(sequences, ["worm", "fly"] * 20).stored())


@pytest.fixture(scope="module")
def series() -> Experiment:
    data = Dataset.from_lists([[math.sin(i + j) for j in range(20)] for i in range(40)], ["a", "b"] * 20)
    return recipes.files(data.stored())


def test_only_what_applies_to_the_data_is_searched(letters: Experiment, series: Experiment) -> None:
    assert {*search_space(letters)} == GENERAL | NETWORK | {USES_WORDS, "model.words.dropout", "model.positions"}
    assert {*search_space(series)} == GENERAL | NETWORK | {"data.augment"}
    started = replace(letters, training=replace(letters.training, start="RUN"))
    assert {*search_space(started)} == GENERAL
    assert not {"model.network.hidden", "model.stem.width"} & {
        *search_space(replace(letters, model=letters.model.with_encoder("lstm")), ["model.stem.width"])
    }


def test_settings_that_were_given_are_not_searched(letters: Experiment) -> None:
    fixed = ["model.words.lengths", "training.learning_rate", "training.seed"]
    assert {*search_space(letters, fixed)} == {*search_space(letters)} - {USES_WORDS, "training.learning_rate"}


@pytest.mark.parametrize("recipe", ["letters", "series"])
def test_the_recipe_is_a_point_of_the_space(recipe: str, request: pytest.FixtureRequest) -> None:
    experiment: Experiment = request.getfixturevalue(recipe)
    space = search_space(experiment)
    values = default_values(experiment, space)
    study = optuna.create_study()
    study.enqueue_trial(values)
    assert suggest(study.ask(), space) == values  # one outside would warn, and be another
    same = replace(experiment.training, trial=0.0 if USES_WORDS in values else experiment.training.trial)
    assert with_values(experiment, values) == replace(experiment, training=same)


def test_values_change_the_experiment(letters: Experiment, series: Experiment) -> None:
    values: dict[str, Any] = {"model.network.hidden": 32, "training.learning_rate": 0.0012345, USES_WORDS: False}
    new = with_values(letters, {**values, "model.words.dropout": 0.3})
    assert (new.model.network.hidden, new.training.learning_rate, new.training.trial) == (32, 0.00123, 0)
    assert new.model.words.lengths == () and "model.words.dropout" not in settings_of({**values, USES_WORDS: False})
    assert with_values(series, {"data.augment": False}).data.augment is False
