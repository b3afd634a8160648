"""How rows look in a file: TSV, JSON Lines or Parquet. Each can be added to a row at a time, and cut after any row.

A Parquet file cannot, so its rows wait as an Arrow stream and are turned into Parquet at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from chordmixer import files

GROUP_BYTES = 32 << 20
"""About the size of a Parquet file's row groups, which a reader holds one at a time."""
PLACES = {"value": ".7g", "truth": ".7g"}
"""How a TSV has the numbers of a column; six digits behind the point elsewhere."""


class Format(Protocol):
    """How rows look in a file."""

    def head(self, schema: pa.Schema) -> bytes: ...

    def rows(self, batch: pa.RecordBatch) -> bytes: ...

    def finish(self, partial: Path, out: Path) -> None:
        """Put all rows in place."""
        ...


class Tsv:
    """A header, then a line a record; the items of a list are joined by semicolons."""

    def head(self, schema: pa.Schema) -> bytes:
        return self._line(schema.names)

    def rows(self, batch: pa.RecordBatch) -> bytes:
        columns = [
            [_cell(value, PLACES.get(name, ".6f")) for value in column.to_pylist()]
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return b"".join(self._line(cells) for cells in zip(*columns, strict=True))

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)

    def _line(self, cells: Sequence[str]) -> bytes:
        line = "\t".join(cells)
        if line.count("\t") >= len(cells) or "\n" in line or "\r" in line:
            bad = next(cell for cell in cells if {*cell} & {*"\t\r\n"})
            raise ValueError(f"{bad!r} holds a tab or a line break: a TSV cannot; write .jsonl or .parquet")
        return f"{line}\n".encode()


class Jsonl:
    """An object a line, with the same names and numbers as the TSV's columns."""

    def head(self, schema: pa.Schema) -> bytes:
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in batch.to_pylist())

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)


class Parquet:
    """Row groups of about 32 MB, each page with a checksum."""

    def head(self, schema: pa.Schema) -> bytes:
        message: bytes = schema.serialize().to_pybytes()
        return message

    def rows(self, batch: pa.RecordBatch) -> bytes:
        message: bytes = batch.serialize().to_pybytes()
        return message

    def finish(self, partial: Path, out: Path) -> None:
        temporary = out.with_name(files.TEMPORARY + out.name)
        with pa.memory_map(str(partial)) as source:
            stream = pa.ipc.open_stream(source)
            with pq.ParquetWriter(temporary, stream.schema, write_page_checksum=True) as writer:
                for group in _groups(stream):
                    writer.write_table(pa.Table.from_batches(group), row_group_size=2**31 - 1)
        files.flush(temporary)
        temporary.replace(out)
        partial.unlink()


FORMATS: dict[str, type[Format]] = {".tsv": Tsv, ".jsonl": Jsonl, ".parquet": Parquet}


def batch_of(schema: pa.Schema, columns: Sequence[Any]) -> pa.RecordBatch:
    """Columns of plain lists or of Arrow arrays, in the schema's order."""
    try:
        return pa.record_batch(list(columns), schema=schema)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!a} is an id that is not Unicode: rename that record") from None


def _cell(value: Any, places: str) -> str:
    if isinstance(value, list):
        return ";".join(value)
    return format(value, places) if isinstance(value, float) else str(value)


def _groups(stream: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in stream:
        group.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
