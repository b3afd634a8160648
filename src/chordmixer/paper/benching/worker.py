"""The process that a case runs in: `python -m chordmixer.paper.benching.worker`, the case as a line of JSON on stdin.

Every stage is said before it starts and its numbers as soon as they are there, a line of JSON each, so that a process
that dies has told how far it came.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import torch

from chordmixer.config import from_dict
from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching.cases import Case
from chordmixer.paper.benching.measuring import Event, Wrong, reach, status, times
from chordmixer.training.devices import free_bytes

NO_MEMORY = ("allocate memory", "out of memory", "ALLOC_FAILED")
"""How libraries say it."""


def main() -> None:
    """Read a case, say what happens; an error is a result too."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an encoder prints is no event

    def say(event: Event) -> None:
        print(json.dumps(event), file=events, flush=True)

    if not (asked := sys.stdin.readline()):  # nobody has a case for it any more
        return
    case = from_dict(Case, json.loads(asked), "case")
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()
    try:
        prepare(case)
        for event in times(case, case.setting) if case.setting else reach(case):
            say(event)
        say({"done": True})
    except Exception as error:
        say(reason(error))


def prepare(case: Case) -> None:
    """Make this process what the case says: for this process only, so nothing is undone."""
    ENCODERS.setdefault(case.encoder, case.home)
    torch.set_num_threads(case.threads)
    limit = int(case.config.memory_limit * 1e9)
    if case.config.backend == "torch":
        sys.modules["triton"] = None  # type: ignore[assignment]  # cannot be imported: plain torch is taken
    if case.config.device == "cuda":
        if limit:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
    elif (used := status("VmData")) is not None:
        import resource  # not on Windows

        most = used + (limit or free_bytes(torch.device("cpu")))
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # or the system would end some other process


def reason(error: BaseException) -> Event:
    """What ended a case, in a word, and the first line of what was said.

    >>> reason(RuntimeError("CUDA out of memory. Tried to allocate 80 GiB"))["failed"]
    'out of memory'
    """
    said = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY):
        return {"failed": "out of memory", "message": said}
    if isinstance(error, Wrong):
        return {"failed": "wrong", "message": said}
    if isinstance(error, ValueError):
        return {"failed": "refused", "message": said}
    return {"failed": "error", "message": f"{type(error).__name__}: {said}"}


def _leave_with(parent: int) -> None:
    """A process whose parent was killed would hold its device for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
