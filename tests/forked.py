"""Processes that have imported everything before they begin: they are forked from a server that does it once."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed", "chordmixer.cli.learning", "chordmixer.training.loop", "accelerate"]
    + [
        f"chordmixer.{name}"
        for name in (
            "cli",
            "training",
            "recipes",
            "paper.recipes",
            "paper.reproduction.subprocesses",
            "paper.reproduction.running",
        )
    ]
)


class Forked:
    """As much of `subprocess.Popen` as tests need, for `python -c CODE ...` and `python -m MODULE ...`.

    It can be killed, interrupted and waited for as any process; what it says is text.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, **_: Any) -> None:
        python, how, what, *arguments = command
        assert python == sys.executable and how in ("-c", "-m"), command
        self.own = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self.own.name)
        for name in ("output", "errors"):
            (self.folder / name).touch()
        given = (how, what, arguments, {**(env or os.environ)}, Path.cwd(), self.folder)
        self.process = SERVER.Process(target=_become, args=given)
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
        """All that it has said, when it has ended."""
        self.process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise TimeoutExpired("forked", timeout)
        said, errors = ((self.folder / name).read_text() for name in ("output", "errors"))
        self.stdout.close()
        self.own.cleanup()
        return said, errors

    def _lines(self) -> Iterator[str]:
        """What it says, as it comes."""
        with (self.folder / "output").open() as file:
            ended = False
            while not ended:
                ended = self.returncode is not None
                yield from file
                time.sleep(0.01)


def _become(how: str, what: str, arguments: list[str], env: dict[str, str], cwd: Path, folder: Path) -> None:
    """The process of this command."""
    import torch

    torch.set_num_threads(1)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for stream, name, number in ((sys.stdout, "output", 1), (sys.stderr, "errors", 2)):
        stream.flush()
        written = os.open(folder / name, os.O_WRONLY)
        os.dup2(written, number)
        os.close(written)
    sys.argv = [what, *arguments]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
