"""Rows in files: formats, resuming after a kill, full disks, standard output."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import lock_descriptor
from tests.forked import Forked
from tests.training.trained_runs import make_run, write_fasta

from chordmixer.training import inference, output_files, speed
from chordmixer.training.output_files import Csv, Jsonl, Npy, Parquet, Tsv, batch_of
from chordmixer.training.prediction import predict

SCHEMA = pa.schema({"id": pa.string(), "labels": pa.list_(pa.string()), "p": pa.float64(), "value": pa.float64()})
BATCH = batch_of(SCHEMA, [["a", "ü"], [["x", "y"], []], [0.5, 1e-6], [1234.5678, 2e-9]])


def test_lines() -> None:
    assert Tsv().head(SCHEMA) == b"id\tlabels\tp\tvalue\n"
    assert Tsv().rows(BATCH).decode() == "a\tx;y\t0.500000\t1234.5678\nü\t\t0.000001\t2e-09\n"
    assert Jsonl().head(SCHEMA) == b""
    assert Jsonl().rows(BATCH).decode().splitlines()[1] == '{"id": "ü", "labels": [], "p": 1e-06, "value": 2e-09}'


def test_commas() -> None:
    assert Csv().head(SCHEMA) == b"id,labels,p,value\n"
    batch = batch_of(SCHEMA, [['a,"b"\n', "c"], [["x", "y"], []], [0.5, 1.0], [1.0, 2.0]])
    assert Csv().rows(batch).decode() == '"a,""b""\n",x;y,0.500000,1\nc,,1.000000,2\n'


VECTORS = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float32(), 3)})
ROWS = np.array([[0.1, -2e-9, 3e8], [1 / 3, 0, 7]], dtype=np.float32)
VECTOR_BATCH = batch_of(VECTORS, [["a", "b"], pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 3)])


def test_a_vector_has_a_column_for_each_number() -> None:
    assert Tsv().head(VECTORS) == b"id\tembedding_0\tembedding_1\tembedding_2\n"
    cells = [line.split("\t")[1:] for line in Tsv().rows(VECTOR_BATCH).decode().splitlines()]
    np.testing.assert_array_equal(np.array(cells, dtype=np.float32), ROWS)  # to the last bit


def test_vectors_alone_and_their_ids(tmp_path: Path) -> None:
    partial = tmp_path / "e.npy.partial"
    partial.write_bytes(Npy().head(VECTORS) + Npy().rows(VECTOR_BATCH) * 3)
    Npy().finish(partial, tmp_path / "e.npy")
    vectors = np.load(tmp_path / "e.npy", allow_pickle=False)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.tile(ROWS, (3, 1)))
    assert (tmp_path / "e.ids.txt").read_text() == "a\nb\n" * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.ids.txt", "e.npy"]
    with pytest.raises(
        ValueError, match=r"'a\\nb' is an id with a line break: a list of ids cannot; write \.parquet"
    ):
        Npy().rows(batch_of(VECTORS, [["a\nb"], VECTOR_BATCH.column(1)[:1]]))


@pytest.mark.parametrize("id", ["a\tb", "a\nb", "a\rb"])
def test_a_tsv_has_no_tabs_in_its_cells(id: str) -> None:
    batch = batch_of(SCHEMA, [[id], [[]], [0.5], [0.5]])
    with pytest.raises(ValueError, match=r"'a\\[tnr]b' holds a tab or a line break: a TSV cannot; write \.jsonl"):
        Tsv().rows(batch)
    assert Jsonl().rows(batch)


def test_an_id_that_is_not_unicode() -> None:
    with pytest.raises(ValueError, match=r"'a\\udc80' is an id that is not Unicode: rename"):
        batch_of(SCHEMA, [["a\udc80"], [[]], [0.5], [0.5]])


def test_row_groups_do_not_depend_on_how_rows_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "GROUP_BYTES", 3 * BATCH.nbytes)
    partial = tmp_path / "y.partial"
    partial.write_bytes(Parquet().head(SCHEMA) + Parquet().rows(BATCH) * 5)
    Parquet().finish(partial, tmp_path / "y.parquet")
    parquet = pq.ParquetFile(tmp_path / "y.parquet", page_checksum_verification=True)
    assert parquet.read().to_pylist() == BATCH.to_pylist() * 5
    assert 1 < parquet.num_row_groups < 5
    assert [path.name for path in tmp_path.iterdir()] == ["y.parquet"]


LENGTHS = [30, 50, 20, 60, 10, 40, 70]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write_fasta(tmp_path / "x.fa", LENGTHS)


@pytest.fixture
def each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the journal after each window, and put one record into each window."""
    monkeypatch.setattr(output_files, "SECONDS", 0.0)
    monkeypatch.setattr(inference, "MAX_RECORDS", 1)


class Stopped(Exception):
    """Raised in place of a crash."""


def interrupted(run: Path, fasta: Path, out: Path, after: int, **options: Any) -> None:
    """Predict, and crash after this number of windows."""
    original_outputs, windows = inference.Engine.outputs, 0

    def failing(self: inference.Engine, *window: Any) -> Any:
        nonlocal windows
        windows += 1
        if windows > after:
            raise Stopped
        return original_outputs(self, *window)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(inference.Engine, "outputs", failing)
        predict(run, [fasta], out, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- What stands there already ---


def test_nothing_is_replaced_unasked(run: Path, fasta: Path, tmp_path: Path) -> None:
    out = tmp_path / "y.tsv"
    out.write_text("dear")
    with pytest.raises(ValueError, match=r"y\.tsv is there already: give another name with -o, or .* --force"):
        predict(run, [fasta], out)
    assert out.read_text() == "dear"
    predict(run, [fasta], out, force=True)
    assert len(out.read_text().splitlines()) == 1 + len(LENGTHS)


def test_a_whole_file_is_left_as_it_is(run: Path, fasta: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "y.tsv"
    predict(run, [fasta], out)
    log.clear()
    before = out.stat().st_mtime_ns
    (tmp_path / "y.tsv.journal").write_text("{}")  # a kill between the last two acts leaves it
    assert predict(run, [fasta], out, resume=True).read == 0
    assert out.stat().st_mtime_ns == before and log.messages == [f"{out} is whole already: nothing is left to do"]
    assert names(tmp_path) == ["x.fa", "y.tsv"]


def test_it_goes_on_with_as_many_threads(
    run: Path, fasta: Path, tmp_path: Path, each_window: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bits depend on the number of threads, and a new measurement might choose another one."""
    out, restored = tmp_path / "y.tsv", list[int]()
    interrupted(run, fasta, out, 3)
    journal = tmp_path / "y.tsv.journal"
    content = json.loads(journal.read_text())
    assert content["threads"] == torch.get_num_threads()
    journal.write_text(json.dumps(content | {"threads": 4}))
    monkeypatch.setattr(speed, "restore_threads", restored.append)
    predict(run, [fasta], out, resume=True)
    assert restored == [4] and out.exists()


def test_resume_without_a_beginning_begins(run: Path, fasta: Path, tmp_path: Path) -> None:
    predict(run, [fasta], tmp_path / "y.tsv", resume=True)
    assert names(tmp_path) == ["x.fa", "y.tsv"]


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("y.xls", {}, r"y\.xls ends in '\.xls': rows are written as \.tsv, \.csv, \.jsonl, \.parquet; name it so"),
        ("y", {}, r"y ends in '': rows are written"),
        ("none/y.tsv", {}, "none is not a folder: make it"),
        ("y.tsv", {"resume": True, "force": True}, "--resume goes on and --force starts again: give one"),
        ("-", {"resume": True}, "standard output cannot be resumed: name a file"),
    ],
)
def test_impossible_outputs(
    run: Path, fasta: Path, tmp_path: Path, out: str, options: dict[str, bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        predict(run, [fasta], out if out == "-" else tmp_path / out, **options)


def test_an_input_is_not_an_output(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("id\tsequence\na\tACGT\n")
    with pytest.raises(ValueError, match=r"x\.tsv is also an input: give the output another name"):
        predict(run, [path], path, force=True)


# --- Going on ---


@pytest.mark.usefixtures("each_window")
@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
@pytest.mark.parametrize("after", [1, 4, 6])
def test_what_was_done_is_not_done_again(run: Path, fasta: Path, tmp_path: Path, ending: str, after: int) -> None:
    out = tmp_path / f"y.{ending}"
    predict(run, [fasta], tmp_path / f"whole.{ending}")
    interrupted(run, fasta, out, after)
    assert not out.exists()
    with pytest.raises(
        ValueError, match=r"partial was left by an interrupted run: go on with --resume, or .*--force"
    ):
        predict(run, [fasta], out)
    with (tmp_path / f"y.{ending}.partial").open("ab") as torn:
        torn.write(b"half a row")  # what a kill between the rows and the journal leaves
    interrupted(run, fasta, out, len(LENGTHS) - after - 1, resume=True)  # one window is missing still
    account = predict(run, [fasta], out, resume=True)
    assert out.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()
    assert account.used == len(LENGTHS) and names(tmp_path) == ["whole." + ending, "x.fa", "y." + ending]


@pytest.mark.usefixtures("each_window")
def test_starting_again(run: Path, fasta: Path, tmp_path: Path) -> None:
    interrupted(run, fasta, tmp_path / "y.tsv", 2, min_confidence=1.0)
    predict(run, [fasta], tmp_path / "y.tsv", force=True)
    predict(run, [fasta], tmp_path / "z.tsv")
    assert (tmp_path / "y.tsv").read_bytes() == (tmp_path / "z.tsv").read_bytes()


def test_nothing_is_left_of_a_run_that_has_done_nothing(run: Path, fasta: Path, tmp_path: Path) -> None:
    interrupted(run, fasta, tmp_path / "y.tsv", 0)
    assert names(tmp_path) == ["x.fa"]


@pytest.mark.usefixtures("each_window")
def test_other_settings_are_refused(run: Path, fasta: Path, tmp_path: Path) -> None:
    interrupted(run, fasta, tmp_path / "y.tsv", 2)
    for options, name in (({"min_confidence": 0.5}, "--min-confidence"), ({"batch_tokens": 7}, "--batch-tokens")):
        with pytest.raises(ValueError, match=rf"partial was begun with another {name}: resume with the same"):
            predict(run, [fasta], tmp_path / "y.tsv", resume=True, **options)
    other_run = make_run(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"partial was begun with another run"):
        predict(other_run, [fasta], tmp_path / "y.tsv", resume=True)
    predict(run, [fasta], tmp_path / "y.tsv", resume=True)


@pytest.mark.usefixtures("each_window")
@pytest.mark.parametrize("lengths", [[31, *LENGTHS[1:]], LENGTHS[:2]])
def test_other_records_are_refused(run: Path, fasta: Path, tmp_path: Path, lengths: list[int]) -> None:
    interrupted(run, fasta, tmp_path / "y.tsv", 3)
    write_fasta(fasta, lengths)
    with pytest.raises(ValueError, match=r"the records are not those that .*partial was begun with: give the same"):
        predict(run, [fasta], tmp_path / "y.tsv", resume=True)
    write_fasta(fasta, LENGTHS)
    predict(run, [fasta], tmp_path / "y.tsv", resume=True)


@pytest.mark.usefixtures("each_window")
def test_damage(run: Path, fasta: Path, tmp_path: Path) -> None:
    interrupted(run, fasta, tmp_path / "y.tsv", 3)
    partial, journal = tmp_path / "y.tsv.partial", tmp_path / "y.tsv.journal"
    content = json.loads(journal.read_text())
    assert content["windows"] == 3 and content["bytes"] == partial.stat().st_size
    journal.write_text(json.dumps({"settings": content["settings"]}))
    with pytest.raises(ValueError, match=r"y\.tsv\.journal is damaged: start again with --force"):
        predict(run, [fasta], tmp_path / "y.tsv", resume=True)
    journal.write_text(json.dumps(content))
    partial.write_bytes(partial.read_bytes()[:-1])
    with pytest.raises(ValueError, match="partial is shorter than its journal says"):
        predict(run, [fasta], tmp_path / "y.tsv", resume=True)


def test_two_processes_do_not_write_one_file(run: Path, fasta: Path, tmp_path: Path) -> None:
    with (tmp_path / "y.tsv.partial").open("ab") as file:
        assert lock_descriptor(file.fileno(), blocking=False)
        with pytest.raises(ValueError, match=r"partial is being written by another process: wait for it"):
            predict(run, [fasta], tmp_path / "y.tsv", resume=True)


def test_a_full_disk_is_one_line(run: Path, fasta: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ValueError, match=r"y\.tsv cannot be written \(File too large\): make room"):
            predict(run, [fasta], tmp_path / "y.tsv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["x.fa"]


def test_a_reader_that_goes_away_is_one_line() -> None:
    code = (
        "import pyarrow as pa\nfrom chordmixer.training.output_files import StandardOutput\n"
        "try:\n    sink = StandardOutput(pa.schema({'id': pa.string()}))\n"
        "    batch = pa.record_batch({'id': ['x' * 1000] * 1000})\n"
        "    while True: sink.write(batch)\n"
        "except ValueError as error:\n    import sys; print(error, file=sys.stderr)"
    )
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as reader, os.fdopen(writes, "wb") as writer:
        process = Forked([sys.executable, "-c", code], stdout=writer)
        writer.close()
        assert reader.readline() == b"id\n"
    _, errors = process.communicate(timeout=60)
    assert errors == "whoever read standard output has closed it: not all rows were written\n"
    assert process.returncode == 0
