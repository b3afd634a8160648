"""How rows look in a file: TSV, CSV, JSON Lines, Parquet or .npy. Each can be added to, and cut after any row.

Parquet and .npy files cannot, so their rows wait as an Arrow stream and are turned into such a file at the end.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chordmixer import files
from chordmixer.data.columns import written

GROUP_BYTES = 32 << 20
"""About the size of a Parquet file's row groups, which a reader holds one at a time."""
EXACT = {"value", "truth"}
"""Columns whose numbers a TSV has with all their digits; six behind the point elsewhere."""
FLOAT32 = ".9g"
"""Digits from which a float32 is read back exactly."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet takes for a formula."""


class Format(Protocol):
    """How rows look in a file."""

    def head(self, schema: pa.Schema) -> bytes: ...

    def rows(self, batch: pa.RecordBatch) -> bytes: ...

    def finish(self, partial: Path, out: Path) -> None:
        """Put all rows in place."""
        ...


class Tsv:
    """A header, then a line a record; a vector has a column a number, the items of other lists are joined by `;`.

    With `safe_cells`, a text that a spreadsheet would run as a formula has an apostrophe before it.
    """

    def __init__(self, safe_cells: bool = False) -> None:
        self.safe_cells = safe_cells

    def head(self, schema: pa.Schema) -> bytes:
        return self._line([self._text(name) for field in schema for name in _column_names(field)])

    def rows(self, batch: pa.RecordBatch) -> bytes:
        named = zip(batch.schema.names, batch.columns, strict=True)
        columns = [cells for name, column in named for cells in self._cells(name, column)]
        return b"".join(self._line(cells) for cells in zip(*columns, strict=True))

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)

    def _cells(self, name: str, column: pa.Array) -> Iterator[list[str]]:
        """The text of each of its columns."""
        if pa.types.is_fixed_size_list(column.type):
            yield from ([format(value, FLOAT32) for value in own] for own in _matrix(column).T.tolist())
        else:
            yield [self._cell(value, name in EXACT) for value in column.to_pylist()]

    def _cell(self, value: Any, exact: bool) -> str:
        if isinstance(value, float):
            return written(value) if exact else f"{value:.6f}"
        if isinstance(value, list):
            value = ";".join(value)
        return self._text(value) if isinstance(value, str) else str(value)

    def _text(self, text: str) -> str:
        return f"'{text}" if self.safe_cells and text.startswith(FORMULAS) else text

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
        rows = (json.dumps(files.finite(row), ensure_ascii=False) for row in batch.to_pylist())
        return b"".join(row.encode() + b"\n" for row in rows)

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
        with files.replacing(out, sweeping=True) as file, pa.memory_map(str(partial)) as source:
            stream = pa.ipc.open_stream(source)
            with pq.ParquetWriter(file, stream.schema, write_page_checksum=True) as writer:
                for group in _groups(stream):
                    writer.write_table(pa.Table.from_batches(group), row_group_size=2**31 - 1)
        partial.unlink()


class Npy(_Arrow):
    """The vectors of the last column as one array, (records, numbers), for `numpy.load`; ids in a file beside it."""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        bad = next((id for id in batch.column("id").to_pylist() if id.splitlines() != [id]), None)
        if bad is not None:
            raise ValueError(f"{bad!r} is an id with a line break: a list of ids cannot; write .parquet")
        return super().rows(batch)

    def finish(self, partial: Path, out: Path) -> None:
        with pa.memory_map(str(partial)) as source, files.replacing(out, sweeping=True) as file:
            ids = [id for batch in pa.ipc.open_stream(source) for id in batch.column("id").to_pylist()]
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            shape = (len(ids), stream.schema[-1].type.list_size)
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for batch in stream:
                file.write(_matrix(batch.columns[-1]).astype("<f4").tobytes())
            files.write_text(files_of(out)[1], "".join(f"{id}\n" for id in ids))
        partial.unlink()


TABLES: dict[str, type[Tsv]] = {".tsv": Tsv, ".csv": Csv}
FORMATS: dict[str, Callable[[], Format]] = {**TABLES, ".jsonl": Jsonl, ".parquet": Parquet, ".npy": Npy}


def files_of(out: Path) -> list[Path]:
    """All files of an output.

    >>> [path.name for path in files_of(Path("vectors.npy"))]
    ['vectors.npy', 'vectors.ids.txt']
    """
    return [out, out.with_suffix(".ids.txt")] if out.suffix == ".npy" else [out]


def format_of(ending: str, safe_cells: bool) -> Format:
    """The format of files that end so; only tables of text have cells that a spreadsheet could run."""
    if ending in TABLES:
        return TABLES[ending](safe_cells)
    return FORMATS[ending]()


def batch_of(schema: pa.Schema, columns: Sequence[Any]) -> pa.RecordBatch:
    """Columns of plain lists or of Arrow arrays, in the schema's order."""
    try:
        return pa.record_batch(list(columns), schema=schema)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!a} is an id that is not Unicode: rename that record") from None


def _column_names(field: pa.Field) -> list[str]:
    if not pa.types.is_fixed_size_list(field.type):
        return [field.name]
    return [f"{field.name}_{number}" for number in range(field.type.list_size)]


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
