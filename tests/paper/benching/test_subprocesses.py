"""Trouble in a process of its own is a result; here the processes are real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.forked import Forked

from chordmixer.paper.benching import subprocesses
from chordmixer.paper.benching.cases import Case


def test_a_crash_is_a_result(troubled: Callable[..., Case]) -> None:
    found = subprocesses.run(troubled("Crashing"))
    assert found["failed"] == "crashed" and "SIGSEGV" in found["message"]
    assert found["stage"] == "training" and found["inference"]["milliseconds"] > 0
    assert "training" not in found and "done" not in found


def test_time_that_is_over_is_a_result(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "PROCESS", "light_process")
    found = subprocesses.run(troubled("Hanging", 1.0))
    assert found["failed"] == "time limit" and found["message"] == "stopped after 1 s"
    assert found.get("stage", "verification") == "verification"  # a slow machine may not come that far


def test_a_process_that_cannot_start(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocesses, "PROCESS", "chordmixer.nothing")
    found = subprocesses.run(troubled("Harmless"))
    assert found["failed"] == "crashed" and "exit code 1: " in found["message"]
    assert "No module named chordmixer.nothing" in found["message"]


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
    assert subprocesses._crash(code, errors) == {"failed": failed, "message": message}


def test_a_torn_line_is_left_out() -> None:
    said = json.dumps({"stage": "training"}).encode() + b'\n{"train'
    assert subprocesses._merged(said) == {"stage": "training"}


def test_the_last_word_counts() -> None:
    said = b'{"stage": "inference"}\n{"stage": "training"}\n'
    assert subprocesses._merged(said)["stage"] == "training"


@pytest.mark.parametrize(
    ("last", "found"),
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
def test_an_end_in_the_last_moment_is_an_end(
    troubled: Callable[..., Case], last: dict[str, Any], found: dict[str, Any]
) -> None:
    """Said before the time was over, by a process that had not left yet."""
    said = "".join(json.dumps(event) + "\n" for event in ({"stage": "training"}, last))

    class Late:
        returncode = -9
        killed = False

        def communicate(self, case: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
            if not self.killed:
                raise subprocess.TimeoutExpired("python", timeout or 0.0)
            return said.encode(), b""

        def kill(self) -> None:
            self.killed = True

    assert subprocesses.run(troubled("Harmless", 120.0), Late()) == found  # type: ignore[arg-type]


def test_one_process_is_ahead(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(begin())
        return started[-1]

    begin = subprocesses.start
    monkeypatch.setattr(subprocesses, "start", start)
    monkeypatch.setattr(subprocesses, "PROCESS", "light_process")
    with subprocesses.Ahead(one=True) as ahead:
        assert len(started) == 1
        own = ahead.next()
        assert own is started[0] and len(started) == 2
        assert subprocesses.run(troubled("Harmless"), own)["inference"]["milliseconds"] > 0
    assert started[1].returncode is not None, "it is not left behind"
    with subprocesses.Ahead(one=False) as ahead:
        assert ahead.next() is None and len(started) == 2


def test_a_process_without_a_case_leaves() -> None:
    process = Forked([sys.executable, "-m", subprocesses.PROCESS])  # which has nothing on its standard input
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 0
