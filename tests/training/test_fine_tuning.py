"""Runs that start from another run: which weights they take, which they train, and that they need it only once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from chordmixer import files
from chordmixer.config import override
from chordmixer.data.alphabets import Dna
from chordmixer.data.tokenizers import Numbers
from chordmixer.models import Model
from chordmixer.models.growing import take_over
from chordmixer.training import Experiment, TrainingConfig, checkpoints
from chordmixer.training.fine_tuning import initialise, messages, start_from
from chordmixer.training.loop import TrainingRun, train

pytestmark = pytest.mark.usefixtures("quick_scores")

MODEL = "model.safetensors"


@pytest.fixture(scope="session")
def longer(tiny: Experiment) -> Experiment:
    """The same task with records that are too long for the run of `tiny`, and a network of other sizes."""
    data = {"base_length": 64, "max_length": 128}
    network = {"max_length": 128, "track_size": 3, "hidden": 5, "dropout": 0.0, "prenorm": "layer"}
    return override(tiny, {"data": data, "model": {"network": network}, "training": {"seed": 1, "epochs": 1}})


def first_weights(experiment: Experiment, run: Path) -> dict[str, torch.Tensor]:
    """The weights that a run should start with."""
    torch.manual_seed(experiment.training.seed)
    model = Model(experiment.model)
    take_over(model, Model.from_pretrained(run))
    return model.state_dict()


def quiet() -> Console:
    return Console(file=StringIO())


# --- The experiment ---


def test_the_network_is_that_of_the_run(tiny: Experiment, longer: Experiment, full_run: Path) -> None:
    experiment = start_from(longer, full_run, freeze=True)
    assert experiment.model.network == replace(tiny.model.network, max_length=128)
    assert start_from(tiny, full_run).model == tiny.model
    training = experiment.training
    assert (training.start, training.freeze) == (str(full_run), True)
    assert training.start_sha256 == files.read_json(full_run / "manifest.json")[MODEL]
    assert (experiment.data, training.seed) == (longer.data, 1)
    assert messages(training) == [
        f"starting from the weights of {full_run}, with a new head",
        "embedding and encoder are frozen: only the head learns",
    ]
    assert messages(longer.training) == []


def test_the_place_of_a_class_token_is_kept(tiny: Experiment, tmp_path: Path) -> None:
    """A network for 64 tokens and one more is that of 128."""
    Model(replace(tiny.model, head="class_token")).save_pretrained(tmp_path)
    experiment = start_from(tiny, tmp_path)
    assert experiment.model.network.max_length == 65
    take_over(Model(experiment.model), Model.from_pretrained(tmp_path))


def test_where_a_run_lies_does_not_matter(longer: Experiment, full_run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(full_run, tmp_path / "moved")
    assert start_from(longer, copy) == start_from(longer, full_run)
    Model(replace(longer.model, network=Model.from_pretrained(full_run).config.network)).save_pretrained(copy)
    assert start_from(longer, copy) != start_from(longer, full_run)


def test_runs_without_weights(longer: Experiment, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"no {MODEL} to start from: give the folder of a finished run"):
        start_from(longer, tmp_path)


def test_tokens_must_mean_the_same(longer: Experiment, full_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(full_run, tmp_path / "run")
    files.write_json(run / "tokenizer.json", Dna().to_json())
    files.write_manifest(run, ["tokenizer.json"])
    with pytest.raises(
        ValueError, match=r"tokenizer of .*run is Dna\(.*\), and that of these data None: tokens must"
    ):
        start_from(longer, run)


def test_each_series_has_its_own_scale(longer: Experiment, full_run: Path, tmp_path: Path) -> None:
    run, task = shutil.copytree(full_run, tmp_path / "run"), longer.build_task()
    files.write_json(run / "tokenizer.json", Numbers(2, mean=(1.0, 2.0), scale=(3.0, 4.0)).to_json())
    files.write_manifest(run, ["tokenizer.json"])
    written = {"tokenizer.json": Numbers(2, on_bad="unknown", mean=(5.0, 6.0), scale=(7.0, 8.0)).to_json()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(task), "documents", lambda self: written)
        assert start_from(longer, run).training.start == str(run)


# --- The first weights, and those after ---


def test_a_run_starts_with_the_weights_of_another(longer: Experiment, full_run: Path, tmp_path: Path) -> None:
    experiment = start_from(longer, full_run)
    train(experiment, tmp_path / "run")
    expected = first_weights(experiment, full_run)
    started = TrainingRun(experiment, tmp_path / "again", False, quiet()).model.state_dict()
    assert all(torch.equal(started[name], value) for name, value in expected.items())
    trained = files.read_tensors(tmp_path / "run" / MODEL)
    changed = {name.split(".")[0] for name, value in trained.items() if not torch.equal(value, expected[name])}
    assert changed == {"embedding", "encoder", "head"}
    assert Experiment.load(tmp_path / "run") == experiment
    assert files.read_json(tmp_path / "run" / "config.json")["training"]["start"] == str(full_run)


@pytest.mark.parametrize("norm", [None, "batch"])
def test_frozen_weights_do_not_move(tiny: Experiment, tmp_path: Path, norm: str | None) -> None:
    """Running statistics do not move either, and dropout applies only to what learns."""
    base = override(tiny, {"model": {"network": {"prenorm": norm}}, "training": {"epochs": 1}})
    train(base, tmp_path / "base")
    experiment = start_from(base, tmp_path / "base", freeze=True)
    train(experiment, tmp_path / "run")
    before, after = (files.read_tensors(tmp_path / run / MODEL) for run in ("base", "run"))
    for name, value in after.items():
        assert torch.equal(value, before[name]) == (not name.startswith("head.")), name
    moments = files.read_tensors(checkpoints.newest_first(tmp_path / "run")[0] / "optimizer.safetensors")
    assert {name.split(".")[0] for name in moments} == {"0", "1"}  # the head's weight and bias


def test_nothing_is_kept_for_gradients_of_a_frozen_encoder(tiny: Experiment, full_run: Path, tmp_path: Path) -> None:
    run = TrainingRun(start_from(tiny, full_run, freeze=True), tmp_path / "run", False, quiet())
    run.wrapped.train()
    batch = run.loader.batch([0, 1])
    grad_modes: list[bool] = []
    run.model.encoder.register_forward_hook(lambda *_: grad_modes.append(torch.is_grad_enabled()))
    assert run.model(batch.inputs).requires_grad and not run.model.encode(batch.inputs).values.requires_grad
    assert grad_modes == [False, False]  # the tiles of a network that does not learn are faster
    assert torch.equal(run.model(batch.inputs), run.model.eval()(batch.inputs))
    assert [p.requires_grad for p in run.optimiser.parameters] == [True, True]


def test_a_head_that_learns_through_the_encoder_cannot_freeze_it(tiny: Experiment, tmp_path: Path) -> None:
    model = Model(replace(tiny.model, head="class_token"))
    with pytest.raises(ValueError, match=r"model.head='class_token' learns through the encoder, which is frozen"):
        initialise(model, TrainingConfig(freeze=True), tmp_path)


# --- Resume ---


def test_resume_is_exact_and_needs_no_other_run(
    longer: Experiment, full_run: Path, tmp_path: Path, crash: Callable[[Experiment, Path, int], None]
) -> None:
    origin = shutil.copytree(full_run, tmp_path / "origin")
    experiment = override(start_from(longer, origin), {"training": {"layer_decay": 0.7, "checkpoint_every": 3}})
    train(experiment, tmp_path / "whole")
    for steps in (0, 1, 7):
        crash(experiment, tmp_path / f"run{steps}", steps)
    shutil.rmtree(origin)
    for steps in (0, 1, 7):
        run = tmp_path / f"run{steps}"
        train(Experiment.load(run), run, resume=True)
        assert (run / MODEL).read_bytes() == (tmp_path / "whole" / MODEL).read_bytes()


def test_a_kill_before_the_first_checkpoint(longer: Experiment, full_run: Path, tmp_path: Path) -> None:
    """Only config.json exists: the other run is needed once more, and must be unchanged."""
    origin = shutil.copytree(full_run, tmp_path / "origin")
    experiment = start_from(longer, origin)
    (tmp_path / "run").mkdir()
    experiment.save(tmp_path / "run")
    Model(experiment.model).save_pretrained(origin)
    with pytest.raises(
        ValueError, match=r"is not the file that this run starts from: its SHA-256 is to be [0-9a-f]{64};"
    ):
        train(experiment, tmp_path / "run", resume=True)
    shutil.copy(full_run / MODEL, origin)
    shutil.copy(full_run / "config.json", origin)
    shutil.copy(full_run / "manifest.json", origin)
    train(experiment, tmp_path / "run", resume=True)
