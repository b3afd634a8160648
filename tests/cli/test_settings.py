"""Settings: a recipe, then TOML, then --set. The errors of each stand in tests/test_cli.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.cli.settings import build, table
from chordmixer.recipes import adding
from chordmixer.tasks.adding import AddingConfig


def test_set_goes_over_toml(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\nepochs = 3\nrate = 0.1\n[data]\nseed = 4\n")
    assert table(tmp_path / "run.toml", ["training.epochs=5", "model.network.prenorm=layer"]) == {
        "training": {"epochs": 5, "rate": 0.1},
        "data": {"seed": 4},
        "model": {"network": {"prenorm": "layer"}},
    }
    experiment = build(adding, AddingConfig(), tmp_path / "run.toml", ["training.epochs=5"])
    assert (experiment.training.epochs, experiment.training.rate, experiment.data.seed) == (5, 0.1, 4)


def test_the_recipe_sees_the_data_as_they_were_set() -> None:
    assert build(adding, AddingConfig(), None, ["data.max_length=500"]).model.network.max_length == 500


def test_a_value_in_the_place_of_a_table() -> None:
    with pytest.raises(ValueError, match=r"training='x' is not a table of settings: write \[training\], or"):
        table(None, ["training=x", "training.epochs=3"])
