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
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from chordmixer import temporary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

MANIFEST = "manifest.json"
BLOCK = 4096
"""Bytes that the smallest file takes on a disk."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and onto the disk before returning, whoever else writes it at the time."""
    _write(path, lambda: data, len(data))


def _write(path: Path, made: Callable[[], bytes], needed: int) -> None:
    """What `made` gives while nobody else writes into the folder, of about `needed` bytes."""
    with _explaining(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _in_turn(path.parent), replacing(path) as file:
            file.write(made())


@contextmanager
def replacing(path: Path, sweeping: bool = False) -> Iterator[BinaryIO]:
    """A file under a temporary name, which takes the place of `path` when the block ends well.

    With `sweeping`, what killed writers left in the folder is removed first.
    """
    folder = path.absolute().parent
    if sweeping:
        temporary.sweep(folder)
    new, file = temporary.new_file(folder)
    try:
        with file:
            yield file
            _flush_file(file)
            new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    flush(folder)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def append_text(path: Path, text: str) -> None:
    """Add to a file; what a kill tears is the end of its last line."""
    with _explaining(path, len(text)), open_own(path, os.O_APPEND) as file:
        file.write(text.encode())


def open_own(path: Path, flags: int) -> BinaryIO:
    """Open a file of a known name for writing, or make it; one that is a symbolic link is refused."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags, 0o666), "wb")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a symbolic link: nothing is written through one; remove it") from None


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json_bytes(value))


def update_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write what `change` makes of the object that is there, or of an empty one.

    Processes that do so at the same time lose nothing of each other's.
    """
    _write(path, lambda: json_bytes(change(read_json(path) if path.exists() else {})), BLOCK)


def json_bytes(value: Any) -> bytes:
    """As every JSON file of a run is written."""
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
    with _explaining(path, sum(map(len, contents.values()))):
        path.parent.mkdir(exist_ok=True)
        with temporary.making(path.parent) as new:
            manifest = json.dumps(_digests(contents), indent=2).encode()
            for name, data in {**contents, MANIFEST: manifest}.items():
                with (new / name).open("xb") as file:
                    file.write(data)
                    _flush_file(file)
            flush(new)
            new.replace(path)
        flush(path.parent)


def write_recorded(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files of a folder that its manifest records.

    A kill at any moment leaves each as it was or as it is to be, and a manifest that knows both.
    """
    digests = _digests(contents)
    update_json(
        folder / MANIFEST,
        lambda before: before | {name: sorted({*_known(before, name), own}) for name, own in digests.items()},
    )
    for name, data in contents.items():
        write_bytes(folder / name, data)
    update_json(folder / MANIFEST, lambda before: before | digests)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Record the SHA-256 of these files of a folder, beside what its manifest records already."""
    found = {name: _sha256(folder / name) for name in names}
    update_json(folder / MANIFEST, lambda before: before | found)


def recorded(folder: Path) -> dict[str, Any]:
    """What the manifest of a folder says; nothing where there is none."""
    return read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else {}


def unrecord(folder: Path, names: Iterable[str]) -> None:
    """Forget the SHA-256 of files that are to change."""
    if gone := set(recorded(folder)) & set(names):
        update_json(folder / MANIFEST, lambda before: {k: v for k, v in before.items() if k not in gone})


def verify(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which these files are not, byte for byte, those that its manifest records."""
    manifest = read_json(folder / MANIFEST)
    for name in names:
        known = _known(manifest, name)
        if not known or not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing or not in {MANIFEST}: use another copy of the folder")
        if not matches(folder, name, manifest):
            raise ValueError(
                f"{folder / name} was changed or damaged: its SHA-256 is not the one in {MANIFEST}; "
                "use another copy of the folder"
            )


def matches(folder: Path, name: str, manifest: Mapping[str, Any] | None = None) -> bool:
    """Whether a file has the SHA-256 that the manifest records of it."""
    return _sha256(folder / name) in _known(manifest or read_json(folder / MANIFEST), name)


def _known(manifest: Mapping[str, Any], name: str) -> set[str]:
    """The SHA-256 that a manifest records of a file: two, where a kill came between it and the file."""
    recorded = manifest.get(name, [])
    return {str(digest) for digest in (recorded if isinstance(recorded, list) else [recorded])}


def _digests(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


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
    """Remove what killed processes had not finished writing, here and in the folders below; no link is followed."""
    for own in [folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())]:
        temporary.sweep(own)


def _flush_file(file: BinaryIO) -> None:
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


def _explaining(path: Path, needed: int) -> AbstractContextManager[None]:
    return explaining_no_room(path, f"{needed:,}", ", then resume; the last checkpoint is whole")
