"""Settings: a recipe, then TOML, then --set. The errors of each stand in tests/test_cli.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.cli.settings import build, check_resume, members, shorthands, table
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding


def test_set_goes_over_toml(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\nepochs = 3\nlearning_rate = 0.1\n[data]\nseed = 4\n")
    assert table(tmp_path / "run.toml", ["training.epochs=5", "model.network.prenorm=layer"]) == {
        "training": {"epochs": 5, "learning_rate": 0.1},
        "data": {"seed": 4},
        "model": {"network": {"prenorm": "layer"}},
    }
    experiment = build(adding, AddingConfig(), tmp_path / "run.toml", ["training.epochs=5"])
    assert (experiment.training.epochs, experiment.training.learning_rate, experiment.data.seed) == (5, 0.1, 4)


def test_the_recipe_sees_the_data_as_they_were_set() -> None:
    assert build(adding, AddingConfig(), None, ["data.max_length=500"]).model.network.max_length == 500


def test_a_value_in_the_place_of_a_table() -> None:
    with pytest.raises(ValueError, match=r"training='x' is not a table of settings: write \[training\], or"):
        table(None, ["training=x", "training.epochs=3"])


def test_what_was_changed_is_said_before_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    same = f"data.max_length={AddingConfig().max_length}"
    changes = [
        "training.epochs=5",
        "data.seed=4",
        "model.network.reversible=true",
        same,
        "model.network.prenorm=layer",
    ]
    build(adding, AddingConfig(), None, changes)
    default = adding(AddingConfig())
    assert capsys.readouterr().out == (
        f"settings changed: training.epochs=5 (default {default.training.epochs}), data.seed=4 (default 0), "
        f"model.network.reversible=true (default false), model.network.prenorm=layer (default none)\n"
    )
    build(adding, AddingConfig(), None, [same])
    assert capsys.readouterr().out == ""


def test_shorthands() -> None:
    assert shorthands(None, None, None, None, None) == []
    assert shorthands("lstm", 3, None, 0, "cpu") == [
        "model.encoder=lstm",
        "training.epochs=3",
        "training.seed=0",
        "training.device=cpu",
    ]
    experiment = build(adding, AddingConfig(), None, ["training.ema=0.1", *shorthands(None, None, 2.5, 7, None)])
    assert (experiment.training.minutes, experiment.training.ema, experiment.training.seed) == (2.5, 0, 7)


def test_members() -> None:
    assert members(None, None) == []
    assert members(5, None) == ["data.split.folds=5"]
    assert members(None, 3) == ["training.replicates=3"]
    with pytest.raises(ValueError, match="--folds 1 is not possible: give 2 to 20"):
        members(1, None)


def test_only_torchrun_goes_on_with_a_run_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is the same the first time and after a crash."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    with pytest.raises(ValueError, match="holds no run to go on with: give the folder of one, or leave out --resume"):
        check_resume(tmp_path / "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    check_resume(tmp_path / "none")
