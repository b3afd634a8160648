"""SIGTERM and SIGINT save a run and end it, SIGKILL costs only time. More kills are in benchmarks/kills.py."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.training import Experiment, checkpoints
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.progress import Interrupted, Interrupts

pytestmark = pytest.mark.usefixtures("quick_scores")

SIGNALS = pytest.mark.parametrize("number", Interrupts.SIGNALS, ids=lambda number: number.name)
MODEL = "model.safetensors"
SHORT = "training.epochs=10"
"""60 steps and 20 checkpoints."""

Arrange = Callable[[str, int, signal.Signals], None]


@pytest.fixture(scope="module")
def unkilled(kills: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights that every run of these settings must come to."""
    folder = tmp_path_factory.mktemp("unkilled") / "run"
    child = kills.start(folder, SHORT)
    _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, "")
    return bytes(kills.weights(folder))


def resumed(run: Path) -> bytes:
    """The weights after going on in this process."""
    train(Experiment.load(run), run, resume=True)
    assert not list(run.rglob(".writing-*"))
    return (run / MODEL).read_bytes()


def kill_after_checkpoint(child: Forked, run: Path, seconds: float) -> None:
    """Kill a process these seconds after its next checkpoint, however slow the machine is."""
    before = checkpoints.newest_first(run)
    while checkpoints.newest_first(run) == before and child.poll() is None:
        time.sleep(0.01)
    time.sleep(seconds)
    child.kill()
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL, "it ended before it was killed"


def test_killed_three_times_at_random(kills: ModuleType, unkilled: bytes, tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(3):
        kill_after_checkpoint(kills.start(tmp_path, SHORT), tmp_path, rng.uniform(0, 0.06))
    assert resumed(tmp_path) == unkilled


def test_pre_training_killed_three_times(kills: ModuleType, tmp_path: Path) -> None:
    """The masks too are those of an uninterrupted run."""
    rng, run = random.Random(3), tmp_path / "run"
    genome = "".join(rng.choice("ACGT") for _ in range(4_000))
    (tmp_path / "genome.fa").write_text(f">a\n{genome}\n")
    command = kills.pretrain(tmp_path / "genome.fa")
    _, errors = kills.start(tmp_path / "whole", SHORT, command=command).communicate(timeout=120)
    assert errors == ""
    for _ in range(3):
        kill_after_checkpoint(kills.start(run, SHORT, command=command), run, rng.uniform(0, 0.06))
    assert not (run / MODEL).exists()
    assert resumed(run) == kills.weights(tmp_path / "whole")


def test_killed_inside_a_save(kills: ModuleType, unkilled: bytes, tmp_path: Path) -> None:
    """In place of the third checkpoint's rename: 9 calls for config.json, 9 for each, the 8th its rename."""
    child = kills.start(tmp_path, SHORT, dies_at_write=9 + 2 * 9 + 8)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    (stray,) = kills.strays(tmp_path)
    assert files.read_json(stray / "state.json")["step"] == 9
    assert resumed(tmp_path) == unkilled


@SIGNALS
def test_a_signal_saves_and_leaves(
    kills: ModuleType, unkilled: bytes, tmp_path: Path, number: signal.Signals
) -> None:
    """The only checkpoint is the signal's own. It comes when steps are taken, however long a busy machine needs."""
    child, journal = kills.start(tmp_path, SHORT, "training.checkpoint_every=0"), tmp_path / "metrics.jsonl"
    while not (journal.exists() and journal.stat().st_size) and child.poll() is None:
        time.sleep(0.01)
    assert kills.send(number, child, 0.0) == (128 + number, "")
    (newest,) = checkpoints.newest_first(tmp_path)
    assert 0 < files.read_json(newest / "state.json")["step"] < 60
    assert resumed(tmp_path) == unkilled


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Arrange:
    """Send this process a signal at the n-th call of a method of `Run`."""

    def arrange(method: str, call: int, number: signal.Signals) -> None:
        original, calls = getattr(TrainingRun, method), iter(range(1, 1000))

        def wrapped(self: TrainingRun, *arguments: Any) -> Any:
            if next(calls) == call:
                os.kill(os.getpid(), number)
            return original(self, *arguments)

        monkeypatch.setattr(TrainingRun, method, wrapped)

    return arrange


@pytest.mark.parametrize(
    ("method", "call", "step", "number"),
    [
        ("_step", 1, 1, signal.SIGINT),
        ("_step", 12, 12, signal.SIGTERM),
        ("_step", 13, 13, signal.SIGINT),
        ("_validate", 1, 13, signal.SIGTERM),
        ("_validate", 2, 24, signal.SIGINT),
    ],
    ids=["first step", "last step of an epoch", "first of the next", "validation", "last validation"],
)
def test_a_signal_at_any_point(
    tiny: Experiment,
    full_run: Path,
    tmp_path: Path,
    signal_at: Arrange,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    method: str,
    call: int,
    step: int,
) -> None:
    """The step is finished, a checkpoint is there, the user is told how to go on, and going on is exact."""
    signal_at(method, call, number)
    with pytest.raises(Interrupted) as stop:
        train(tiny, tmp_path)
    assert stop.value.code == 128 + number
    assert files.read_json(checkpoints.newest_first(tmp_path)[0] / "state.json")["step"] == step
    assert f"stopped at step {step}; go on: chordmixer train --resume {tmp_path}" in capsys.readouterr().out
    assert resumed(tmp_path) == (full_run / MODEL).read_bytes()


@SIGNALS
def test_the_first_signal_is_remembered_and_the_second_acts(number: signal.Signals) -> None:
    before = {handled: signal.getsignal(handled) for handled in Interrupts.SIGNALS}
    with Interrupts() as interrupts:
        assert interrupts.caught == 0
        os.kill(os.getpid(), number)
        assert interrupts.caught == number
        assert signal.getsignal(number) == signal.SIG_DFL
    assert {handled: signal.getsignal(handled) for handled in Interrupts.SIGNALS} == before


def test_no_handlers_outside_the_main_thread() -> None:
    """Python allows none there; training in a thread still works."""
    states = []

    def enter() -> None:
        with Interrupts() as interrupts:
            states.append((interrupts.caught, interrupts.before))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert states == [(0, {})]
