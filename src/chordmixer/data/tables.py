"""Read tables with one record per row: CSV, TSV, JSON Lines and Parquet, in pieces.

CSV is parsed by Python's `csv`: a field may be as long as a chromosome and contain line breaks, which block-wise
parsers cut or refuse. Sequence cells of a CSV file that are all lists of numbers are series.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chordmixer.data.columns import Columns, find_columns, has_known_name, hold_series, parse_row, row_entry
from chordmixer.data.entries import Entry
from chordmixer.data.sources import HEAD, open_source, until_broken

if TYPE_CHECKING:
    from pyarrow import Array
    from pyarrow.parquet import ParquetFile

    from chordmixer.data.sources import Source

PARQUET = b"PAR1"
DELIMITERS = "\t,;"
LONGEST_FIELD = 2**31 - 1
"""The largest field size limit that the CSV parser accepts on every platform."""
PIECE = 16 * 2**20
"""Approximate bytes of a Parquet file that are decoded at a time, at least a page."""
BUFFER = 2**20


class Row(NamedTuple):
    """One row of a table."""

    number: int
    """The row number from 1, without the header."""
    values: dict[str, Any]
    """The value of each role that the table has a column for."""


class Table(NamedTuple):
    """An open CSV, TSV or Parquet file."""

    names: list[str]
    """Column names."""
    rows: Callable[[Sequence[str]], Iterator[dict[str, Any]]]
    """Iterate over the rows as dictionaries of the named columns."""


def read_table(source: Source, columns: Columns, kind: str) -> Iterator[Entry]:
    """Read the records of a table, one per row; `kind` is `csv`, `jsonl` or `parquet`. Parquet lists are series."""
    return (row_entry(source.name, *row) for row in _ROWS[kind](source, columns))


def table_rows(path: Path | str, columns: Columns, limit: int | None = None) -> Iterator[Row]:
    """Read the rows of a table; its format is detected from its content."""
    with open_source(path, limit) as source:
        yield from until_broken(source, _ROWS[_kind(source)](source, columns), "row")


@contextmanager
def open_table(path: Path | str) -> Iterator[Table]:
    """Open a CSV, TSV or Parquet file, for callers that choose columns by name."""
    with open_source(path) as source:
        table = _parquet(source) if _kind(source) == "parquet" else _csv(source)
        yield Table(table.names, lambda names: until_broken(source, table.rows(names), "row"))


def _kind(source: Source) -> str:
    if source.head.startswith(PARQUET):
        return "parquet"
    return "jsonl" if source.head.lstrip().startswith(b"{") else "csv"


def delimiter(line: str) -> str | None:
    """The delimiter that splits a header into the most columns; None if there is one column.

    >>> delimiter("id;text, raw;label"), delimiter("text")
    (';', None)
    """
    counts = {mark: len(next(csv.reader([line], delimiter=mark), [])) for mark in DELIMITERS}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] > 1 else None


# --- CSV ---


def _csv(source: Source) -> Table:
    csv.field_size_limit(LONGEST_FIELD)  # a global setting: the parser has no other
    lines = _lines(source, newline="")
    head = next((line for line in lines if line.strip()), None)
    if head is None:
        raise ValueError(f"{source.name} is empty: give a table with a header")
    parser = csv.reader(chain([head], lines), delimiter=delimiter(head) or ",", strict=True)

    def parsed() -> Iterator[list[str]]:
        try:
            yield from filter(None, parser)  # without blank rows
        except csv.Error as error:
            raise ValueError(
                f"{source.name}, line {parser.line_num} cannot be parsed ({error}): quote the field well"
            ) from None

    records = parsed()
    header = next(records)

    def rows(names: Sequence[str]) -> Iterator[dict[str, Any]]:
        places = {name: header.index(name) for name in names}
        number = 0
        for number, fields in enumerate(records, start=1):
            if len(fields) != len(header):
                raise ValueError(
                    f"{source.name}, row {number} (before line {parser.line_num + 1}) has {len(fields)} fields and "
                    f"the header {len(header)}: they must agree; quote fields that hold the delimiter"
                )
            yield {name: fields[place] for name, place in places.items()}
        if not number:
            raise ValueError(f"{source.name} has a header and no rows: give a table with records")

    return Table(header, rows)


def _csv_rows(source: Source, columns: Columns) -> Iterator[Row]:
    """The rows of a CSV file; cells in the first 64 KB decide whether sequences are series of numbers."""
    table = _csv(source)
    try:
        by_role = find_columns(columns, table.names, source.name)
    except ValueError as error:
        if has_known_name(columns, table.names):
            raise
        hint = "if its first row is a record, add a header row, such as id,sequence,label"
        raise ValueError(f"{error}; {hint}") from None
    column = by_role.get("sequence")
    numeric = column is not None and hold_series(_first_cells(source, table.names.index(column)))
    return _rows(table, by_role, source.name, numeric)


def _rows(table: Table, by_role: Mapping[str, str], name: str, numeric: bool = False) -> Iterator[Row]:
    for number, row in enumerate(table.rows(list(dict.fromkeys(by_role.values()))), start=1):
        yield Row(number, parse_row(row, by_role, f"{name}, row {number}", numeric))


def _first_cells(source: Source, column: int) -> list[str]:
    """The cells of a column in the complete rows of the head; if it has none, the complete words of the first row."""
    text = source.head.decode(errors="replace")
    mark = delimiter(next(line for line in text.splitlines() if line.strip())) or ","
    lines = io.StringIO(text, newline="")
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(row for row in csv.reader(lines, delimiter=mark) if row)
    cells = [row[column] for row in rows[1:] if len(row) > column]
    if len(source.head) < HEAD or not cells:
        return cells
    return cells[:-1] or [re.sub(r"[\[\]]", " ", cells[0]).rstrip("+-.eE0123456789")]


def _lines(source: Source, newline: str | None) -> Iterator[str]:
    """Lines of text, checked for NUL and invalid UTF-8, so that errors have the line's number."""
    text = io.TextIOWrapper(source.stream, encoding="utf-8", errors="surrogateescape", newline=newline)
    for number, line in enumerate(text, start=1):
        if "\0" in line:
            raise ValueError(f"{source.name}, line {number} holds a NUL byte: a table is UTF-8 text; save it as that")
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:
                byte = ord(line[error.start]) - 0xDC00
                raise ValueError(
                    f"{source.name}, line {number}: byte 0x{byte:02x} after {error.start} characters is not UTF-8: "
                    "save the file as UTF-8"
                ) from None
        yield line


# --- JSON Lines ---


def _jsonl_rows(source: Source, columns: Columns) -> Iterator[Row]:
    """The rows of a JSON Lines file; keys that a row leaves out are missing values."""
    layouts: dict[tuple[str, ...], dict[str, str]] = {}
    number = 0
    for line_number, line in enumerate(_lines(source, newline=None), start=1):
        if not line.strip():
            continue
        number += 1
        row = _object(line, f"{source.name}, line {line_number}")
        place, names = f"{source.name}, row {number}", tuple(row)
        if names not in layouts:
            layouts[names] = find_columns(columns, names, place, partial=True)
        yield Row(number, parse_row(row, layouts[names], place))
    if not number:
        raise ValueError(f"{source.name} is empty: give a file with one JSON object a line")
    find_columns(columns, list(dict.fromkeys(chain(*layouts))), source.name)  # the user's columns must be in some row


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(f"{place} is not JSON ({reason}): write one whole object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"{place} is {type(row).__name__}, not an object: write one object a line")
    return row


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return result


# --- Parquet ---


def _parquet(source: Source) -> Table:
    """Open a Parquet file, which must be seekable; pages with a checksum are verified."""
    from pyarrow import parquet

    path = Path(source.name)
    if not path.is_file() or np.fromfile(path, np.uint8, len(PARQUET)).tobytes() != source.head[: len(PARQUET)]:
        raise ValueError(f"{path} is Parquet in a stream or compressed: it is read from a plain file; save it as one")
    with _explaining(path):
        file = parquet.ParquetFile(path, page_checksum_verification=True, pre_buffer=False, buffer_size=BUFFER)
        names = file.schema_arrow.names

    def rows(chosen: Sequence[str]) -> Iterator[dict[str, Any]]:
        empty = True
        for piece in _pieces(file, path, list(chosen)):
            for fields in zip(*piece.values(), strict=True):
                empty = False
                yield dict(zip(piece, fields, strict=True))
        if empty:
            raise ValueError(f"{path} has no rows: give a table with records")

    return Table(names, rows)


def _parquet_rows(source: Source, columns: Columns) -> Iterator[Row]:
    table = _parquet(source)
    return _rows(table, find_columns(columns, table.names, source.name), source.name)


_ROWS: dict[str, Callable[[Source, Columns], Iterator[Row]]] = {
    "csv": _csv_rows,
    "jsonl": _jsonl_rows,
    "parquet": _parquet_rows,
}


def _pieces(file: ParquetFile, path: Path | str, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """The values of these columns, a few rows at a time, as Python objects."""
    with _explaining(path):
        metadata, claimed = file.metadata, file.metadata.num_rows
        size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        rows = min(max(PIECE * claimed // max(size, 1), 1), 4096)
        read = 0
        for batch in file.iter_batches(rows, columns=names, use_threads=False):
            batch.validate(full=True)  # offsets within bounds, text in UTF-8
            read += batch.num_rows
            yield {name: _python_values(batch.column(name)) for name in names}
        if read != claimed:
            raise ValueError(f"{read:,} rows where its footer says {claimed:,}")


def _python_values(column: Array) -> list[Any]:
    """The values of a column, lists of numbers as arrays, since they may be long."""
    from pyarrow import types

    depth, kind = 0, column.type
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        depth, kind = depth + 1, kind.value_type
    if depth not in (1, 2) or not (types.is_floating(kind) or types.is_integer(kind)):
        return list(column.to_pylist())
    array = _vector if depth == 1 else _matrix
    return [array(scalar.values) if scalar.is_valid else None for scalar in column]


def _vector(numbers: Array) -> Any:
    """An array of shape (N,); missing numbers become NaN."""
    return numbers.to_numpy(zero_copy_only=False)


def _matrix(steps: Array) -> Any:
    """An array of shape (N, channels), or lists if the steps differ in length."""
    from pyarrow import compute

    lengths = compute.list_value_length(steps)
    fewest, most = (bound.as_py() for bound in compute.min_max(lengths).values())
    if not most or fewest != most or lengths.null_count:
        return steps.to_pylist()
    return _vector(steps.flatten()).reshape(len(steps), most)


@contextmanager
def _explaining(path: Path | str) -> Iterator[None]:
    """Convert errors of the Parquet library about a damaged file into one line."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, OverflowError, MemoryError, TypeError, LookupError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{path} cannot be read as Parquet ({reason}): use another copy") from None
