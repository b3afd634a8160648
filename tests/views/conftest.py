"""Run folders as a training leaves them, with made-up predictions, for tests that read a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.entries import Account
from chordmixer.data.inspection import Duplicates, Inspection, length_histogram
from chordmixer.data.leakage import Leak
from chordmixer.models import ModelConfig
from chordmixer.paper.adding import AddingConfig
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import Experiment, TrainingConfig, evaluation
from chordmixer.training.evaluation import Predictions, save_evaluation, summarise
from chordmixer.training.labels import OutputLabels, fit_temperature
from chordmixer.training.results import write_baselines

KINDS = ("two", "five", "many", "regression", "labels", "adding")
FAMILIES = [
    "Cyprinidae",
    "Salmonidae & kin",
    "<b>Gobiidae</b>",
    "Percidae",
    "Poeciliidae (livebearers of the Americas)",
]

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def written_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for runs that are already written, to be copied."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def make_run(tmp_path: Path, written_runs: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make_run(kind)` gives a run folder; `skill` is how good the model is, `baseline_skill` the best baseline."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 5)

    def make(kind: str = "two", records: int = 300, skill: float = 2.0, baseline_skill: float = 1.0) -> Path:
        cached = written_runs / f"{kind}-{records}-{skill}-{baseline_skill}"
        if not cached.exists():
            write_run(cached, kind, records, skill, baseline_skill)
        return Path(shutil.copytree(cached, tmp_path / f"run-{kind}"))

    return make


def write_run(folder: Path, kind: str, records: int, skill: float, baseline_skill: float) -> Path:
    """Every file of the folder but the weights."""
    rng = np.random.default_rng(7)
    target, targets = _question(kind, records, rng)
    lengths = np.sort(np.maximum(rng.lognormal(7, 1.2, records), 30).astype(int))
    rng.shuffle(lengths)
    names = [f"gene{i:04d}|chr{i % 22 + 1}" for i in range(records)]
    names[0] = '<script>alert("x")</script>'
    outputs = _outputs(target, targets, skill, rng)
    model = ModelConfig(inputs=16, outputs=target.outputs)
    task = "adding" if kind == "adding" else "files"
    data = AddingConfig() if kind == "adding" else {"paths": ["genes.fa.gz"], "labels": "family"}
    config = {"format": 2, "version": "1.2.3", "task": task, "data": to_dict(data) if kind == "adding" else data}
    config |= {"model": to_dict(model), "training": to_dict(TrainingConfig())}
    files.write_json(folder / "config.json", config)
    experiment = Experiment(task, data, model)
    predictions = Predictions(names, lengths, targets, outputs)
    scored = summarise(predictions, target, experiment, "test")
    if targets.ndim == 1:
        save_evaluation(folder, scored, predictions)
    else:
        files.write_json(folder / "evaluation-test.json", asdict(scored))
        _write_rows(folder / "predictions.parquet", predictions)
    _journal(folder / "metrics.jsonl", scored.headline)
    if kind != "adding":
        labels = OutputLabels(target, "dna")
        if kind != "regression":
            labels = replace(labels, temperature=fit_temperature(labels.unweighted(outputs), targets))
        labels.save(folder)
        _baselines(folder, target, targets, lengths, names, baseline_skill, experiment, rng)
        classes = (
            dict(zip(*np.unique(targets, return_counts=True), strict=True)) if kind in ("two", "five", "many") else {}
        )
        class_counts = {target.labels[k]: int(n) for k, n in classes.items()} if classes else {}
        _data(folder / "data.json", lengths, dict(sorted(class_counts.items(), key=lambda item: -item[1])))
    files.write_manifest(folder, [path.name for path in folder.iterdir() if path.name != files.MANIFEST])
    return folder


def _question(
    kind: str, records: int, rng: np.random.Generator
) -> tuple[Regression | Classification | MultiLabel, ndarray]:
    if kind == "adding":
        return Regression(tolerance=0.04), rng.uniform(0, 1, records).astype(np.float32)
    if kind == "regression":
        return Regression(mean=20.0, scale=5.0), rng.normal(20, 5, records).astype(np.float32)
    if kind == "labels":
        target = MultiLabel(FAMILIES, [50, 40, 30, 20, 10], 100)
        return target, (rng.random((records, 5)) < np.array([0.5, 0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    labels = {"two": ["intron", "exon"], "five": FAMILIES, "many": [f"class {k}" for k in range(24)]}[kind]
    shares = np.arange(1, len(labels) + 1) / np.arange(1, len(labels) + 1).sum()
    targets = rng.choice(len(labels), records, p=shares)
    return Classification.of_counts(labels, (1000 * shares).astype(int) + 1), targets


def _outputs(
    target: Regression | Classification | MultiLabel, targets: ndarray, skill: float, rng: np.random.Generator
) -> ndarray:
    """The truth, scaled by the skill, plus noise."""
    if isinstance(target, Regression):
        noise = rng.normal(0, 0.05 if target.tolerance else 1 / skill, len(targets))
        return (target.standardised(targets) + noise)[:, None].astype(np.float32)
    truth = targets if targets.ndim == 2 else np.eye(target.outputs)[targets]
    return (skill * (2 * truth - 1) + rng.normal(0, 1.5, truth.shape)).astype(np.float32)


def _write_rows(path: Path, predictions: Predictions) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"id": predictions.names, "length": predictions.lengths, "target": predictions.targets.tolist()}
    columns |= {f"output_{k}": column for k, column in enumerate(predictions.outputs.T)}
    pq.write_table(pa.table(columns), path)


def _journal(path: Path, headline: str) -> None:
    rng = np.random.default_rng(3)
    lines = []
    for step in range(10, 2001, 10):
        loss = 0.15 + 0.55 * np.exp(-step / 500)
        lines.append({"step": step, "split": "training", "loss": loss + rng.normal(0, 0.04), "learning_rate": 1e-3})
        if step % 200 == 0:
            score = 1 - loss / 2
            lines.append(
                {"step": step, "split": "validation", "loss": loss + 0.05, "epoch": step // 200, headline: score}
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 2010, "spl')


def _baselines(
    folder: Path,
    target: Regression | Classification | MultiLabel,
    targets: ndarray,
    lengths: ndarray,
    names: list[str],
    baseline_skill: float,
    experiment: Experiment,
    rng: np.random.Generator,
) -> None:
    constant = np.tile(target.constant(targets), (len(targets), 1))
    baselines = {
        ("majority class", "the shares in the training part as probabilities, for every record"): constant,
        ("length alone", "logistic regression on the logarithm of the length"): _outputs(
            target, targets, baseline_skill / 5, rng
        ),
        ("4-mers", "logistic regression on the frequencies of all 256 4-mers"): _outputs(
            target, targets, baseline_skill, rng
        ),
    }
    rows = [(*key, Predictions(names, lengths, targets, outputs)) for key, outputs in baselines.items()]
    write_baselines(folder, experiment, target, rows)


def _data(path: Path, lengths: ndarray, classes: dict[str, int]) -> None:
    edges, histogram = length_histogram(lengths)
    account = Account(read=len(lengths) + 2, used=len(lengths))
    account.rejected["empty"] = 2
    account.examples["empty"] = ["gene<9>", "gene77"]
    account.notes["records with lower-case letters"] = 12
    inspection = Inspection(
        tokenizer="dna",
        records=len(lengths),
        tokens=int(lengths.sum()),
        percentiles={0: int(lengths.min()), 50: int(np.median(lengths)), 100: int(lengths.max())},
        edges=edges,
        histogram=histogram,
        longest=[("gene1", int(lengths.max()))],
        letters={"A": 10, "C": 8},
        ambiguous=0.001,
        gc=0.41,
        duplicates=Duplicates(3, 1, 0, [["gene5", "gene<6>"]]),
        classes=classes,
        unlabelled=0,
        length_tells=0.71 if classes else None,
        gc_tells=0.52 if classes else None,
        padding_in_batch=0.6,
        padding_to_longest=0.9,
        account=account,
    )
    counted = {key: dict(value) if isinstance(value, dict) else value for key, value in vars(account).items()}
    leak = Leak(len(lengths), exact=2, examples={"exact": [(7, 2), (9, 4)]})
    sizes = {"training": 700, "validation": 100, "test": len(lengths)}
    files.write_json(
        path,
        {
            "format": 1,
            "account": counted,
            "inspection": asdict(replace(inspection, account=Account())) | {"account": counted},
            "split": {"method": "grouped", "sizes": sizes},
            "leakage": {"validation": asdict(Leak(100)), "test": asdict(leak)},
            "sources": ["genes.fa.gz", "more <genes>.fa"],
            "versions": {"torch": "2.13.0"},
        },
    )
