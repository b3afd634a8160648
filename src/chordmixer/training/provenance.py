"""When, by which command, on what and for how long a run was trained: the run.json of its folder.

It is the one file of a run that differs between two runs of the same settings, and nothing is computed from it.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from chordmixer import files
from chordmixer.training.devices import device_name
from chordmixer.training.run_folder import PROVENANCE

FILE = PROVENANCE


@contextmanager
def recording(folder: Path, device: torch.device) -> Iterator[None]:
    """Write run.json when a training starts, and its seconds when it ends, is interrupted or fails.

    The seconds of all starts are added up; a start that was killed has no end, and its seconds are not known. A disk
    without room for it stops no training: what needs the room says so.
    """
    began = time.monotonic()
    with suppress(ValueError):
        files.update_json(folder / FILE, lambda known: _started(known, device))
    try:
        yield
    finally:
        seconds = time.monotonic() - began
        if (folder / FILE).exists():  # a folder that was deleted meanwhile is not made again
            with suppress(ValueError):
                files.update_json(folder / FILE, lambda known: _ended(known, seconds))


def _started(known: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """The first start says when and by which command; the last one where."""
    own: dict[str, Any] = {"started": now(), "command": command(), "seconds": 0.0, "starts": 0, "ends": 0}
    own |= {key: known[key] for key, value in own.items() if type(known.get(key)) is type(value)}
    return {"format": 1, **own, "device": device_name(device), "starts": own["starts"] + 1}


def _ended(known: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**known, "ended": now(), "seconds": round(known["seconds"] + seconds, 1), "ends": known["ends"] + 1}


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def command() -> str:
    """What was typed; nothing where Python called the library."""
    program, *words = sys.argv or [""]
    if Path(program).name not in ("chordmixer", "__main__.py"):
        return ""
    return shlex.join(["chordmixer", *words])
