"""Resumable files of rows: TSV, CSV, JSON Lines, Parquet or .npy.

Rows are appended to `OUT.partial`; about once a second `OUT.journal` records how many windows of the input they are
for and where they end. A resumed run cuts off what stands behind that place. The last step is a rename to OUT.
Parquet and .npy files cannot be appended to: their rows are kept as an Arrow stream and converted at the end.
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
"""Between two entries of the journal: the most work, beside a window, that a kill may cost."""
NOT_OPTIONS = ("version", "run", "reading", "columns")
"""Settings that rows depend on and that are not options of the command line."""
GROUP_BYTES = 32 << 20
"""Approximate size of a Parquet file's row groups, which a reader holds one at a time."""
EXACT = {"value", "truth"}
"""Columns whose numbers a TSV has with all their digits; elsewhere six decimals."""
FLOAT32 = ".9g"
"""Digits from which a float32 is read back exactly."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that a spreadsheet takes for a formula."""


# --- Formats ---


class Format(Protocol):
    """How rows look in a file."""

    def head(self, schema: pa.Schema) -> bytes: ...

    def rows(self, batch: pa.RecordBatch) -> bytes: ...

    def finish(self, partial: Path, out: Path) -> None:
        """Put all rows in place."""
        ...


class Tsv:
    """A header, then one line per record; a vector has a column per number, other lists are joined by `;`.

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
            return format_number(value) if exact else f"{value:.6f}"
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
    """One object per line, with the same names and numbers as the TSV's columns."""

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
FORMATS: dict[str, Callable[[], Format]] = {".jsonl": Jsonl, ".parquet": Parquet, ".npy": Npy}


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


def _column_names(field: pa.Field) -> list[str]:
    if not pa.types.is_fixed_size_list(field.type):
        return [field.name]
    return [f"{field.name}_{number}" for number in range(field.type.list_size)]


def _matrix(vectors: pa.Array) -> np.ndarray:
    """Shape (records, numbers)."""
    return np.asarray(vectors.flatten().to_numpy(zero_copy_only=False)).reshape(len(vectors), vectors.type.list_size)


# --- Writing ---


class Sink(Protocol):
    """Takes rows, one window of the input at a time."""

    done: int
    """Windows of the input whose rows were written before."""

    def has(self, window: Sequence[Item]) -> bool:
        """Whether the rows of this window, the next one of the input, are written already."""
        ...

    def write(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def open_output(
    out: Path | str, schema: pa.Schema, settings: dict[str, Any], *, resume: bool = False, force: bool = False
) -> Iterator[Sink]:
    """The sink of an output, put in place when the block ends well; `settings` are all that its rows depend on."""
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
    """The same for several ranks, of which the main one writes; the others are told what is written already."""
    with ExitStack() as stack:
        sinks: list[Sink] = []

        def opened() -> int:
            sinks.append(stack.enter_context(open_output(out, schema, settings, resume=resume, force=force)))
            return sinks[0].done

        done = ranks.from_main_rank(opened)
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
    """Refuse early what cannot be written; False: the output is complete already, and `resume` has nothing to do."""
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
    if path.exists() and any(str(given) != "-" and path.samefile(given) for given in inputs if Path(given).exists()):
        raise ValueError(f"{out} is also an input: give the output another name with -o")
    partial = _beside(path, ".partial")
    if path.exists() and resume and not partial.exists():
        _beside(path, ".journal").unlink(missing_ok=True)  # left by a kill between the last two steps
        return False
    existing = next((made for made in files_of(path) if made.exists()), None)
    if existing is not None and not (force or resume):
        raise ValueError(f"{existing} is there already: give another name with -o, or replace it with --force")
    if partial.exists() and not (force or resume):
        raise ValueError(
            f"{partial} was left by an interrupted run: go on with --resume, or start again with --force"
        )
    return True


class AbsentOutput:
    """What a rank that writes nothing knows of the output."""

    def __init__(self, done: int) -> None:
        self.done, self.windows = done, 0

    def has(self, window: Sequence[Item]) -> bool:
        self.windows += 1
        return self.windows <= self.done

    def write(self, batch: pa.RecordBatch) -> None:
        raise AssertionError("the main rank writes")


class StandardOutput:
    """Standard output, in TSV; on a terminal, not in a file or a pipe, control characters are escaped."""

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
    """Windows of the input whose rows are written."""
    bytes: int
    """Where these rows end."""
    input: str
    """The hash of the windows."""
    threads: int = 0
    """Threads of torch, on which the last bits depend; 0: unknown."""

    def __post_init__(self) -> None:
        check_numbers(self)


class PartialFile:
    """A file that is being written, locked against other processes."""

    def __init__(self, out: Path, schema: pa.Schema, settings: dict[str, Any], resume: bool, force: bool) -> None:
        self.out, self.partial, self.journal = out, _beside(out, ".partial"), _beside(out, ".journal")
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
            known = from_dict(_Journal, files.read_json(self.journal), self.journal.name)
        except ValueError:
            raise ValueError(f"{self.journal} is damaged: start again with --force") from None
        speed.restore_threads(known.threads)
        self.done, self.digest = known.windows, known.input
        changed = next((key for key, value in self.settings.items() if known.settings.get(key) != value), None)
        if changed is not None:
            what = changed if changed in NOT_OPTIONS else f"--{changed.replace('_', '-')}"
            raise ValueError(
                f"{self.partial} was begun with another {what}: resume with the same, or start again with --force"
            )
        if known.bytes > self.partial.stat().st_size:
            raise ValueError(f"{self.partial} is shorter than its journal says: start again with --force")
        self.file.truncate(known.bytes)
        self.file.seek(known.bytes)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # rows that a full disk did not take
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
        """First the rows, then the journal that names them."""
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


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(out.name + ending)
