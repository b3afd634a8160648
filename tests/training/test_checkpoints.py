"""Checkpoints: a resumed run gives the same bytes, and nothing damaged, forged or half written is loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.trained_runs import contents

from chordmixer import files
from chordmixer.config import override
from chordmixer.training import Experiment, checkpoints
from chordmixer.training.loop import train

pytestmark = pytest.mark.usefixtures("quick_scores")

Crash = Callable[[Experiment, Path, int], None]
Damage = Callable[[Path], None]

MODEL = "model.safetensors"
CONTENTS = [MODEL, "best.safetensors", "optimizer.safetensors", "state.json", "settings.json", "manifest.json"]


@pytest.fixture(scope="module")
def halfway(tiny: Experiment, crash: Crash, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that crashed after step 17, which tests only copy."""
    folder = tmp_path_factory.mktemp("halfway") / "run"
    crash(tiny, folder, 17)
    assert [path.name for path in checkpoints.newest_first(folder)] == ["step-000000015", "step-000000012"]
    return folder


@pytest.fixture
def run(halfway: Path, tmp_path: Path) -> Path:
    """A copy of the crashed run, to be damaged."""
    return Path(shutil.copytree(halfway, tmp_path / "run"))


@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        ({}, [2, 4, 12, 13, 23]),
        ({"accumulate": 2, "evaluate_every": 4}, [1, 5, 6, 8, 11]),
        ({"evaluate_every": 5, "checkpoint_every": 4}, [10, 12, 20]),
        ({"ema": 0.3, "evaluate_every": 5}, [4, 10, 14]),
        ({"checkpoint_every": 0, "checkpoint_minutes": 0.0, "patience": 1, "evaluate_every": 3}, [5, 6, 7]),
    ],
    ids=["mid-epoch and epoch ends", "accumulation", "evaluations between", "averaged", "every step, patience"],
)
def test_going_on_gives_the_same_bytes(
    tiny: Experiment, tmp_path: Path, crash: Crash, settings: dict[str, Any], stops: list[int]
) -> None:
    """The same weights, best weights, optimiser, metrics and scores, with dropout."""
    experiment = override(tiny, {"training": settings})
    train(experiment, tmp_path / "whole")
    for steps in stops:
        crash(experiment, tmp_path / "crashed", steps)
    train(experiment, tmp_path / "crashed", resume=True)
    expected, actual = contents(tmp_path / "whole"), contents(tmp_path / "crashed")
    assert actual.pop("metrics.jsonl").decode() == expected.pop("metrics.jsonl").decode()
    assert [name for name in expected if actual.get(name) != expected[name]] == []
    assert set(actual) == set(expected)


def test_going_on_with_a_finished_run(tiny: Experiment, tmp_path: Path) -> None:
    """Nothing changes; missing files are written again."""
    train(tiny, tmp_path / "run")
    before = contents(tmp_path / "run")
    train(tiny, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    for name in (MODEL, "manifest.json", "evaluation-test.json", "predictions.parquet"):
        (tmp_path / "run" / name).unlink()
    train(tiny, tmp_path / "run", resume=True, unverified=True)
    assert contents(tmp_path / "run") == before


def test_averaged_weights_are_kept_and_missed(tiny: Experiment, crash: Crash, tmp_path: Path) -> None:
    experiment = override(tiny, {"training": {"ema": 0.3}})
    crash(experiment, tmp_path / "run", 17)
    newest, previous = checkpoints.newest_first(tmp_path / "run")
    (newest / "average.safetensors").unlink()
    good, refused = checkpoints.newest_good(tmp_path / "run")
    assert good == previous and "average.safetensors is missing" in refused[0]
    train(experiment, tmp_path / "run", resume=True)
    train(tiny, tmp_path / "plain")
    weights = [files.read_tensors(tmp_path / name / MODEL) for name in ("run", "plain")]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_what_a_kill_left_half_written_is_swept(tiny: Experiment, run: Path, full_run: Path) -> None:
    (run / ".writing-config.json").write_text("{")
    (run / "checkpoints" / ".writing-step-000000018").mkdir()
    (run / "checkpoints" / ".writing-step-000000018" / MODEL).write_bytes(b"half")
    train(tiny, run, resume=True)
    assert not list(run.rglob(".writing-*"))
    assert (run / MODEL).read_bytes() == (full_run / MODEL).read_bytes()


def test_a_kill_inside_the_very_first_write(tiny: Experiment, tmp_path: Path, full_run: Path) -> None:
    (tmp_path / ".writing-config.json").write_text("{")
    train(tiny, tmp_path, resume=True)
    assert not list(tmp_path.rglob(".writing-*"))
    assert (tmp_path / MODEL).read_bytes() == (full_run / MODEL).read_bytes()


class Trap:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def insert(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20] + b"0" + path.read_bytes()[-20:])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def trap(path: Path) -> None:
    path.write_bytes(pickle.dumps(Trap(path.parent / "sprung")))


def signed_trap(path: Path) -> None:
    trap(path)
    files.write_manifest(path.parent, [path.name])


DAMAGE = [flip, insert, cut, zero, Path.unlink, trap, signed_trap]


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_and_the_one_before_is_used(run: Path, name: str, damage: Damage) -> None:
    newest, previous = checkpoints.newest_first(run)
    if (damage, name) == (signed_trap, "manifest.json"):
        damage = trap
    damage(newest / name)
    good, (reason,) = checkpoints.newest_good(run)
    assert good == previous
    assert str(newest) in reason and "\n" not in reason
    assert checkpoints.newest_first(run) == [previous]
    assert not list(run.rglob("sprung"))


@pytest.mark.parametrize(("damage", "name"), list(zip(DAMAGE, [*CONTENTS, MODEL], strict=True)))
def test_going_on_from_the_one_before_tells_the_user_and_gives_the_same_bytes(
    tiny: Experiment, run: Path, full_run: Path, capsys: pytest.CaptureFixture[str], damage: Damage, name: str
) -> None:
    newest, previous = checkpoints.newest_first(run)
    damage(newest / name)
    capsys.readouterr()
    train(tiny, run, resume=True)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"refused: {newest}")
    assert second == f"going on from {previous}"
    assert (run / MODEL).read_bytes() == (full_run / MODEL).read_bytes()


def test_a_manifest_must_name_every_file(run: Path) -> None:
    """Otherwise a file of a checkpoint could be changed unnoticed."""
    newest, previous = checkpoints.newest_first(run)
    manifest = files.read_json(newest / "manifest.json")
    del manifest[MODEL]
    (newest / "manifest.json").write_text(json.dumps(manifest))
    flip(newest / MODEL)
    assert checkpoints.newest_good(run)[0] == previous


def test_a_checkpoint_of_another_network_is_refused(
    tiny: Experiment, run: Path, tmp_path: Path, crash: Crash
) -> None:
    wide = override(tiny, {"model": {"network": {"hidden": 8}}})
    crash(wide, tmp_path / "wide", 19)
    newest = checkpoints.newest_first(tmp_path / "wide")[0]
    shutil.copytree(newest, run / "checkpoints" / newest.name)
    with pytest.raises(ValueError, match=r"step-000000018.*another"):
        train(tiny, run, resume=True)


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(
    tiny: Experiment, run: Path, tmp_path: Path, crash: Crash
) -> None:
    """The network is the same, so only the settings show that it belongs to another run."""
    reseeded = override(tiny, {"training": {"seed": 5}})
    crash(reseeded, tmp_path / "other", 20)
    newest = checkpoints.newest_first(tmp_path / "other")[0]
    shutil.copytree(newest, run / "checkpoints" / newest.name)
    with pytest.raises(
        ValueError, match=r"is a checkpoint of another run: training\.seed is 0 here and 5 in the checkpoint"
    ):
        train(tiny, run, resume=True)
    with pytest.raises(ValueError, match=r"training\.seed is 0 here and 5 in the checkpoint"):
        train(tiny, run, resume=True, unverified=True)


def test_an_edited_config_is_refused_with_what_differs(run: Path) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"learning_rate": 0.001', '"learning_rate": 0.5'))
    with pytest.raises(ValueError, match=r"config\.json was changed or damaged.*rate is 0\.5 here and 0\.001 in the"):
        Experiment.load(run)
    (run / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"training\.learning_rate is 0\.5 here and 0\.001 in the checkpoint"):
        train(Experiment.load(run, unverified=True), run, resume=True, unverified=True)


def test_a_checkpoint_without_settings(tiny: Experiment, run: Path, full_run: Path) -> None:
    """Earlier versions wrote such checkpoints."""
    for path in checkpoints.newest_first(run):
        recorded = files.read_json(path / "manifest.json")
        files.write_json(path / "manifest.json", {k: v for k, v in recorded.items() if k != "settings.json"})
        (path / "settings.json").unlink()
    with pytest.raises(ValueError, match="does not say whose it is: train again, or add --unverified to go on"):
        train(tiny, run, resume=True)
    train(tiny, run, resume=True, unverified=True)
    assert (run / MODEL).read_bytes() == (full_run / MODEL).read_bytes()


def test_only_what_a_save_wrote_is_removed(tiny: Experiment, run: Path, tmp_path: Path) -> None:
    """Targets of links stay, and so do folders with similar names."""
    folder = run / "checkpoints" / "step-by-step"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / "checkpoints" / "step-000000012", elsewhere)
    (run / "checkpoints" / "step-000000012").symlink_to(elsewhere)
    train(tiny, run, resume=True)
    assert (folder / "notes.txt").exists() and (elsewhere / MODEL).exists()


def test_no_good_checkpoint_is_one_error(tiny: Experiment, run: Path) -> None:
    for path in checkpoints.newest_first(run):
        flip(path / MODEL)
    with pytest.raises(ValueError, match=r"^no checkpoint of .* is whole \(.*\): train again into another folder$"):
        train(tiny, run, resume=True)
    assert len(checkpoints.newest_first(run)) == 2


def test_no_mutant_loads(halfway: Path, tmp_path: Path) -> None:
    """60 random changes, each to one file of a lone checkpoint."""
    rng = random.Random(0)
    source = checkpoints.newest_first(halfway)[0]
    for number in range(60):
        path = tmp_path / str(number) / "checkpoints" / source.name
        shutil.copytree(source, path)
        victim = path / rng.choice(CONTENTS)
        data = victim.read_bytes()
        start, length = rng.randrange(len(data)), rng.choice([1, 1, 8, 200])
        fill = rng.choice([b"", bytes(length), rng.randbytes(length), data[start : start + length] * 2])
        mutant = data[:start] + fill + data[start + length :]
        victim.write_bytes(mutant)
        if mutant == data or (victim.name == "manifest.json" and _same_json(mutant, data)):
            continue
        with pytest.raises(ValueError, match=r"no checkpoint of .* is whole"):
            checkpoints.newest_good(tmp_path / str(number))


def _same_json(first: bytes, second: bytes) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return False


def test_only_the_two_newest_are_kept(tiny: Experiment, run: Path, crash: Crash) -> None:
    crash(tiny, run, 22)
    assert [path.name for path in checkpoints.newest_first(run)] == ["step-000000021", "step-000000018"]


def test_a_manifest_holds_the_sha256_of_each_file(halfway: Path) -> None:
    newest = checkpoints.newest_first(halfway)[0]
    sums = {name: hashlib.sha256((newest / name).read_bytes()).hexdigest() for name in CONTENTS[:-1]}
    assert files.read_json(newest / "manifest.json") == sums
    assert sorted(path.name for path in newest.iterdir()) == sorted(CONTENTS)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: a real error of the system, as from a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def failing_flush(number: int) -> Iterator[None]:
    """Every flush to the disk fails with this error number."""

    def fsync(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.mark.parametrize(
    "full",
    [lambda: largest_file(8_000), lambda: failing_flush(errno.ENOSPC), lambda: failing_flush(errno.EDQUOT)],
    ids=["file size limit", "disk full", "quota"],
)
def test_a_full_disk_is_one_line_and_costs_nothing(
    tiny: Experiment, run: Path, full_run: Path, full: Callable[[], Any]
) -> None:
    before = contents(run / "checkpoints")
    (run / "metrics.jsonl").unlink()  # nothing but a checkpoint is then written
    with full(), pytest.raises(ValueError, match=r"step-000000018 needs [\d,]+ bytes and [\d,]+ are free") as error:
        train(tiny, run, resume=True)
    assert "make room or choose another disk, then resume; the last checkpoint is whole" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(run / "checkpoints") == before
    assert not list(run.rglob(".writing-*"))
    train(tiny, run, resume=True)
    assert (run / MODEL).read_bytes() == (full_run / MODEL).read_bytes()


def test_a_disk_that_cannot_be_written_is_one_line(tiny: Experiment, tmp_path: Path) -> None:
    with (
        failing_flush(errno.EIO),
        pytest.raises(ValueError, match=r"manifest\.json cannot be written: .*choose another"),
    ):
        train(tiny, tmp_path / "run")


def test_kept_weights_under_other_names_are_refused_at_once(tmp_path: Path) -> None:
    """They are refused when loaded, not at the end of the run when the model takes them."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = {name.upper(): value.clone() for name, value in model.state_dict().items()}
    path = checkpoints.save(tmp_path, checkpoints.State(step=1, best_weights=weights), model, optimizer, {})
    with pytest.raises(ValueError, match=r"is of another network .*: train again into another folder"):
        checkpoints.load(path, model, optimizer)
