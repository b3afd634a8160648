"""Names that are not yet whole: nobody can guess them, writers lock them, and what a kill leaves is swept."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".writing-"
"""Prefix of such names."""

_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY


def new_file(folder: Path) -> tuple[Path, BinaryIO]:
    """A file that was not there before, open for writing."""
    while True:
        path = _name(folder, "")
        handle = os.open(path, _NEW, 0o666)
        if _locked(path, handle):
            return path, os.fdopen(handle, "wb")


def new_folder(folder: Path, kind: str = "") -> tuple[Path, int]:
    """A folder that was not there before, and the handle that locks it until it is closed."""
    while True:
        path = _name(folder, kind)
        path.mkdir()
        with suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            if _locked(path, handle):
                return path, handle


@contextmanager
def making(folder: Path, kind: str = "") -> Iterator[Path]:
    """A new folder to write into; what the block has not moved elsewhere goes with it."""
    path, handle = new_folder(folder, kind)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def sweep(folder: Path, kind: str = "") -> None:
    """Remove what killed processes left in a folder. A living one holds a lock; a symbolic link is not ours."""
    for stray in folder.glob(f"{TEMPORARY}{kind}*"):
        with suppress(OSError):  # among them: locked, a link, or gone meanwhile
            handle = os.open(stray, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                inside = stat.S_ISDIR(os.fstat(handle).st_mode)
                shutil.rmtree(stray, ignore_errors=True) if inside else stray.unlink()
            finally:
                os.close(handle)


def _name(folder: Path, kind: str) -> Path:
    return folder / f"{TEMPORARY}{kind}{secrets.token_hex(8)}"


def _locked(path: Path, handle: int) -> bool:
    """Whether the lock is ours before a sweeping neighbour took the name; the handle is closed if not."""
    with suppress(OSError):  # some network disks have no locks; nothing is swept there either
        fcntl.flock(handle, fcntl.LOCK_EX)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), path.lstat()):
            return True
    os.close(handle)
    return False
