"""Calls in other processes, which are real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chordmixer.paper import subprocesses
from chordmixer.paper.subprocesses import MAX_PROCESSES, ProcessPool, cores

ONCE = """
from chordmixer.paper.subprocesses import ProcessPool
with ProcessPool(2) as pool:
    print(pool.submit(abs, -3).result())
"""
DAEMONIC = f"""
from multiprocessing import get_context
process = get_context("spawn").Process(target=exec, args=({ONCE!r},), daemon=True)
process.start()
process.join()
"""
ENDLESS = """
import signal, time
from chordmixer.paper.subprocesses import ProcessPool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
pool = ProcessPool(2)
try:
    waiting = [pool.submit(time.sleep, 600) for _ in range(9)]
    print(*(process.pid for process in pool.processes), flush=True)
    waiting[0].result()
finally:
    pool.shutdown(cancel_futures=True)
"""


# --- One call ---


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> str:
    """A function that children find beside this file."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return "light_process:answer"


def test_time_that_is_over_is_a_result(light: str) -> None:
    result = subprocesses.call(light, {"hangs": True}, 1.0)
    assert result["failed"] == "time limit" and result["message"] == "stopped after 1 s"
    assert result.get("stage", "verification") == "verification"  # a slow machine may not come that far


def test_a_process_that_cannot_start() -> None:
    result = subprocesses.call("chordmixer.nothing:at_all", {}, 60.0)
    assert result["failed"] == "crashed"
    assert result["message"] == "exit code 1: ModuleNotFoundError: No module named 'chordmixer.nothing'"


@pytest.mark.parametrize(
    ("code", "errors", "failed", "message"),
    [
        (-9, "", "out of memory", "killed, as the system does when memory runs out"),
        (-6, "terminate called\n  what():  std::bad_alloc\n", "out of memory", "what():  std::bad_alloc"),
        (-6, "first\nlast line\n\n", "crashed", "SIGABRT: last line"),
        (3, "", "crashed", "exit code 3"),
    ],
)
def test_how_a_process_ends(code: int, errors: str, failed: str, message: str) -> None:
    assert subprocesses.crash(code, errors) == {"failed": failed, "message": message}


def test_a_torn_line_is_left_out() -> None:
    output = json.dumps({"stage": "training"}).encode() + b'\n{"train'
    assert subprocesses.union(output) == {"stage": "training"}


def test_the_last_value_of_a_key_counts() -> None:
    output = b'{"stage": "inference"}\n{"stage": "training"}\n'
    assert subprocesses.union(output)["stage"] == "training"


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"done": True}, {"stage": "training"}),
        (
            {"failed": "refused", "message": "too long"},
            {"stage": "training", "failed": "refused", "message": "too long"},
        ),
        ({}, {"stage": "training", "failed": "time limit", "message": "stopped after 120 s", "limit": 120.0}),
    ],
    ids=["done", "failed", "unfinished"],
)
def test_an_end_in_the_last_moment_is_an_end(last: dict[str, Any], expected: dict[str, Any]) -> None:
    """The last line came before the time was over, from a process that had not exited yet."""
    output = "".join(json.dumps(event) + "\n" for event in ({"stage": "training"}, last))

    class Late:
        returncode = -9
        killed = False

        def communicate(self, case: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
            if not self.killed:
                raise subprocess.TimeoutExpired("python", timeout or 0.0)
            return output.encode(), b""

        def kill(self) -> None:
            self.killed = True

    assert subprocesses.call("light_process:answer", {}, 120.0, Late()) == expected  # type: ignore[arg-type]


def test_one_process_is_spare(light: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(function: str, **pipes: Any) -> subprocess.Popen[bytes]:
        started.append(original_start(function, **pipes))
        return started[-1]

    original_start = subprocesses.start
    monkeypatch.setattr(subprocesses, "start", start)
    with subprocesses.SpareProcess(light, wanted=True) as spare:
        assert len(started) == 1
        process = spare.take()
        assert process is started[0] and len(started) == 2
        assert subprocesses.call(light, {}, 60.0, process) == {"inference": {"milliseconds": 1.0}}
    assert started[1].returncode is not None, "the spare process was left behind"
    with subprocesses.SpareProcess(light, wanted=False) as spare:
        assert spare.take() is None and len(started) == 2


def test_modules_of_the_folder_are_found_only_where_the_parent_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.py").write_text("def answer(): print('{\"done\": true}')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert "No module named 'stray'" in subprocesses.call("stray:answer", {}, 60.0)["message"]
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert subprocesses.call("stray:answer", {}, 60.0) == {}


# --- A pool ---


def gone(pool: ProcessPool) -> bool:
    return all(process.returncode is not None for process in pool.processes)


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended may wait for its parent, and is a zombie then."""
    try:
        return not re.search(r"^State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except FileNotFoundError:
        return False


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 7}, raising=False)
    assert cores() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(99)))
    assert cores() == MAX_PROCESSES
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_calls_run_elsewhere_on_one_core_each() -> None:
    with ProcessPool(2) as pool:
        pids = {pool.submit(os.getpid).result() for _ in range(9)}
        assert pids == {process.pid for process in pool.processes} and os.getpid() not in pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # Ctrl-C is not for them
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert pool.submit(print, "not an answer").result() is None
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert gone(pool)


def test_a_process_that_ends_is_an_error() -> None:
    with ProcessPool(1) as pool, pytest.raises(ValueError, match=r"ended \(exit code 3\): memory may have run out"):
        pool.submit(os._exit, 3).result()
    with ProcessPool(1) as pool:
        pool.processes[0].kill()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"ended \(SIGKILL\): .* free some, and run the same again"):
                pool.submit(abs, -3).result()


def test_what_cannot_be_found_there_is_an_error_and_no_end() -> None:
    with ProcessPool(1) as pool:
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            pool._call(b"cnowhere_at_all\nx\n.")
        assert pool.submit(abs, -3).result() == 3


@pytest.mark.parametrize("mode", ["script", "-", "-c", "daemonic"])
def test_the_main_module_is_not_run_again(mode: str, tmp_path: Path) -> None:
    """A script without a guard or on standard input, a command and a daemonic process can all have processes."""
    (tmp_path / "plain.py").write_text(ONCE)
    arguments = {"script": [str(tmp_path / "plain.py")], "-": ["-"], "-c": ["-c", ONCE], "daemonic": ["-c", DAEMONIC]}
    command = [sys.executable, *arguments[mode]]
    completed = subprocess.run(command, input=ONCE, text=True, capture_output=True, timeout=60)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "3\n", "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_behind(number: signal.Signals) -> None:
    """Ctrl-C reaches all of a group, and ends work at once; a caller that is killed can do nothing itself."""
    code = ENDLESS if number == signal.SIGINT else ENDLESS.replace("600", "0.2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], process_group=0, **pipes) as caller:
        assert caller.stdout and caller.stderr
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        if number == signal.SIGINT:
            time.sleep(0.3)  # they are at work
            os.killpg(caller.pid, number)
        else:
            caller.kill()
        errors = caller.communicate(timeout=10)[1]
    assert caller.returncode == -number and errors.count("Error") == 0
    assert errors.count("Traceback") == (number == signal.SIGINT)
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
