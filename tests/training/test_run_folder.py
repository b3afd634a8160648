"""Run folders: the manifest, the lock of the writer, opening for training, provenance, saving."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked import Forked

from chordmixer import files
from chordmixer.config import override
from chordmixer.tasks.targets import Classification
from chordmixer.training import Experiment, run_folder
from chordmixer.training.evaluation import evaluate
from chordmixer.training.fine_tuning import start_from
from chordmixer.training.inference import Engine
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.run_folder import JOURNAL, WEIGHTS, RunLock, open_folder, recording_provenance
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run

Crash = Callable[[Experiment, Path, int], None]
CPU = torch.device("cpu")
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
def run(full_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full_run, tmp_path / "run"))


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
        Engine(tmp_path)


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


def test_a_lock_does_not_follow_links(run: Path, tmp_path: Path) -> None:
    (run / ".lock").unlink()
    (tmp_path / "target").write_text("mine")
    (run / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(ValueError, match=r"run cannot be locked"):
        RunLock(run)
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_folder_that_is_gone_is_seen(run: Path, change: str) -> None:
    with RunLock(run) as lock:
        lock.check()
        shutil.rmtree(run)
        if change == "replaced":
            run.mkdir()
        with pytest.raises(ValueError, match=r"run was removed, moved or replaced while it was written: nothing"):
            lock.check()


# --- Opening for training ---


def test_killed_at_the_first_moment(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a kill leaves of config.json and its manifest can be trained in again."""
    replace = Path.replace
    for moment in range(3):
        calls, out = iter(range(9)), tmp_path / str(moment)

        def killed(path: Path, target: Path, calls: Any = calls, moment: int = moment) -> Path:
            if next(calls) == moment:
                raise KeyboardInterrupt
            return replace(path, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "replace", killed)
            open_folder(tiny, out, resume=False)
        open_folder(tiny, out, resume=True).release()
        assert Experiment.load(out) == tiny


def test_a_manifest_of_something_else_is_not_ours(tiny: Experiment, tmp_path: Path) -> None:
    files.write_json(tmp_path / "manifest.json", {"name": "a browser extension"})
    with pytest.raises(ValueError, match="is not empty and holds no run: give a new folder"):
        open_folder(tiny, tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "metrics.jsonl"])
def test_a_run_is_written_into_its_own_folder(tiny: Experiment, full_run: Path, tmp_path: Path, name: str) -> None:
    """Checkpoints of another run behind a link are neither cleaned up nor removed."""
    run, other_run = (Path(shutil.copytree(full_run, tmp_path / folder)) for folder in ("run", "other"))
    (other_run / "tensorboard").mkdir()
    before = sorted(other_run.rglob("*"))
    if (run / name).exists():
        shutil.move(run / name, tmp_path / "aside")
    (run / name).symlink_to(other_run / name)
    with pytest.raises(ValueError, match=rf"{name} is a symbolic link: a run is written into its own folder"):
        train(tiny, run, resume=True)
    assert sorted(other_run.rglob("*")) == before


def test_a_second_training_is_refused_and_the_first_is_not_hurt(
    tiny: Experiment, full_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, refused = TrainingRun._step, list[tuple[int | None, str]]()

    def meanwhile(self: TrainingRun, *arguments: Any) -> None:
        if self.state.step == 10:
            command = [sys.executable, "-m", "chordmixer", "train", "--resume", str(tmp_path / "run")]
            second = Forked(command)
            _, errors = second.communicate(timeout=120)
            refused.append((second.returncode, errors))
        step(self, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", meanwhile)
    train(tiny, tmp_path / "run")
    ((code, errors),) = refused
    message = f"chordmixer: {tmp_path / 'run'} is in use by process {os.getpid()}: two at once would spoil the run"
    assert code == 2 and errors.startswith(message) and errors.count("\n") == 1
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (full_run / WEIGHTS).read_bytes()


def test_the_folder_is_deleted_during_training(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line, and the folder is not made again."""
    step, run = TrainingRun._step, tmp_path / "run"

    def deleting(self: TrainingRun, *arguments: Any) -> None:
        if self.state.step == 4:
            shutil.rmtree(run)
        step(self, *arguments)

    monkeypatch.setattr(TrainingRun, "_step", deleting)
    with pytest.raises(ValueError, match=r"run was removed, moved or replaced while it was written") as error:
        train(tiny, run)
    assert "\n" not in str(error.value) and not run.exists()


def test_a_run_of_an_earlier_version_goes_on_where_asked(
    tiny: Experiment, full_run: Path, crash: Crash, tmp_path: Path
) -> None:
    """Such a run has no manifest until it is finished."""
    crash(tiny, tmp_path / "run", 17)
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(ValueError, match="add --unverified"):
        train(tiny, tmp_path / "run", resume=True)
    train(tiny, tmp_path / "run", resume=True, unverified=True)
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (full_run / WEIGHTS).read_bytes()
    assert Experiment.load(tmp_path / "run") == tiny


def test_an_error_while_a_folder_is_opened_releases_it(tiny: Experiment, full_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(full_run, tmp_path / "run"))
    for _ in range(2):
        with pytest.raises(ValueError, match="was started with other settings"):
            train(override(tiny, {"training": {"learning_rate": 0.5}}), run, resume=True)
    train(tiny, run, resume=True)


# --- Provenance ---


def test_a_run_says_how_it_was_made(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/chordmixer", "train", "adding", "--out", "my run"])
    train(tiny, tmp_path / "run")
    record = files.read_json(tmp_path / "run" / "run.json")
    assert record["command"] == "chordmixer train adding --out 'my run'"
    assert record["started"].endswith(" UTC") and record["device"].startswith("CPU (") and record["seconds"] > 0
    files.verify(tmp_path / "run", ["run.json"])
    train(tiny, tmp_path / "run", resume=True)
    assert files.read_json(tmp_path / "run" / "run.json") == record  # nothing was left to do


def test_starts_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 20.0, 100.0, 105.0])
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    with pytest.raises(RuntimeError, match="stopped"), recording_provenance(tmp_path, CPU):
        raise RuntimeError("stopped")
    with recording_provenance(tmp_path, CPU):
        unfinished = files.read_json(tmp_path / "run.json")
        assert (unfinished["starts"], unfinished["ends"]) == (2, 1)
    record = files.read_json(tmp_path / "run.json")
    assert (record["seconds"], record["starts"], record["ends"], record["command"]) == (25.0, 2, 2, "")


def test_damaged_or_deleted_provenance_stays_so(tmp_path: Path) -> None:
    files.write_json(tmp_path / "run" / "run.json", {"seconds": "long", "starts": None})
    with recording_provenance(tmp_path / "run", CPU):
        (tmp_path / "run" / "run.json").unlink()
        (tmp_path / "run").rmdir()
    assert not (tmp_path / "run").exists()


# --- Saving ---


def test_a_saved_model_holds_no_paths(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "saved"
    run.mkdir()
    config = {
        "format": 2,
        "task": "files",
        "data": {"files": ["/home/me/genes.fa"], "reading": {"labels": "/home/me/labels.csv"}},
        "model": {},
        "training": {"start": "/home/me/other"},
    }
    contents = {"config.json": files.json_bytes(config), "labels.json": b"{}", "data.json": b'{"sources": "secret"}'}
    files.write_recorded(run, {**contents, "model.safetensors": b"weights"})
    run_folder.save_model(run, out, "# A card\n")
    assert {path.name for path in out.iterdir()} - {".lock"} == {
        "README.md",
        "config.json",
        "labels.json",
        "manifest.json",
        "model.safetensors",
    }
    written = files.read_json(out / "config.json")
    assert written["data"] == {"files": ["genes.fa"], "reading": {"labels": "labels.csv"}}
    assert written["training"] == {"start": "other"}
    files.verify(out, ["config.json", "labels.json", "model.safetensors"])
    with pytest.raises(ValueError, match="saved is there already: a model is saved into a new or empty folder"):
        run_folder.save_model(run, out, "")
