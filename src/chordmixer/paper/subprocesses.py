"""Calls of our own functions in other Python processes: one that may crash, several that train, or a pool.

A child runs `python -m chordmixer.paper.subprocesses MODULE:FUNCTION ARGUMENTS`. It imports that function and never
the caller's main module, so that a script without a guard, a prompt or a process of another pool may start one. When
its parent dies, it gets a SIGTERM: training then saves its state.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from subprocess import PIPE, Popen
from typing import IO, Any, Self

COMMAND = [sys.executable, "-m", "chordmixer.paper.subprocesses"]
MOST = 32  # processes of a pool: each takes about 0.2 GB of memory, and seconds to import torch


def start(function: str, *arguments: str, environment: dict[str, str] | None = None, **options: Any) -> Popen[bytes]:
    """A process that calls `module:function`; modules are found where this process finds them, and nowhere else."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    found = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | (environment or {})
    return subprocess.Popen([*COMMAND, function, *arguments], env=found, **options)


def exit_reason(code: int) -> str:
    """
    >>> exit_reason(-9), exit_reason(3)
    ('SIGKILL', 'exit code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# --- One call, whose failure is a result ---


class SpareProcess:
    """The process of the next call, which imports its modules while another call runs; none unless `wanted`."""

    def __init__(self, function: str, wanted: bool) -> None:
        self.function, self.wanted = function, wanted
        self.process = self._new()

    def take(self) -> Popen[bytes] | None:
        """For this call; None: it has to start its own."""
        process, self.process = self.process, self._new()
        return process

    def _new(self) -> Popen[bytes] | None:
        return start(self.function, stdin=PIPE, stdout=PIPE, stderr=PIPE) if self.wanted else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()


def call(
    function: str, request: Mapping[str, Any], seconds: float, process: Popen[bytes] | None = None
) -> dict[str, Any]:
    """Call a function that reads a line of JSON and writes lines of JSON: their union, in which later lines win.

    The last line is `done`, or `failed` and `message`; a crash and the time limit are reported like the latter.
    """
    process = process or start(function, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        written, errors = process.communicate(json.dumps(request).encode() + b"\n", seconds)
        broken = crash(process.returncode, errors.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        written, _ = process.communicate()
        broken = {"failed": "time limit", "message": f"stopped after {seconds:g} s", "limit": seconds}
    except BaseException:  # a signal for this process: the child would go on for nobody
        process.kill()
        raise
    known = union(written)
    over = known.pop("done", False) or "failed" in known  # it may have finished just before it was stopped
    return known if over else known | broken


def union(written: bytes) -> dict[str, Any]:
    """Of whole lines of JSON only: a process that is stopped may be in the middle of one."""
    known: dict[str, Any] = {}
    for line in written.splitlines(keepends=True):
        known |= json.loads(line) if line.endswith(b"\n") else {}
    return known


def crash(code: int, errors: str) -> dict[str, Any]:
    """Why a process ended without a result."""
    lines = [line for line in errors.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    if "bad_alloc" in errors:  # how C++ runs out of memory
        return {"failed": "out of memory", "message": last}
    if code == -signal.SIGKILL:
        return {"failed": "out of memory", "message": "killed, as the system does when memory runs out"}
    return {"failed": "crashed", "message": ": ".join(filter(None, [exit_reason(code), last]))}


# --- A pool, for work that holds Python's lock so long that threads wait for each other ---


def cores() -> int:
    """How many this process may use, and no more than `MOST`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST)


def importable(function: Callable[..., Any]) -> bool:
    """Whether another process can find a function by its name: not a closure, nor what the main module holds.

    >>> importable(len), importable(partial(max, 3)), importable(lambda: 3)
    (True, True, False)
    """
    try:
        return bool(sys.executable) and b"__main__" not in pickle.dumps(function)
    except (AttributeError, TypeError, pickle.PicklingError):
        return False


class ProcessPool(ThreadPoolExecutor):
    """A pool whose threads only wait, each for a process that does its work; to leave it ends them at once."""

    def __init__(self, count: int) -> None:
        """Started at once, one core each; what a call needs is imported with the first."""
        super().__init__(count)
        single = partial(start, environment={"OMP_NUM_THREADS": "1"}, stdin=PIPE, stdout=PIPE)
        self.processes = [single("chordmixer.paper.subprocesses:serve") for _ in range(count)]
        self.idle: SimpleQueue[Popen[bytes]] = SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._ask, pickle.dumps(partial(fn, *args, **kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, and with them what they have begun: take the results before."""
        for process in self.processes:
            process.kill()
        super().shutdown(wait=True, cancel_futures=cancel_futures)
        for process in self.processes:
            with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
                pass

    def _ask(self, request: bytes) -> Any:
        process = self.idle.get()
        assert process.stdin and process.stdout
        try:
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            result, error = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            process.kill()
            raise ValueError(
                f"a process that made data ended ({exit_reason(process.wait())}): memory may have run out; free "
                "some, and run the same again"
            ) from None
        finally:
            self.idle.put(process)
        if error is not None:
            raise error
        return result


# --- In the child ---


def serve() -> None:
    """Call what comes in, reply with its result or error, and end with the input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal: the caller ends the others
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError), replies() as stream:
        while True:
            request = pickle.load(sys.stdin.buffer)
            try:
                reply = pickle.dumps((pickle.loads(request)(), None))
            except Exception as error:
                error.add_note(traceback.format_exc())  # the frames themselves cannot be pickled
                reply = pickle.dumps((None, error))
            stream.write(reply)
            stream.flush()


def replies() -> IO[bytes]:
    """Standard output, for replies alone: whatever is printed goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def main() -> None:
    """Call the function that the command names, and end with the parent."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    module, _, function = sys.argv[1].partition(":")
    getattr(import_module(module), function)(*sys.argv[2:])


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
