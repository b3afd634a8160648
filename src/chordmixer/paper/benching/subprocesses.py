"""A case in a process of its own: what kills the process, or holds it up, is a result like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Self

from chordmixer.config import to_dict
from chordmixer.paper.benching.cases import Case

PROCESS = "chordmixer.paper.benching.worker"


def start() -> subprocess.Popen[bytes]:
    """A process that loads Python and torch, and then waits for its case."""
    # Modules are looked for where this process finds them: encoders may come from a user's own folders.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", PROCESS], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


class Ahead:
    """The process of the next case, `one` at a time, which loads while another case is measured.

    It takes a core, and nothing of a GPU before it has its case: for a CPU that is to be measured there is none.
    """

    def __init__(self, one: bool) -> None:
        self.one, self.spare = one, start() if one else None

    def next(self) -> subprocess.Popen[bytes] | None:
        """For this case; None: it has to start its own."""
        process, self.spare = self.spare, start() if self.one else None
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.spare:
            self.spare.kill()
            self.spare.communicate()


def run(case: Case, process: subprocess.Popen[bytes] | None = None) -> dict[str, Any]:
    """All that a case said of itself, the last word of each kind, with `failed` and `message` where it broke off."""
    process, limit = process or start(), case.config.time_limit
    try:
        said, errors = process.communicate(json.dumps(to_dict(case)).encode() + b"\n", limit)
        broken = _crash(process.returncode, errors.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        broken = {"failed": "time limit", "message": f"stopped after {limit:g} s", "limit": limit}
    except BaseException:  # a signal for this process: the other would be waited for in vain
        process.kill()
        raise
    known = _merged(said)
    over = known.pop("done", False) or "failed" in known  # it may have come to its end in the last moment
    return known if over else known | broken


def _merged(said: bytes) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for event in _events(said):
        known |= event
    return known


def _events(said: bytes) -> Iterator[dict[str, Any]]:
    """Whole lines only: a process that is stopped may be in the middle of one."""
    for line in said.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def _crash(code: int, errors: str) -> dict[str, Any]:
    """Of a process that could say nothing any more.

    >>> _crash(-11, "")
    {'failed': 'crashed', 'message': 'SIGSEGV'}
    """
    lines = [line for line in errors.splitlines() if line.strip()]
    said = lines[-1].strip() if lines else ""
    if "bad_alloc" in errors:  # C++ has no other word for it
        return {"failed": "out of memory", "message": said}
    if code == -signal.SIGKILL:
        return {"failed": "out of memory", "message": "killed, as the system does when memory runs out"}
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return {"failed": "crashed", "message": f"{how}: {said}" if said else how}
