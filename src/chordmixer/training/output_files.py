"""Resumable writers of rows: TSV, CSV, JSON Lines, Parquet or .npy.

Rows are appended to `OUT.partial`. About once a second `OUT.journal` records how many windows of the input have rows
there, and the length of these rows in bytes. A resumed run cuts off any bytes after that. The last step is a rename
to OUT. Parquet and .npy files cannot be appended to: their rows are stored as an Arrow stream, converted at the end.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import lock_descriptor

from chordmixer import files
from chordmixer.config import check_numbers, from_dict
from chordmixer.data.columns import format_number
from chordmixer.terminal import printable
from chordmixer.training import ranks, speed
from chordmixer.training.inference import Item, batched

SECONDS = 1.0
"""Seconds between writes of the journal: the work, in addition to a window, that an interruption may lose."""
NOT_OPTIONS = ("version", "run", "reading", "columns")
"""Settings on which rows depend that are not command-line options."""
GROUP_BYTES = 32 << 20
"""Approximate size of the row groups of a Parquet file; readers load one at a time."""
EXACT_COLUMNS = {"value", "truth"}
"""Columns whose numbers a TSV has with all digits; other columns have six decimals."""
FLOAT32_FORMAT = ".9g"
"""Number format from which a float32 is read back exactly."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet takes for a formula."""


# --- Formats ---


class Format(Protocol):
    """A file format for rows."""

    def head(self, schema: pa.Schema) -> bytes: ...

    def rows(self, batch: pa.RecordBatch) -> bytes: ...

    def finish(self, partial: Path, out: Path) -> None:
        """Convert or move the complete partial file to `out`."""
        ...


class Tsv:
    """A header, then one line per record; a vector has a column per number, other lists are joined by `;`.

    With `safe_cells`, text that a spreadsheet would run as a formula is preceded by an apostrophe.
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
        """The cells of each TSV column for one Arrow column."""
        if pa.types.is_fixed_size_list(column.type):
            yield from ([format(value, FLOAT32_FORMAT) for value in values] for values in _matrix(column).T.tolist())
        else:
            yield [self._cell(value, name in EXACT_COLUMNS) for value in column.to_pylist()]

    def _cell(self, value: Any, exact: bool) -> str:
        if isinstance(value, float):
            return format_number(value) if exact else f"{value:.6f}"
        if isinstance(value, list):
            value = ";".join(value)
        return self._text(value) if isinstance(value, str) else str(value)

    def _text(self, text: str) -> str:
        return f"'{text}" if self.safe_cells and text.startswith(FORMULA_STARTS) else text

    def _line(self, cells: Sequence[str]) -> bytes:
        line = "\t".join(cells)
        if line.count("\t") >= len(cells) or "\n" in line or "\r" in line:
            bad = next(cell for cell in cells if {*cell} & {*"\t\r\n"})
            raise ValueError(f"{bad!r} holds a tab or a line break: a TSV cannot; write .jsonl or .parquet")
        return f"{line}\n".encode()


class Csv(Tsv):
    """Like TSV, but with commas; cells with a comma, a quote or a line break are quoted."""

    def _line(self, cells: Sequence[str]) -> bytes:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        return line.getvalue().encode()


class Jsonl:
    """One object per line, with the names and values of the schema's columns."""

    def head(self, schema: pa.Schema) -> bytes:
        return b""

    def rows(self, batch: pa.RecordBatch) -> bytes:
        rows = (json.dumps(files.finite(row), ensure_ascii=False) for row in batch.to_pylist())
        return b"".join(row.encode() + b"\n" for row in rows)

    def finish(self, partial: Path, out: Path) -> None:
        partial.replace(out)


class _Arrow:
    """Base of formats whose rows are stored as an Arrow stream until all are written."""

    def head(self, schema: pa.Schema) -> bytes:
        return bytes(schema.serialize().to_pybytes())

    def rows(self, batch: pa.RecordBatch) -> bytes:
        return bytes(batch.serialize().to_pybytes())


class Parquet(_Arrow):
    """Row groups of about 32 MB, each page with a checksum."""

    def finish(self, partial: Path, out: Path) -> None:
        with files.replacing(out, sweeping=True) as file, pa.memory_map(str(partial)) as source:
            stream = pa.ipc.open_stream(source)
            with pq.ParquetWriter(file, stream.schema, write_page_checksum=True) as writer:
                for group in batched(stream, lambda batch: int(batch.nbytes), GROUP_BYTES):
                    writer.write_table(pa.Table.from_batches(group), row_group_size=2**31 - 1)
        partial.unlink()


class Npy(_Arrow):
    """The vectors of the last column as an array, (records, numbers), for `numpy.load`; ids in a second file."""

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
FORMATS: dict[str, Callable[[], Format]] = {".jsonl": Jsonl, ".parquet": Parquet, ".npy": Npy}


def files_of(out: Path) -> list[Path]:
    """The paths of all files of an output.

    >>> [path.name for path in files_of(Path("vectors.npy"))]
    ['vectors.npy', 'vectors.ids.txt']
    """
    return [out, out.with_suffix(".ids.txt")] if out.suffix == ".npy" else [out]


def batch_of(schema: pa.Schema, columns: Sequence[Any]) -> pa.RecordBatch:
    """A record batch from columns, each a list or an Arrow array, in the order of the schema."""
    try:
        return pa.record_batch(list(columns), schema=schema)
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object!a} is an id that is not Unicode: rename that record") from None


def _column_names(field: pa.Field) -> list[str]:
    if not pa.types.is_fixed_size_list(field.type):
        return [field.name]
    return [f"{field.name}_{number}" for number in range(field.type.list_size)]


def _matrix(vectors: pa.Array) -> np.ndarray:
    """Vectors as an array of shape (records, numbers)."""
    return np.asarray(vectors.flatten().to_numpy(zero_copy_only=False)).reshape(len(vectors), vectors.type.list_size)


# --- Writing ---


class Sink(Protocol):
    """Destination for rows, which are written one window of the input at a time."""

    done: int
    """Number of input windows whose rows an interrupted run has already written."""

    def has(self, window: Sequence[Item]) -> bool:
        """Whether the rows of this window, the next one of the input, are already written."""
        ...

    def write(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def open_output(
    out: Path | str, schema: pa.Schema, settings: dict[str, Any], *, resume: bool = False, force: bool = False
) -> Iterator[Sink]:
    """Open an output, which is completed when the block ends without error; its rows depend on `settings` alone."""
    if str(out) == "-":
        yield StandardOutput(schema, bool(settings.get("safe_cells")))
        return
    with PartialFile(Path(out), schema, settings, resume, force) as partial:
        yield partial
        partial.finish()


@contextmanager
def open_shared_output(
    out: Path | str, schema: pa.Schema, settings: dict[str, Any], *, resume: bool = False, force: bool = False
) -> Iterator[Sink]:
    """Open an output for several ranks: the main rank writes, the others only know what is already written."""
    with ExitStack() as stack:
        sinks: list[Sink] = []

        def open_on_main() -> int:
            sinks.append(stack.enter_context(open_output(out, schema, settings, resume=resume, force=force)))
            return sinks[0].done

        done = ranks.from_main_rank(open_on_main)
        yield sinks[0] if sinks else AbsentOutput(done)


def check_output(
    out: Path | str,
    inputs: Sequence[Path | str],
    endings: Sequence[str],
    *,
    resume: bool = False,
    force: bool = False,
    safe_cells: bool = False,
) -> bool:
    """Refuse early an output that cannot be written; False: it is complete, and `resume` has nothing to do."""
    if safe_cells and str(out) != "-" and Path(out).suffix not in TABLES:
        raise ValueError(
            f"--safe-cells is for tables that a spreadsheet opens, and {out} is none: name a .tsv or .csv file"
        )
    if resume and force:
        raise ValueError("--resume goes on and --force starts again: give one of them")
    if str(out) == "-":
        if "-" not in endings:
            raise ValueError(f"standard output cannot take {endings[0]}: name a file with -o NAME{endings[0]}")
        if resume:
            raise ValueError("standard output cannot be resumed: name a file with -o")
        return True
    path = Path(out)
    if path.suffix not in endings:
        known = ", ".join(ending for ending in endings if ending != "-")
        raise ValueError(f"{out} ends in {path.suffix!r}: rows are written as {known}; name it so")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.absolute().parent} is not a folder: make it, or give another name with -o")
    if path.exists() and any(str(name) != "-" and path.samefile(name) for name in inputs if Path(name).exists()):
        raise ValueError(f"{out} is also an input: give the output another name with -o")
    partial = _with_ending(path, ".partial")
    if path.exists() and resume and not partial.exists():
        _with_ending(path, ".journal").unlink(missing_ok=True)  # left by a kill between the last two steps
        return False
    existing = next((file for file in files_of(path) if file.exists()), None)
    if existing is not None and not (force or resume):
        raise ValueError(f"{existing} is there already: give another name with -o, or replace it with --force")
    if partial.exists() and not (force or resume):
        raise ValueError(
            f"{partial} was left by an interrupted run: go on with --resume, or start again with --force"
        )
    return True


class AbsentOutput:
    """The sink of a rank that does not write: it only knows which windows are already written."""

    def __init__(self, done: int) -> None:
        self.done, self.windows = done, 0

    def has(self, window: Sequence[Item]) -> bool:
        self.windows += 1
        return self.windows <= self.done

    def write(self, batch: pa.RecordBatch) -> None:
        raise AssertionError("the main rank writes")


class StandardOutput:
    """Standard output as TSV; control characters are escaped if it is a terminal."""

    done = 0

    def __init__(self, schema: pa.Schema, safe_cells: bool = False) -> None:
        self.format, self.terminal = Tsv(safe_cells), sys.stdout.isatty()
        self._write(self.format.head(schema))

    def has(self, window: Sequence[Item]) -> bool:
        return False

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(self.format.rows(batch))

    def _write(self, data: bytes) -> None:
        data = printable(data.decode()).encode() if self.terminal else data
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at exit
            raise ValueError("whoever read standard output has closed it: not all rows were written") from None


@dataclass(frozen=True)
class _Journal:
    """The content of OUT.journal."""

    settings: dict[str, Any]
    windows: int
    """Number of input windows whose rows are written."""
    bytes: int
    """Length of these rows in the partial file."""
    input: str
    """Hash of these windows."""
    threads: int = 0
    """Number of torch threads, on which the last bits of outputs depend; 0 if unknown."""

    def __post_init__(self) -> None:
        check_numbers(self)


class PartialFile:
    """A resumable output file, locked against other processes while it is written."""

    def __init__(self, out: Path, schema: pa.Schema, settings: dict[str, Any], resume: bool, force: bool) -> None:
        self.out, self.partial, self.journal = out, _with_ending(out, ".partial"), _with_ending(out, ".journal")
        table = TABLES.get(out.suffix)
        self.format: Format = table(bool(settings.get("safe_cells"))) if table else FORMATS[out.suffix]()
        self.schema, self.settings = schema, settings
        self.fresh = force or not (resume and self.partial.exists() and self.journal.exists())
        self.hash = hashlib.blake2b(digest_size=16)
        self.windows = self.done = 0
        self.digest = ""

    def __enter__(self) -> Self:
        with self._explaining():
            self.file: BinaryIO = files.open_own(self.partial, os.O_APPEND)
        try:
            with self._explaining():
                self._lock()
                self._start() if self.fresh else self._resume()
        except BaseException:
            self.file.close()
            raise
        self.saved = time.monotonic()
        return self

    def _lock(self) -> None:
        if not lock_descriptor(self.file.fileno(), blocking=False):
            raise ValueError(
                f"{self.partial} is being written by another process: wait for it, or give another name with -o"
            )

    def _start(self) -> None:
        self.journal.unlink(missing_ok=True)
        self.file.truncate(0)
        self.file.write(self.format.head(self.schema))

    def _resume(self) -> None:
        try:
            journal = from_dict(_Journal, files.read_json(self.journal), self.journal.name)
        except ValueError:
            raise ValueError(f"{self.journal} is damaged: start again with --force") from None
        speed.restore_threads(journal.threads)
        self.done, self.digest = journal.windows, journal.input
        changed = next((key for key, value in self.settings.items() if journal.settings.get(key) != value), None)
        if changed is not None:
            name = changed if changed in NOT_OPTIONS else f"--{changed.replace('_', '-')}"
            raise ValueError(
                f"{self.partial} was begun with another {name}: resume with the same, or start again with --force"
            )
        if journal.bytes > self.partial.stat().st_size:
            raise ValueError(f"{self.partial} is shorter than its journal says: start again with --force")
        self.file.truncate(journal.bytes)
        self.file.seek(journal.bytes)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # the disk may be full
            self.file.close()
        if kind is not None and not self.journal.exists():  # nothing worth resuming
            self.partial.unlink(missing_ok=True)

    def has(self, window: Sequence[Item]) -> bool:
        for entry, tokens in window:
            self.hash.update(f"{entry.id}\0{len(tokens)}\0".encode(errors="surrogatepass"))
            self.hash.update(tokens.tobytes())
        self.windows += 1
        if self.windows == self.done and self.hash.hexdigest() != self.digest:
            self._refuse()
        return self.windows <= self.done

    def write(self, batch: pa.RecordBatch) -> None:
        data = self.format.rows(batch)
        with self._explaining():
            self.file.write(data)
        if time.monotonic() - self.saved >= SECONDS:
            self._save()

    def finish(self) -> None:
        """Put the complete file in place, then remove the journal."""
        if self.windows < self.done:
            self._refuse()
        with self._explaining():
            self._sync()
            self.format.finish(self.partial, self.out)
            files.flush(self.out.absolute().parent)
            self.journal.unlink(missing_ok=True)

    def _save(self) -> None:
        """Write the rows to disk, then the journal that counts them."""
        with self._explaining():
            self._sync()
            state = {"windows": self.windows, "bytes": self.file.tell(), "input": self.hash.hexdigest()}
            state["threads"] = torch.get_num_threads()
            files.write_json(self.journal, {"settings": self.settings, **state})
        self.saved = time.monotonic()

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def _refuse(self) -> None:
        raise ValueError(
            f"the records are not those that {self.partial} was begun with: give the same files in the same order, "
            "or start again with --force"
        )

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"{self.out} cannot be written ({error.strerror}): make room or choose another place, then --resume"
            ) from error


def _with_ending(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)
