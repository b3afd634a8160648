"""What a run on files leaves: documents, a temperature, baselines beside it; and that it resumes exactly."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from rich.console import Console
from tests.forked import Forked
from tests.training.trained_runs import contents

from chordmixer import files
from chordmixer.config import override
from chordmixer.data.reading import Reading
from chordmixer.models import Model
from chordmixer.packed import Packed
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.tasks.targets import Classification, MultiLabel, Target
from chordmixer.training import Experiment, evaluation, results
from chordmixer.training.evaluation import Predictions, evaluate
from chordmixer.training.labels import OutputLabels, fit_temperature
from chordmixer.training.loop import train
from chordmixer.training.nested_runs import local_experiment, train_local
from chordmixer.training.prediction import predict
from chordmixer.training.results import compare
from chordmixer.training.strands import averaged

pytestmark = pytest.mark.usefixtures("quick_scores")

Crash = Callable[[Experiment, Path, int], None]

TINY = {
    "model": {"network": {"track_size": 4, "hidden": 8, "dropout": 0.1}, "words": {"lengths": []}},
    "training": {"epochs": 3, "evaluate_epochs": 1, "checkpoint_every": 4, "device": "cpu", "trial": 0.0},
}


def experiment(data: FilesConfig, **changes: Any) -> Experiment:
    return override(override(recipe(data), TINY), changes)


@pytest.fixture(scope="module")
def strands(motifs: list[str]) -> Experiment:
    """Both strands, which is the harder case."""
    made = experiment(FilesConfig(tuple(motifs), both_strands=True))
    return override(made, {"training": {"precision": "fp32"}})  # else measured for each run


@pytest.fixture(scope="module")
def whole(strands: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its run that nothing disturbed: only to be read."""
    folder = tmp_path_factory.mktemp("files") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(strands, folder)
    return folder


def test_what_a_run_on_files_leaves(strands: Experiment, whole: Path) -> None:
    scores = {f"evaluation-{part}.json" for part in ("test", "validation")}
    rows = {"predictions.parquet", "predictions-validation.parquet"}
    said = {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "seen.safetensors"}
    said |= {"tokenizer.json", "labels.json", "data.json"}
    assert {path.name for path in whole.iterdir()} == scores | rows | said | {"manifest.json", "checkpoints", ".lock"}
    assert set(files.read_json(whole / "manifest.json")) == scores | rows | said
    files.verify(whole, scores | rows | said)
    assert Experiment.load(whole) == strands
    about = files.read_json(whole / "data.json")
    assert about["versions"]["torch"] == torch.__version__
    assert about["split"]["sizes"] == {"training": 140, "validation": 20, "test": 40}


def test_the_temperature_is_of_the_validation_outputs(whole: Path) -> None:
    rows = pyarrow.parquet.read_table(whole / "predictions-validation.parquet")
    outputs = np.stack([rows[f"output_{k}"].to_numpy() for k in range(2)], axis=1)
    answers = OutputLabels.load(whole)
    assert (answers.tokenizer, answers.both_strands, len(rows)) == ("dna", True, 20)
    assert answers.temperature == fit_temperature(answers.unweighted(outputs), rows["target"].to_numpy())


@pytest.mark.parametrize("stops", [[2, 5, 9, 13, 26]], ids=["mid-epoch and epoch ends"])
def test_going_on_gives_the_same_bytes(
    strands: Experiment, whole: Path, crash: Crash, tmp_path: Path, stops: list[int]
) -> None:
    """Weights, optimiser, metrics, scores, documents: with drawn strands and dropout."""
    for steps in stops:
        crash(strands, tmp_path / "run", steps)
    train(strands, tmp_path / "run", resume=True)
    expected, found = contents(whole), contents(tmp_path / "run")
    assert [name for name in expected if found.get(name) != expected[name]] == []
    assert set(found) == set(expected)


KILLED = """
import os, signal, sys
from chordmixer.cli import main
from chordmixer.training.loop import TrainingRun
take = TrainingRun._step
def step(self, *arguments):
    if self.state.step == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    take(self, *arguments)
TrainingRun._step = step
main()
"""


def test_a_killed_process_goes_on_when_the_files_have_moved(strands: Experiment, whole: Path, tmp_path: Path) -> None:
    gone = override(strands, {"data": {"files": ["gone/with.fa", "gone/without.fa"]}})
    gone.save(tmp_path / "run")
    command = [sys.executable, "-c", KILLED, "train", "--resume", str(tmp_path / "run")]
    killed = Forked(command)
    _, errors = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, errors
    train(Experiment.load(tmp_path / "run"), tmp_path / "run", resume=True)
    for name in ("model.safetensors", "predictions.parquet", "metrics.jsonl", "labels.json", "data.json"):
        assert (tmp_path / "run" / name).read_bytes() == (whole / name).read_bytes(), name


def test_strands_differ_from_epoch_to_epoch_in_training(strands: Experiment, whole: Path, tmp_path: Path) -> None:
    """Another seed of the strands alone is another run."""
    train(override(strands, {"data": {"seed": 1}}), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != (whole / "model.safetensors").read_bytes()


def test_evaluation_and_prediction_answer_alike_on_both_strands(whole: Path, tmp_path: Path) -> None:
    again = evaluate(whole, "test")
    assert files.read_json(whole / "evaluation-test.json") == json.loads(json.dumps(files.finite(asdict(again))))
    rows = pyarrow.parquet.read_table(whole / "predictions.parquet").to_pydict()
    task = Experiment.load(whole).build_task()
    assert isinstance(task, Files)
    records = task.records("test")
    model = averaged(Model.from_pretrained(whole), task.complement)
    tokenizer = task.store.tokenizer
    fasta = tmp_path / "strands.fa"
    with fasta.open("w") as file:
        for index in range(8):
            tokens = records[index].values.numpy()
            for name, strand in (("here", tokens), ("there", tokenizer.reverse_complement(tokens))):
                file.write(f">{name}{index}\n{tokenizer.decode(strand)}\n")
    predict(whole, [fasta], tmp_path / "out.jsonl")
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for index in range(8):
        here, there = answers[2 * index : 2 * index + 2]
        assert (here["id"], there["id"]) == (f"here{index}", f"there{index}")
        assert here["probability"] == pytest.approx(there["probability"], abs=1e-6)
        assert here["class"] == there["class"]
        outputs = model(Packed.from_list([records[index].values]))[0].tolist()
        assert [rows[f"output_{k}"][index] for k in range(2)] == pytest.approx(outputs, abs=1e-5)


def test_baselines_stand_beside(whole: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    found = compare(run)
    written = files.read_json(run / "baselines.json")
    names = [row["name"] for row in written["baselines"]]
    assert names[:2] == ["majority class", "length alone"]
    assert names[3] == "letters by position" and names[4].startswith("neighbours by ")
    assert written["format"] == 1 and all(row["sentence"] for row in written["baselines"])
    assert [e.encoder for e in found] == [row["name"] for row in written["baselines"]] and log.messages == []
    assert found[2].scores["roc_auc"].value > 0.75 > found[1].scores["roc_auc"].value
    assert {e.records for e in found} == {40} and found[0].headline == "roc_auc"
    files.verify(run, ["baselines.json", "baselines.parquet"])
    for row in written["baselines"]:  # paired, of the model and this baseline
        own, other = files.read_json(run / "evaluation-test.json"), row["evaluation"]
        less = own["scores"]["roc_auc"]["value"] - other["scores"]["roc_auc"]["value"]
        assert row["difference"]["value"] == pytest.approx(less)
        assert row["difference"]["low"] <= less + 1e-9 and row["difference"]["over"] == "records"


def test_whole_groups_are_resampled(motifs: list[str], tmp_path: Path) -> None:
    grouped = FilesConfig(tuple(motifs), Reading(labels="files", group="header:gene"))
    train(experiment(grouped, training={"epochs": 1}), tmp_path / "run")
    compare(tmp_path / "run")
    task = Experiment.load(tmp_path / "run").build_task()
    assert isinstance(task, Files) and (groups := task.groups("test")) is not None
    rows = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert rows["group"].to_pylist() == groups.tolist() and len(set(groups.tolist())) < len(groups)
    written = files.read_json(tmp_path / "run" / "baselines.json")["baselines"]
    assert {row["difference"]["over"] for row in written} == {"groups"}


def test_long_baselines_are_announced(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Experiment, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results, "LARGE_TOKENS", 0)
    compare(shutil.copytree(whole, tmp_path / "run"))
    assert log.messages == [
        "baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines"
    ]
    tiny.save(tmp_path / "adding")
    with pytest.raises(ValueError, match="is a run of adding, which has no baselines: give a run on files"):
        compare(tmp_path / "adding")


def test_record_weights_scale_the_loss(tmp_path: Path) -> None:
    """A record of weight zero point something counts that much less: halving all changes nothing."""

    def run(name: str, weights: list[float]) -> bytes:
        rows = [f"{'ACGT'[i % 4] * (5 + i)}TTC,{'ab'[i % 2]},{w}" for i, w in enumerate(weights)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["sequence,label,weight", *rows]))
        train(experiment(FilesConfig((str(path),)), training={"epochs": 1}), tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    one, half, skewed = run("one", [1.0] * 40), run("half", [0.5] * 40), run("skewed", [1.0, 9.0] * 20)
    assert one == half != skewed


CSV = {
    "texts": ("text,label", [f"the {('good', 'bad')[i % 2]} book of {i},{i % 2}" for i in range(60)]),
    "several": ("sequence,label", [f"{'ACGT'[i % 4] * 9}{'CA' * (i % 7)},{'x;y'[i % 3 :]}" for i in range(60)]),
    "numbers": ("sequence,target", [f"{'A' * (i % 9 + 1)}{'C' * (i % 5)},{100 + i % 9}" for i in range(60)]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "asked", "headline", "outputs"),
    [("texts", "auto", "roc_auc", 2), ("several", "labels", "roc_auc", 2), ("numbers", "auto", "r2", 1)],
)
def test_other_questions_from_end_to_end(tmp_path: Path, name: str, asked: Any, headline: str, outputs: int) -> None:
    header, rows = CSV[name]
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    scored = train(experiment(FilesConfig((str(tmp_path / "table.csv"),), target_type=asked)), tmp_path / "run")
    assert scored.headline == headline and np.isfinite(scored.loss)
    table = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert [c for c in table.column_names if c.startswith("output_")] == [f"output_{k}" for k in range(outputs)]
    if name == "several":
        assert len(table["target"][0].as_py()) == 2
    assert (OutputLabels.load(tmp_path / "run").temperature is None) == (name == "numbers")
    assert len(compare(tmp_path / "run")) >= 3


def test_series_from_end_to_end(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "series" / ("slow", "fast")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{i}.npy", np.sin(np.arange(20 + i) * (0.3 + i % 2)) + chance.normal(size=20 + i) * 0.1)
    scored = train(experiment(FilesConfig((str(tmp_path / "series"),))), tmp_path / "run")
    assert scored.records == 8 and files.read_json(tmp_path / "run" / "tokenizer.json")["tokenizer"] == "numbers"
    assert [e.encoder for e in compare(tmp_path / "run")] == [
        "majority class",
        "length alone",
        "series features",
    ]


def test_evaluations_may_be_some_epochs_apart(motifs: list[str], tmp_path: Path) -> None:
    few = experiment(
        FilesConfig(tuple(motifs), Reading(labels="files")), training={"epochs": 5, "evaluate_epochs": 2}
    )
    train(few, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["split"] == "validation"] == [2, 4, 5]


pytestmark = pytest.mark.usefixtures("quick_scores")

CHANCE = np.random.default_rng(0)


def answered(targets: np.ndarray, skill: float, columns: int = 2) -> Predictions:
    true = targets if targets.ndim == 2 else np.eye(columns)[targets]
    outputs = skill * true + CHANCE.normal(size=true.shape)
    names = [f"r{i}" for i in range(len(targets))]
    return Predictions(names, np.arange(len(targets)) + 9, targets, outputs.astype(np.float32))


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
def test_answers_are_read_as_they_were_written(tmp_path: Path, several: bool) -> None:
    targets = CHANCE.integers(0, 2, (40, 3)) if several else CHANCE.integers(0, 2, 40)
    groups = np.arange(40) // 2
    known = {name: replace(answered(targets, skill), groups=groups) for name, skill in (("a", 1), ("b", 2))}
    files.write_bytes(tmp_path / results.BASELINE_ROWS, results.baseline_rows(known))
    found = results.read_baseline_rows(tmp_path)
    assert [*found] == ["a", "b"]
    for name, own in found.items():
        assert own.same_records(known[name]) and own.groups is not None
        assert (own.outputs == known[name].outputs).all() and (own.groups == known[name].groups).all()
    target: Target = MultiLabel(list("xyz"), [9, 9, 9], 40) if several else Classification(["x", "y"], targets)  # type: ignore[assignment]
    assert results.differences([tmp_path], target, "roc_auc") == {}  # no model yet
    files.write_bytes(tmp_path / results.MODEL_ROWS, replace(answered(targets, 9), groups=groups).parquet())
    differences = results.differences([tmp_path], target, "roc_auc")
    assert {own.over for own in differences.values()} == {"groups"}
    assert differences["a"].value > differences["b"].value > 0


def test_other_records_are_not_compared(tmp_path: Path) -> None:
    targets = np.arange(40) % 2
    model = answered(targets, 2)
    files.write_bytes(tmp_path / results.MODEL_ROWS, model.parquet())
    known = {"same": answered(targets, 1), "others": replace(model, names=model.names[::-1])}
    files.write_bytes(tmp_path / results.BASELINE_ROWS, results.baseline_rows(known))
    found = results.differences([tmp_path], Classification(["x", "y"], targets), "accuracy")  # type: ignore[arg-type]
    assert [*found] == ["same"]


pytestmark = pytest.mark.usefixtures("quick_scores")
SMALL = {
    "model": {"network": {"track_size": 4, "hidden": 8}, "words": {"lengths": []}, "stem": {"layers": 1}},
    "training": {"steps": 12, "trial": 0.0, "device": "cpu"},
}


@pytest.fixture(scope="module")
def run(motifs: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder") / "run"
    train(override(recipe(FilesConfig(tuple(motifs))), SMALL), folder)
    train_local(folder, Console(quiet=True))
    compare(folder, deliver=True)
    return folder


def test_steps_add_up_to_the_answer(run: Path) -> None:
    target = Experiment.load(run).build_task().target
    steps = results.ladder_steps(run, target)
    names = [step.name for step in steps]
    assert names[1:3] == ["local network", "network alone"] and steps[0].gain is None
    written = files.read_json(run / "baselines.json")
    scores = {row["name"]: row["evaluation"]["scores"]["roc_auc"]["value"] for row in written["baselines"]}
    for before, step in pairwise(steps[:3]):
        assert step.gain is not None and step.gain.value == pytest.approx(scores[step.name] - scores[before.name])
    assert [row["name"] for row in written["ladder"]] == names


def test_the_local_network_has_no_encoder_and_half_of_the_steps(run: Path) -> None:
    own, whole = Experiment.load(run / "local"), Experiment.load(run)
    assert own == local_experiment(whole) and own.model.encoder == "none"
    assert (own.training.steps, whole.training.steps) == (6, 12)
    assert own.model.stem == whole.model.stem and own.model.head == whole.model.head


def test_no_baseline_no_ladder(run: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(run, tmp_path / "bare"))
    (bare / "combination.json").unlink()
    assert results.ladder_steps(bare, Experiment.load(run).build_task().target) == []
