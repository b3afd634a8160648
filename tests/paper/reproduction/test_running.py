"""Runs of several models and seeds: finished ones are not trained again, times add up, signals go through."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.paper import subprocesses
from chordmixer.paper.reproduction import running
from chordmixer.paper.reproduction.experiments import expand
from chordmixer.paper.reproduction.running import (
    ParallelRuns,
    RunsJournal,
    load_finished,
    run_all,
    shared_baselines,
    summarise_data,
)
from chordmixer.training import Experiment, checkpoints
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.loop import train
from chordmixer.training.progress import Interrupted


def test_what_is_finished_is_not_trained_again(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    first = run_all(expand(tiny, ["chordmixer"], 1), RunsJournal.open(tmp_path / "r", "adding-200", False), False)
    assert log.messages == ["chordmixer-seed0, 1 of 1", "baselines on the same records, on the CPU"]

    trained: list[str] = []

    def count(experiment: Experiment, out: Path, resume: bool) -> Evaluation:
        trained.append(out.name)
        return train(experiment, out, resume=resume)

    train = running.train
    monkeypatch.setattr(running, "train", count)
    journal = RunsJournal.open(tmp_path / "r", "adding-200", True)
    both = run_all(expand(tiny, ["chordmixer", "pointwise"], 1), journal, True)
    assert trained == ["pointwise-seed0"]
    assert log.messages[2:] == ["chordmixer-seed0, 1 of 2: finished before", "pointwise-seed0, 2 of 2"]
    assert (both[0].evaluation, both[0].seconds) == (first[0].evaluation, first[0].seconds)
    assert both[1].seconds > 0 and not both[1].killed
    assert [run.steps for run in both] == [2, 2], "64 records, a batch an epoch"
    for run, folder in zip(both, ("chordmixer-seed0", "pointwise-seed0"), strict=True):
        assert [b.name for b in run.baselines] == ["mean", "length alone"] and run.baselines == first[0].baselines
        files.verify(tmp_path / "r" / folder, ["baselines.json"])


def test_baselines_are_scored_once(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever run has them; what was changed is refused; what a kill left unlisted is made anew."""
    run_all({"a": tiny, "b": tiny}, RunsJournal.open(tmp_path / "r", "x", False), False, baselines=False)
    runs = [tmp_path / "r" / name for name in "ab"]
    assert not any((run / "baselines.json").exists() for run in runs)
    assert [b.name for b in shared_baselines(runs[1:])] == ["mean", "length alone"]
    monkeypatch.setattr(running, "compare", pytest.fail)
    assert shared_baselines(runs) == shared_baselines(runs[:1])
    files.write_json(runs[0] / "baselines.json", {"format": 1, "baselines": []})
    with pytest.raises(ValueError, match=r"baselines.json was changed or damaged"):
        shared_baselines(runs)
    listed = files.read_json(runs[0] / "manifest.json")
    files.write_json(runs[0] / "manifest.json", {k: v for k, v in listed.items() if k != "baselines.json"})
    assert shared_baselines(runs) == shared_baselines(runs[:1]) != []


def test_other_ranks_score_no_baselines(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_all({"a": tiny}, RunsJournal.open(tmp_path / "r", "x", False), False)
    monkeypatch.setenv("RANK", "1")
    again = run_all({"a": tiny}, RunsJournal.open(tmp_path / "r", "x", True), True)
    assert first[0].baselines and not again[0].baselines


def test_other_settings_are_refused(tiny: Experiment, tmp_path: Path) -> None:
    run_all({"run": tiny}, RunsJournal.open(tmp_path / "r", "a", False), False)
    other = replace(tiny, training=replace(tiny.training, learning_rate=0.5))
    assert (
        load_finished(tmp_path / "r" / "run", tiny) is not None
        and load_finished(tmp_path / "r" / "run", other) is None
    )
    with pytest.raises(ValueError, match="was started with other settings"):
        run_all({"run": other}, RunsJournal.open(tmp_path / "r", "a", True), True)


def test_scores_that_were_changed_are_refused(tiny: Experiment, tmp_path: Path) -> None:
    run_all({"run": tiny}, RunsJournal.open(tmp_path / "r", "a", False), False)
    scores = tmp_path / "r" / "run" / "evaluation-test.json"
    files.write_json(scores, {**files.read_json(scores), "loss": 0.0})
    with pytest.raises(ValueError, match=r"evaluation-test.json was changed or damaged"):
        load_finished(tmp_path / "r" / "run", tiny)


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="is there already: give a new --out, or add --resume to go on with it"):
        RunsJournal.open(tmp_path, "a", resume=False)
    with pytest.raises(ValueError, match="is there already"):
        RunsJournal.open(tmp_path / "x", "a", resume=False)


def test_a_folder_of_another_entry(tmp_path: Path) -> None:
    with RunsJournal.open(tmp_path, "listops", False).timing("run"):
        pass
    with pytest.raises(ValueError, match=r"holds 'listops', not 'image': give another --out"):
        RunsJournal.open(tmp_path, "image", resume=True)


def test_seconds_of_several_starts_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 100.0, 105.0])
    monkeypatch.setattr(running.time, "monotonic", lambda: next(clock))
    with pytest.raises(Interrupted), RunsJournal.open(tmp_path, "a", False).timing("run"):
        raise Interrupted(2)
    with RunsJournal.open(tmp_path, "a", True).timing("run"):
        pass
    assert RunsJournal.open(tmp_path, "a", True).seconds("run") == (15.0, False)


def test_two_that_train_into_one_folder_keep_each_others_times(tmp_path: Path) -> None:
    one, other = (RunsJournal.open(tmp_path, "a", resume=True) for _ in range(2))
    with one.timing("x"), other.timing("y"):
        pass
    both = RunsJournal.open(tmp_path, "a", resume=True)
    assert {*both.runs} == {"x", "y"} and not both.seconds("x")[1] and not both.seconds("y")[1]


def test_a_start_that_was_killed_is_known(tmp_path: Path) -> None:
    runs: dict[str, Any] = {"run": {"seconds": 3.0, "starts": 2, "ends": 1}}
    files.write_json(tmp_path / running.STATE, {"format": 1, "name": "a", "runs": runs})
    journal = RunsJournal.open(tmp_path, "a", True)
    assert journal.seconds("run") == (3.0, True) and journal.seconds("never heard of") == (0.0, True)


def test_data_are_looked_at_before(tiny: Experiment) -> None:
    seen = summarise_data(tiny)
    assert seen.records == {"training": 64, "validation": 16, "test": 32} and seen.classes == []
    assert 32 <= seen.shortest <= seen.longest <= 60
    small = replace(tiny, model=replace(tiny.model, network=replace(tiny.model.network, max_length=33)))
    with pytest.raises(ValueError, match=r"above model.network.max_length=33"):
        summarise_data(small)


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with RunsJournal.open(tmp_path, "a", False).timing("run"):
        pass
    assert not [*tmp_path.iterdir()]


# --- Several runs at once: failures, signals and a killed parent lose nothing ---

WAIT = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_the_same_as_one_after_the_other(tiny: Experiment, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    runs = expand(tiny, ["chordmixer", "pointwise"], 1)
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
        ParallelRuns(dict.fromkeys("abc", tiny), journal, 2).train()
    (a, b, c) = (list(map(float, (tmp_path / f"{name}.times").read_text().split())) for name in "abc")
    assert c[0] >= min(a[1], b[1]), "the third began when there was room"
    assert {*files.read_json(tmp_path / "r" / "reproduction.json")["runs"]} == {*"abc"}


def test_what_is_told_meanwhile(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    code = "import time; print(' 50%  epoch 1  step 3', flush=True); print('and more', flush=True); time.sleep(1)"
    monkeypatch.setattr(subprocesses, "COMMAND", [sys.executable, "-c", code])
    monkeypatch.setattr(running, "REPORT_SECONDS", 0.5)
    ParallelRuns({"a": tiny, "b": tiny}, RunsJournal.open(tmp_path, "x", True), 1).train()
    told = [line for line in log.messages if line.startswith("training a 50 %; 1 to come; about ")]
    assert told and int(told[0].split()[-3]) >= 1, "half of one of two in half a second: three times as long is left"


PARENT = """import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from tests.forked import Copied
from chordmixer.paper import subprocesses
from chordmixer.paper.reproduction.running import ParallelRuns, RunsJournal
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
    ParallelRuns(runs, RunsJournal.open(out, "x", True), 2).train()
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
    until(lambda: all(checkpoints.newest_first(tmp_path / name) for name in long_runs))
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


def run_folder(folder: Path) -> tuple[int | None, str, str]:
    """Its exit code, output and errors."""
    process = Forked([*subprocesses.COMMAND, running.PROCESS, str(folder)])
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
