"""How rows look in a file: TSV, CSV, JSON Lines, Parquet or .npy. Each can be added to, and cut after any row.

Parquet and .npy files cannot, so their rows wait as an Arrow stream and are turned into such a file at the end.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chordmixer import files

GROUP_BYTES = 32 << 20
"""About the size of a Parquet file's row groups, which a reader holds one at a time."""
PLACES = {"value": ".7g", "truth": ".7g"}
"""How a TSV has the numbers of a column; six digits behind the point elsewhere."""
FLOAT32 = ".9g"
"""Digits from which a float32 is read back exactly."""


class Format(Protocol):
    """How rows look in a file."""

    def head(self, schema: pa.Schema) -> bytes: ...

    def rows(self, batch: pa.RecordBatch) -> bytes: ...

    def finish(self, partial: Path, out: Path) -> None:
        """Put all rows in place."""
        ...


class Tsv:
    """A header, then a line a record; a vector has a column a number, the items of other lists are joined by `;`."""

    def head(self, schema: pa.Schema) -> bytes:
        return self._line([name for field in schema for name in _column_names(field)])

    def rows(self, batch: pa.RecordBatch) -> bytes:
        named = zip(batch.schema.names, batch.columns, strict=True)
        columns = [cells for name, column in named for cells in _cells(name, column)]
        return b"".join(self._line(cells) for cells in zip(*columns, strict=True))

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)

    def _line(self, cells: Sequence[str]) -> bytes:
        line = "\t".join(cells)
        if line.count("\t") >= len(cells) or "\n" in line or "\r" in line:
            bad = next(cell for cell in cells if {*cell} & {*"\t\r\n"})
            raise ValueError(f"{bad!r} holds a tab or a line break: a TSV cannot; write .jsonl or .parquet")
        return f"{line}\n".encode()


class Csv(Tsv):
    """The same with commas; a cell that holds a comma, a quote or a line break is quoted."""

    def _line(self, cells: Sequence[str]) -> bytes:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue().encode()


class Jsonl:
    """An object a line, with the same names and numbers as the TSV's columns."""

    def head(self, schema: pa.Schema) -> bytes:
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in batch.to_pylist())

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)


class _Arrow:
    """Rows as an Arrow stream, until all are there."""

    def head(self, schema: pa.Schema) -> bytes:
        message: bytes = schema.serialize().to_pybytes()
        return message

    def rows(self, batch: pa.RecordBatch) -> bytes:
        message: bytes = batch.serialize().to_pybytes()
        return message


class Parquet(_Arrow):
    """Row groups of about 32 MB, each page with a checksum."""

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


class Npy(_Arrow):
    """The vectors of the last column as one array, (records, numbers), for `numpy.load`; ids in a file beside it."""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        bad = next((id for id in batch.column("id").to_pylist() if id.splitlines() != [id]), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is an id with a line break: a list of ids cannot; write .parquet")
        return super().rows(batch)

    def finish(self, partial: Path, out: Path) -> None:
        temporary = out.with_name(files.TEMPORARY + out.name)
        with pa.memory_map(str(partial)) as source:
            ids = [id for batch in pa.ipc.open_stream(source) for id in batch.column("id").to_pylist()]
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            shape = (len(ids), stream.schema[-1].type.list_size)
            with temporary.open("wb") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for batch in stream:
                    file.write(_matrix(batch.columns[-1]).astype("<f4").tobytes())
        files.flush(temporary)
        files.write_text(files_of(out)[1], "".join(f"{id}\n" for id in ids))
        temporary.replace(out)
        partial.unlink()


FORMATS: dict[str, type[Format]] = {".tsv": Tsv, ".csv": Csv, ".jsonl": Jsonl, ".parquet": Parquet, ".npy": Npy}


def files_of(out: Path) -> list[Path]:
    """All files of an output.

    >>> [path.name for path in files_of(Path("vectors.npy"))]
    ['vectors.npy', 'vectors.ids.txt']
    """
    return [out, out.with_suffix(".ids.txt")] if out.suffix == ".npy" else [out]


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


def _column_names(field: pa.Field) -> list[str]:
    if not pa.types.is_fixed_size_list(field.type):
        return [field.name]
    return [f"{field.name}_{number}" for number in range(field.type.list_size)]


def _cells(name: str, column: pa.Array) -> Iterator[list[str]]:
    """The text of each of its columns."""
    if pa.types.is_fixed_size_list(column.type):
        yield from ([format(value, FLOAT32) for value in own] for own in _matrix(column).T.tolist())
    else:
        yield [_cell(value, PLACES.get(name, ".6f")) for value in column.to_pylist()]


def _matrix(vectors: pa.Array) -> np.ndarray:
    """Shape (records, numbers)."""
    return vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), vectors.type.list_size)


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
