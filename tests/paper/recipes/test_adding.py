from __future__ import annotations

import pytest

from chordmixer import Model
from chordmixer.paper.recipes import adding
from chordmixer.paper.tasks.adding import AddingConfig
from chordmixer.recipes import RECIPES, load


@pytest.mark.parametrize(("base_length", "tracks"), [(200, 14), (1_000, 16), (16_000, 19), (128_000, 22)])
def test_is_the_papers_model(base_length: int, tracks: int) -> None:
    experiment = adding(AddingConfig(base_length))
    network = experiment.model.network
    assert (network.track_size, network.hidden, network.tracks) == (16, 128, tracks)
    assert (network.order, network.prenorm, network.norm, network.init) == ("paper", None, None, "xavier")
    assert (experiment.model.head, experiment.model.encoder) == ("average", "chordmixer")
    assert network.max_length == experiment.build_task().max_length


def test_model_fits_the_task() -> None:
    experiment = adding(AddingConfig(training=10))
    task = experiment.build_task()
    assert load(RECIPES[experiment.task]) is adding
    assert (experiment.model.inputs, experiment.model.embedding) == (task.inputs, task.embedding)
    assert experiment.model.outputs == task.target.outputs
    assert Model(experiment.model).encoder.width == 14 * 16


def test_settings_follow_the_length() -> None:
    chosen = {base: adding(AddingConfig(base)).training for base in (20, 200, 999, 1_000, 16_000, 128_000)}
    assert [training.epochs for training in chosen.values()] == [13, 13, 13, 18, 6, 6]
    assert [training.batch_sequences for training in chosen.values()] == [64, 64, 64, 64, 16, 16]
