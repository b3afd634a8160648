from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chordmixer.training import formats
from chordmixer.training.formats import Jsonl, Parquet, Tsv, batch_of

SCHEMA = pa.schema({"id": pa.string(), "labels": pa.list_(pa.string()), "p": pa.float64(), "value": pa.float64()})
BATCH = batch_of(SCHEMA, [["a", "ü"], [["x", "y"], []], [0.5, 1e-6], [1234.5678, 2e-9]])


def test_lines() -> None:
    assert Tsv().head(SCHEMA) == b"id\tlabels\tp\tvalue\n"
    assert Tsv().rows(BATCH).decode() == "a\tx;y\t0.500000\t1234.568\nü\t\t0.000001\t2e-09\n"
    assert Jsonl().head(SCHEMA) == b""
    assert Jsonl().rows(BATCH).decode().splitlines()[1] == '{"id": "ü", "labels": [], "p": 1e-06, "value": 2e-09}'


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
