"""Real-valued series: `.npy` files, one record each, alone or in folders that name their class."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from chordmixer.data.entries import Account, Entry
from chordmixer.data.sources import open_source
from chordmixer.data.texts import class_files

if TYPE_CHECKING:
    from chordmixer.data.sources import Source

MAGIC = b"\x93NUMPY"

_BAD_HEADER = (ValueError, SyntaxError, TypeError, KeyError, OverflowError, RecursionError, MemoryError, TokenError)
"""What numpy raises of a damaged header."""


def read_series(source: Source) -> Iterator[Entry]:
    """The one record of a `.npy` file: shape (N,), or (N, channels)."""
    yield Entry(Path(source.name).name, _load(source), place=source.name)


def read_series_folder(folder: Path, account: Account, limit: int | None = None) -> Iterator[Entry]:
    """A record for each `.npy` file of a folder, or of its folders, which then name the classes."""
    for path, label in class_files(folder, account):
        with open_source(path, limit) as source:
            yield Entry(path.relative_to(folder).as_posix(), _load(source), place=source.name, label=label)


def as_series(values: Any) -> np.ndarray:
    """Numbers as float32 of shape (N,) or (N, channels); what becomes of those that are missing, a tokenizer decides.

    >>> as_series([[1, 2], [3, 4], [5, 6]]).shape
    (3, 2)
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("lists of unequal lengths: every step of a series must have the same channels") from None
    if array.dtype == object and all(v is None or isinstance(v, float) or type(v) is int for v in array.flat):
        array = _with_gaps(array)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} is not a type of real number: save the series as float32")
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise ValueError(f"shape {array.shape} is not (steps,) or (steps, channels): a record is one series; reshape")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _with_gaps(array: np.ndarray) -> np.ndarray:
    """NaN in place of None; a number that no float can hold is left as it is."""
    try:
        return array.astype(np.float64)
    except OverflowError:
        return array


def _load(source: Source) -> np.ndarray:
    """The array of a `.npy` file, whose header is believed only as far as the bytes go. Nothing is unpickled."""
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
    """All bytes behind the header; not one more than it claims is read."""
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
    """Shape, whether in Fortran's order, type, and where the numbers start."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version[0]}.{version[1]}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged header may also be odd Python
        shape, transposed, dtype = readers[version](file)
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in shape):  # numpy takes True for a size too
        raise ValueError(f"shape {shape}")
    return shape, transposed, dtype, file.tell()
