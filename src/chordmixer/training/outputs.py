"""Rows on their way out; a file that an interrupted run left is gone on with.

Rows are added to `OUT.partial`, and now and then `OUT.journal` says how many windows of the input they are for and
where they end. What stands behind that place is cut off when a run goes on. The last act is a rename to OUT.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import pyarrow as pa
import torch
from filelock import lock_descriptor

from chordmixer import files
from chordmixer.config import check_numbers, from_dict
from chordmixer.terminal import printable
from chordmixer.training import speed
from chordmixer.training.formats import TABLES, Tsv, files_of, format_of
from chordmixer.training.inference import Item

SECONDS = 1.0
"""Between two entries in the journal: the most work, beside a window, that a kill may cost."""

NOT_OPTIONS = ("version", "run", "reading", "columns")
"""Of the settings that rows depend on: all others are options of the command line."""


class Sink(Protocol):
    """Where rows go, a window of the input at a time."""

    def has(self, window: Sequence[Item]) -> bool:
        """Whether the rows of this window, the next one of the input, are there already."""
        ...

    def write(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def opened(
    out: Path | str,
    schema: pa.Schema,
    settings: dict[str, Any],
    *,
    resume: bool = False,
    force: bool = False,
) -> Iterator[Sink]:
    """The sink of an output, put in place when the block ends well; `settings` are all that its rows depend on."""
    if str(out) == "-":
        yield StandardOutput(schema, bool(settings.get("safe_cells")))
        return
    with Partial(Path(out), schema, settings, resume, force) as partial:
        yield partial
        partial.finish()


def check(out: Path | str, inputs: Sequence[Path | str], kinds: Sequence[str], resume: bool, force: bool) -> bool:
    """Refuse early what cannot be written; False: it is whole already, and nothing is left to resume."""
    if resume and force:
        raise ValueError("--resume goes on and --force starts again: give one of them")
    if str(out) == "-":
        if "-" not in kinds:
            raise ValueError(f"standard output cannot take {kinds[0]}: name a file with -o NAME{kinds[0]}")
        if resume:
            raise ValueError("standard output cannot be resumed: name a file with -o")
        return True
    path = Path(out)
    endings = [kind for kind in kinds if kind != "-"]
    if path.suffix not in endings:
        raise ValueError(f"{out} ends in {path.suffix!r}: rows are written as {', '.join(endings)}; name it so")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path.absolute().parent} is not a folder: make it, or give another name with -o")
    if path.exists() and any(str(given) != "-" and path.samefile(given) for given in inputs if Path(given).exists()):
        raise ValueError(f"{out} is also an input: give the output another name with -o")
    partial = _partial(path)
    if path.exists() and resume and not partial.exists():
        _journal(path).unlink(missing_ok=True)  # a kill between the last two acts leaves it
        return False
    there = next((made for made in files_of(path) if made.exists()), None)
    if there is not None and not (force or resume):
        raise ValueError(f"{there} is there already: give another name with -o, or replace it with --force")
    if partial.exists() and not (force or resume):
        raise ValueError(
            f"{partial} was left by an interrupted run: go on with --resume, or start again with --force"
        )
    return True


class StandardOutput:
    """Standard output, in TSV; on a terminal, not in a file or a pipe, control characters are escapes."""

    def __init__(self, schema: pa.Schema, safe_cells: bool = False) -> None:
        self.format, self.seen = Tsv(safe_cells), sys.stdout.isatty()
        self._write(self.format.head(schema))

    def has(self, window: Sequence[Item]) -> bool:
        return False

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(self.format.rows(batch))

    def _write(self, data: bytes) -> None:
        data = printable(data.decode()).encode() if self.seen else data
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at exit
            raise ValueError("whoever read standard output has closed it: not all rows were written") from None


def check_cells(out: Path | str, safe_cells: bool) -> None:
    """Refuse an option that would do nothing."""
    if safe_cells and str(out) != "-" and Path(out).suffix not in TABLES:
        raise ValueError(
            f"--safe-cells is for tables that a spreadsheet opens, and {out} is none: name a .tsv or .csv file"
        )


@dataclass(frozen=True)
class _Journal:
    """What OUT.journal says."""

    settings: dict[str, Any]
    windows: int
    """Of the input that rows are there for."""
    bytes: int
    """Where these end."""
    input: str
    """The hash of the windows."""
    threads: int = 0
    """That torch computed with; 0: not known."""

    def __post_init__(self) -> None:
        check_numbers(self)


class Partial:
    """A file in the making, locked against other processes."""

    def __init__(self, out: Path, schema: pa.Schema, settings: dict[str, Any], resume: bool, force: bool) -> None:
        self.out, self.partial, self.journal = out, _partial(out), _journal(out)
        self.format, self.schema = format_of(out.suffix, bool(settings.get("safe_cells"))), schema
        self.settings = settings
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
                self._start() if self.fresh else self._go_on()
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

    def _go_on(self) -> None:
        try:
            known = from_dict(_Journal, files.read_json(self.journal), self.journal.name)
        except ValueError:
            raise ValueError(f"{self.journal} is damaged: start again with --force") from None
        speed.restore_threads(known.threads)
        self.done, self.digest, end = known.windows, known.input, known.bytes
        odd = next((key for key, value in self.settings.items() if known.settings.get(key) != value), None)
        torn = end > self.partial.stat().st_size
        if odd is not None:
            what = odd if odd in NOT_OPTIONS else f"--{odd.replace('_', '-')}"
            raise ValueError(
                f"{self.partial} was begun with another {what}: resume with the same, or start again with --force"
            )
        if torn:
            raise ValueError(f"{self.partial} is shorter than its journal says: start again with --force")
        self.file.truncate(end)
        self.file.seek(end)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):  # rows that a full disk did not take
            self.file.close()
        if kind is not None and not self.journal.exists():  # nothing that would be worth going on with
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
        """All rows are there: put the file in place, then forget how it came about."""
        if self.windows < self.done:
            self._refuse()
        with self._explaining():
            self.file.flush()
            os.fsync(self.file.fileno())
            self.format.finish(self.partial, self.out)
            files.flush(self.out.absolute().parent)
            self.journal.unlink(missing_ok=True)

    def _save(self) -> None:
        """First the rows, then the word that they are there."""
        with self._explaining():
            self.file.flush()
            os.fsync(self.file.fileno())
            state = {"windows": self.windows, "bytes": self.file.tell(), "input": self.hash.hexdigest()}
            state["threads"] = torch.get_num_threads()  # last bits depend on it
            files.write_json(self.journal, {"settings": self.settings, **state})
        self.saved = time.monotonic()

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


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _journal(out: Path) -> Path:
    return out.with_name(out.name + ".journal")
