"""The door to a run folder: its manifest, and the lock of whoever writes into it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.tasks.targets import Classification
from chordmixer.training import Experiment, evaluate, run_folder
from chordmixer.training.inference import Trained
from chordmixer.training.run_folder import JOURNAL, RunLock
from chordmixer.training.starting import start_from
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run

HOLDING = """
import sys, time
from pathlib import Path
from chordmixer.training.run_folder import JOURNAL, RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""

READERS: dict[str, Callable[..., object]] = {
    "evaluate": evaluate,
    "report": write_report,
    "experiment": Experiment.load,
    "view": Run.load,
}


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_run_without_a_manifest_is_refused_unless_asked_for(
    run: Path, quick_scores: None, read: Callable[..., object]
) -> None:
    before = sorted(path.name for path in run.iterdir())
    (run / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"run has no manifest\.json .*add --unverified to read it as") as error:
        read(run)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in run.iterdir()) == [name for name in before if name != "manifest.json"]
    for _ in range(2):  # what is written meanwhile does not make a manifest of it
        read(run, unverified=True)
    with pytest.raises(ValueError, match="add --unverified"):
        read(run)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_changed_config_is_refused_by_every_reader(run: Path, read: Callable[..., object]) -> None:
    (run / "config.json").write_text((run / "config.json").read_text().replace('"seed": 0', '"seed": 1', 1))
    for unverified in (False, True):
        with pytest.raises(ValueError, match=r"config\.json was changed or damaged"):
            read(run, unverified=unverified)


@pytest.mark.parametrize("name", ["model.safetensors", "evaluation-test.json", "predictions.parquet", JOURNAL])
def test_a_report_is_of_files_that_are_what_they_were(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[-2] ^= 1
    (run / name).write_bytes(data)
    with pytest.raises(ValueError, match=rf"{re.escape(name)} was changed or damaged"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_a_file_that_the_manifest_does_not_know_is_refused(run: Path) -> None:
    (run / "baselines.json").write_text('{"format": 1, "baselines": []}')
    with pytest.raises(ValueError, match=r"baselines\.json is missing or not in manifest\.json"):
        write_report(run)


def test_scores_that_are_damaged_can_be_made_again(run: Path, quick_scores: None) -> None:
    (run / "evaluation-test.json").write_text("{}")
    evaluate(run)
    run_folder.check_all(run)


def test_nothing_starts_from_a_changed_run(tiny: Experiment, run: Path) -> None:
    files.write_json(run / "config.json", files.read_json(run / "config.json"))
    start_from(tiny, run)  # the same bytes
    (run / "config.json").write_text((run / "config.json").read_text() + " ")
    with pytest.raises(ValueError, match=r"config\.json was changed or damaged"):
        start_from(tiny, run)
    (run / "manifest.json").unlink()
    with pytest.raises(ValueError, match="add --unverified"):
        start_from(tiny, run)
    assert start_from(tiny, run, unverified=True).training.start == str(run)


def test_a_model_for_use_needs_a_manifest_of_all_its_parts(tmp_path: Path) -> None:
    from tests.training.trained_runs import make_run

    make_run(tmp_path, Classification.of_counts(["a", "b"], [1, 1]))
    recorded = files.read_json(tmp_path / "manifest.json")
    files.write_json(tmp_path / "manifest.json", {k: v for k, v in recorded.items() if k != "labels.json"})
    with pytest.raises(ValueError, match=r"labels\.json is missing or not in manifest\.json"):
        Trained(tmp_path)


# --- The lock ---


@pytest.fixture
def holder(run: Path) -> Forked:
    child = Forked([sys.executable, "-c", HOLDING, str(run)])
    assert next(child.stdout) == "held\n"
    return child


def test_a_second_writer_is_refused_by_name_and_number(
    run: Path, holder: Forked, quick_scores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chordmixer.views.report.WAIT", 0.1)
    monkeypatch.setattr("chordmixer.training.evaluation.WAIT", 0.1)
    message = rf"^{run} is in use by process {holder.pid}: two at once would spoil the run; wait for it, or end it$"
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for write in (RunLock, write_report, evaluate):
        with pytest.raises(ValueError, match=message):
            write(run)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    os.kill(holder.pid, signal.SIGKILL)  # and a dead process holds nothing
    holder.communicate(timeout=60)
    write_report(run)
    assert (run / ".lock").read_bytes() == b""


def test_a_lock_is_no_way_to_another_file(run: Path, tmp_path: Path) -> None:
    (run / ".lock").unlink()
    (tmp_path / "target").write_text("mine")
    (run / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(ValueError, match=r"run cannot be locked"):
        RunLock(run)
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_folder_that_is_gone_is_seen(run: Path, what: str) -> None:
    with RunLock(run) as lock:
        lock.check()
        shutil.rmtree(run)
        if what == "replaced":
            run.mkdir()
        with pytest.raises(ValueError, match=r"run was removed, moved or replaced while it was written: nothing"):
            lock.check()
