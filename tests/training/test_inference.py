"""The engine: windows, batches, devices; an ensemble predicts the mean of its members."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.trained_runs import CLASSES, SEVERAL, make_run, write_fasta

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.alphabets import Kmers, Protein
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.data.tokenizers import Bytes
from chordmixer.training import ensemble, inference
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.inference import Engine, EnsembleEngine, open_run
from chordmixer.training.intervals import Score
from chordmixer.training.labels import OutputLabels
from chordmixer.training.prediction import embed, predict


def entries(lengths: list[int]) -> list[Entry]:
    return [Entry(f"r{i}", b"A" * n, f"x.fa, record {i + 1}") for i, n in enumerate(lengths)]


def sizes(engine: Engine, lengths: list[int]) -> list[list[int]]:
    windows = engine.windows(entries(lengths), Account(), None)
    return [[len(item.tokens) for item in window] for window in windows]


def test_windows_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(make_run(tmp_path), batch_tokens=10)
    assert sizes(engine, [20, 20, 1, 39, 1, 100, 3]) == [[20, 20], [1, 39], [1], [100], [3]]
    monkeypatch.setattr(inference, "MAX_RECORDS", 2)
    assert sizes(engine, [1, 1, 1]) == [[1, 1], [1]]


def test_windows_are_gathered_as_they_are_used(tmp_path: Path) -> None:
    consumed = []
    stream = (consumed.append(entry.id) or entry for entry in entries([40] * 9))  # type: ignore[func-returns-value]
    windows = Engine(make_run(tmp_path), batch_tokens=10).windows(stream, Account(), None)
    next(windows)
    assert len(consumed) == 2


def test_batches_have_like_lengths_under_a_budget(tmp_path: Path) -> None:
    engine = Engine(make_run(tmp_path), batch_tokens=10)
    (window,) = engine.windows(entries([1, 9, 2, 12, 8]), Account(), None)
    lengths = [packed.lengths for _, packed in engine.batches(window, engine.pieces(window, "error"))]
    assert lengths == [(12,), (9,), (8, 2), (1,)]


def test_a_device_that_is_too_small_is_one_line(tmp_path: Path) -> None:
    engine = Engine(make_run(tmp_path), batch_tokens=10)
    (window,) = engine.windows(entries([3, 5]), Account(), None)

    def fail(packed: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory\nand much more")

    with pytest.raises(ValueError, match=r"8 tokens at once do not fit into the memory of cpu, .* r1 of 5: lower"):
        engine.averages(window, engine.pieces(window, "error"), fail, 3)


def test_other_failures_stay_what_they_are(tmp_path: Path) -> None:
    engine = Engine(make_run(tmp_path))
    (window,) = engine.windows(entries([3]), Account(), None)

    def fail(packed: Any) -> torch.Tensor:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        engine.averages(window, engine.pieces(window, "error"), fail, 3)


# --- Run folders ---


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing is not a folder: give the --out folder of a training run"):
        Engine(tmp_path / "nothing")


def test_a_changed_file(tmp_path: Path) -> None:
    make_run(tmp_path)
    OutputLabels(CLASSES, "dna", 9.0).save(tmp_path)
    with pytest.raises(ValueError, match=r"labels\.json was changed or damaged"):
        Engine(tmp_path)


@pytest.mark.parametrize("part", ["tokenizer", "labels", "name"])
def test_parts_of_different_runs(tmp_path: Path, part: str) -> None:
    make_run(tmp_path)
    (tmp_path / "manifest.json").unlink()
    if part == "tokenizer":
        files.write_json(tmp_path / "tokenizer.json", Bytes().to_json())
    else:
        OutputLabels(SEVERAL if part == "labels" else CLASSES, "dna" if part == "labels" else "bytes").save(tmp_path)
    with pytest.raises(ValueError, match="do not fit each other: use the files of one run"):
        Engine(tmp_path, unverified=True)


@pytest.mark.parametrize("tokenizer", [Protein(), Kmers(k=2, stride=2)])
def test_one_strand_is_not_two(tmp_path: Path, tokenizer: Any) -> None:
    make_run(tmp_path, tokenizer=tokenizer, both_strands=True)
    with pytest.raises(ValueError, match=r"asks for both strands, and .* has one"):
        Engine(tmp_path)


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda, but torch sees no GPU"):
        Engine(make_run(tmp_path), device="cuda")
    assert Engine(tmp_path, device="auto").device.type == "cpu"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three untrained networks that answer together."""
    folder = make_run(tmp_path / "run")
    (folder / "model.safetensors").unlink()
    files.unrecord(folder, ["model.safetensors"])
    members = tuple(EnsembleMember(k, "network", Score(0.5), Score(0.5)) for k in range(3))
    document = Ensemble("replicates", 3, False, "accuracy", members)
    files.write_recorded(folder, {ensemble.FILE: files.json_bytes(to_dict(document))})
    for number in range(3):
        make_run(ensemble.folder_of(folder, number), seed=number)
    return folder


def outputs(engine: Engine, path: Path) -> np.ndarray:
    entries = read([path], Reading(), Account())
    rows = [
        engine.outputs(window, engine.pieces(window, "windows"))
        for window in engine.windows(entries, Account(), None)
    ]
    return np.concatenate(rows)


def test_answers_are_the_mean(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "new.fa", [20, 300, 50])  # one of them in windows
    engine = open_run(run)
    assert isinstance(engine, EnsembleEngine) and len(engine.members) == 3 and engine.network
    labels = Engine(ensemble.folder_of(run, 0)).labels
    member_outputs = [labels.unweighted(outputs(Engine(ensemble.folder_of(run, k)), fasta)) for k in range(3)]
    odds = np.mean([rows - rows.mean(axis=1, keepdims=True) for rows in member_outputs], axis=0)
    np.testing.assert_allclose(engine.labels.unweighted(outputs(engine, fasta)), odds, atol=1e-5)
    assert np.std(member_outputs, axis=0).min() > 1e-4, "members differ"
    assert engine.digest != open_run(ensemble.folder_of(run, 0)).digest


def test_what_takes_one_network_names_a_member(run: Path, tmp_path: Path) -> None:
    fasta = write_fasta(tmp_path / "new.fa", [20])
    with pytest.raises(ValueError, match=r"has 3 networks, and this command takes one: give a member, .*members/0"):
        embed(run, [fasta], tmp_path / "out.parquet")
    embed(ensemble.folder_of(run, 0), [fasta], tmp_path / "out.parquet")
    with pytest.raises(ValueError, match="keeps no baseline for --using baseline"):
        predict(run, [fasta], tmp_path / "out.tsv", using="baseline")


def _gone(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 2))


def _changed(run: Path) -> None:
    path = ensemble.folder_of(run, 1) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"good")


def _of_another_run(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 1))
    make_run(ensemble.folder_of(run, 1), SEVERAL)


def _of_another_length(run: Path) -> None:
    shutil.rmtree(ensemble.folder_of(run, 1))
    make_run(ensemble.folder_of(run, 1), max_length=64)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_gone, "members/2 is not a folder"),
        (_changed, "members/1/model.safetensors was changed or damaged"),
        (_of_another_run, "do not fit each other: they have other tokens, labels or lengths"),
        (_of_another_length, "do not fit each other"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_members_are_checked(run: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(run)
    with pytest.raises(ValueError, match=message):
        open_run(run)
