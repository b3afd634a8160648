"""The loop: what a run leaves, what a step is, when it stops, and what it refuses."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from chordmixer import files
from chordmixer.config import override
from chordmixer.data import TokenSampler
from chordmixer.models import Model
from chordmixer.packed import Packed
from chordmixer.paper.adding import AddingRecords
from chordmixer.tasks.targets import Regression
from chordmixer.training import Experiment, checkpoints, loop
from chordmixer.training.evaluation import Predictions, predict_records
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.optimiser import schedule

pytestmark = pytest.mark.usefixtures("quick_scores")

CPU = torch.device("cpu")
MODEL = "model.safetensors"


def events(run: Path, split: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


def final_state(run: Path) -> dict[str, Any]:
    return files.read_json(checkpoints.newest_first(run)[0] / "state.json")


def test_a_run_learns(tiny: Experiment, full_run: Path) -> None:
    torch.manual_seed(tiny.training.seed)
    test = AddingRecords(tiny.data, "test")
    models = {"untrained": Model(tiny.model), "trained": Model.from_pretrained(full_run)}
    losses = {k: predict_records(m, test, tiny.training, CPU).loss(Regression(0.04)) for k, m in models.items()}
    assert losses["trained"] < 0.3 * losses["untrained"]


def test_what_a_run_leaves(full_run: Path) -> None:
    written = {"config.json", MODEL, "metrics.jsonl", "predictions.parquet", "evaluation-test.json", "run.json"}
    assert {path.name for path in full_run.iterdir()} == {*written, "manifest.json", "checkpoints", ".lock"}
    assert [path.name for path in checkpoints.newest_first(full_run)] == ["step-000000024-finished", "step-000000024"]
    files.verify(full_run, written)
    assert set(files.read_json(full_run / "manifest.json")) == written


def test_metrics_grow_by_step(full_run: Path) -> None:
    assert [line["step"] for line in events(full_run, "training")] == [10, 20]
    assert [(line["step"], line["epoch"]) for line in events(full_run, "validation")] == [(12, 1), (24, 2)]
    steps = [json.loads(line)["step"] for line in (full_run / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_the_model_is_the_best_one_and_not_the_last(tiny: Experiment, tmp_path: Path) -> None:
    restless = override(tiny, {"training": {"learning_rate": 0.3, "warmup": 0.0, "evaluate_every": 5}})
    train(restless, tmp_path / "run")
    evaluations = events(tmp_path / "run", "validation")
    assert [line["step"] for line in evaluations] == [5, 10, 12, 15, 20, 24]
    best = min(evaluations, key=lambda line: line["loss"])
    assert best["step"] < 24
    model, records = Model.from_pretrained(tmp_path / "run"), AddingRecords(tiny.data, "validation")
    assert predict_records(model, records, tiny.training, CPU).loss(Regression(0.04)) == pytest.approx(best["loss"])
    assert final_state(tmp_path / "run")["best_step"] == best["step"]


@pytest.mark.parametrize(("batch", "accumulate"), [(10, 1), (4, 3), (3, 4)])
def test_a_step_is_the_mean_over_sequences(tiny: Experiment, tmp_path: Path, batch: int, accumulate: int) -> None:
    """The step is the same however the sequences are batched (4 + 4 + 2, 3 + 3 + 3 + 1)."""
    settings = {"epochs": 1, "batch_sequences": batch, "accumulate": accumulate, "clip": 1e9}
    small = override(tiny, {"data": {"training": 10}, "model": {"network": {"dropout": 0.0}}, "training": settings})
    train(small, tmp_path / "run")
    records = AddingRecords(small.data, "training")
    inputs, targets = zip(*(records[i] for i in range(10)), strict=True)
    torch.manual_seed(small.training.seed)
    model = Model(small.model)
    Regression(0.04).losses(model(Packed.from_list(inputs)), torch.stack(targets)).mean().backward()

    moments = files.read_tensors(checkpoints.newest_first(tmp_path / "run")[0] / "optimizer.safetensors")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    learnt = [moments[f"{i}.exp_avg"] / 0.1 for i, p in enumerate(model.parameters()) if p.grad is not None]
    torch.testing.assert_close(learnt, gradients, atol=1e-6, rtol=1e-4)
    assert {int(moments[name]) for name in moments if name.endswith(".step")} == {1}


def test_gradients_are_clipped(tiny: Experiment, tmp_path: Path) -> None:
    train(override(tiny, {"training": {"epochs": 1, "batch_sequences": 96, "clip": 1e-3}}), tmp_path / "run")
    moments = files.read_tensors(checkpoints.newest_first(tmp_path / "run")[0] / "optimizer.safetensors")
    means = [value.flatten() for name, value in moments.items() if name.endswith("exp_avg")]
    assert float(torch.cat(means).norm()) == pytest.approx(1e-4, rel=1e-3)


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine(tiny: Experiment, full_run: Path) -> None:
    assert [schedule(done, 0.2) for done in (0.0, 0.05, 0.1, 0.2)] == pytest.approx([0, 0.25, 0.5, 1])
    falling = [schedule(0.2 + 0.8 * share, 0.2) for share in (0, 0.25, 0.5, 0.75, 1)]
    assert falling == pytest.approx([1, 0.5 + 0.5 * math.sqrt(0.5), 0.5, 0.5 - 0.5 * math.sqrt(0.5), 0])
    assert schedule(0.0, 0.0) == 1
    done = {10: 9.5 / 24, 20: 19.5 / 24}  # the middle of a step
    for line in events(full_run, "training"):
        assert line["learning_rate"] == pytest.approx(
            tiny.training.learning_rate * schedule(done[line["step"]], 0.05)
        )


@pytest.mark.parametrize(
    ("losses", "overfitted", "steps", "best"),
    [
        ([1.2, 1.1, 1.3, 1.4, 1.5, 0.5, 0.6, 0.4, 0.6, 0.7], 0.0, 10, 8),
        ([0.9, 0.9, 0.9], 0.0, 3, 1),
        ([0.96] * 13, 0.0, 12, 1),
        ([0.96] * 3, 1e9, 3, 1),
    ],
    ids=[
        "counts only what follows the best",
        "no better is no improvement",
        "never counts before learning",
        "counts when training is known by heart",
    ],
)
def test_patience(
    tiny: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    losses: list[float],
    overfitted: float,
    steps: int,
    best: int,
) -> None:
    """Two evaluations without improvement end a run, once it beats 0.95 of the best constant answer's loss of 1."""
    scripted_losses = iter(losses)

    def scripted(*_: object) -> Predictions:
        targets = np.array([-1.0, 1.0], dtype=np.float32)
        outputs = targets + np.float32(math.sqrt(next(scripted_losses, 0.0)))
        return Predictions(["a", "b"], np.array([3, 4]), targets, outputs[:, None])

    monkeypatch.setattr(loop, "predict_records", scripted)
    monkeypatch.setattr(loop, "OVERFITTED", overfitted)
    eager = override(tiny, {"training": {"epochs": 1, "evaluate_every": 1, "patience": 2}})
    train(eager, tmp_path / "run")
    state = final_state(tmp_path / "run")
    assert (state["step"], state["best_step"]) == (steps, best)
    assert not list(scripted_losses)


def test_bfloat16_runs_after_float32_in_one_process(tiny: Experiment, full_run: Path, tmp_path: Path) -> None:
    half = override(tiny, {"training": {"precision": "bf16", "epochs": 1}})
    assert math.isfinite(train(half, tmp_path / "run").loss)
    tensors = files.read_tensors(tmp_path / "run" / MODEL)
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    assert all(bool(t.isfinite().all()) for t in tensors.values())


def test_tensorboard_is_an_extra(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"needs the tensorboard package: pip install 'chordmixer\[tensorboard\]'$"):
        train(override(tiny, {"training": {"tensorboard": True}}), tmp_path / "run")


def test_a_gpu_that_is_not_there(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^--device cuda, but torch sees no GPU: use --device auto or cpu$"):
        train(override(tiny, {"training": {"device": "cuda"}}), tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"model": {"encoder": "foo"}}, "encoder 'foo' is not known"),
        ({"model": {"network": {"max_length": 40}}}, "above model.network.max_length=40"),
        ({"training": {"batch_tokens": 50}}, "above training.batch_tokens=50"),
    ],
    ids=["encoder", "max_length", "batch_tokens"],
)
def test_a_run_that_cannot_start_leaves_no_folder(
    tiny: Experiment, tmp_path: Path, setting: dict[str, Any], message: str
) -> None:
    """The corrected command can then use it."""
    with pytest.raises(ValueError, match=message):
        train(override(tiny, setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", [{"outputs": 2}, {"head": "tokens"}], ids=["outputs", "head"])
def test_a_model_that_does_not_fit_the_task(tiny: Experiment, tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"model\.(outputs|head)"):
        train(override(tiny, {"model": setting}), tmp_path / "run")


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("limit", ["max_length", "batch_tokens"])
def test_too_long_a_record_of_any_split_is_refused_before_training(
    tiny: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str, limit: str
) -> None:
    small = override(tiny, {"data": {"training": 8, "validation": 5, "test": 5, split: 96}})
    enough, longest = (max(AddingRecords(small.data, name).lengths) for name in ("training", split))
    assert enough < longest
    settings: dict[str, Any] = {
        "max_length": {"model": {"network": {limit: enough}}},
        "batch_tokens": {"training": {limit: enough}},
    }
    with pytest.raises(ValueError, match=rf"record {split}-\d+ has {longest} tokens, above .*{limit}={enough}"):
        train(override(small, settings[limit]), tmp_path / "run")
    assert "epoch 1" not in capsys.readouterr().out


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_a_file_where_the_folder_should_be(tiny: Experiment, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"file.* cannot be made a folder .*: give another --out$"):
        train(tiny, tmp_path / out)
    assert (tmp_path / "file").read_text() == "mine"


class Spoiler:
    """A target whose training losses are not finite at one step."""

    def __init__(self, step: int, spoil: Callable[[Tensor], Tensor]) -> None:
        self.remaining, self.spoil = step, spoil

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = (outputs.squeeze(1) - targets).square()
        if not outputs.requires_grad:
            return losses
        self.remaining -= 1
        return losses if self.remaining else self.spoil(losses)


@pytest.fixture
def weights_before(monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, Tensor]]:
    """The weights with which each step began."""
    weights: dict[int, dict[str, Tensor]] = {}
    original_step = TrainingRun._step

    def step(self: TrainingRun, *arguments: Any) -> None:
        weights[self.state.step + 1] = {name: value.clone() for name, value in self.model.state_dict().items()}
        original_step(self, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", step)
    return weights


@pytest.mark.parametrize(
    "spoil",
    [lambda x: x * math.nan, lambda x: x * math.inf, lambda x: x + math.nan],
    ids=["nan", "inf", "nan without a gradient"],
)
def test_a_loss_that_is_no_number_stops_before_the_step(
    tiny: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights_before: dict[int, dict[str, Tensor]],
    spoil: Callable[[Tensor], Tensor],
) -> None:
    spoiler = Spoiler(1 + 5, spoil)  # the first loss is that of the rehearsal
    monkeypatch.setattr(Regression, "losses", lambda self, outputs, targets: spoiler.losses(outputs, targets))
    with pytest.raises(
        ValueError, match=r"not finite at step 5, records .* as after step 4; .* lower the learning rate"
    ) as error:
        train(tiny, tmp_path / "run")

    records = AddingRecords(tiny.data, "training")
    sampler = TokenSampler(records.lengths, tiny.training.tokens_for(records.lengths), 8, seed=tiny.training.seed)
    named = str(error.value).split("records ")[1].split(":")[0].split(", ")
    assert sorted(named) == sorted(records.name(i) for i in sampler.batches[4])

    newest = checkpoints.newest_first(tmp_path / "run")[0]
    assert newest.name == "step-000000004"
    saved = files.read_tensors(newest / MODEL)
    assert all(torch.equal(saved[name], value) for name, value in weights_before[5].items())
    assert max(weights_before) == 5


@pytest.mark.parametrize(
    ("precision", "cure"), [("fp32", "at their targets"), ("bf16", "try training.precision=fp32")]
)
def test_at_the_first_step_no_rate_is_to_blame(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, cure: str
) -> None:
    monkeypatch.setattr(Regression, "losses", lambda self, outputs, targets: outputs.sum(dim=1) * math.nan)
    with pytest.raises(ValueError, match=f"at step 1, .* after step 0; look at these records or {cure}$"):
        train(override(tiny, {"training": {"precision": precision}}), tmp_path / "run")


def test_many_records_of_a_bad_step_are_counted(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Regression, "losses", lambda self, outputs, targets: outputs.sum(dim=1) * math.nan)
    with pytest.raises(ValueError, match=r"(training-\d+, ){7}training-\d+ and 4 more: weights stay"):
        train(override(tiny, {"training": {"batch_sequences": 12}}), tmp_path / "run")


def test_a_validation_loss_that_is_no_number_stops(tiny: Experiment, tmp_path: Path) -> None:
    """One step of an absurd rate: the weights are finite, what they compute is not."""
    absurd = override(tiny, {"training": {"learning_rate": 1e30, "batch_sequences": 96, "epochs": 1}})
    with pytest.raises(
        ValueError,
        match=r"^validation loss nan at step 1 is not finite, records validation-\d+.* learning rate of 1e\+30$",
    ):
        train(absurd, tmp_path / "run")


def test_refused_folders(tiny: Experiment, full_run: Path, tmp_path: Path) -> None:
    """They stay as they were, with files that another process may be writing there."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "notes.txt").write_text("mine")
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    (run / "checkpoints" / ".writing-step-000000027").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"already holds a run: give a new folder, or add --resume"):
        train(tiny, run)
    with pytest.raises(ValueError, match=r"was started with other settings: resume with the same ones"):
        train(override(tiny, {"training": {"learning_rate": 0.5}}), run, resume=True)
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"is not empty and holds no run: give a new folder"):
            train(tiny, tmp_path / "foreign", resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("ranks", "hinted"), [(1, False), (3, True)])
def test_ranks_that_could_take_larger_shares_are_told(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, hinted: bool
) -> None:
    console = Console(file=StringIO(), width=200)
    experiment = override(tiny, {"training": {"accumulate": 4, "batch_tokens": 100}})
    with closing(TrainingRun(experiment, tmp_path / "run", False, console)) as run:
        monkeypatch.setattr(run, "accelerator", SimpleNamespace(num_processes=ranks, device=torch.device("cpu")))
        run._describe()
    assert isinstance(console.file, StringIO)
    hint = "training.accumulate=2 and training.batch_tokens=200 take steps as large with larger shares"
    assert (hint in console.file.getvalue()) is hinted


def test_the_largest_batch_is_rehearsed_and_leaves_no_trace(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is the same with and without the rehearsal; a resumed run is not rehearsed again."""
    rehearsed: list[int] = []
    dry_run = loop.dry_run

    def watched(model: Model, batch: Any, *rest: Any) -> None:
        rehearsed.append(batch.inputs.tokens)
        dry_run(model, batch, *rest)

    monkeypatch.setattr(loop, "dry_run", watched)
    short = override(tiny, {"training": {"epochs": 1}})
    train(short, tmp_path / "with")
    records = AddingRecords(tiny.data, "training")
    sampler = TokenSampler(records.lengths, short.training.tokens_for(records.lengths), 8, seed=short.training.seed)
    most = max(sum(records.lengths[i] for i in batch) for batch in sampler)
    assert len(rehearsed) == 1 and 0.8 * most <= rehearsed[0] <= most  # the most work, not always the most tokens
    monkeypatch.setattr(loop, "dry_run", lambda *_: None)
    train(short, tmp_path / "without")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert weights[0] == weights[1]


def test_a_run_that_cannot_fit_is_refused_before_its_folder_is_made(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chordmixer.training.forecast.free_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match=r"a training step needs about .* of memory, and .* has .* free"):
        train(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_kill_between_the_last_step_and_its_validation(tiny: Experiment, tmp_path: Path) -> None:
    experiment = override(tiny, {"training": {"steps": 6, "checkpoint_every": 3}})
    train(experiment, tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000000006-finished")
    train(experiment, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
