"""Processes that have imported everything before they begin: they are forked from a server that does it once."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import reduction
from pathlib import Path
from subprocess import STDOUT, TimeoutExpired
from typing import IO, Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["accelerate", "matplotlib.pyplot", "pandas", "scipy.optimize", "sklearn.linear_model", "torch._dynamo"]
    + ["torch.distributed", "chordmixer.cli.train", "chordmixer.views.report", "chordmixer.training.loop"]
    + [f"chordmixer.{name}" for name in ("cli", "recipes", "training", "paper.recipes", "paper.reproduction.running")]
)


class Forked:
    """As much of `subprocess.Popen` as tests need, for `python -c CODE ...` and `python -m MODULE ...`.

    It can be killed, interrupted and waited for as any process. Its output is text, unless a file is given for it;
    with `stderr=subprocess.STDOUT` its errors go there too.
    """

    context: Any = SERVER

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | None = None,
        stderr: int | None = None,
        start_new_session: bool = False,
        **_: Any,
    ) -> None:
        python, flag, target, *arguments = command
        assert python == sys.executable and flag in ("-c", "-m"), command
        self.folder = Path(tempfile.mkdtemp())
        self.cleanup = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        output, errors = (self.folder / name for name in ("output", "errors"))
        for path in (output, errors):
            path.touch()
        log = output if stdout is None else Log(stdout.fileno())
        options = (flag, target, arguments, {**(env or os.environ)}, Path.cwd(), start_new_session)
        streams = (log, log if stderr == STDOUT else errors)
        self.process = self.context.Process(target=_become, args=(*options, *streams))
        self.process.start()
        self.pid = self.process.pid or 0
        self.stdout = self._lines()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the process to end; return its output and its errors."""
        self.process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutExpired("forked", timeout)
        output, errors = ((self.folder / name).read_text() for name in ("output", "errors"))
        self.stdout.close()
        self.cleanup()
        return output, errors

    def _lines(self) -> Iterator[str]:
        """The lines of its output, as they arrive."""
        with (self.folder / "output").open() as file:
            ended = False
            while not ended:
                ended = self.returncode is not None
                yield from file
                time.sleep(0.01)


class Copied(Forked):
    """A process that is forked from the one that starts it, which then is its parent."""

    context = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_ranks(count: int, command: Sequence[str], kind: type[Forked] = Forked) -> list[Forked]:
    """Start a command on `count` ranks that find each other, without a launcher."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environment |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [kind(command, os.environ | environment | {"RANK": str(k), "LOCAL_RANK": str(k)}) for k in range(count)]


class Log:
    """A file that is open here and that another process writes to."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_log, (reduction.DupFd(self.number),)


def _rebuilt_log(duplicate: Any) -> Log:
    return Log(duplicate.detach())


def _become(
    flag: str, target: str, arguments: list[str], env: dict[str, str], cwd: Path, session: bool, *streams: Path | Log
) -> None:
    """Run the command in this process."""
    import torch

    torch.set_num_threads(1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if session:
        os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM):  # a new process has none of its parent's handlers
        signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
    for stream, sink, descriptor in zip((sys.stdout, sys.stderr), streams, (1, 2), strict=True):
        stream.flush()
        opened = os.dup(sink.number) if isinstance(sink, Log) else os.open(sink, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [target, *arguments]
    if flag == "-m":
        sys.modules.pop(target, None)  # as in a new process
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(compile(target, "<string>", "exec"), {"__name__": "__main__"})
