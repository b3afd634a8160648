"""Several runs at once: the same as one after the other; failures, signals and a killed parent lose nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.paper import subprocesses
from chordmixer.paper.reproduction import parallel
from chordmixer.paper.reproduction.experiments import each
from chordmixer.paper.reproduction.running import RunsJournal, run_all
from chordmixer.training import Experiment, checkpoints, train

WAIT = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_the_same_as_one_after_the_other(tiny: Experiment, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    runs = each(tiny, ["chordmixer", "pointwise"], 1)
    alone = run_all(runs, RunsJournal.open(tmp_path / "a", "x", False), False)
    log.clear()
    both = run_all(runs, RunsJournal.open(tmp_path / "b", "x", False), False, at_once=2)
    said = log.messages
    assert [run.evaluation.loss for run in both] == [run.evaluation.loss for run in alone]
    for name in runs:
        own, other = (tmp_path / folder / name / "model.safetensors" for folder in "ab")
        assert own.read_bytes() == other.read_bytes()
    assert [(run.steps, run.killed, bool(run.baselines)) for run in both] == [(2, False, True)] * 2
    assert said[:2] == ["chordmixer-seed0 begins, 1 to come", "pointwise-seed0 begins, 0 to come"]
    assert {line.split(" ")[0] for line in said[2:4]} == {"chordmixer-seed0", "pointwise-seed0"}
    assert said[3].endswith(" has ended, 2 of 2") and " has ended, 1 of 2; about " in said[2]
    assert "validation at step 2" in (tmp_path / "b" / "logs" / "chordmixer-seed0.log").read_text()

    log.clear()
    again = run_all(runs, RunsJournal.open(tmp_path / "b", "x", True), True, at_once=2)
    assert log.messages == ["chordmixer-seed0, 1 of 2: finished before", "pointwise-seed0, 2 of 2: finished before"]
    assert [run.evaluation for run in again] == [run.evaluation for run in both]


def test_no_more_than_asked_for_and_a_failure_holds_up_nobody(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that only tell when they were there; the second of three fails."""
    code = f"""import sys, time, pathlib
name = pathlib.Path(sys.argv[2]).name
print("a line"); print("not enough of it" if name == "b" else "all went well")
path = pathlib.Path({str(tmp_path)!r}) / f"{{name}}.times"
start = time.time(); time.sleep(0.3); path.write_text(f"{{start}} {{time.time()}}")
sys.exit(name == "b")"""
    monkeypatch.setattr(subprocesses, "COMMAND", [sys.executable, "-c", code])
    journal = RunsJournal.open(tmp_path / "r", "x", False)
    message = (
        r"^1 of 3 runs came to no end, b \(not enough of it; see .*r/logs/b.log\): the others are kept; mend that"
    )
    with pytest.raises(ValueError, match=message):
        parallel.train_parallel(dict.fromkeys("abc", tiny), journal, 2)
    (a, b, c) = (list(map(float, (tmp_path / f"{name}.times").read_text().split())) for name in "abc")
    assert c[0] >= min(a[1], b[1]), "the third began when there was room"
    assert {*files.read_json(tmp_path / "r" / "reproduction.json")["runs"]} == {*"abc"}


def test_what_is_told_meanwhile(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    code = "import time; print(' 50%  epoch 1  step 3', flush=True); print('and more', flush=True); time.sleep(1)"
    monkeypatch.setattr(subprocesses, "COMMAND", [sys.executable, "-c", code])
    monkeypatch.setattr(parallel, "REPORT_SECONDS", 0.5)
    parallel.train_parallel({"a": tiny, "b": tiny}, RunsJournal.open(tmp_path, "x", True), 1)
    told = [line for line in log.messages if line.startswith("training a 50 %; 1 to come; about ")]
    assert told and int(told[0].split()[-3]) >= 1, "half of one of two in half a second: three times as long is left"


PARENT = """import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from tests.forked import Copied
from chordmixer.paper import subprocesses
from chordmixer.paper.reproduction import parallel
from chordmixer.paper.reproduction.running import RunsJournal
from chordmixer.terminal import show_log
from chordmixer.training import Experiment
out = Path(sys.argv[1])

class Noted(Copied):
    def __init__(self, *command, **given):
        super().__init__(*command, **given)
        (out / f"{self.pid}.pid").touch()

subprocesses.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Noted})
runs = {name: Experiment.load(out / name) for name in ("a", "b")}
with show_log():
    parallel.train_parallel(runs, RunsJournal.open(out, "x", True), 2)
"""
"""Its processes are copies of it, which need not import torch again."""


@pytest.fixture
def long_runs(tiny: Experiment, tmp_path: Path) -> dict[str, Experiment]:
    """Two that would take minutes, with their settings in folders."""
    steps = {"batch_sequences": 1, "epochs": 400, "checkpoint_every": 5, "evaluate_epochs": 400}
    long = replace(tiny, training=replace(tiny.training, **steps))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        long.save(tmp_path / name)
    return {"a": long, "b": long}


def logs(out: Path) -> list[str]:
    return [path.read_text() for path in sorted((out / "logs").glob("*.log"))]


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_is_handed_on_and_a_dead_parent_is_noticed(
    long_runs: dict[str, Experiment], tmp_path: Path, number: signal.Signals
) -> None:
    parent = Forked([sys.executable, "-c", PARENT, str(tmp_path)])
    until(lambda: all(checkpoints.found(tmp_path / name) for name in long_runs))
    os.kill(parent.pid, number)
    said, _ = parent.communicate(timeout=WAIT)
    processes = [int(path.stem) for path in tmp_path.glob("*.pid")]
    until(lambda: all(ended(pid) for pid in processes))
    assert len(processes) == 2
    assert parent.returncode == (128 + number if number != signal.SIGKILL else -number)
    assert ("stopping 2 runs, which save where they are" in said) == (number != signal.SIGKILL)
    assert all("stopped at step " in log for log in logs(tmp_path)), "each has saved where it was"
    for name in long_runs:
        good, refused = checkpoints.newest_good(tmp_path / name)
        assert good is not None and not refused


def test_refusals(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--at-once 0 is too few: give 1 or more runs"):
        parallel.check({"a": tiny}, 0)
    by_clock = replace(tiny, training=replace(tiny.training, minutes=2.0))
    parallel.check({"a": by_clock}, 1)
    with pytest.raises(ValueError, match=r"training.minutes=2 ends a run by the clock, and runs at once slow each"):
        parallel.check({"a": by_clock}, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"--at-once 3 on 2 processes is not possible: use one"):
        parallel.check({"a": tiny}, 3)


def run_folder(folder: Path) -> tuple[int | None, str, str]:
    """Its exit code, output and errors."""
    process = Forked([*subprocesses.COMMAND, parallel.PROCESS, str(folder)])
    said, errors = process.communicate(timeout=120)
    return process.returncode, said, errors


def test_it_trains_what_the_folder_says(tiny: Experiment, tmp_path: Path) -> None:
    train(tiny, tmp_path / "here")
    (tmp_path / "there").mkdir()
    tiny.save(tmp_path / "there")
    code, said, errors = run_folder(tmp_path / "there")
    assert (code, errors) == (0, "") and "validation at step" in said
    assert (tmp_path / "there" / "evaluation-test.json").exists()
    here, there = (tmp_path / folder / "model.safetensors" for folder in ("here", "there"))
    assert there.read_bytes() == here.read_bytes()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    code, said, errors = run_folder(tmp_path / "gone")
    assert (code, said) == (2, "")
    assert errors.count("\n") == 1 and "gone is not a folder" in errors
