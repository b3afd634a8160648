from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.training.trained_runs import dna, make_run, write_fasta

from chordmixer.data.alphabets import Dna
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import prediction
from chordmixer.training.prediction import embed

LENGTHS = [30, 5, 128, 1, 60]
WIDTH = 16
"""Eight tracks of two channels."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def tokens_of(run: Path, text: str) -> np.ndarray:
    """The encoder's tokens of one record alone."""
    with torch.inference_mode():
        y = Model.from_pretrained(run).encode(Packed.from_list([torch.tensor(Dna().encode(text).astype(np.int64))]))
    return y.values.numpy()


@pytest.mark.parametrize("batch_tokens", [1, 64, 10_000])
def test_what_the_head_pools(run: Path, tmp_path: Path, batch_tokens: int) -> None:
    embed(run, [write_fasta(tmp_path / "x.fa", LENGTHS)], tmp_path / "e.parquet", batch_tokens=batch_tokens)
    table = pq.read_table(tmp_path / "e.parquet", page_checksum_verification=True)
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), WIDTH)
    assert table.column("id").to_pylist() == [f"r{i}" for i in range(len(LENGTHS))]
    assert table.column("length").to_pylist() == LENGTHS and table.column("windows").to_pylist() == [1] * len(LENGTHS)
    for i, (n, embedding) in enumerate(zip(LENGTHS, table.column("embedding").to_pylist(), strict=True)):
        np.testing.assert_allclose(embedding, tokens_of(run, dna(n, i)).mean(axis=0), atol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 10_000])
def test_each_token(run: Path, tmp_path: Path, batch_tokens: int) -> None:
    path = write_fasta(tmp_path / "x.fa", LENGTHS)
    embed(run, [path], tmp_path / "e.parquet", per_token=True, batch_tokens=batch_tokens)
    table = pq.read_table(tmp_path / "e.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.list_(pa.float32(), WIDTH))
    for i, (n, embeddings) in enumerate(zip(LENGTHS, table.column("embedding").to_pylist(), strict=True)):
        np.testing.assert_allclose(embeddings, tokens_of(run, dna(n, i)), atol=1e-5)


def test_a_token_that_the_head_adds_is_no_token_of_the_record(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    network = ChordMixerConfig(max_length=128, track_size=2, hidden=8)
    Model(ModelConfig(5, 3, head="class_token", network=network)).save_pretrained(run)
    embed(run, [write_fasta(tmp_path / "x.fa", LENGTHS)], tmp_path / "e.parquet", per_token=True)
    embeddings = pq.read_table(tmp_path / "e.parquet").column("embedding").to_pylist()
    assert [len(tokens) for tokens in embeddings] == LENGTHS


def test_windows_and_strands_are_averaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", max_length=64, both_strands=True)
    embed(run, [write_fasta(tmp_path / "x.fa", [100])], tmp_path / "e.parquet", over_length="windows")
    text = dna(100, 0)
    parts = [text[:64], text[32:96], text[64:]]
    complements = [part[::-1].translate(str.maketrans("ACGT", "TGCA")) for part in parts]
    means = [[tokens_of(run, part).mean(axis=0) for part in strand] for strand in (parts, complements)]
    expected = np.average(np.mean(means, axis=0), axis=0, weights=[64, 64, 36])
    row = pq.read_table(tmp_path / "e.parquet").to_pylist()[0]
    assert row["windows"] == 3
    np.testing.assert_allclose(row["embedding"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("e.xls", {}, r"e\.xls ends in '\.xls': rows are written as \.parquet, \.npy, \.tsv, \.csv; name it so"),
        ("e.npy", {"per_token": True}, r"e\.npy ends in '\.npy': rows are written as \.parquet; name it so"),
        ("-", {}, r"standard output cannot take \.parquet: name a file with -o NAME\.parquet"),
        (
            "e.parquet",
            {"per_token": True, "over_length": "windows"},
            "gives a token several embeddings: leave it out",
        ),
    ],
)
def test_impossible_outputs(run: Path, tmp_path: Path, out: str, options: dict[str, Any], message: str) -> None:
    path = write_fasta(tmp_path / "x.fa", [10])
    with pytest.raises(ValueError, match=message):
        embed(run, [path], out if out == "-" else tmp_path / out, **options)


def test_a_row_that_no_reader_would_take(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MOST_BYTES", 4 * 100 * WIDTH)
    with pytest.raises(ValueError, match=r"record 2 \(r1\) would be a row of 6,464 bytes, 101 tokens of 16 numbers"):
        embed(run, [write_fasta(tmp_path / "x.fa", [100, 101])], tmp_path / "e.parquet", per_token=True)


def test_nothing_is_left_to_do(run: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    path = write_fasta(tmp_path / "x.fa", [10])
    embed(run, [path], tmp_path / "e.parquet")
    log.clear()
    embed(run, [path], tmp_path / "e.parquet", resume=True)
    assert log.messages == [f"{tmp_path / 'e.parquet'} is whole already: nothing is left to do"]


@pytest.mark.parametrize("ending", ["tsv", "csv", "npy"])
def test_other_formats_hold_the_same_numbers_and_can_be_resumed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("chordmixer.training.output_files.SECONDS", 0.0)
    path, out = write_fasta(tmp_path / "x.fa", LENGTHS), tmp_path / f"e.{ending}"
    embed(run, [path], tmp_path / "e.parquet", batch_tokens=8)
    expected = np.array(pq.read_table(tmp_path / "e.parquet").column("embedding").to_pylist(), dtype=np.float32)
    with monkeypatch.context() as patch:
        averages = prediction.Engine.averages
        remaining = iter(range(2))

        def failing(*arguments: Any) -> Any:
            if next(remaining, None) is None:
                raise KeyboardInterrupt
            return averages(*arguments)

        patch.setattr(prediction.Engine, "averages", failing)
        with pytest.raises(KeyboardInterrupt):
            embed(run, [path], out, batch_tokens=8)
    assert not out.exists()
    embed(run, [path], out, batch_tokens=8, resume=True)
    if ending == "npy":
        vectors, ids = np.load(out), (tmp_path / "e.ids.txt").read_text().split()
    else:
        cells = [line.split("," if ending == "csv" else "\t") for line in out.read_text().splitlines()]
        assert cells[0][:4] == ["id", "length", "windows", "embedding_0"]
        vectors, ids = np.array([row[3:] for row in cells[1:]], dtype=np.float32), [row[0] for row in cells[1:]]
    np.testing.assert_array_equal(vectors, expected)
    assert ids == [f"r{i}" for i in range(len(LENGTHS))]


def test_the_ids_of_another_output_are_not_replaced(run: Path, tmp_path: Path) -> None:
    path = write_fasta(tmp_path / "x.fa", [10])
    (tmp_path / "e.ids.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"e\.ids\.txt is there already: give another name with -o, or replace it"):
        embed(run, [path], tmp_path / "e.npy")
    assert (tmp_path / "e.ids.txt").read_text() == "mine"


def test_records_that_are_too_long_can_be_left_out(run: Path, tmp_path: Path) -> None:
    path = write_fasta(tmp_path / "x.fa", [30, 129, 128])
    for name, options in (("e.parquet", {}), ("t.parquet", {"per_token": True})):
        account = embed(run, [path], tmp_path / name, over_length="reject", **options)
        assert pq.read_table(tmp_path / name).column("id").to_pylist() == ["r0", "r2"]
        assert list(account.lines()) == [
            "3 records read: 2 used, 1 rejected",
            "1 rejected, longer than this model's max_length=128: r1",
        ]
