"""`plan`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer import files, recipes
from chordmixer.models import Model
from chordmixer.tasks.files import FilesConfig
from chordmixer.training import forecast

Command = Callable[..., tuple[int, str, str]]


def test_a_plan(chordmixer: Command, motifs: list[str]) -> None:
    code, said, errors = chordmixer("plan", *motifs, "--group", "header:gene", "--set", "training.epochs=7")
    assert (code, errors) == (0, "")
    for line in (
        "each file is a class: with, without",
        "  200 records read: 200 used, 0 rejected",
        "2 classes: with, without",
        "  split (grouped): ",
        "  chordmixer for up to 128 tokens: 7 blocks, layer norm",
        "  8 tracks x 8 = 64 channels, 64 hidden, ",
        "  7 epochs of ",
        "  together, about",
        " free: fits",
        " an epoch with validation, ",
        "  the whole process, about",
        "Next:  chordmixer train with the same files and options, and --out RUN",
    ):
        assert line in said, line
    assert "To need less memory" not in said


def test_without_the_measurement(chordmixer: Command, motifs: list[str]) -> None:
    code, said, _ = chordmixer("plan", *motifs, "--no-time")
    assert code == 0 and "an epoch" not in said


def test_members(chordmixer: Command, motifs: list[str]) -> None:
    code, said, errors = chordmixer("plan", *motifs, "--no-time", "--folds", 4)
    assert (code, errors) == (0, "") and "4 members: this is what one of them takes" in said
    code, _, errors = chordmixer("plan", *motifs, "--pretrain", "--replicates", 4)
    assert code == 2 and "--replicates is an option of train, not of pretrain" in errors


def test_where_memory_is_short(chordmixer: Command, motifs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1_500_000)
    code, said, errors = chordmixer("plan", *motifs, "--no-time")
    assert (code, errors) == (0, "")
    assert "MB of 2 MB free: does not fit" in said and "records would not fit: with" in said
    assert "To need less memory, add one of these, here and to the run\n  --set training.batch_tokens=" in said
    assert "--set model.network.reversible=true" in said and "--set model.network.track_size=4" in said
    assert ", still too much" in said


SMALL = [
    word
    for setting in ("model.network.track_size=2", "model.network.hidden=4", "training.epochs=1")
    for word in ("--set", setting)
]


@pytest.fixture(scope="module")
def trained(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is needed of a run to start from it: only to be read."""
    folder = tmp_path_factory.mktemp("trained")
    experiment = recipes.files(FilesConfig(files=tuple(motifs)), lambda _: None)
    network = replace(experiment.model.network, track_size=2, hidden=4)
    Model(replace(experiment.model, network=network)).save_pretrained(folder)
    for name, written in experiment.build_task().documents().items():
        files.write_recorded(folder, {name: files.json_bytes(written)})
    return folder


def test_of_a_run_that_starts_from_another(chordmixer: Command, motifs: list[str], trained: Path) -> None:
    said = {}
    for freeze in ([], ["--freeze"]):
        code, said[len(freeze)], errors = chordmixer("plan", *motifs, "--from", trained, *freeze, "--no-time")
        assert (code, errors) == (0, "")
    assert f"  starting from the weights of {trained}, with a new head" in said[0] and "to learn" not in said[0]
    assert "8 tracks x 2 = 16 channels, 4 hidden" in said[0], "the network of the run"
    assert re.search(r"only the head learns\n  \d+ weights to learn", said[1])
    assert "gradients" in said[0] and "tokens around a block" in said[1]
    assert _peak(said[1]) < _peak(said[0])


def _peak(said: str) -> int:
    found = re.search(r"together, about +(\d+) MB", said)
    assert found
    return int(found[1])


def test_of_pretraining(chordmixer: Command, motifs: list[str]) -> None:
    given = [*motifs, "--group", "header:gene", *SMALL, "--set", "data.longest=40", "--set", "data.shortest=10"]
    code, said, errors = chordmixer("plan", *given, "--pretrain", "--out", "RUN", "--no-baselines")
    assert (code, errors) == (0, "") and not Path("RUN").exists()
    for line in (
        "  200 records read: 200 used, 0 rejected",
        " a record; 30 % masked\n  split (grouped): ",
        "  in segments of 10 to 40 tokens:\n",
        "  half of them are the decoder's",
        " an epoch with validation, ",
        "  the whole process, about",
        "Next:  chordmixer pretrain with the same files and options\n",
    ):
        assert line in said, line


@pytest.mark.parametrize("command", ["pretrain", "train"])
def test_it_is_the_forecast_that_the_run_makes_first(
    chordmixer: Command, motifs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The same options give the same experiment, and the same numbers."""
    seen: list[forecast.Forecast] = []

    def stop(made: forecast.Forecast) -> None:
        seen.append(made)
        raise ValueError("seen")

    plain = forecast.forecast
    monkeypatch.setattr(forecast, "forecast", lambda *given, **_: stop(plain(*given)))
    monkeypatch.setattr(forecast, "free_bytes", lambda device: 1 << 40)
    given = [*motifs, *SMALL, "--out", tmp_path / "run", "--no-baselines"]
    for words in (["plan", *(["--pretrain"] if command == "pretrain" else [])], [command]):
        assert chordmixer(*words, *given)[::2] == (2, "chordmixer: seen\n")
    planned, run = seen
    assert planned == run and planned.weights == planned.learning


@pytest.mark.parametrize(
    "option", ["--labels=files", "--rank=genus", "--target-type=number", "--rc", "--from=x", "--freeze"]
)
def test_pretraining_knows_no_labels(chordmixer: Command, motifs: list[str], option: str) -> None:
    code, _, errors = chordmixer("plan", *motifs, "--pretrain", option)
    name = option.partition("=")[0]
    assert code == 2 and f"{name} is an option of train, not of pretrain: leave out {name} or --pretrain" in errors


def test_weights_that_do_not_fit(chordmixer: Command, motifs: list[str], trained: Path) -> None:
    code, _, errors = chordmixer("plan", *motifs, "--from", trained, "--set", "model.network.track_size=8")
    assert code == 2 and "model.network.track_size=8 does not fit the weights to start from, which have 2" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.fa"], "none.fa cannot be read (No such file or directory)"),
        (["{0}"], "no record has a label or a number to learn"),
        (["{0}", "{1}", "--set", "model.network.max_length=40"], "above model.network.max_length=40"),
        (["{0}", "{1}", "--set", "training.batch_tokens=40"], "above training.batch_tokens=40"),
        (["{0}", "{1}", "--set", "model.encoder=pointwise"], "encoder 'pointwise' has no count of its memory"),
        (["{0}", "{1}", "--model", "s4d"], "encoder 's4d' has no count of its memory"),
        (["{0}", "{1}", "--target-type", "sums"], "--target-type sums is not a choice"),
        (["{0}", "{1}", "--freeze"], "--freeze keeps the encoder of a trained run as it is: add --from RUN"),
        (["{0}", "{1}", "--from", "none"], "none has no model.safetensors to start from"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_refusals_are_one_line(chordmixer: Command, motifs: list[str], arguments: list[str], message: str) -> None:
    code, _, errors = chordmixer("plan", *(a.format(*motifs) for a in arguments))
    assert (code, errors.count("\n")) == (2, 1) and message in errors
