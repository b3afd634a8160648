from __future__ import annotations

from dataclasses import replace

from chordmixer import Model, Packed
from chordmixer.models import ENCODERS
from chordmixer.paper.recipes import demo


def test_the_rival_differs_in_the_encoder_alone() -> None:
    ours, theirs = demo(), demo("pointwise")
    assert ours.model.encoder == "chordmixer" and {"chordmixer", "pointwise"} <= set(ENCODERS)
    assert theirs == replace(ours, model=replace(ours.model, encoder="pointwise"))


def test_the_model_takes_the_data() -> None:
    experiment = demo()
    records = experiment.build_task().records("validation")
    assert min(records.lengths) >= 32 and max(records.lengths) <= 256 == experiment.model.network.max_length
    batch = Packed.from_list([records[i].values for i in range(3)])
    assert Model(experiment.model)(batch).shape == (3, 1)
