"""A run folder is made or taken up again: what is in its way, and who decides."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.config import override
from chordmixer.training import Experiment, train
from chordmixer.training.loop import TrainingRun
from chordmixer.training.opening import open_folder

MODEL = "model.safetensors"
Crash = Callable[[Experiment, Path, int], None]


def test_killed_at_the_first_moment(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of config.json and its manifest, whatever a kill leaves is a new run's folder, or a run."""
    replace = Path.replace
    for moment in range(3):
        calls, out = iter(range(9)), tmp_path / str(moment)

        def killed(path: Path, to: Path, calls: Any = calls, moment: int = moment) -> Path:
            if next(calls) == moment:
                raise KeyboardInterrupt
            return replace(path, to)

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
def test_a_run_is_written_into_its_own_folder(tiny: Experiment, whole: Path, tmp_path: Path, name: str) -> None:
    """Checkpoints of another run, which a link leads to, are not swept, and none is dropped."""
    run, other = (Path(shutil.copytree(whole, tmp_path / own)) for own in ("run", "other"))
    (other / "tensorboard").mkdir()
    before = sorted(other.rglob("*"))
    if (run / name).exists():
        shutil.move(run / name, tmp_path / "aside")
    (run / name).symlink_to(other / name)
    with pytest.raises(ValueError, match=rf"{name} is a symbolic link: a run is written into its own folder"):
        train(tiny, run, resume=True)
    assert sorted(other.rglob("*")) == before


def test_a_second_training_is_refused_and_the_first_is_not_hurt(
    tiny: Experiment, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    said = f"chordmixer: {tmp_path / 'run'} is in use by process {os.getpid()}: two at once would spoil the run"
    assert code == 2 and errors.startswith(said) and errors.count("\n") == 1
    assert (tmp_path / "run" / MODEL).read_bytes() == (whole / MODEL).read_bytes()


def test_the_folder_is_deleted_during_training(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and nothing comes back."""
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
    tiny: Experiment, whole: Path, crash: Crash, tmp_path: Path
) -> None:
    """Without a manifest until it is finished."""
    crash(tiny, tmp_path / "run", 17)
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(ValueError, match="add --unverified"):
        train(tiny, tmp_path / "run", resume=True)
    train(tiny, tmp_path / "run", resume=True, unverified=True)
    assert (tmp_path / "run" / MODEL).read_bytes() == (whole / MODEL).read_bytes()
    assert Experiment.load(tmp_path / "run") == tiny


def test_an_error_while_it_is_opened_leaves_it_free(tiny: Experiment, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for _ in range(2):
        with pytest.raises(ValueError, match="was started with other settings"):
            train(override(tiny, {"training": {"rate": 0.5}}), run, resume=True)
    train(tiny, run, resume=True)
