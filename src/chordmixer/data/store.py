"""A data set as it is trained on: tokens end to end in a memory-mapped folder, which opens in milliseconds.

`tokens.bin` are the tokens of all records, `offsets.bin` where each starts (int64), `records.arrow` its id, label and
so on, `store.json` what all this is, `manifest.json` the SHA-256 of each.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files
from chordmixer.data.entries import Account
from chordmixer.data.tokenizers import tokenizer_from_json

FORMAT = 1
TOKENS, OFFSETS, RECORDS, ABOUT = "tokens.bin", "offsets.bin", "records.arrow", "store.json"


class Store:
    """Tokens, lengths, ids and columns of a data set; opened read-only, pickled as its path."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """For `Store.open`: the folder has been checked against what `store.json` says."""
        self.folder = folder
        self.tokenizer = tokenizer_from_json(about["tokenizer"], f"{folder / ABOUT}: tokenizer")
        self.account = _account(about["account"])
        self.letters: Counter[str] = Counter(about["letters"])
        """How often each character stands in the files, before any policy."""
        self.sources: list[str] = list(about["sources"])
        self.columns: tuple[str, ...] = tuple(about["columns"])
        """Of id, label, target, split, group, weight, circular, those in which something stands."""
        shape = (-1,) if about["channels"] is None else (-1, int(about["channels"]))
        self.values = np.asarray(np.memmap(folder / TOKENS, self.tokenizer.dtype, mode="r")).reshape(shape)
        """The tokens of all records, of shape (T,) or (T, channels); read-only."""
        self.offsets = np.asarray(np.memmap(folder / OFFSETS, np.int64, mode="r"))
        self.lengths = np.diff(self.offsets)
        self.rows: pa.Table = pa.ipc.open_file(pa.memory_map(str(folder / RECORDS))).read_all()

    @classmethod
    def open(cls, folder: Path | str, verify: bool = False) -> Store:
        """Open what `write_store` wrote; `verify` reads all of it to compare its SHA-256."""
        folder = Path(folder).absolute()
        about = files.read_json(folder / ABOUT)
        if about.get("format") != FORMAT:
            raise ValueError(
                f"{folder} is a store of format {about.get('format')!r}: this version reads {FORMAT}; make it anew"
            )
        files.verify(folder, [ABOUT, *([TOKENS, OFFSETS, RECORDS] if verify else [])])
        try:
            for name in (TOKENS, OFFSETS, RECORDS):
                found, size = _size(folder / name), about["sizes"][name]
                if found != size:
                    raise ValueError(
                        f"{folder / name} has {found:,} bytes of {size:,}: the store is torn; make it anew"
                    )
            store = cls(folder, about)
            store.rows.validate()
        except (pa.ArrowException, OSError, KeyError, TypeError, AttributeError, OverflowError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{folder} cannot be opened ({reason}): make it anew") from None
        ends = (store.offsets[0], store.offsets[-1], len(store.rows))
        if ends != (0, len(store.values), len(store)) or store.lengths.min() < 1:
            raise ValueError(f"{folder} contradicts itself about its {len(store):,} records: make it anew")
        return store

    def __len__(self) -> int:
        return len(self.lengths)

    def tokens(self, index: int) -> ndarray:
        """Of one record, not copied from the disk before they are used; read-only."""
        view: ndarray = self.values[self.offsets[index] : self.offsets[index + 1]]
        return view

    def id(self, index: int) -> str:
        name: str = self.rows.column("id")[index].as_py()
        return name

    def column(self, name: str) -> ndarray:
        """A value a record: strings or None, float64 with NaN for none, or truth values."""
        if name not in self.columns:
            raise ValueError(f"{self.folder} has no {name}: it has {', '.join(self.columns)}; name one of these")
        values: ndarray = self.rows.column(name).to_numpy()
        return values

    def __reduce__(self) -> tuple[Callable[[Path], Store], tuple[Path]]:
        return Store.open, (self.folder,)


def cached_store(key: str, cache: Path, build: Callable[[Path], object], say: Callable[[str], None]) -> Store:
    """The store of this key, opened where a whole one is there, else built; `build` is given the folder to write.

    Two processes may build the same at once: one of them puts it in place, both use it.
    """
    folder = cache / key
    if folder.exists():
        try:
            return Store.open(folder)
        except ValueError as error:
            say(f"{error}; doing so")
            aside = folder.with_name(f"{files.TEMPORARY}{time.time_ns()}-{key}")
            with suppress(OSError):  # another process was quicker
                folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    try:
        build(folder)
    except ValueError:
        if not folder.exists():
            raise
    return Store.open(folder)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _account(given: Mapping[str, Any]) -> Account:
    return Account(
        given["read"], given["used"], Counter(given["rejected"]), dict(given["examples"]), Counter(given["notes"])
    )
