"""Work in other processes, for what holds Python's lock so long that threads wait for each other.

They run this file as a plain command, and import what they are asked to call but never the caller's main module: so
a script without a guard, a prompt, standard input and a process of another pool may use them. They end with the pipe
that they read from, whatever ended the caller.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from subprocess import PIPE, Popen
from typing import Any

MOST = 32
"""Processes: each takes about 0.2 GB of memory, and seconds to import torch."""


def cores() -> int:
    """How many this process may use, and no more than `MOST`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, MOST)


def travels(function: Callable[..., Any]) -> bool:
    """Whether another process can find a function by its name: not a closure, nor what the main module holds.

    >>> travels(len), travels(partial(max, 3)), travels(lambda: 3)
    (True, True, False)
    """
    try:
        return bool(sys.executable) and b"__main__" not in pickle.dumps(function)
    except (AttributeError, TypeError, pickle.PicklingError):
        return False


class Processes(ThreadPoolExecutor):
    """A pool whose threads only wait, each for a process that does its work; to leave it ends them at once.

    >>> with Processes(1) as pool:
    ...     pool.submit(divmod, 7, 3).result()
    (2, 1)
    """

    def __init__(self, count: int) -> None:
        """Started at once; what a call needs is imported with the first."""
        super().__init__(count)
        # Modules are looked for where this process finds them, and not beside this file; each process has one core.
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        command, environment = [sys.executable, "-P", __file__], os.environ | own
        self.processes = [Popen(command, stdin=PIPE, stdout=PIPE, env=environment) for _ in range(count)]
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
            answer, error = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            process.kill()
            raise ValueError(_ended(process.wait())) from None
        finally:
            self.idle.put(process)
        if error is not None:
            raise error
        return answer


def serve() -> None:
    """The life of such a process: it calls what comes in, answers with what came of it, and ends with its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal: the caller ends the others
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    with suppress(EOFError, BrokenPipeError, pickle.UnpicklingError):
        while True:
            request = pickle.load(sys.stdin.buffer)
            try:
                answer = pickle.dumps((pickle.loads(request)(), None))
            except Exception as error:
                error.add_note(traceback.format_exc())  # the frames themselves cannot travel
                answer = pickle.dumps((None, error))
            answers.write(answer)
            answers.flush()


def _ended(code: int) -> str:
    """
    >>> _ended(-9)
    'a process that made data ended by SIGKILL: memory may have run out; free some, and run the same again'
    """
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"a process that made data ended {how}: memory may have run out; free some, and run the same again"


if __name__ == "__main__":
    serve()
