"""Calls of functions of this package in other Python processes: single calls that may crash, training, or a pool.

A child runs `python -m chordmixer.paper.subprocesses MODULE:FUNCTION ARGUMENTS`. It imports that function but not the
caller's main module, so that it can be started from a script without a `__main__` guard, a prompt or a process of
another pool. It gets a SIGTERM when its parent dies, on which training saves its state.
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
MAX_PROCESSES = 32  # of a pool: each takes about 0.2 GB of memory, and seconds to import torch


def start(function: str, *arguments: str, environment: dict[str, str] | None = None, **options: Any) -> Popen[bytes]:
    """Start a process that calls `module:function`, with the module search path of this process."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    variables = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"} | (environment or {})
    return subprocess.Popen([*COMMAND, function, *arguments], env=variables, **options)


def exit_reason(code: int) -> str:
    """
    >>> exit_reason(-9), exit_reason(3)
    ('SIGKILL', 'exit code 3')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# --- A single call whose failure is reported as a result ---


class SpareProcess:
    """A process for the next call, which imports modules while the present call runs; none unless `wanted`."""

    def __init__(self, function: str, wanted: bool) -> None:
        self.function, self.wanted = function, wanted
        self.process = self._new()

    def take(self) -> Popen[bytes] | None:
        """Return the spare process and start the next one; None if the caller has to start a process."""
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
    """Call a function that reads a line of JSON and writes lines of JSON; merge these, later keys win.

    The last line has `done`, or `failed` and `message`. A crash or the time limit is reported with the latter keys.
    """
    process = process or start(function, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        written, errors = process.communicate(json.dumps(request).encode() + b"\n", seconds)
        error = crash(process.returncode, errors.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        written, _ = process.communicate()
        error = {"failed": "time limit", "message": f"stopped after {seconds:g} s", "limit": seconds}
    except BaseException:  # such as a signal: nobody would wait for the child
        process.kill()
        raise
    events = union(written)
    finished = events.pop("done", False) or "failed" in events  # possibly just before it was stopped
    return events if finished else events | error


def union(written: bytes) -> dict[str, Any]:
    """Merge complete lines of JSON; the last line of a stopped process may be incomplete."""
    merged: dict[str, Any] = {}
    for line in written.splitlines(keepends=True):
        merged |= json.loads(line) if line.endswith(b"\n") else {}
    return merged


def crash(code: int, errors: str) -> dict[str, Any]:
    """The reason why a process ended without a result."""
    lines = [line for line in errors.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else ""
    if "bad_alloc" in errors:  # out of memory in C++
        return {"failed": "out of memory", "message": last}
    if code == -signal.SIGKILL:
        return {"failed": "out of memory", "message": "killed, as the system does when memory runs out"}
    return {"failed": "crashed", "message": ": ".join(filter(None, [exit_reason(code), last]))}


# --- A pool, for work that holds the GIL so long that threads wait for each other ---


def cores() -> int:
    """Number of cores that this process may use, at most `MAX_PROCESSES`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MAX_PROCESSES)


def importable(function: Callable[..., Any]) -> bool:
    """Whether another process can import a function: not a closure or a function of the main module.

    >>> importable(len), importable(partial(max, 3)), importable(lambda: 3)
    (True, True, False)
    """
    try:
        return bool(sys.executable) and b"__main__" not in pickle.dumps(function)
    except (AttributeError, TypeError, pickle.PicklingError):
        return False


class ProcessPool(ThreadPoolExecutor):
    """An executor whose threads each wait for a process that does the work; shutdown kills the processes."""

    def __init__(self, count: int) -> None:
        """Start the processes, with one thread each; modules are imported by the first call."""
        super().__init__(count)
        single = partial(start, environment={"OMP_NUM_THREADS": "1"}, stdin=PIPE, stdout=PIPE)
        self.processes = [single("chordmixer.paper.subprocesses:serve") for _ in range(count)]
        self.idle: SimpleQueue[Popen[bytes]] = SimpleQueue()
        for process in self.processes:
            self.idle.put(process)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._call, pickle.dumps(partial(fn, *args, **kwargs)))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Kill the processes; results of unfinished calls are lost."""
        for process in self.processes:
            process.kill()
        super().shutdown(wait=True, cancel_futures=cancel_futures)
        for process in self.processes:
            with suppress(BrokenPipeError), process:  # closes its pipes and waits for it
                pass

    def _call(self, request: bytes) -> Any:
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
    """Run calls from standard input and reply with result or error until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the caller, which ends this process
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError), replies() as stream:
        while True:
            request = pickle.load(sys.stdin.buffer)
            try:
                reply = pickle.dumps((pickle.loads(request)(), None))
            except Exception as error:
                error.add_note(traceback.format_exc())  # since traceback objects cannot be pickled
                reply = pickle.dumps((None, error))
            stream.write(reply)
            stream.flush()


def replies() -> IO[bytes]:
    """Reserve standard output for replies; anything printed goes to standard error from now on."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def main() -> None:
    """Call the function that the command line names; end when the parent does."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    module, _, function = sys.argv[1].partition(":")
    getattr(import_module(module), function)(*sys.argv[2:])


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
