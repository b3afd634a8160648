"""Retrieval with the paper's settings, from the command line to scores, for both layouts of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chordmixer import files
from chordmixer.paper.lra.retrieval import CITATIONS, FILES, PAPERS, RetrievalConfig
from chordmixer.paper.recipes import retrieval


def test_the_papers_numbers() -> None:
    experiment = retrieval(RetrievalConfig())
    network, training = experiment.model.network, experiment.training
    numbers = (network.hidden, network.track_size, training.rate, training.batch_sequences)
    assert numbers == (128, 12, 0.007, 90) and (network.max_length, experiment.model.head) == (4000, "pair")


def write_release(folder: Path) -> None:
    for name in FILES.values():
        rows = [f"{i % 2}.0\tA{i}\tB{i}\tb'text {i}'\tb'text {i + i % 2}'" for i in range(24)]
        (folder / name).write_text("\n".join(rows))


def write_citations(folder: Path) -> None:
    names = [f"p{i}" for i in range(60)]
    pq.write_table(pa.table({"id": names, "text": [f"{name} " * 3 for name in names]}), folder / PAPERS)
    pairs = {"citing": names[9:] * 2, "cited": names[6:-3] + names[1:-8]}
    pq.write_table(pa.table(pairs), folder / CITATIONS)


@pytest.mark.parametrize(
    ("write", "tested"), [(write_release, 24), (write_citations, 20)], ids=["release", "citations"]
)
def test_from_the_command_line_to_scores(
    write: Callable[[Path], None], tested: int, tmp_path: Path, chordmixer: Callable[..., tuple[int, str, str]]
) -> None:
    write(tmp_path)
    settings = {
        "data.source": tmp_path,
        "data.cache": tmp_path / "cache",
        "model.network.track_size": 2,
        "model.network.hidden": 4,
        "training.epochs": 1,
        "training.batch_sequences": 8,
        "training.device": "cpu",
    }
    run = tmp_path / "run"
    given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    code, _, err = chordmixer("train", "retrieval", *given, "--out", run)
    assert code == 0, err
    before = files.read_json(run / "evaluation-test.json")
    assert before["records"] == pytest.approx(tested, abs=2) and before["headline"] == "accuracy"
    lengths = pq.read_table(run / "predictions.parquet")["length"].to_pylist()
    assert min(lengths) >= 2 * 9, "of both documents together"
    code, _, err = chordmixer("evaluate", run)
    assert code == 0, err
    assert files.read_json(run / "evaluation-test.json")["scores"] == before["scores"]


def test_without_data(tmp_path: Path, chordmixer: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = chordmixer("train", "retrieval", "--out", tmp_path / "run")
    assert code == 2 and err.count("\n") == 1 and not (tmp_path / "run").exists()
    assert err.startswith("chordmixer: retrieval has no data.source: it is read from new_aan_pairs.train.tsv")
