"""A tokenized data set on disk: a folder of memory-mapped files, which opens in milliseconds.

`tokens.bin` has the tokens of all records, `offsets.bin` the start of each (int64), `records.arrow` ids, labels and
so on, `store.json` the description, `manifest.json` the SHA-256 of each file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files
from chordmixer.data.entries import Account, Entry
from chordmixer.data.tokenizers import Tokenizer, tokenizer_from_json

FORMAT = 1
DATA = TOKENS, OFFSETS, RECORDS = "tokens.bin", "offsets.bin", "records.arrow"
ABOUT, PART = "store.json", "part.arrow"
FILE_NAMES = (*DATA, ABOUT, PART, files.MANIFEST)
"""Names of all files of a complete or incomplete store."""
PREFIX = "store-"
"""Prefix of the temporary folders of stores that are being written."""
WHOLE_FILE, BLOCK, CHECKED_BLOCKS = 64 << 20, 1 << 20, 64
"""Bytes up to which a file of a cached store is verified as a whole; size and number of blocks for larger files."""


class Store:
    """Tokens, lengths, ids and columns of a data set. Opened read-only; pickled as its path."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Called by `Store.open`, which has checked the folder against its description, `about`."""
        self.folder = folder
        self.tokenizer = tokenizer_from_json(about["tokenizer"], f"{folder / ABOUT}: tokenizer")
        read, used, rejected, examples, notes = (about["account"][field.name] for field in fields(Account))
        self.account = Account(read, used, Counter(rejected), dict(examples), Counter(notes))
        self.letters: Counter[str] = Counter(about["letters"])
        """Counts of each character in the files, before tokenization."""
        self.sources: list[str] = list(about["sources"])
        self.columns: tuple[str, ...] = tuple(about["columns"])
        """Those of the columns id, label, target, split, group, weight and circular that have values."""
        shape = (-1,) if about["channels"] is None else (-1, int(about["channels"]))
        self.values = np.asarray(np.memmap(folder / TOKENS, self.tokenizer.dtype, mode="r")).reshape(shape)
        """The tokens of all records, of shape (T,) or (T, channels); read-only."""
        self.offsets = np.asarray(np.memmap(folder / OFFSETS, np.int64, mode="r"))
        self.lengths = np.diff(self.offsets)
        self.most: int | None = None
        self.rows: pa.Table = pa.ipc.open_file(pa.memory_map(str(folder / RECORDS))).read_all()

    @classmethod
    def open(cls, folder: Path | str, verify: bool = False) -> Store:
        """Open a store that `write_store` wrote; `verify` reads all of it to compare the SHA-256 of each file."""
        folder = Path(folder).absolute()
        about = files.read_json(folder / ABOUT)
        if about.get("format") != FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')!r}: this version reads {FORMAT}; rebuild it")
        files.verify(folder, [ABOUT, *(DATA if verify else [])])
        try:
            for name in DATA:
                path = folder / name
                actual, size = path.stat().st_size if path.is_file() else 0, about["sizes"][name]
                if actual != size:
                    raise ValueError(f"{path} has {actual:,} bytes of {size:,}: the store is torn; rebuild it")
            store = cls(folder, about)
            store.rows.validate()
        except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{folder} cannot be opened ({reason}): rebuild it") from None
        ends = (store.offsets[0], store.offsets[-1], len(store.rows))
        if ends != (0, len(store.values), len(store)) or store.lengths.min() < 1:
            raise ValueError(f"{folder} contradicts itself about its {len(store):,} records: rebuild it")
        return store

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, index: int) -> ndarray:
        """The tokens of one record: a read-only view of the memory map."""
        start = self.offsets[index]
        view: ndarray = self.values[start : start + self.lengths[index]]
        return view

    def id(self, index: int) -> str:
        name: str = self.rows.column("id")[index].as_py()
        return name

    def column(self, name: str) -> ndarray:
        """The values of a column, one per record: strings or None, float64 with NaN for missing, or booleans."""
        if name not in self.columns:
            raise ValueError(f"{self.folder} has no {name}: it has {', '.join(self.columns)}; name one of these")
        values: ndarray = self.rows.column(name).to_numpy()
        return values

    def present_columns(self, *names: str) -> dict[str, ndarray]:
        """The values of those of the named columns that the store has."""
        return {name: self.column(name) for name in names if name in self.columns}

    def cut(self, most: int) -> Store:
        """A view in which records are cut after `most` tokens, with `lengths`, `tokens` and `account` to match."""
        view = Store.__new__(Store)
        longer = Counter({cut_note(most): int(np.count_nonzero(self.lengths > most))})
        account = replace(self.account, notes=self.account.notes + longer)
        vars(view).update(vars(self), most=most, lengths=np.minimum(self.lengths, most), account=account)
        return view

    def __reduce__(self) -> tuple[Callable[[Path, int | None], Store], tuple[Path, int | None]]:
        return _reopen, (self.folder, self.most)


def _reopen(folder: Path, most: int | None) -> Store:
    store = Store.open(folder)
    return store if most is None else store.cut(most)


def cut_note(most: int) -> str:
    """The note of the account about cut records."""
    return f"records cut at {most:,} tokens"


BYTES_AT_A_TIME = 1 << 20
RECORDS_AT_A_TIME = 1 << 16
_TEXT, _REAL = pa.string(), pa.float64()
COLUMNS = pa.schema(
    {"id": _TEXT, "label": _TEXT, "target": _REAL, "split": _TEXT, "group": _TEXT, "weight": _REAL}
    | {"circular": pa.bool_()}
)
DEFAULTS = {"weight": 1.0, "circular": False}
"""Default values of an entry's fields, other than None."""


def write_store(
    entries: Iterable[Entry],
    tokenizer: Tokenizer,
    folder: Path | str,
    account: Account,
    sources: Sequence[str] = (),
    on_bad: Literal["error", "reject"] = "error",
) -> Store:
    """Write all entries into a new folder and open it as a store. A bad entry is an error, or rejected by `on_bad`.

    >>> import tempfile
    >>> from chordmixer.data.alphabets import Dna
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = write_store([Entry("a", b"ACG", "x.fa, record 1")], Dna(), f"{folder}/store", Account())
    ...     store.tokens(0).tolist(), store.id(0), len(store)
    ([0, 1, 2], 'a', 1)
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise ValueError(f"{folder} is there already: a store is written once; remove it or choose another folder")
    with ExitStack() as stack:
        with _explaining(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            files.sweep(folder.parent, PREFIX)
            temporary = stack.enter_context(files.temporary_folder(folder.parent, PREFIX))
            writer = stack.enter_context(closing(_Writer(temporary, folder, tokenizer)))
        for entry in entries:
            try:
                tokens = tokenizer.encode(entry.sequence)
            except ValueError as error:
                if on_bad == "error":
                    raise ValueError(f"{entry.place} ({entry.id}): {error}") from None
                account.reject(entry.id, f"refused by the {tokenizer.name} tokenizer")
                continue
            if not len(tokens):
                raise ValueError(f"{entry.place} ({entry.id}) is empty: a record has a token or more; leave it out")
            account.use()
            writer.add(entry, tokens)
        if not writer.records:
            raise ValueError(f"no record is left of {account.read:,} read: nothing to store; see why in the account")
        writer.finish(account, sources)
    return Store.open(folder)


class _Writer:
    """Writes a store in a `temporary` folder, which is renamed to `folder` at the end."""

    def __init__(self, temporary: Path, folder: Path, tokenizer: Tokenizer) -> None:
        self.temporary, self.folder, self.tokenizer = temporary, folder, tokenizer
        self.entries: list[Entry] = []
        self.tokens: list[ndarray] = []
        self.pending_bytes = self.total = self.records = 0
        self.letters: Counter[str] = Counter()
        self.rows: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
        self.used_columns: set[str] = {"id"}
        self.files: dict[str, _HashedFile] = {}
        self._begin(TOKENS)
        self._begin(OFFSETS).write(np.zeros(1, dtype=np.int64))
        self.all_columns = pa.ipc.new_file(self._begin(PART), COLUMNS)

    def close(self) -> None:
        for file in self.files.values():
            with suppress(OSError):  # unwritten data remain only after another error
                file.file.close()

    def add(self, entry: Entry, tokens: ndarray) -> None:
        self.records += 1
        self.entries.append(entry)
        self.tokens.append(tokens)
        self.pending_bytes += tokens.nbytes
        if self.pending_bytes >= BYTES_AT_A_TIME or len(self.tokens) >= RECORDS_AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        """Write pending tokens and offsets. Ids and labels are collected for longer: Arrow needs large batches."""
        self.files[TOKENS].write(np.concatenate(self.tokens) if len(self.tokens) > 1 else self.tokens[0])
        ends = self.total + np.cumsum([len(tokens) for tokens in self.tokens], dtype=np.int64)
        self.files[OFFSETS].write(ends)
        self.total = int(ends[-1])
        self.letters += self.tokenizer.census([entry.sequence for entry in self.entries])
        for name, column in self.rows.items():
            column += map(attrgetter(name), self.entries)
        self.entries, self.tokens, self.pending_bytes = [], [], 0
        if len(self.rows["id"]) >= RECORDS_AT_A_TIME:
            self.flush_rows()

    def flush_rows(self) -> None:
        self.used_columns |= {
            name for name, column in self.rows.items() if column.count(DEFAULTS.get(name)) < len(column)
        }
        try:
            batch = pa.record_batch(self.rows, schema=COLUMNS)
        except UnicodeEncodeError as error:
            raise ValueError(f"{error.object!a} is an id or label that is not Unicode: fix that record") from None
        self.all_columns.write_batch(batch)
        self.rows = {name: [] for name in COLUMNS.names}

    def finish(self, account: Account, sources: Sequence[str]) -> None:
        """Write what is pending, the description and the manifest, and rename the folder, which makes it a store."""
        if self.tokens:
            self.flush()
        self.flush_rows()
        self._select_columns()
        account.notes.update(self.tokenizer.notes(self.letters))
        about = {
            "format": FORMAT,
            "records": self.records,
            "tokens": self.total,
            "dtype": self.tokenizer.dtype.name,
            "channels": self.tokenizer.size if self.tokenizer.dtype.kind == "f" else None,
            "tokenizer": self.tokenizer.to_json(),
            "columns": [name for name in COLUMNS.names if name in self.used_columns],
            "sizes": {name: file.size for name, file in self.files.items()},
            "sums": {name: file.sums for name, file in self.files.items() if file.size > WHOLE_FILE},
            "letters": dict(self.letters.most_common()),
            "account": vars(account),
            "sources": list(sources),
        }
        self._begin(ABOUT).write(json.dumps(about, indent=2).encode())
        digests = {name: file.hash.hexdigest() for name, file in self.files.items()}
        self._begin(files.MANIFEST).write(json.dumps(digests, indent=2).encode())
        with _explaining(self.folder):
            for file in self.files.values():
                file.finish()
            files.flush(self.temporary)
            try:
                self.temporary.rename(self.folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise ValueError(f"{self.folder} was made meanwhile by another process: that one stays") from None
            files.flush(self.folder.parent)

    def _select_columns(self) -> None:
        """Write `records.arrow` without empty columns, which are known only after all columns have been written."""
        self.all_columns.close()
        self.files[PART].finish()
        del self.files[PART]
        selected = self._begin(RECORDS)
        with pa.memory_map(str(self.temporary / PART)) as source:
            reader = pa.ipc.open_file(source)
            columns = [name for name in COLUMNS.names if name in self.used_columns]
            with pa.ipc.new_file(selected, pa.schema([COLUMNS.field(name) for name in columns])) as writer:
                for i in range(reader.num_record_batches):
                    writer.write_batch(reader.get_batch(i).select(columns))
        (self.temporary / PART).unlink()

    def _begin(self, name: str) -> _HashedFile:
        with _explaining(self.folder):
            self.files[name] = file = _HashedFile(self.temporary / name, self.folder)
        return file


class _HashedFile(io.RawIOBase):
    """A file that computes its size, SHA-256 and block checksums while it is written."""

    def __init__(self, path: Path, store: Path) -> None:
        self.file, self.store = path.open("xb"), store
        self.size = 0
        self.hash = hashlib.sha256()
        self.sums: list[int] = []
        """The CRC-32 of each block of `BLOCK` bytes."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        with _explaining(self.store, self.size), memoryview(data) as view:
            self.file.write(view)
            self.hash.update(view)
            self._add_sums(view.cast("B"))
            self.size += view.nbytes
            return view.nbytes

    def _add_sums(self, view: memoryview) -> None:
        start, end = self.size, self.size + len(view)
        while start < end:
            stop = min(end, start - start % BLOCK + BLOCK)
            part = view[start - self.size : stop - self.size]
            if start % BLOCK:
                self.sums[-1] = zlib.crc32(part, self.sums[-1])
            else:
                self.sums.append(zlib.crc32(part))
            start = stop

    def finish(self) -> None:
        """Flush the file to the disk and close it."""
        with _explaining(self.store, self.size):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()


def _explaining(folder: Path, written: int = 0) -> AbstractContextManager[None]:
    """Convert a full-disk error into one line with the bytes written so far; the total is not known in advance."""
    return files.explaining_no_room(folder, f"more than {written:,}", "")
