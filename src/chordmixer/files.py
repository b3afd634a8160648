"""Atomic files: written under a temporary name, flushed, renamed, and checked by SHA-256.

Temporary names cannot be guessed, and their writer locks them. `sweep` removes those that a killed process left.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from filelock import lock_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

MANIFEST = "manifest.json"
BLOCK = 4096
"""Minimum number of bytes that a file takes on a disk."""

POLL = 0.005
"""Seconds between two attempts at a lock that another process holds."""
TEMPORARY = ".writing-"
"""Prefix of temporary names."""

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
_NEW = os.O_CREAT | os.O_EXCL | _NOFOLLOW | os.O_WRONLY
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically and flush it to the disk; several processes may write the same file at once."""
    _write(path, lambda: data, len(data))


def _write(path: Path, content: Callable[[], bytes], needed: int) -> None:
    """Write the result of `content`, about `needed` bytes, while no other process writes into the folder."""
    with _explaining(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _folder_lock(path.parent), replacing(path) as file:
            file.write(content())


@contextmanager
def replacing(path: Path, sweeping: bool = False) -> Iterator[BinaryIO]:
    """Open a file with a temporary name, which replaces `path` when the block ends without an error.

    With `sweeping`, temporary files of killed processes are first removed from the folder.
    """
    folder = path.absolute().parent
    if sweeping:
        sweep(folder)
    new, file = new_file(folder)
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
    """Append to a file; if the process is killed, only the last line can be truncated."""
    with _explaining(path, len(text)), open_own(path, os.O_APPEND) as file:
        file.write(text.encode())


def open_own(path: Path, flags: int) -> BinaryIO:
    """Open or create a file for writing; a symbolic link is refused."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | _NOFOLLOW | flags, 0o666), "wb")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a symbolic link: nothing is written through one; remove it") from None


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json_bytes(value))


def update_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace the JSON object of a file, or an empty one, by the result of `change`.

    No change is lost if several processes do so at the same time.
    """
    _write(path, lambda: json_bytes(change(read_json(path) if path.exists() else {})), BLOCK)


def json_bytes(value: Any) -> bytes:
    """Encode a value in the format of all JSON files of a run."""
    return (json.dumps(finite(value), indent=2, allow_nan=False) + "\n").encode()


def finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None.

    >>> finite({"r2": float("nan"), "counts": (1, 2)})
    {'r2': None, 'counts': [1, 2]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Encode named tensors as safetensors; equal tensors give equal bytes."""
    from safetensors.torch import save

    data: bytes = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    return data


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder and its manifest atomically, by one rename."""
    with _explaining(path, sum(map(len, contents.values()))):
        path.parent.mkdir(exist_ok=True)
        with temporary_folder(path.parent) as new:
            manifest = json.dumps(_digests(contents), indent=2).encode()
            for name, data in {**contents, MANIFEST: manifest}.items():
                with (new / name).open("xb") as file:
                    file.write(data)
                    _flush_file(file)
            flush(new)
            new.replace(path)
        flush(path.parent)


def write_recorded(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a folder and record them in its manifest.

    If the process is killed, each file has its old or its new version, and the manifest accepts both.
    """
    digests = _digests(contents)
    update_json(
        folder / MANIFEST,
        lambda old: old | {name: sorted({*_known_digests(old, name), digest}) for name, digest in digests.items()},
    )
    for name, data in contents.items():
        write_bytes(folder / name, data)
    update_json(folder / MANIFEST, lambda old: old | digests)


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Add the SHA-256 of these files to the manifest of their folder."""
    digests = {name: sha256(folder / name) for name in names}
    update_json(folder / MANIFEST, lambda manifest: manifest | digests)


def recorded(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; empty if there is none."""
    return read_json(folder / MANIFEST) if (folder / MANIFEST).exists() else {}


def unrecord(folder: Path, names: Iterable[str]) -> None:
    """Remove files that are about to change from the manifest."""
    if removed := set(recorded(folder)) & set(names):
        update_json(folder / MANIFEST, lambda manifest: {k: v for k, v in manifest.items() if k not in removed})


def verify(folder: Path, names: Iterable[str]) -> None:
    """Refuse a folder in which one of these files differs from the manifest."""
    manifest = read_json(folder / MANIFEST)
    for name in names:
        digests = _known_digests(manifest, name)
        if not digests or not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing or not in {MANIFEST}: use another copy of the folder")
        if not matches(folder, name, manifest):
            raise ValueError(
                f"{folder / name} was changed or damaged: its SHA-256 is not the one in {MANIFEST}; "
                "use another copy of the folder"
            )


def matches(folder: Path, name: str, manifest: Mapping[str, Any] | None = None) -> bool:
    """Whether a file has the SHA-256 that the manifest records."""
    return sha256(folder / name) in _known_digests(manifest or read_json(folder / MANIFEST), name)


def _known_digests(manifest: Mapping[str, Any], name: str) -> set[str]:
    """The recorded SHA-256 digests of a file: two if `write_recorded` was interrupted."""
    recorded = manifest.get(name, [])
    return {str(digest) for digest in (recorded if isinstance(recorded, list) else [recorded])}


def _digests(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file."""
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
    """Read the tensors of a safetensors file; no other format is loaded, so that no file can run code."""
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
    """Whether a folder exists; False for names that the file system does not accept."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def new_file(folder: Path) -> tuple[Path, BinaryIO]:
    """Create a temporary file, open for writing and locked until it is closed."""
    while True:
        path = _temporary_name(folder, "")
        handle = os.open(path, _NEW, 0o666)
        if _locked(path, handle):
            return path, os.fdopen(handle, "wb")


def new_folder(folder: Path, kind: str = "") -> tuple[Path, int]:
    """Create a temporary folder; return it with the handle that locks it until it is closed."""
    while True:
        path = _temporary_name(folder, kind)
        path.mkdir()
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | _NOFOLLOW)
            if _locked(path, handle):
                return path, handle


@contextmanager
def temporary_folder(folder: Path, kind: str = "") -> Iterator[Path]:
    """Create a temporary folder, which is removed at the end of the block unless it was renamed."""
    path, handle = new_folder(folder, kind)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def sweep(folder: Path, kind: str = "") -> None:
    """Remove temporary files and folders of killed processes; those of running processes are locked."""
    for path in folder.glob(f"{TEMPORARY}{kind}*"):
        with suppress(OSError):  # such as a locked file, a symbolic link, or one that is already removed
            handle = os.open(path, os.O_RDONLY | _NOFOLLOW | getattr(os, "O_NONBLOCK", 0))
            try:
                if lock_descriptor(handle, blocking=False):
                    is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)
                    shutil.rmtree(path, ignore_errors=True) if is_directory else path.unlink()
            finally:
                os.close(handle)


def sweep_run(folder: Path) -> None:
    """`sweep` a run folder and the folders directly in it; no symbolic link is followed."""
    for path in [folder, *(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())]:
        sweep(path)


def _temporary_name(folder: Path, kind: str) -> Path:
    return folder / f"{TEMPORARY}{kind}{secrets.token_hex(8)}"


def _locked(path: Path, handle: int) -> bool:
    """Lock a new file; False, with the handle closed, if another process has removed it in the meantime."""
    with suppress(OSError):  # some network file systems have no locks; nothing is removed there either
        lock_descriptor(handle, poll_interval=POLL)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), path.lstat()):
            return True
    os.close(handle)
    return False


def _flush_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time write into a folder; the lock is released if the process is killed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has locks
            lock_descriptor(handle, poll_interval=POLL)
        yield
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def explaining_no_room(path: Path, needed: str, cure: str) -> Iterator[None]:
    """Turn the error of a full or unwritable disk into a `ValueError` of one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise ValueError(f"{path} cannot be written: {_first_line(error)}; choose another folder") from error
        free = shutil.disk_usage(next(p for p in path.absolute().parents if p.is_dir())).free
        raise ValueError(
            f"{path} needs {needed} bytes and {free:,} are free: make room or choose another disk{cure}"
        ) from error


def _explaining(path: Path, needed: int) -> AbstractContextManager[None]:
    return explaining_no_room(path, f"{needed:,}", ", then resume; the last checkpoint is whole")
