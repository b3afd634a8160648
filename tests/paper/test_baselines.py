"""Baselines of every task: which there are, on which records, and what they find."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer import files
from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.paper import baselines
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.baselines import KINDS, compare, sample, shared_grams
from chordmixer.paper.fragments import FragmentsConfig
from chordmixer.paper.lra.image import ImageConfig
from chordmixer.paper.lra.listops import ListOps, ListOpsConfig
from chordmixer.paper.lra.pathfinder import PathfinderConfig
from chordmixer.paper.lra.retrieval import RetrievalConfig
from chordmixer.paper.lra.text import TextConfig
from chordmixer.tasks import TASKS, task_class
from chordmixer.tasks.files import FilesConfig
from chordmixer.tasks.targets import Classification
from chordmixer.training import Experiment, evaluation
from chordmixer.training.baselines.candidates import LETTERS
from chordmixer.training.evaluation import Evaluation

WORDS = ["".join(random.Random(i).choices("abcdefghij", k=6)) for i in range(400)]


@pytest.fixture(autouse=True)
def quick_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bootstrap samples, where scores do not matter."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 10)


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, Any]:
    """Small data of each task, with a signal wherever a baseline could find one."""
    rng = random.Random(0)
    for name, letters in (("rich", "ACGTGC"), ("poor", "ACGTAT")):
        genomes = ["".join(rng.choices(letters, k=400)) for _ in range(12)]
        (tmp_path / f"{name}.fa").write_text("".join(f">{name}{i}\n{g}\n" for i, g in enumerate(genomes)))
    for part in ("train", "test"):
        for label, word in (("pos", "lovely"), ("neg", "dreadful")):
            (tmp_path / "aclImdb" / part / label).mkdir(parents=True)
            for i in range(20):
                text = " ".join(["A film", *rng.choices(WORDS, k=i % 5), word, part])
                (tmp_path / "aclImdb" / part / label / f"{i}_1.txt").write_text(text)
    (tmp_path / "cifar").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pictures = b"".join(bytes([i]) + rng.randbytes(3072) for i in range(10))
        (tmp_path / "cifar" / f"{name}.bin").write_bytes(pictures)
    for part in ("train", "eval", "test"):
        rows = []
        for i in range(30):
            first, second = rng.sample(WORDS, 12 + i % 5), rng.sample(WORDS, 12)
            second = second[:4] + first[:8] if i % 2 else second
            rows.append(f"{i % 2}.0\tP{i}\tQ{i}\t{' '.join(first)}\t{' '.join(second)}\n")
        (tmp_path / "aan").mkdir(exist_ok=True)
        (tmp_path / "aan" / f"new_aan_pairs.{part}.tsv").write_text("".join(rows))
    few: dict[str, Any] = {"training": 60, "validation": 20, "test": 30}
    cache: dict[str, Any] = {"cache": str(tmp_path / "cache")}
    genomes = (str(tmp_path / "rich.fa"), str(tmp_path / "poor.fa"))
    return {
        "adding": AddingConfig(base_length=20, max_length=60, **few),
        "fragments": FragmentsConfig(genomes, median=100, **few, **cache),
        "image": ImageConfig(source=str(tmp_path / "cifar"), validation=10, **cache),
        "listops": ListOpsConfig(min_length=20, max_length=60, max_depth=4, **few, **cache),
        "pathfinder": PathfinderConfig(contour=6, **few, **cache),
        "retrieval": RetrievalConfig(source=str(tmp_path / "aan"), **cache),
        "text": TextConfig(source=str(tmp_path / "aclImdb"), validation=8, **cache),
    }


def evaluate(name: str, config: Any, folder: Path) -> list[Evaluation]:
    """The evaluations of the baselines, in a run folder that has only its config."""
    task, network = task_class(name)(config), ChordMixerConfig(max_length=4_000)
    head = "pair" if name == "retrieval" else "average"
    model = ModelConfig(task.inputs, task.target.outputs, embedding=task.embedding, head=head, network=network)
    Experiment(name, task.config, model).save(folder)
    return compare(folder)


@pytest.mark.parametrize(
    ("name", "names", "at_least"),
    [
        ("adding", ["mean", "length alone"], 0.0),
        ("fragments", ["majority class", "length alone", "4-mers"], 0.95),
        ("image", ["majority class"], 0.0),
        ("listops", ["majority class", "length alone", "2-grams"], 0.0),
        ("pathfinder", ["majority class"], 0.0),
        ("retrieval", ["majority class", "length alone", "5-grams in common"], 0.95),
        ("text", ["majority class", "length alone", "5-grams"], 0.95),
    ],
)
def test_every_task(configs: dict[str, Any], tmp_path: Path, name: str, names: list[str], at_least: float) -> None:
    """The last baseline finds the signal; all are scored on the model's records, by its metrics."""
    evaluations = evaluate(name, configs[name], tmp_path / "run")
    assert [e.encoder for e in evaluations] == names
    best = evaluations[-1]
    assert best.scores[best.headline].value >= at_least
    test = task_class(name)(configs[name]).records("test")
    assert {(e.task, e.split, e.records) for e in evaluations} == {(name, "test", len(test.lengths))}
    assert best.by_length[-1].longest == max(test.lengths)
    saved = files.read_json(tmp_path / "run" / "baselines.json")["baselines"]
    assert [row["name"] for row in saved] == names and all(row["sentence"] for row in saved)
    files.verify(tmp_path / "run", ["baselines.json"])


def test_no_task_is_forgotten(configs: dict[str, Any]) -> None:
    assert {*configs, *baselines.FILE_TASKS} == {*TASKS}
    symbols = {name for name in configs if task_class(name).embedding == "tokens"}
    assert symbols == {*KINDS} and LETTERS["operations"] == ListOps.inputs


def test_own_files_have_neighbours_besides(motifs: list[str], tmp_path: Path) -> None:
    names = [e.encoder for e in evaluate("files", FilesConfig(tuple(motifs)), tmp_path / "run")]
    assert names[:2] == ["majority class", "length alone"] and "8-" in names[2]
    assert names[3] == "letters by position" and names[4].startswith("neighbours by ")


def test_own_texts_have_words_besides(tmp_path: Path) -> None:
    rng, rows = random.Random(0), ["id,text,label"]
    for i in range(120):
        words = rng.sample(WORDS, 8) + (["not", "good"] if i % 2 else ["good", "not"])
        rows.append(f"r{i},{' '.join(words)},{'no' if i % 2 else 'yes'}")
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    names = [e.encoder for e in evaluate("files", FilesConfig((str(tmp_path / "texts.csv"),)), tmp_path / "run")]
    assert any(name.startswith("words") for name in names)


def test_a_sample_is_stated(
    configs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(baselines, "MAX_TOKENS", 1_000)
    monkeypatch.setattr(baselines, "LARGE_TOKENS", 1_000)
    evaluations = evaluate("listops", configs["listops"], tmp_path / "run")
    lengths = ListOps(configs["listops"]).records("training").lengths
    count = len(sample(lengths, 1_000))
    assert 15 < count < 60 and [e.encoder for e in evaluations][2] == f"2-grams ({count} records)"
    sentence = files.read_json(tmp_path / "run" / "baselines.json")["baselines"][2]["sentence"]
    assert sentence.endswith(f"all 225 2-grams, standardised, fitted on {count} of 60 training records")
    assert log.messages == [
        "baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines"
    ]


def test_a_sample_is_of_all_and_always_the_same() -> None:
    lengths = [10] * 1_000
    chosen = sample(lengths, 1_000)
    assert len(chosen) == 100 and (np.diff(chosen) > 0).all() and (chosen == sample(lengths, 1_000)).all()
    assert 350 < chosen.mean() < 650


def test_fragments_are_those_of_the_first_epoch(configs: dict[str, Any], tmp_path: Path) -> None:
    """Another seed gives other fragments of the same genomes, and another fit."""
    settings = [configs["fragments"], configs["fragments"], replace(configs["fragments"], seed=1)]
    first, same, reseeded = (
        evaluate("fragments", config, tmp_path / str(i))[2].loss for i, config in enumerate(settings)
    )
    assert first == same != reseeded


def test_pairs_by_what_they_share() -> None:
    """The texts themselves tell nothing: only whether the second repeats the first."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(97, 101, 60).astype(np.uint8) for _ in range(80)]
    linked = np.arange(40) % 2
    for i in np.flatnonzero(linked):
        texts[2 * i + 1] = texts[2 * i]
    parts = {"training": np.arange(20), "validation": np.arange(20, 30), "test": np.arange(30, 40)}
    targets = {part: linked[indices] for part, indices in parts.items()}
    baseline = shared_grams(texts, targets, parts, Classification(["apart", "linked"], [0, 1]))
    assert (baseline.outputs.argmax(axis=1) == targets["test"]).all() and "cosine" in baseline.sentence
