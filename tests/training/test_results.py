"""The files of a run on files, its temperature and baselines, and that it resumes exactly."""

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
from chordmixer.data.splits import SplitConfig
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
    """An experiment on both strands, the harder case."""
    one_epoch = experiment(FilesConfig(tuple(motifs), both_strands=True))
    return override(one_epoch, {"training": {"precision": "fp32"}})  # else measured for each run


@pytest.fixture(scope="module")
def full_run(strands: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run of `strands`, which tests only read."""
    folder = tmp_path_factory.mktemp("files") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 10)
        train(strands, folder)
    return folder


def test_what_a_run_on_files_leaves(strands: Experiment, full_run: Path) -> None:
    scores = {f"evaluation-{part}.json" for part in ("test", "validation")}
    rows = {"predictions.parquet", "predictions-validation.parquet"}
    docs = {"config.json", "model.safetensors", "metrics.jsonl", "run.json", "seen.safetensors"}
    docs |= {"tokenizer.json", "labels.json", "data.json"}
    assert {path.name for path in full_run.iterdir()} == scores | rows | docs | {
        "manifest.json",
        "checkpoints",
        ".lock",
    }
    assert set(files.read_json(full_run / "manifest.json")) == scores | rows | docs
    files.verify(full_run, scores | rows | docs)
    assert Experiment.load(full_run) == strands
    data = files.read_json(full_run / "data.json")
    assert data["versions"]["torch"] == torch.__version__
    assert data["split"]["sizes"] == {"training": 140, "validation": 20, "test": 40}


def test_the_temperature_is_of_the_validation_outputs(full_run: Path) -> None:
    rows = pyarrow.parquet.read_table(full_run / "predictions-validation.parquet")
    outputs = np.stack([rows[f"output_{k}"].to_numpy() for k in range(2)], axis=1)
    labels = OutputLabels.load(full_run)
    assert (labels.tokenizer, labels.both_strands, len(rows)) == ("dna", True, 20)
    assert labels.temperature == fit_temperature(labels.unweighted(outputs), rows["target"].to_numpy())


@pytest.mark.parametrize("stops", [[2, 5, 9, 13, 26]], ids=["mid-epoch and epoch ends"])
def test_going_on_gives_the_same_bytes(
    strands: Experiment, full_run: Path, crash: Crash, tmp_path: Path, stops: list[int]
) -> None:
    """The same weights, optimiser, metrics, scores and documents, with random strands and dropout."""
    for steps in stops:
        crash(strands, tmp_path / "run", steps)
    train(strands, tmp_path / "run", resume=True)
    expected, actual = contents(full_run), contents(tmp_path / "run")
    assert [name for name in expected if actual.get(name) != expected[name]] == []
    assert set(actual) == set(expected)


KILLED = """
import os, signal, sys
from chordmixer.cli import main
from chordmixer.training.loop import TrainingRun
original_step = TrainingRun._step
def step(self, *arguments):
    if self.state.step == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    original_step(self, *arguments)
TrainingRun._step = step
main()
"""


def test_a_killed_process_goes_on_when_the_files_have_moved(
    strands: Experiment, full_run: Path, tmp_path: Path
) -> None:
    moved = override(strands, {"data": {"files": ["gone/with.fa", "gone/without.fa"]}})
    moved.save(tmp_path / "run")
    command = [sys.executable, "-c", KILLED, "train", "--resume", str(tmp_path / "run")]
    process = Forked(command)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors
    train(Experiment.load(tmp_path / "run"), tmp_path / "run", resume=True)
    for name in ("model.safetensors", "predictions.parquet", "metrics.jsonl", "labels.json", "data.json"):
        assert (tmp_path / "run" / name).read_bytes() == (full_run / name).read_bytes(), name


def test_strands_differ_from_epoch_to_epoch_in_training(strands: Experiment, full_run: Path, tmp_path: Path) -> None:
    """A run with another seed for the strands alone is different."""
    train(override(strands, {"data": {"seed": 1}}), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != (full_run / "model.safetensors").read_bytes()


def test_evaluation_and_prediction_answer_alike_on_both_strands(full_run: Path, tmp_path: Path) -> None:
    result = evaluate(full_run, "test")
    assert files.read_json(full_run / "evaluation-test.json") == json.loads(json.dumps(files.finite(asdict(result))))
    rows = pyarrow.parquet.read_table(full_run / "predictions.parquet").to_pydict()
    task = Experiment.load(full_run).build_task()
    assert isinstance(task, Files)
    records = task.records("test")
    model = averaged(Model.from_pretrained(full_run), task.complement)
    tokenizer = task.store.tokenizer
    fasta = tmp_path / "strands.fa"
    with fasta.open("w") as file:
        for index in range(8):
            tokens = records[index].values.numpy()
            for name, strand in (("here", tokens), ("there", tokenizer.reverse_complement(tokens))):
                file.write(f">{name}{index}\n{tokenizer.decode(strand)}\n")
    predict(full_run, [fasta], tmp_path / "out.jsonl")
    predictions = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for index in range(8):
        forward, reverse = predictions[2 * index : 2 * index + 2]
        assert (forward["id"], reverse["id"]) == (f"here{index}", f"there{index}")
        assert forward["probability"] == pytest.approx(reverse["probability"], abs=1e-6)
        assert forward["class"] == reverse["class"]
        outputs = model(Packed.from_list([records[index].values]))[0].tolist()
        assert [rows[f"output_{k}"][index] for k in range(2)] == pytest.approx(outputs, abs=1e-5)


def test_baselines_are_written(full_run: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    baselines = compare(run)
    written = files.read_json(run / "baselines.json")
    names = [row["name"] for row in written["baselines"]]
    assert names[:2] == ["majority class", "length alone"]
    assert names[3] == "letters by position" and names[4].startswith("neighbours by ")
    assert written["format"] == 1 and all(row["sentence"] for row in written["baselines"])
    assert [e.encoder for e in baselines] == [row["name"] for row in written["baselines"]] and log.messages == []
    chosen = "chosen from 8 sets of features by 5-fold cross-validation on the training records"  # 20 for validation
    assert written["baselines"][2]["sentence"].endswith(chosen)
    assert baselines[2].scores["roc_auc"].value > 0.75 > baselines[1].scores["roc_auc"].value
    assert {e.records for e in baselines} == {40} and baselines[0].headline == "roc_auc"
    files.verify(run, ["baselines.json", "baselines.parquet"])
    for row in written["baselines"]:  # paired, of the model and this baseline
        model, baseline = files.read_json(run / "evaluation-test.json"), row["evaluation"]
        difference = model["scores"]["roc_auc"]["value"] - baseline["scores"]["roc_auc"]["value"]
        assert row["difference"]["value"] == pytest.approx(difference)
        assert row["difference"]["low"] <= difference + 1e-9 and row["difference"]["over"] == "records"


def test_folds_separate_neither_groups_nor_copies(tmp_path: Path) -> None:
    """Reverse complements are copies of DNA. What else is similar is not known, and then there are no folds."""
    rng = np.random.default_rng(0)
    letters = ["".join(rng.choice(list("ACGT"), 60)) for _ in range(40)]
    complements = [sequence[::-1].translate(str.maketrans("ACGT", "TGCA")) for sequence in letters[:10]]
    rows = [(sequence, i % 2, f"g{i // 4}") for i, sequence in enumerate(letters)]
    rows += [(sequence, i % 2, f"g{i // 4}") for i, sequence in enumerate(complements)]
    table = tmp_path / "t.csv"
    lines = [f"{sequence},c{label},{group}" for sequence, label, group in rows]
    table.write_text("\n".join(["sequence,label,group", *lines]) + "\n")
    grouped = Files(FilesConfig((str(table),)))
    assert np.array_equal(results._groups(grouped), grouped.groups("training"))
    table.write_text("\n".join(["sequence,label", *(line.rpartition(",")[0] for line in lines)]) + "\n")
    alone = Files(FilesConfig((str(table),)))
    groups = results._groups(alone)
    assert groups is not None and len(set(groups.tolist())) < len(groups) == len(alone.records("training"))
    assert results._groups(Files(FilesConfig((str(table),), split=SplitConfig("similarity")))) is None


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
    full_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Experiment, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results, "LARGE_TOKENS", 0)
    compare(shutil.copytree(full_run, tmp_path / "run"))
    assert log.messages == [
        "baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines"
    ]
    tiny.save(tmp_path / "adding")
    with pytest.raises(ValueError, match="is a run of adding, which has no baselines: give a run on files"):
        compare(tmp_path / "adding")


def test_record_weights_scale_the_loss(tmp_path: Path) -> None:
    """Only the ratio of weights counts, so that halving all of them changes nothing."""

    def run(name: str, weights: list[float]) -> bytes:
        rows = [f"{'ACGT'[i % 4] * (5 + i)}TTC,{'ab'[i % 2]},{w}" for i, w in enumerate(weights)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["sequence,label,weight", *rows]))
        train(experiment(FilesConfig((str(path),)), training={"epochs": 1}), tmp_path / name)
        return (tmp_path / name / "model.safetensors").read_bytes()

    unit, half, skewed = run("one", [1.0] * 40), run("half", [0.5] * 40), run("skewed", [1.0, 9.0] * 20)
    assert unit == half != skewed


CSV = {
    "texts": ("text,label", [f"the {('good', 'bad')[i % 2]} book of {i},{i % 2}" for i in range(60)]),
    "several": ("sequence,label", [f"{'ACGT'[i % 4] * 9}{'CA' * (i % 7)},{'x;y'[i % 3 :]}" for i in range(60)]),
    "numbers": ("sequence,target", [f"{'A' * (i % 9 + 1)}{'C' * (i % 5)},{100 + i % 9}" for i in range(60)]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "headline", "outputs"),
    [("texts", "auto", "roc_auc", 2), ("several", "labels", "roc_auc", 2), ("numbers", "auto", "r2", 1)],
)
def test_other_questions_from_end_to_end(tmp_path: Path, name: str, kind: Any, headline: str, outputs: int) -> None:
    header, rows = CSV[name]
    (tmp_path / "table.csv").write_text("\n".join([header, *rows]))
    result = train(experiment(FilesConfig((str(tmp_path / "table.csv"),), target_type=kind)), tmp_path / "run")
    assert result.headline == headline and np.isfinite(result.loss)
    table = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert [c for c in table.column_names if c.startswith("output_")] == [f"output_{k}" for k in range(outputs)]
    if name == "several":
        assert len(table["target"][0].as_py()) == 2
    assert (OutputLabels.load(tmp_path / "run").temperature is None) == (name == "numbers")
    assert len(compare(tmp_path / "run")) >= 3


def test_series_from_end_to_end(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "series" / ("slow", "fast")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{i}.npy", np.sin(np.arange(20 + i) * (0.3 + i % 2)) + rng.normal(size=20 + i) * 0.1)
    result = train(experiment(FilesConfig((str(tmp_path / "series"),))), tmp_path / "run")
    assert result.records == 8 and files.read_json(tmp_path / "run" / "tokenizer.json")["tokenizer"] == "numbers"
    assert [e.encoder for e in compare(tmp_path / "run")] == [
        "majority class",
        "length alone",
        "series features",
    ]


def test_evaluations_may_be_some_epochs_apart(motifs: list[str], tmp_path: Path) -> None:
    spaced = experiment(
        FilesConfig(tuple(motifs), Reading(labels="files")), training={"epochs": 5, "evaluate_epochs": 2}
    )
    train(spaced, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["split"] == "validation"] == [2, 4, 5]


pytestmark = pytest.mark.usefixtures("quick_scores")

RNG = np.random.default_rng(0)


def simulated(targets: np.ndarray, skill: float, columns: int = 2) -> Predictions:
    one_hot = targets if targets.ndim == 2 else np.eye(columns)[targets]
    outputs = skill * one_hot + RNG.normal(size=one_hot.shape)
    names = [f"r{i}" for i in range(len(targets))]
    return Predictions(names, np.arange(len(targets)) + 9, targets, outputs.astype(np.float32))


@pytest.mark.parametrize("multi_label", [False, True], ids=["classes", "labels"])
def test_answers_are_read_as_they_were_written(tmp_path: Path, multi_label: bool) -> None:
    targets = RNG.integers(0, 2, (40, 3)) if multi_label else RNG.integers(0, 2, 40)
    groups = np.arange(40) // 2
    baselines = {name: replace(simulated(targets, skill), groups=groups) for name, skill in (("a", 1), ("b", 2))}
    files.write_bytes(tmp_path / results.BASELINE_ROWS, results.baseline_rows(baselines))
    loaded = results.read_baseline_rows(tmp_path)
    assert [*loaded] == ["a", "b"]
    for name, p in loaded.items():
        assert p.same_records(baselines[name]) and p.groups is not None
        assert (p.outputs == baselines[name].outputs).all() and (p.groups == baselines[name].groups).all()
    target: Target = MultiLabel(list("xyz"), [9, 9, 9], 40) if multi_label else Classification(["x", "y"], targets)  # type: ignore[assignment]
    assert results.differences([tmp_path], target, "roc_auc") == {}  # no model yet
    files.write_bytes(tmp_path / results.MODEL_ROWS, replace(simulated(targets, 9), groups=groups).parquet())
    differences = results.differences([tmp_path], target, "roc_auc")
    assert {difference.over for difference in differences.values()} == {"groups"}
    assert differences["a"].value > differences["b"].value > 0


def test_other_records_are_not_compared(tmp_path: Path) -> None:
    targets = np.arange(40) % 2
    model = simulated(targets, 2)
    files.write_bytes(tmp_path / results.MODEL_ROWS, model.parquet())
    baselines = {"same": simulated(targets, 1), "others": replace(model, names=model.names[::-1])}
    files.write_bytes(tmp_path / results.BASELINE_ROWS, results.baseline_rows(baselines))
    differences = results.differences([tmp_path], Classification(["x", "y"], targets), "accuracy")  # type: ignore[arg-type]
    assert [*differences] == ["same"]


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
    local, full = Experiment.load(run / "local"), Experiment.load(run)
    assert local == local_experiment(full) and local.model.encoder == "none"
    assert (local.training.steps, full.training.steps) == (6, 12)
    assert local.model.stem == full.model.stem and local.model.head == full.model.head


def test_no_baseline_no_ladder(run: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(run, tmp_path / "bare"))
    (bare / "combination.json").unlink()
    assert results.ladder_steps(bare, Experiment.load(run).build_task().target) == []
