from __future__ import annotations

from dataclasses import replace

import pytest

from chordmixer import Model, Packed
from chordmixer.models import ENCODERS
from chordmixer.paper.recipes import adding, demo
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


def test_the_other_model_of_the_demo_differs_in_the_encoder_alone() -> None:
    ours, theirs = demo(), demo("pointwise")
    assert ours.model.encoder == "chordmixer" and {"chordmixer", "pointwise"} <= set(ENCODERS)
    assert theirs == replace(ours, model=replace(ours.model, encoder="pointwise"))


def test_the_model_of_the_demo_takes_the_data() -> None:
    experiment = demo()
    records = experiment.build_task().records("validation")
    assert min(records.lengths) >= 32 and max(records.lengths) <= 256 == experiment.model.network.max_length
    batch = Packed.from_list([records[i].values for i in range(3)])
    assert Model(experiment.model)(batch).shape == (3, 1)
