"""The command line: quick help, each command from end to end, and one line for each mistake."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import Forked
from typer.testing import CliRunner

from chordmixer import cli, files
from chordmixer.paper.recipes import adding
from chordmixer.tasks.targets import Regression
from chordmixer.training import Experiment
from chordmixer.version import __version__

SMALL = """
[data]
base_length = 32
max_length = 64
training = 48
validation = 24
test = 24
[model.network]
track_size = 2
hidden = 4
[training]
epochs = 1
batch_sequences = 8
device = "cpu"
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_the_bare_command_is_the_help(chordmixer: Command) -> None:
    code, output, errors = chordmixer()
    assert (code, errors) == (0, "") and "Usage:" in output and "inspect" in output


def test_help_and_version_do_not_wait_for_torch() -> None:
    script = """
import sys
from chordmixer.cli import main
for arguments in (["--help"], ["--version"], ["train", "--help"], ["evaluate", "--help"], ["demo", "--help"],
    ["inspect", "--help"], ["predict", "--help"], ["embed", "--help"], ["report", "--help"], []):
    sys.argv = ["chordmixer", *arguments]
    try:
        main()
    except SystemExit as leave:
        assert leave.code == 0, (arguments, leave.code)
heavy = {"torch", "numpy", "accelerate", "pyarrow", "matplotlib", "sklearn"} & set(sys.modules)
assert not heavy, heavy
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    assert f"chordmixer {__version__}\n" in completed.stdout


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], ["--version", "sample", "inspect", "train", "predict", "embed", "evaluate", "report", "demo"]),
        (["train"], ["--out", "--base-length", "--config", "--set", "--resume", "chordmixer train --resume RUN"]),
        (["train"], ["--epochs", "--minutes", "--seed", "--device", "--model", "--on-rare"]),
        (["train"], ["--labels", "--group", "--split", "--rc", "--format", "--column", "--on-bad", "--on-unmatched"]),
        (["inspect"], ["--labels", "--group", "--format", "--column", "--plot", "--on-empty", "--tokenizer"]),
        (["predict"], ["--out", "-o", "--min-confidence", "--over-length", "--on-bad", "--resume", "--format"]),
        (["embed"], ["--out", "-o", "--per-token", "--batch-tokens", "--device", "--force"]),
        (["evaluate"], ["--split", "training, validation or test", "--labels", "--over-length"]),
        (["report"], ["RUN", "report.html"]),
        (["demo"], ["--out"]),
    ],
    ids=[
        "chordmixer",
        "train",
        "shorthands",
        "train on files",
        "inspect",
        "predict",
        "embed",
        "evaluate",
        "report",
        "demo",
    ],
)
def test_help_names_every_option(command: list[str], options: list[str]) -> None:
    result = CliRunner().invoke(cli.app, [*command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert [option for option in options if option not in result.output] == []


def test_train_resume_and_evaluate(chordmixer: Command, toml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, output, errors = chordmixer("train", "adding", "--config", toml, "--out", run)
    assert (code, errors) == (0, "")
    assert "adding: 48 training sequences of" in output and "constant prediction" in output
    assert f"plot: {run / 'lengths-test.png'}\n" in output and output.endswith(f"report: {run / 'report.html'}\n")
    assert "mean: accuracy 0." in output and "The best baseline, " in output
    weights = (run / "model.safetensors").read_bytes()

    code, resumed, errors = chordmixer("train", "--resume", run)
    assert (code, errors) == (0, "")
    assert resumed.startswith("going on from")
    assert (run / "model.safetensors").read_bytes() == weights

    for split in ("test", "validation"):
        code, scores, errors = chordmixer("evaluate", run, "--split", split)
        assert (code, errors) == (0, "")
        assert f"adding, {split} set: accuracy in % by length" in scores
        assert (run / f"lengths-{split}.png").stat().st_size > 0
    assert output.split("adding, test set")[1] == resumed.split("adding, test set")[1]


def test_settings_come_from_the_recipe_then_toml_then_set(chordmixer: Command, toml: Path, tmp_path: Path) -> None:
    settings = ["--set", "training.batch_sequences=6", "--set", "model.network.prenorm=layer", "--base-length", "40"]
    assert chordmixer("train", "adding", "--config", toml, "--out", tmp_path / "run", *settings)[0] == 0
    experiment = Experiment.load(tmp_path / "run")
    assert experiment.training.batch_sequences == 6  # --set, not TOML's 8
    assert experiment.data.base_length == 40  # the option, not TOML's 32
    assert experiment.training.epochs == 1  # TOML, not the recipe's 10
    assert experiment.training.learning_rate == adding(experiment.data).training.learning_rate
    assert experiment.model.network.prenorm == "layer"
    assert experiment.model.network.max_length == 64  # follows from the data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.epohcs=3"], r"training.epohcs is not a setting: did you mean epochs?"),
        (["--set", "colour=3"], r"colour is not a setting: choose from task, data, model, training"),
        (["--set", "training.epochs"], "--set training.epochs has no '=': write it as training.epochs=3"),
        (["--set", "training.epochs=many"], "training.epochs='many' is not of type int: give one that is"),
        (["--set", "training.epochs=1.5"], "training.epochs=1.5 is not of type int: give one that is"),
        (["--set", "training.epochs=0"], "epochs=0 is too small: give 1 or more"),
        (["--set", "training.epochs=2e12"], "training.epochs=2000000000000.0 is not of type int: give one that is"),
        (["--set", "training.learning_rate=nan"], "training.learning_rate=nan is not finite: give a finite number"),
        (["--set", "training.checkpoint_minutes=-1"], "checkpoint_minutes=-1.0 is too small: give 0 or more"),
        (["--set", "training.patience=-1"], "patience=-1 is too small: give 0 or more"),
        (["--set", "training.workers=100000"], "workers=100,000 is too large: give 256 or less"),
        (["--set", "model.network.hidden=2000000000000"], "hidden=2,000,000,000,000 is too large: give 1,048,576 or"),
        (
            ["--set", "model.network.hidden=1000000", "--set", "model.network.track_size=60000"],
            "a training step needs",
        ),
        (["--set", "data.training=9000000000"], "training=9,000,000,000 is too large: give 1,000,000,000 or less"),
        (["--set", "training=3"], "training=3 is not a table of settings: give one"),
        (["--set", "data=3"], "data=3 is not a table of settings: write [data], or data.SETTING=VALUE"),
        (
            ["--set", "training.precision=fp8"],
            "training.precision='fp8' is not a choice: give one of auto, fp32, bf16",
        ),
        (["--set", "training.batch_tokens=40"], "tokens, above training.batch_tokens=40: no sequence is ever cut"),
        (["--set", "training.batch_tokens=40"], "set training.batch_tokens=6"),
        (["--set", "model.network.max_length=40"], "tokens, above model.network.max_length=40: no"),
        (["--set", "model.encoder=rnn"], "encoder 'rnn' is not known: choose one of chordmixer, pointwise"),
        (["--model", "rnn"], "encoder 'rnn' is not known: choose one of chordmixer, pointwise"),
        (["--base-length", "-1"], "base_length=-1 is too small: give 1 or more"),
        (["--set", "data.training=-1"], "training=-1"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_one_line(
    chordmixer: Command, toml: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """It also leaves no folder behind."""
    code, _, errors = chordmixer("train", "adding", "--config", toml, "--out", tmp_path / "run", *arguments)
    assert code == 2
    assert errors.startswith("chordmixer: ") and errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nepohcs = 3", "training.epohcs is not a setting: did you mean epochs?"),
        ("[data]\ncolour = 3", "data.colour is not a setting: choose from base_length"),
        ("[trainng]\nepochs = 3", "trainng is not a setting: did you mean training?"),
        ("training = 3", "training=3 is not a table of settings: give one"),
        ("[training\nepochs = 3", "settings.toml cannot be read as TOML ("),
        ("[training\nepochs = 3", "give a file with [data], [model], [training]"),
        (None, "settings.toml cannot be read as TOML ([Errno 2] No such file or directory"),
    ],
)
def test_a_wrong_toml_file_is_one_line(chordmixer: Command, tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "settings.toml").write_text(text)
    code, _, errors = chordmixer("train", "adding", "--config", tmp_path / "settings.toml", "--out", tmp_path / "run")
    assert (code, errors.count("\n")) == (2, 1)
    assert message in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "sorting", "--out", "{run}"],
            "sorting is neither a file nor a task: give the path of a file or folder, or one of adding",
        ),
        (["train", "adding"], "no folder for the run: add --out RUN"),
        (
            ["train", "adding", "--out", "{none}", "--resume"],
            "none holds no run to resume: give the folder of one, or leave out --resume",
        ),
        (["train", "--resume", "{none}"], "none is not a folder: give the --out folder of a training run"),
        (
            ["train", "--resume", "{run}", "--set", "training.epochs=3"],
            "--resume RUN takes its settings from the run",
        ),
        (["train", "--resume", "{run}", "--base-length", "3"], "--resume RUN takes its settings from the run"),
        (["train", "adding", "--out", "{file}"], "file cannot be made a folder (File exists): give another --out"),
        (["evaluate", "{none}"], "none is not a folder: give the --out folder of a training run"),
        (["evaluate", "{file}"], "file is not a folder: give the --out folder of a training run"),
        (["evaluate", "{run}"], "config.json has format 99: this version of chordmixer reads format 2"),
        (["train", "--resume", "{run}"], "config.json has format 99: this version of chordmixer reads format 2"),
        (["evaluate", "{empty}"], "config.json does not exist: give a folder that chordmixer wrote"),
        (["evaluate", "{run}", "--split", "all"], "split 'all' is not one of training, validation, test: choose one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_is_one_line(chordmixer: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    paths = {name: tmp_path / name for name in ("run", "none", "file", "empty")}
    paths["run"].mkdir()
    paths["empty"].mkdir()
    paths["file"].write_text("mine")
    files.write_recorded(paths["run"], {"config.json": b'{"format": 99}'})
    code, output, errors = chordmixer(*(argument.format(**paths) for argument in arguments))
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("chordmixer: ") and message in errors


def test_an_unfinished_run_cannot_be_evaluated(chordmixer: Command, toml: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert chordmixer("train", "adding", "--config", toml, "--out", run)[0] == 0
    for name in ("model.safetensors", "manifest.json"):
        (run / name).unlink()
    code, _, errors = chordmixer("evaluate", run, "--unverified")
    assert (code, errors.count("\n")) == (2, 1)
    assert "model.safetensors" in errors
    code, _, errors = chordmixer("train", "adding", "--config", toml, "--out", run)
    assert (code, errors.count("\n")) == (2, 1)
    assert "already holds a run: give a new folder, or add --resume to go on with it" in errors


def test_an_edited_config_is_one_line(chordmixer: Command, toml: Path, tmp_path: Path) -> None:
    """Weights that do not fit the config beside them."""
    run = tmp_path / "run"
    assert chordmixer("train", "adding", "--config", toml, "--out", run)[0] == 0
    config = json.loads((run / "config.json").read_text())
    config["model"]["network"]["hidden"] = 5
    (run / "config.json").write_text(json.dumps(config))
    code, _, errors = chordmixer("evaluate", run)
    assert (code, errors.count("\n")) == (2, 1)
    assert "config.json" in errors


def test_a_loss_that_is_no_number_is_one_line(
    chordmixer: Command, toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Regression, "losses", lambda self, outputs, targets: outputs.sum(dim=1) * math.nan)
    code, _, errors = chordmixer("train", "adding", "--config", toml, "--out", tmp_path / "run")
    assert (code, errors.count("\n")) == (2, 1)
    assert "loss nan or its gradient is not finite at step 1, records training-" in errors
    assert errors.endswith("weights stay as after step 0; look at these records or at their targets\n")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000000"]


FULL = "chordmixer: standard output cannot be written (No space left on device): make room"


def test_output_to_a_full_device(motifs: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "chordmixer"]
        result = subprocess.run([*command, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        process = Forked([*command, "inspect", motifs[0]], stdout=full)
        _, errors = process.communicate(timeout=60)
    for code, message in ((result.returncode, result.stderr), (process.returncode, errors)):
        assert (code, message.count("\n")) == (2, 1) and message.startswith(FULL)


def test_a_name_that_no_disk_can_hold(chordmixer: Command) -> None:
    code, _, errors = chordmixer("evaluate", "x" * 3000)
    assert code == 2 and errors.startswith(
        f"chordmixer: '{'x' * 100}': the system refuses (File name too long): check"
    )
