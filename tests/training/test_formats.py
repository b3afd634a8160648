from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chordmixer.training import formats
from chordmixer.training.formats import Csv, Jsonl, Npy, Parquet, Tsv, batch_of

SCHEMA = pa.schema({"id": pa.string(), "labels": pa.list_(pa.string()), "p": pa.float64(), "value": pa.float64()})
BATCH = batch_of(SCHEMA, [["a", "ü"], [["x", "y"], []], [0.5, 1e-6], [1234.5678, 2e-9]])


def test_lines() -> None:
    assert Tsv().head(SCHEMA) == b"id\tlabels\tp\tvalue\n"
    assert Tsv().rows(BATCH).decode() == "a\tx;y\t0.500000\t1234.5678\nü\t\t0.000001\t2e-09\n"
    assert Jsonl().head(SCHEMA) == b""
    assert Jsonl().rows(BATCH).decode().splitlines()[1] == '{"id": "ü", "labels": [], "p": 1e-06, "value": 2e-09}'


def test_commas() -> None:
    assert Csv().head(SCHEMA) == b"id,labels,p,value\n"
    odd = batch_of(SCHEMA, [['a,"b"\n', "c"], [["x", "y"], []], [0.5, 1.0], [1.0, 2.0]])
    assert Csv().rows(odd).decode() == '"a,""b""\n",x;y,0.500000,1\nc,,1.000000,2\n'


VECTORS = pa.schema({"id": pa.string(), "embedding": pa.list_(pa.float32(), 3)})
ROWS = np.array([[0.1, -2e-9, 3e8], [1 / 3, 0, 7]], dtype=np.float32)
SOME = batch_of(VECTORS, [["a", "b"], pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 3)])


def test_a_vector_has_a_column_a_number() -> None:
    assert Tsv().head(VECTORS) == b"id\tembedding_0\tembedding_1\tembedding_2\n"
    cells = [line.split("\t")[1:] for line in Tsv().rows(SOME).decode().splitlines()]
    np.testing.assert_array_equal(np.array(cells, dtype=np.float32), ROWS)  # to the last bit


def test_vectors_alone_and_their_ids(tmp_path: Path) -> None:
    partial = tmp_path / "e.npy.partial"
    partial.write_bytes(Npy().head(VECTORS) + Npy().rows(SOME) * 3)
    Npy().finish(partial, tmp_path / "e.npy")
    found = np.load(tmp_path / "e.npy", allow_pickle=False)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.tile(ROWS, (3, 1)))
    assert (tmp_path / "e.ids.txt").read_text() == "a\nb\n" * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.ids.txt", "e.npy"]
    with pytest.raises(
        ValueError, match=r"'a\\nb' is an id with a line break: a list of ids cannot; write \.parquet"
    ):
        Npy().rows(batch_of(VECTORS, [["a\nb"], SOME.column(1)[:1]]))


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
    monkeypatch.setattr(formats, "GROUP_BYTES", 100)
    partial = tmp_path / "y.partial"
    partial.write_bytes(Parquet().head(SCHEMA) + Parquet().rows(BATCH) * 5)
    Parquet().finish(partial, tmp_path / "y.parquet")
    found = pq.ParquetFile(tmp_path / "y.parquet", page_checksum_verification=True)
    assert found.read().to_pylist() == BATCH.to_pylist() * 5
    assert 1 < found.num_row_groups < 5
    assert [path.name for path in tmp_path.iterdir()] == ["y.parquet"]
