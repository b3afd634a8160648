"""Entries become a store: encoded as they come, hashed as they are written, put in place by one rename."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files
from chordmixer.data.encoding import Tokenizer
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import ABOUT, BLOCK, FORMAT, KIND, OFFSETS, PART, RECORDS, TOKENS, WHOLE, Store

BYTES_AT_A_TIME = 1 << 20
RECORDS_AT_A_TIME = 1 << 16
COLUMNS = pa.schema(
    {
        "id": pa.string(),
        "label": pa.string(),
        "target": pa.float64(),
        "split": pa.string(),
        "group": pa.string(),
        "weight": pa.float64(),
        "circular": pa.bool_(),
    }
)
NOTHING = {"weight": 1.0, "circular": False}
"""What an entry has where its file says nothing; None elsewhere."""


def write_store(
    entries: Iterable[Entry],
    tokenizer: Tokenizer,
    folder: Path | str,
    account: Account,
    *,
    sources: Sequence[str] = (),
    on_bad: Literal["error", "reject"] = "error",
) -> Store:
    """Write all entries into a new folder and open it; each is used, rejected by policy, or ends in an error.

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
    with _Writer(folder, tokenizer) as writer:
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
    """A store under a temporary name, which is locked, so that another writer knows that this one is alive."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.entries: list[Entry] = []
        self.tokens: list[ndarray] = []
        self.waiting = self.total = self.records = 0
        self.letters: Counter[str] = Counter()
        self.rows: dict[str, list[Any]] = {name: [] for name in COLUMNS.names}
        self.filled: set[str] = {"id"}
        self.files: dict[str, _Hashed] = {}

    def __enter__(self) -> Self:
        with _explaining(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            files.sweep(self.folder.parent, KIND)
            self.making, self.lock = files.new_folder(self.folder.parent, KIND)
        try:
            for name in (TOKENS, OFFSETS, PART):
                self._begin(name)
            self.files[OFFSETS].write(np.zeros(1, dtype=np.int64))
            self.part = pa.ipc.new_file(self.files[PART], COLUMNS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """What has not been put in place goes."""
        for file in self.files.values():
            file.close()
        shutil.rmtree(self.making, ignore_errors=True)
        os.close(self.lock)

    def add(self, entry: Entry, tokens: ndarray) -> None:
        self.records += 1
        self.entries.append(entry)
        self.tokens.append(tokens)
        self.waiting += tokens.nbytes
        if self.waiting >= BYTES_AT_A_TIME or len(self.tokens) >= RECORDS_AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        """Tokens and offsets to the disk; ids and labels wait for more, as an Arrow file wants large batches."""
        self.files[TOKENS].write(np.concatenate(self.tokens) if len(self.tokens) > 1 else self.tokens[0])
        ends = self.total + np.cumsum([len(tokens) for tokens in self.tokens], dtype=np.int64)
        self.files[OFFSETS].write(ends)
        self.total = int(ends[-1])
        self.letters += self.tokenizer.census([entry.sequence for entry in self.entries])
        for name, column in self.rows.items():
            column += map(attrgetter(name), self.entries)
        self.entries, self.tokens, self.waiting = [], [], 0
        if len(self.rows["id"]) >= RECORDS_AT_A_TIME:
            self.flush_rows()

    def flush_rows(self) -> None:
        self.filled |= {name for name, column in self.rows.items() if column.count(NOTHING.get(name)) < len(column)}
        try:
            batch = pa.record_batch(self.rows, schema=COLUMNS)
        except UnicodeEncodeError as error:
            raise ValueError(f"{error.object!a} is an id or label that is not Unicode: mend that record") from None
        self.part.write_batch(batch)
        self.rows = {name: [] for name in COLUMNS.names}

    def finish(self, account: Account, sources: Sequence[str]) -> None:
        """The rest, what all of it is, and the one rename that makes it a store."""
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
            "columns": [name for name in COLUMNS.names if name in self.filled],
            "sizes": {name: file.size for name, file in self.files.items()},
            "sums": {name: file.sums for name, file in self.files.items() if file.size > WHOLE},
            "letters": dict(self.letters.most_common()),
            "account": vars(account),
            "sources": list(sources),
        }
        self._begin(ABOUT).write(json.dumps(about, indent=2).encode())
        digests = {name: file.digest for name, file in self.files.items()}
        self._begin(files.MANIFEST).write(json.dumps(digests, indent=2).encode())
        with _explaining(self.folder):
            for file in self.files.values():
                file.finish()
            files.flush(self.making)
            try:
                self.making.rename(self.folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise ValueError(f"{self.folder} was made meanwhile by another process: that one stays") from None
            files.flush(self.folder.parent)

    def _select_columns(self) -> None:
        """Which columns stay empty is known at the end only, so they are written twice."""
        self.part.close()
        self.files.pop(PART).finish()
        selected = self._begin(RECORDS)
        with pa.memory_map(str(self.making / PART)) as source:
            reader = pa.ipc.open_file(source)
            kept = [name for name in COLUMNS.names if name in self.filled]
            schema = pa.schema([COLUMNS.field(name) for name in kept])
            with pa.ipc.new_file(selected, schema) as writer:
                for i in range(reader.num_record_batches):
                    writer.write_batch(reader.get_batch(i).select(kept))
        (self.making / PART).unlink()

    def _begin(self, name: str) -> _Hashed:
        with _explaining(self.folder):
            self.files[name] = _Hashed(self.making / name, self.folder)
        return self.files[name]


class _Hashed(io.RawIOBase):
    """A file that knows its size and SHA-256 when it has been written."""

    def __init__(self, path: Path, store: Path) -> None:
        self.file, self.store = path.open("xb"), store
        self.size = 0
        self.hash = hashlib.sha256()
        self.sums: list[int] = []
        """The CRC-32 of each block of `BLOCK` bytes."""

    @property
    def digest(self) -> str:
        return self.hash.hexdigest()

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
        """Onto the disk."""
        with _explaining(self.store, self.size):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()

    def close(self) -> None:
        with suppress(OSError):  # only reached with something unwritten when another error is on its way
            self.file.close()
        super().close()


def _explaining(folder: Path, written: int = 0) -> AbstractContextManager[None]:
    """A full disk as one line, with what was written so far: nobody knows how much is still to come."""
    return files.explaining_no_room(folder, f"more than {written:,}", "")
