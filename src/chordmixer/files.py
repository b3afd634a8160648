"""Files that are whole or absent: written under a temporary name, flushed, renamed; checked by SHA-256."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

MANIFEST = "manifest.json"
TEMPORARY = ".writing-"
"""Prefix of names that are not yet whole; `sweep` removes what a killed process left."""

BLOCK = 4096
"""Bytes that the smallest file takes on a disk."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and onto the disk before returning, whoever else writes it at the time."""
    _write(path, lambda: data, len(data))


def _write(path: Path, made: Callable[[], bytes], needed: int) -> None:
    """What `made` gives while nobody else writes into the folder, of about `needed` bytes."""
    temporary = path.with_name(TEMPORARY + path.name)
    with _whole(path, needed, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _in_turn(path.parent):
            _write_through(temporary, made())
            temporary.replace(path)
        flush(path.parent)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def append_text(path: Path, text: str) -> None:
    """Add to a file; what a kill tears is the end of its last line."""
    with _whole(path, len(text)), path.open("a") as file:
        file.write(text)


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, _json(value))


def update_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write what `change` makes of the object that is there, or of an empty one.

    Processes that do so at the same time lose nothing of each other's.
    """
    _write(path, lambda: _json(change(read_json(path) if path.exists() else {})), BLOCK)


def _json(value: Any) -> bytes:
    return (json.dumps(finite(value), indent=2, allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """The same with None for every number that is NaN or infinite: JSON has neither.

    >>> finite({"r2": float("nan"), "counts": (1, 2)})
    {'r2': None, 'counts': [1, 2]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_bytes(path, tensor_bytes(tensors))


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors form of named tensors; the same tensors give the same bytes."""
    from safetensors.torch import save

    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder with its manifest whole or not at all: one rename puts it in place."""
    temporary = path.with_name(TEMPORARY + path.name)
    with _whole(path, sum(map(len, contents.values())), temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        manifest = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
        for name, data in {**contents, MANIFEST: json.dumps(manifest, indent=2).encode()}.items():
            _write_through(temporary / name, data)
        flush(temporary)
        temporary.replace(path)
        flush(path.parent)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Record the SHA-256 of these files of a folder, beside what its manifest records already."""
    found = {name: _sha256(folder / name) for name in names}
    update_json(folder / MANIFEST, lambda before: before | found)


def verify(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which these files are not, byte for byte, those that its manifest records."""
    recorded = read_json(folder / MANIFEST)
    for name in names:
        if name not in recorded or not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing or not in {MANIFEST}: use another copy of the folder")
        if _sha256(folder / name) != recorded[name]:
            raise ValueError(
                f"{folder / name} was changed or damaged: its SHA-256 is not the one in {MANIFEST}; "
                "use another copy of the folder"
            )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one line that says what is wrong with it."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: give a folder that chordmixer wrote") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({_first_line(error)}): use another copy") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds {type(value).__name__}, not an object: use another copy")
    return value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a safetensors file; nothing else is ever loaded, so no file can run code."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is not a safetensors file ({_first_line(error)}): chordmixer loads no other format; "
            "use another copy"
        ) from None
    return tensors


def is_folder(path: Path | str) -> bool:
    """Whether a folder is there; a name that no file system can hold is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def sweep(folder: Path) -> None:
    """Remove what a killed process had not finished writing."""
    for stray in [*folder.glob(TEMPORARY + "*"), *folder.glob("*/" + TEMPORARY + "*")]:
        shutil.rmtree(stray) if stray.is_dir() else stray.unlink(missing_ok=True)


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Onto the disk: the content of a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _in_turn(folder: Path) -> Iterator[None]:
    """Processes that write into a folder wait for each other here; one that is killed holds nobody up."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can lock
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def explaining_no_room(path: Path, needed: str, cure: str) -> Iterator[None]:
    """Turn a full disk, or one that cannot be written to, into one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise ValueError(f"{path} cannot be written: {_first_line(error)}; choose another folder") from error
        free = shutil.disk_usage(next(p for p in path.absolute().parents if p.is_dir())).free
        raise ValueError(
            f"{path} needs {needed} bytes and {free:,} are free: make room or choose another disk{cure}"
        ) from error


@contextmanager
def _whole(path: Path, needed: int, temporary: Path | None = None) -> Iterator[None]:
    """Explain a full disk, and leave nothing half written."""
    with explaining_no_room(path, f"{needed:,}", ", then resume; the last checkpoint is whole"):
        try:
            yield
        except OSError:
            if temporary:
                with suppress(OSError):
                    shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink()
            raise
