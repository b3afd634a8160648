"""What a run on files leaves: documents, a temperature, scores of baselines; and that it goes on exactly."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from tests.forked import Forked
from tests.training.trained_runs import contents

from chordmixer import files
from chordmixer.config import override
from chordmixer.data.reading import Reading
from chordmixer.models import Model
from chordmixer.packed import Packed
from chordmixer.recipes import files as recipe
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.training import Experiment, evaluate, evaluation, outcome, train
from chordmixer.training.answers import Answers
from chordmixer.training.calibration import temperature
from chordmixer.training.outcome import compare
from chordmixer.training.prediction import predict
from chordmixer.training.strands import averaged

pytestmark = pytest.mark.usefixtures("quick_scores")

Crash = Callable[[Experiment, Path, int], None]

TINY = {
    "model": {"network": {"track_size": 4, "hidden": 8, "dropout": 0.1}, "words": {"lengths": []}},
    "training": {"epochs": 3, "evaluate_epochs": 1, "checkpoint_every": 4, "device": "cpu", "trial": 0.0},
}


def experiment(data: FilesConfig, **changes: Any) -> Experiment:
    return override(override(recipe(data, lambda line: None), TINY), changes)


@pytest.fixture(scope="module")
def strands(motifs: list[str]) -> Experiment:
    """Both strands, which is the harder case."""
    return experiment(FilesConfig(tuple(motifs), both_strands=True))


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
    answers = Answers.load(whole)
    assert (answers.tokenizer, answers.both_strands, len(rows)) == ("dna", True, 20)
    assert answers.temperature == temperature(answers.unweighted(outputs), rows["target"].to_numpy())


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
    predict(whole, [fasta], tmp_path / "out.jsonl", say=lambda line: None)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for index in range(8):
        here, there = answers[2 * index : 2 * index + 2]
        assert (here["id"], there["id"]) == (f"here{index}", f"there{index}")
        assert here["probability"] == pytest.approx(there["probability"], abs=1e-6)
        assert here["class"] == there["class"]
        outputs = model(Packed.from_list([records[index].values]))[0].tolist()
        assert [rows[f"output_{k}"][index] for k in range(2)] == pytest.approx(outputs, abs=1e-5)


def test_baselines_stand_beside(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    said: list[str] = []
    found = compare(run, said.append)
    written = files.read_json(run / "baselines.json")
    names = [row["name"] for row in written["baselines"]]
    assert names[:2] == ["majority class", "length alone"] and names[3].startswith("neighbours by ")
    assert written["format"] == 1 and all(row["sentence"] for row in written["baselines"])
    assert [e.encoder for e in found] == [row["name"] for row in written["baselines"]] and said == []
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
    compare(tmp_path / "run", print)
    task = Experiment.load(tmp_path / "run").build_task()
    assert isinstance(task, Files) and (groups := task.groups("test")) is not None
    rows = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert rows["group"].to_pylist() == groups.tolist() and len(set(groups.tolist())) < len(groups)
    written = files.read_json(tmp_path / "run" / "baselines.json")["baselines"]
    assert {row["difference"]["over"] for row in written} == {"groups"}


def test_long_baselines_are_announced(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Experiment
) -> None:
    monkeypatch.setattr(outcome, "LONG", 0)
    said: list[str] = []
    compare(shutil.copytree(whole, tmp_path / "run"), said.append)
    assert said == ["baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines"]
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
    assert (Answers.load(tmp_path / "run").temperature is None) == (name == "numbers")
    assert len(compare(tmp_path / "run", print)) >= 3


def test_series_from_end_to_end(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    for i in range(40):
        folder = tmp_path / "series" / ("slow", "fast")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{i}.npy", np.sin(np.arange(20 + i) * (0.3 + i % 2)) + chance.normal(size=20 + i) * 0.1)
    scored = train(experiment(FilesConfig((str(tmp_path / "series"),))), tmp_path / "run")
    assert scored.records == 8 and files.read_json(tmp_path / "run" / "tokenizer.json")["tokenizer"] == "numbers"
    assert [e.encoder for e in compare(tmp_path / "run", print)] == [
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
