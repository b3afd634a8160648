"""A data set as it is trained on: tokens end to end in a memory-mapped folder, which opens in milliseconds.

`tokens.bin` are the tokens of all records, `offsets.bin` where each starts (int64), `records.arrow` its id, label and
so on, `store.json` what all this is, `manifest.json` the SHA-256 of each.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files, terminal
from chordmixer.data.entries import Account
from chordmixer.data.tokenizers import tokenizer_from_json

FORMAT = 1
DATA = TOKENS, OFFSETS, RECORDS = "tokens.bin", "offsets.bin", "records.arrow"
ABOUT, PART = "store.json", "part.arrow"
NAMES = (*DATA, ABOUT, PART, files.MANIFEST)
"""Of the files that a store consists of, or did while it was written."""
KIND = "store-"
"""In the names of stores that are being written."""
WHOLE, BLOCK, SAMPLE = 64 << 20, 1 << 20, 64
"""Bytes up to which a file of a cached store is compared as a whole; of a larger one so many blocks are."""


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
        files.verify(folder, [ABOUT, *(DATA if verify else [])])
        try:
            for name in DATA:
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


# --- The cache ---


def place(cache: Path, key: str) -> Path:
    """Where the store of a key is kept; a key is a SHA-256, so that none leads out of the cache."""
    if not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key={key!r} is not the name of a store, 64 digits from 0 to f: leave it out")
    return cache / key


def cached_store(key: str, cache: Path, build: Callable[[Path], object]) -> Store:
    """The store of this key, opened where a whole one is there, else built; `build` is given the folder to write.

    One that was changed is built again, and a line says so; where that fails, it stays as it is. Two processes may
    build the same at once: one of them puts it in place, both use it.
    """
    folder = place(cache, key)
    if not folder.exists() and not folder.is_symlink():
        _build(folder, build)
        return Store.open(folder)
    try:
        return _verified(folder)
    except ValueError as error:
        _check_ours(folder)
        terminal.tell(f"warning: {error}; doing so", stderr=True)
    with files.temporary_folder(cache, KIND) as aside:
        with suppress(OSError):  # another process was quicker
            folder.rename(aside / key)
        try:
            _build(folder, build)
        except BaseException:
            with suppress(OSError):
                (aside / key).rename(folder)
            raise
    return _verified(folder)


def _build(folder: Path, build: Callable[[Path], object]) -> None:
    try:
        build(folder)
    except ValueError:
        if not folder.exists():
            raise


def _check_ours(folder: Path) -> None:
    """Refuse to replace what is not a store of ours, whoever named it."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() and not folder.is_symlink() else {""}
    if not there <= {*NAMES} or not any(_marks(folder / name) for name in (ABOUT, files.MANIFEST)):
        raise ValueError(
            f"{folder} is not a store of chordmixer and stays as it is: move it, or give another --cache"
        )


def _marks(path: Path) -> bool:
    """Whether a store's own file is what we wrote, or nearly so."""
    with suppress(ValueError):
        return not {"tokenizer", TOKENS}.isdisjoint(files.read_json(path))
    return False


def _verified(folder: Path) -> Store:
    """Opened, once its bytes are those that were written: all of them, or `SAMPLE` blocks of a large file."""
    store = Store.open(folder)
    sums = files.read_json(folder / ABOUT).get("sums", {})
    for name in DATA:
        whole = _sampled(folder / name, sums[name]) if name in sums else files.matches(folder, name)
        if not whole:
            raise ValueError(f"{folder / name} was changed or damaged since it was written: make it anew")
    return store


def _sampled(path: Path, sums: Sequence[int]) -> bool:
    """Whether the first block, the last and some others, each time other ones, are what they were."""
    chosen = {0, len(sums) - 1, *random.SystemRandom().sample(range(len(sums)), min(SAMPLE, len(sums)))}
    with path.open("rb") as file:
        for number in sorted(chosen):
            file.seek(number * BLOCK)
            if zlib.crc32(file.read(BLOCK)) != sums[number]:
                return False
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _account(given: Mapping[str, Any]) -> Account:
    return Account(
        given["read"], given["used"], Counter(given["rejected"]), dict(given["examples"]), Counter(given["notes"])
    )
