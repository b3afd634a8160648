"""Read files of one record each, texts, `.npy` series and recordings: alone, in a folder, in one folder per class."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from chordmixer.data.columns import as_series
from chordmixer.data.entries import Account, Entry
from chordmixer.data.recordings import read_wave
from chordmixer.data.sources import Source, open_source


def read_record(source: Source, kind: str) -> Entry:
    """Read a file as one record: a `text`, or a series (`npy`, `wav`) of shape (N,) or (N, channels)."""
    return _entry(Path(source.name).name, source, kind)


def read_folder(folder: Path, kind: str, account: Account, limit: int | None = None) -> Iterator[Entry]:
    """Read a record from each file of a folder, or of its subfolders, whose names are then the labels."""
    for path, label in class_files(folder, account):
        name = path.relative_to(folder).as_posix()
        if kind == "text" and not path.stat().st_size:
            yield Entry(name, "", place=str(path), label=label)
        else:
            with open_source(path, limit) as source:
                yield _entry(name, source, kind, label)


def _entry(entry_id: str, source: Source, kind: str, label: str | None = None) -> Entry:
    if kind == "wav":
        samples, rate = read_wave(source)
        return Entry(entry_id, samples, place=source.name, label=label, rate=rate)
    return Entry(entry_id, _LOADERS[kind](source), place=source.name, label=label)


def class_files(folder: Path, account: Account) -> Iterator[tuple[Path, str | None]]:
    """The files in `folder/class/file` with their class, or in a flat `folder/file` with None, sorted by name.

    Hidden files are skipped and counted in the account's notes.
    """
    contents = _visible(folder, account)
    folders = [path for path in contents if path.is_dir()]
    if not folders:
        yield from ((path, None) for path in _checked_files(contents, folder))
        return
    if len(folders) < len(contents):
        stray = next(path for path in contents if not path.is_dir())
        raise ValueError(
            f"{folder} holds folders and also the file {stray.name!r}: it must hold files, or a folder for each "
            "class; move the file"
        )
    classes = {path.name: _checked_files(_visible(path, account), path) for path in folders}
    yield from ((path, name) for name, paths in classes.items() for path in paths)


def _visible(folder: Path, account: Account) -> list[Path]:
    """The visible contents of a folder, sorted by name."""
    try:
        contents = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise ValueError(f"{folder} cannot be listed: {error.strerror}; give a folder that can be read") from None
    visible = [path for path in contents if not path.name.startswith(".")]
    if len(visible) < len(contents):
        account.notes["hidden files left out"] += len(contents) - len(visible)
    for path in visible:
        try:
            path.name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{folder} holds the name {path.name!r}: names must be UTF-8; rename it") from None
    return visible


def _checked_files(paths: list[Path], folder: Path) -> list[Path]:
    """The paths, after checking that all are files."""
    if not paths:
        raise ValueError(f"{folder} holds no files: give a folder of files, or of a folder for each class")
    for path in paths:
        if path.is_dir():
            raise ValueError(
                f"{path} is a folder in the folder of a class: files must lie in folder/class/file; "
                f"give {folder} if it holds the classes"
            )
        if not path.is_file():
            raise ValueError(f"{path} is not a file: remove it or fix the link")
    return paths


def _load_text(source: Source) -> str:
    """The text of a file, with its line breaks unchanged."""
    data = source.stream.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source.name}: byte {error.start} is not UTF-8 (0x{data[error.start]:02x}): save it as UTF-8"
        ) from None
    if "\0" in text:
        raise ValueError(f"{source.name}: byte {data.index(0)} is NUL: this is no text, or UTF-16; save it as UTF-8")
    return text


MAGIC = b"\x93NUMPY"

_BAD_HEADER = (ValueError, SyntaxError, TypeError, KeyError, OverflowError, RecursionError, MemoryError, TokenError)
"""Errors of numpy for a damaged header."""


def _load_array(source: Source) -> np.ndarray:
    """The array of a `.npy` file, after checking that its header agrees with its size. Nothing is unpickled."""
    try:
        shape, transposed, dtype, start = _header(source.head)
    except _BAD_HEADER as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise ValueError(f"{source.name} is not a .npy file ({reason}): save it with numpy.save") from None
    if dtype.kind not in "biuf":
        raise ValueError(f"{source.name} holds {dtype}, not real numbers: save it as float32")
    array = np.frombuffer(_numbers(source, start, math.prod(shape) * dtype.itemsize), dtype)
    try:
        return as_series(array.reshape(shape, order="F" if transposed else "C"))
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from None


def _numbers(source: Source, start: int, claimed: int) -> bytes:
    """The bytes after the header, which must be as many as it claims; no more are kept in memory."""
    if claimed > source.limit:
        raise ValueError(
            f"{source.name} claims {claimed:,} bytes of numbers, and a record has {source.limit:,} at most: "
            "use another copy, or raise --max-record if the file is sound"
        )
    data = source.stream.read(start + claimed + 1)[start:]
    if len(data) != claimed:
        more = " or more" if len(data) > claimed else ""
        raise ValueError(
            f"{source.name} claims {claimed:,} bytes of numbers and holds {len(data):,}{more}: it is cut or damaged; "
            "use another copy"
        )
    return data


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether in Fortran order, type, and offset of the numbers."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged header may be Python code that warns
        shape, transposed, dtype = readers[version](file)
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):  # numpy takes True for a size too
        raise ValueError(f"shape {shape}")
    return shape, transposed, dtype, file.tell()


_LOADERS: dict[str, Callable[[Source], str | np.ndarray]] = {"text": _load_text, "npy": _load_array}
