"""The settings of pre-training on files."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.recipes import RECIPES, load
from chordmixer.recipes.masking import masking
from chordmixer.tasks.masking import MaskingConfig


def test_the_papers_autoencoder_for_these_data(
    motifs: list[str], tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    experiment = masking(MaskingConfig(tuple(motifs), cache=str(tmp_path)))
    model = experiment.model
    assert (experiment.task, model.head, model.decoder, model.inputs, model.outputs) == (
        "masking",
        "tokens",
        "network",
        6,
        5,
    )
    assert model.network.max_length == 128 and model.final_norm == "layer" and model.network.prenorm == "layer"
    assert experiment.data.share == 0.3 and experiment.data.key is not None
    assert experiment.training.weight_decay == 0.1 and experiment.training.epochs == 200
    assert any("read 200 records" in line for line in log.messages)
    assert experiment.build_task().max_length == 120
    assert load(RECIPES["masking"]) is masking
