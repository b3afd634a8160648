from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

import pytest

from chordmixer import files, temporary


def test_names_are_new_and_nobody_can_guess_them(tmp_path: Path) -> None:
    found = [temporary.new_file(tmp_path) for _ in range(3)]
    assert len({path for path, _ in found}) == 3
    for path, file in found:
        assert path.name.startswith(temporary.TEMPORARY) and len(path.name) > 20
        file.close()


def test_a_name_that_is_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even through a link that somebody put where the next name will be."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".writing-guessed").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        temporary.new_file(tmp_path)
    with pytest.raises(FileExistsError):
        temporary.new_folder(tmp_path)
    assert (tmp_path / "target").read_text() == "mine"


def test_sweep_leaves_what_a_living_process_writes(tmp_path: Path) -> None:
    path, file = temporary.new_file(tmp_path)
    with temporary.making(tmp_path) as folder:
        temporary.sweep(tmp_path)
        assert path.exists() and folder.exists()
    assert path.exists() and not folder.exists()
    file.close()
    temporary.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_sweep_follows_no_link(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    (elsewhere / ".writing-mine").mkdir(parents=True)
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    (run / ".writing-link").symlink_to(elsewhere)
    files.sweep(run)
    assert (elsewhere / ".writing-mine").exists() and (run / ".writing-link").is_symlink()


def test_a_name_that_was_swept_before_it_was_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, taken = fcntl.flock, list[Path]()

    def late(handle: int, how: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    path, file = temporary.new_file(tmp_path)
    with file:
        assert path != taken[0] and os.path.samestat(path.stat(), os.fstat(file.fileno()))
