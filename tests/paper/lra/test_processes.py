from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from chordmixer.paper import lra
from chordmixer.paper.lra import Part, in_chunks, listops, made_once, pathfinder
from chordmixer.paper.lra.processes import MOST, Processes, cores, travels

MAKERS = {
    "listops": partial(listops.made, listops.ListOpsConfig(), "training"),
    "pathfinder": partial(pathfinder.made, pathfinder.PathfinderConfig(contour=6), "training"),
}
TABLE = np.arange(90).reshape(3, 30)
ALONE = os.environ | {"PYTHONPATH": str(Path(lra.__file__).parent)}
"""Callers that take the file without its package, which needs seconds to import torch."""
ONCE = """
from processes import Processes
with Processes(2) as pool:
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
from processes import Processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
pool = Processes(2)
try:
    waiting = [pool.submit(time.sleep, 600) for _ in range(9)]
    print(*(process.pid for process in pool.processes), flush=True)
    waiting[0].result()
finally:
    pool.shutdown(cancel_futures=True)
"""


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Processes]:
    """The pools that `in_chunks` starts, where any work is worth them and there are two cores."""
    started: list[Processes] = []

    class Seen(Processes):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            started.append(self)

    monkeypatch.setattr(lra, "WORTH", -1.0)
    monkeypatch.setattr(lra, "cores", lambda: 2)
    monkeypatch.setattr(lra, "Processes", Seen)
    return started


def joined(parts: list[Part]) -> list[bytes]:
    return [np.concatenate([part[k].ravel() for part in parts]).tobytes() for k in range(3)]


def gone(pool: Processes) -> bool:
    return all(process.returncode is not None for process in pool.processes)


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended may wait for its parent, and is a zombie then."""
    try:
        return not re.search(r"^State:\s+[ZX]", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except FileNotFoundError:
        return False


# --- In chunks ---


def test_the_same_bytes_in_processes(pools: list[Processes]) -> None:
    make = MAKERS["listops"]
    parts = list(in_chunks(make, 13, 2))
    assert [len(part[1]) for part in parts] == [2] * 6 + [1] and joined(parts) == joined([make(np.arange(13))])
    assert [len(pool.processes) for pool in pools] == [2] and gone(pools[0])


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_bytes_in_any_chunks(name: str, pools: list[Processes], monkeypatch: pytest.MonkeyPatch) -> None:
    make = MAKERS[name]
    monkeypatch.setattr(lra, "WORTH", 1e9)
    for workers in (1, 3):
        monkeypatch.setattr(lra, "cores", lambda workers=workers: workers)
        assert joined(list(in_chunks(make, 13, 4))) == joined([make(np.arange(13))])
    assert not pools


@pytest.mark.parametrize(("count", "lengths"), [(0, []), (1, [1]), (4, [4]), (9, [4, 4, 1])])
def test_little_work_stays_here(count: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lra, "Processes", None)
    assert [len(part[1]) for part in in_chunks(partial(np.take, TABLE, axis=1), count, 4)] == lengths


def test_what_no_other_process_can_find_stays_here(pools: list[Processes], monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(own: np.ndarray) -> Part:
        return tuple(TABLE[:, own])

    assert len([*in_chunks(mine, 30, 4)]) == 8  # a closure has no name
    monkeypatch.setattr(mine, "__module__", "__main__")
    monkeypatch.setattr(mine, "__qualname__", "mine")
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    assert len([*in_chunks(mine, 30, 4)]) == 8 and not travels(partial(mine, 3))
    assert not pools and travels(MAKERS["listops"])
    monkeypatch.setattr(sys, "executable", "")
    assert not travels(MAKERS["listops"])


def test_no_more_parts_wait_than_are_soon_taken(pools: list[Processes]) -> None:
    parts = in_chunks(partial(np.take, TABLE, axis=1), 30, 1)
    next(parts), next(parts)
    assert parts.gi_frame.f_locals["own"].tolist() == [8] and not gone(pools[0])  # type: ignore[attr-defined]
    parts.close()  # type: ignore[attr-defined]
    assert gone(pools[0])


def test_an_error_elsewhere_is_an_error_here(pools: list[Processes]) -> None:
    with pytest.raises(IndexError, match="index 30 is out of bounds") as raised:
        list(in_chunks(partial(np.take, TABLE, axis=1), 40, 10))
    assert "Traceback" in raised.value.__notes__[0] and gone(pools[0])


def test_a_writer_that_fails_ends_them(pools: list[Processes], tmp_path: Path) -> None:
    objects = np.array([[0] * 29 + ["x"]] * 3, dtype=object)  # the last one is no byte
    with pytest.raises(ValueError, match="invalid literal") as raised:
        made_once(str(tmp_path), "x", (), lambda: in_chunks(partial(np.take, objects, axis=1), 40, 15))
    assert gone(pools[0]) and raised.tb and not [*tmp_path.iterdir()]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(lra, "QUIET", -1.0)
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    written = re.sub(r"\x1b\[[\d;?]*\w", "", capsys.readouterr().err)
    assert re.search(r"making data ━+ +30/30 0:00:00 left", written)


# --- Processes ---


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 7}, raising=False)
    assert cores() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(99)))
    assert cores() == MOST
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_calls_run_elsewhere_on_one_core_each() -> None:
    with Processes(2) as pool:
        pids = {pool.submit(os.getpid).result() for _ in range(9)}
        assert pids == {process.pid for process in pool.processes} and os.getpid() not in pids
        for pid in pids:
            os.kill(pid, signal.SIGINT)  # Ctrl-C is not for them
        assert pool.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert pool.submit(print, "not an answer").result() is None
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert gone(pool)


def test_a_process_that_ends_is_an_error() -> None:
    with Processes(1) as pool, pytest.raises(ValueError, match="ended with exit code 3: memory may have run out"):
        pool.submit(os._exit, 3).result()
    with Processes(1) as pool:
        pool.processes[0].kill()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"ended by SIGKILL: .* free some, and run the same again"):
                pool.submit(abs, -3).result()


def test_what_cannot_be_found_there_is_an_error_and_no_end() -> None:
    with Processes(1) as pool:
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            pool._ask(b"cnowhere_at_all\nx\n.")
        assert pool.submit(abs, -3).result() == 3


@pytest.mark.parametrize("how", ["script", "-", "-c", "daemonic"])
def test_the_main_module_is_not_run_again(how: str, tmp_path: Path) -> None:
    """A script without a guard or on standard input, a command and a daemonic process can all have processes."""
    (tmp_path / "plain.py").write_text(ONCE)
    arguments = {"script": [str(tmp_path / "plain.py")], "-": ["-"], "-c": ["-c", ONCE], "daemonic": ["-c", DAEMONIC]}
    command = [sys.executable, *arguments[how]]
    ended = subprocess.run(command, input=ONCE, text=True, capture_output=True, timeout=60, env=ALONE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_behind(number: signal.Signals) -> None:
    """Ctrl-C reaches all of a group, and ends work at once; a caller that is killed can do nothing itself."""
    code = ENDLESS if number == signal.SIGINT else ENDLESS.replace("600", "0.2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], env=ALONE, process_group=0, **pipes) as caller:
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
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))
