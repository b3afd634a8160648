"""Options that several commands share: a Reading, and the settings of a run: a recipe, then TOML, then --set."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from chordmixer.cli import inspect as inspecting
from chordmixer.cli import options, predict, train
from chordmixer.cli.options import LabelOptions, RunOptions, TrainOptions, check_resume, settings_table
from chordmixer.data.columns import Columns
from chordmixer.data.reading import Kind, Policy, Reading
from chordmixer.data.splits import SplitConfig
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.tasks.questions import TargetType
from chordmixer.training import TrainingConfig
from chordmixer.training.inference import OnBad, OverLength

Command = Callable[..., tuple[int, str, str]]


def test_a_group_of_options_is_a_parameter() -> None:
    calls: list[Any] = []

    def command(run: options.Run, files: LabelOptions, device: options.Device = None) -> None:
        """What it does."""
        calls.append((run, files.named(["x.fa"]), device))

    shared = options.with_options(command)
    assert shared.__doc__ == "What it does."
    names = list(inspect.signature(shared).parameters)
    assert names[:2] == ["run", "device"] and "files" not in names and {"labels", "column", "on_empty"} < set(names)
    defaults = {name: p.default for name, p in inspect.signature(shared).parameters.items() if name != "run"}
    shared(run=Path("r"), **defaults)
    shared(run=Path("r"), **(defaults | {"labels": "files", "column": ["label=Phylum", "id = x"], "format": "csv"}))
    assert calls[0] == (Path("r"), (["x.fa"], Reading()), None)
    assert calls[1][1][1] == Reading(kind="csv", columns=Columns(label="Phylum", id=" x"), labels="files")


def test_commands_with_labels() -> None:
    commands = (train.train, inspecting.inspect, inspecting.evaluate, predict.predict, predict.embed)
    has_labels = {command.__name__: "labels" in inspect.signature(command).parameters for command in commands}
    assert has_labels == {"train": True, "inspect": True, "evaluate": True, "predict": False, "embed": False}


def test_choices_are_those_of_the_library() -> None:
    tokenizer, method, device = (
        get_type_hints(config)[name]
        for config, name in ((TokenizerConfig, "name"), (SplitConfig, "method"), (TrainingConfig, "device"))
    )
    for choices, literal in (
        (options.ON_BAD, OnBad),
        (options.OVER_LENGTH, OverLength),
        (options.TOKENIZERS, tokenizer),
        (options.SPLITS, method),
        (options.DEVICES, device),
        (options.TARGET_TYPES, TargetType),
        (options.FORMATS, Kind),
        (options.POLICIES, Policy),
    ):
        assert {*choices} == {*get_args(literal)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--column", "label"], "--column label is not ROLE=NAME: write it as --column label=NAME"),
        (["--column", "lable=x"], "--column.lable is not a setting: did you mean label?"),
        (["--format", "docx"], "--format docx is not a choice: give one of auto, fasta"),
        (["--on-empty", "drop"], "--on-empty drop is not a choice: give one of error, reject"),
        (["--on-unmatched", "drop"], "--on-unmatched drop is not a choice: give one of error, reject"),
        (["--on-bad", "drop"], "--on-bad drop is not a choice: give one of error, unknown, reject"),
        (["--tokenizer", "words"], "--tokenizer words is not a choice: give one of auto, dna"),
        (["--group", "gene"], "--group gene is not files, header:NAME or header:/REGEX/"),
        (["--labels", "header:"], "'header:' names nothing in a header"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line(
    chordmixer: Command, motifs: list[str], arguments: list[str], message: str
) -> None:
    code, _, errors = chordmixer("inspect", *motifs, *arguments)
    assert (code, errors.count("\n")) == (2, 1) and message in errors


# --- Settings. Their errors stand in tests/test_cli.py. ---


def test_set_goes_over_toml(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\nepochs = 3\nlearning_rate = 0.1\n[data]\nseed = 4\n")
    assert settings_table(tmp_path / "run.toml", ["training.epochs=5", "model.network.prenorm=layer"]) == {
        "training": {"epochs": 5, "learning_rate": 0.1},
        "data": {"seed": 4},
        "model": {"network": {"prenorm": "layer"}},
    }
    experiment = RunOptions(config=tmp_path / "run.toml").build(adding, AddingConfig(), ["training.epochs=5"])
    assert (experiment.training.epochs, experiment.training.learning_rate, experiment.data.seed) == (5, 0.1, 4)


def test_the_recipe_sees_the_data_as_they_were_set() -> None:
    assert RunOptions().build(adding, AddingConfig(), ["data.max_length=500"]).model.network.max_length == 500


def test_a_value_in_the_place_of_a_table() -> None:
    with pytest.raises(ValueError, match=r"training='x' is not a table of settings: write \[training\], or"):
        settings_table(None, ["training=x", "training.epochs=3"])


def test_what_was_changed_is_said_before_a_run(log: pytest.LogCaptureFixture) -> None:
    unchanged = f"data.max_length={AddingConfig().max_length}"
    changes = [
        "training.epochs=5",
        "data.seed=4",
        "model.network.reversible=true",
        unchanged,
        "model.network.prenorm=layer",
    ]
    RunOptions().build(adding, AddingConfig(), changes)
    default = adding(AddingConfig())
    assert log.messages == [
        f"settings changed: training.epochs=5 (default {default.training.epochs}), data.seed=4 (default 0), "
        f"model.network.reversible=true (default false), model.network.prenorm=layer (default none)"
    ]
    log.clear()
    RunOptions().build(adding, AddingConfig(), [unchanged])
    assert log.messages == []


def test_options_for_common_settings() -> None:
    assert TrainOptions().changes() == []
    assert TrainOptions(model="lstm", epochs=3, seed=0, device="cpu").changes() == [
        "model.encoder=lstm",
        "training.epochs=3",
        "training.seed=0",
        "training.device=cpu",
    ]
    run_options = RunOptions(minutes=2.5, seed=7)
    training = run_options.build(adding, AddingConfig(), ["training.ema=0.1", *run_options.changes()]).training
    assert (training.minutes, training.ema, training.seed) == (2.5, 0, 7)


def test_options_of_an_ensemble() -> None:
    assert TrainOptions(folds=5).changes() == ["data.split.folds=5"]
    assert TrainOptions(replicates=3).changes() == ["training.replicates=3"]
    with pytest.raises(ValueError, match="--folds 1 is not possible: give 2 to 20"):
        TrainOptions(folds=1).changes()


def test_only_torchrun_goes_on_with_a_run_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command is the same the first time and after a crash."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    with pytest.raises(ValueError, match="holds no run to resume: give the folder of one, or leave out --resume"):
        check_resume(tmp_path / "none")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    check_resume(tmp_path / "none")
