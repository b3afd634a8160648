from __future__ import annotations

import errno
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from chordmixer import files


def failing(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest."""
    files.write_folder(tmp_path / "whole", {"a.txt": b"first", "b.bin": bytes(range(256))})
    return tmp_path / "whole"


def flip(path: Path, index: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


def test_writes_make_folders_and_leave_no_temporary(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "x.txt"
    files.write_text(path, "grün")
    assert path.read_text(encoding="utf-8") == "grün"
    assert list(path.parent.iterdir()) == [path]


def test_processes_may_write_the_same_file_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from chordmixer.files import write_text\n"
    code += "for _ in range(150): write_text(Path(sys.argv[1]), sys.argv[2] * 5_000)"
    path = tmp_path / "x.txt"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 5_000, "b" * 5_000) and list(tmp_path.iterdir()) == [path]


def test_processes_that_change_a_file_at_once_lose_nothing(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from chordmixer.files import update_json\n"
    code += "for i in range(60): update_json(Path(sys.argv[1]), lambda content: content | {sys.argv[2] + str(i): i})"
    path = tmp_path / "new" / "x.json"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), letter]) for letter in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert files.read_json(path) == {f"{letter}{i}": i for letter in "abc" for i in range(60)}


def test_a_damaged_file_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x.json cannot be read as JSON"):
        files.update_json(tmp_path / "x.json", lambda content: content)
    assert (tmp_path / "x.json").read_text() == "{" and len([*tmp_path.iterdir()]) == 1


def test_json_round_trip(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None], "b": {"c": "d"}}
    files.write_json(tmp_path / "x.json", value)
    assert files.read_json(tmp_path / "x.json") == value


def test_tensors_round_trip(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 4).T, "n": torch.arange(5), "b": torch.randn(2).bfloat16().requires_grad_()}
    files.write_bytes(tmp_path / "x.safetensors", files.tensor_bytes(tensors))
    restored = files.read_tensors(tmp_path / "x.safetensors")
    assert restored.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert restored[name].dtype == tensor.dtype and torch.equal(restored[name], tensor.detach())


def test_same_tensors_same_bytes() -> None:
    a, b = torch.randn(3), torch.randn(2)
    assert files.tensor_bytes({"a": a, "b": b}) == files.tensor_bytes({"b": b.clone(), "a": a.clone()})


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "no such luck")], ids=["killed", "broken"])
def test_the_old_file_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    path = tmp_path / "x.txt"
    files.write_text(path, "old")
    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, ValueError)):
        patch.setattr(step, failing(error))
        files.write_text(path, "new")
    assert path.read_text() == "old"
    files.sweep_run(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str) -> None:
    monkeypatch.setattr(os, "fsync", failing(OSError(number, os.strerror(number))))
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1234))
    with pytest.raises(ValueError, match=r"/x needs 5,000 bytes and 1,234 are free: make room") as caught:
        if kind == "file":
            files.write_bytes(tmp_path / "x", b"." * 5000)
        else:
            files.write_folder(tmp_path / "x", {"a": b"." * 2000, "b": b"." * 3000})
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_full_disk_before_the_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ValueError, match=r"new/x needs 1 bytes and [\d,]+ are free"):
        files.write_bytes(tmp_path / "new" / "x", b".")


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file, not a folder")
    with pytest.raises(ValueError, match=r"run/config.json cannot be written: .*; choose another folder"):
        files.write_text(tmp_path / "run" / "config.json", "{}")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", failing(KeyboardInterrupt()))
        files.write_folder(tmp_path / "x", {"a": b"1"})
    assert not (tmp_path / "x").exists()
    files.write_folder(tmp_path / "x", {"a": b"2"})
    assert {p.name for p in tmp_path.iterdir()} == {"x"}
    assert {p.name for p in (tmp_path / "x").iterdir()} == {"a", files.MANIFEST}
    files.verify(tmp_path / "x", ["a"])


def test_sweep_removes_strays_and_nothing_else(folder: Path) -> None:
    before = sorted(p for p in folder.rglob("*"))
    (folder / ".writing-file").write_text("half")
    (folder / ".writing-folder" / "deep").mkdir(parents=True)
    (folder.parent / ".writing-above").write_text("half")
    files.sweep_run(folder.parent)
    assert sorted(folder.rglob("*")) == before and list(folder.parent.iterdir()) == [folder]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Neither under the name that is asked for, nor under the temporary one of earlier versions."""
    target = tmp_path / "target"
    target.write_text("mine")
    for name in ("x.txt", ".writing-x.txt", "log.jsonl"):
        (tmp_path / name).symlink_to(target)
    files.write_text(tmp_path / "x.txt", "new")
    with pytest.raises(ValueError, match=r"log\.jsonl is a symbolic link: nothing is written through one; remove it"):
        files.append_text(tmp_path / "log.jsonl", "line")
    assert target.read_text() == "mine" and (tmp_path / "x.txt").read_text() == "new"


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_manifest_fits_its_files_whenever_a_kill_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """There are four renames: of the manifest, of two files, and of the manifest again."""
    replace, calls = Path.replace, iter(range(9))

    def killed(path: Path, to: Path) -> Path:
        if next(calls) == writes:
            raise KeyboardInterrupt
        return replace(path, to)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", killed)
        files.write_recorded(folder, {"a.txt": b"second", "b.bin": b"second"})
    files.verify(folder, ["a.txt", "b.bin"])
    files.write_recorded(folder, {"a.txt": b"third"})
    files.verify(folder, ["a.txt", "b.bin"])
    assert isinstance(files.read_json(folder / files.MANIFEST)["a.txt"], str)


def test_manifest_grows(folder: Path) -> None:
    files.write_text(folder / "c.txt", "third")
    files.write_manifest(folder, ["c.txt"])
    assert files.read_json(folder / files.MANIFEST).keys() == {"a.txt", "b.bin", "c.txt"}
    files.verify(folder, ["a.txt", "b.bin", "c.txt"])


@pytest.mark.parametrize("index", [0, 100, 255])
def test_a_flipped_bit_is_refused(folder: Path, index: int) -> None:
    flip(folder / "b.bin", index)
    with pytest.raises(ValueError, match=r"b\.bin was changed or damaged: its SHA-256 is not the one in manifest"):
        files.verify(folder, ["a.txt", "b.bin"])
    files.verify(folder, ["a.txt"])


def test_missing_files_are_refused(folder: Path) -> None:
    (folder / "a.txt").unlink()
    with pytest.raises(ValueError, match=r"a\.txt is missing or not in manifest\.json"):
        files.verify(folder, ["a.txt"])
    with pytest.raises(ValueError, match=r"c\.txt is missing or not in manifest\.json"):
        files.verify(folder, ["c.txt"])


def test_a_checked_folder_needs_a_manifest(folder: Path) -> None:
    (folder / files.MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"manifest\.json does not exist"):
        files.verify(folder, ["a.txt"])


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/../../secret", ".."])
def test_a_manifest_cannot_make_us_read_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its names are looked up, never opened."""
    opened: list[Path] = []
    monkeypatch.setattr(files, "sha256", lambda path: opened.append(path) or "0" * 64)
    files.write_json(folder / files.MANIFEST, {name: "1" * 64, "a.txt": "0" * 64})
    files.verify(folder, ["a.txt"])
    assert opened == [folder / "a.txt"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe\x00", "cannot be read as JSON"),
        (b'{"a":' * 200_000, "cannot be read as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b"[1, 2]", "holds list, not an object"),
        (b"null", "holds NoneType, not an object"),
    ],
    ids=["empty", "cut", "binary", "deep", "huge-number", "list", "null"],
)
def test_bad_json_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"x\.json {message}.*: use another copy") as caught:
        files.read_json(path)
    assert "\n" not in str(caught.value)


def test_absent_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.json does not exist: give a folder that chordmixer wrote"):
        files.read_json(tmp_path / "x.json")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        files.read_json(tmp_path)


def header(size: int, **tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return (size or len(text)).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        bytes(i * 37 % 251 for i in range(4096)),
        b"\x80\x04\x95cposix\nsystem\n.",
        header(1 << 40),
        header(0, w={"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}),
        header(0, w={"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}) + b"\0" * 15,
        header(0, w={"dtype": "F32", "shape": [2], "data_offsets": [0, 16]}) + b"\0" * 16,
        header(0, w={"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]}) + b"\0" * 8,
    ],
    ids=["empty", "short", "noise", "pickle", "1-TB-header", "1-TB-tensor", "cut", "shape", "type"],
)
def test_bad_tensors_are_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.safetensors is not a safetensors file \(.+\): chordmixer loads no"):
        files.read_tensors(path)


def test_absent_tensors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.safetensors is not a safetensors file"):
        files.read_tensors(tmp_path / "x.safetensors")


def test_a_folder_by_any_name(tmp_path: Path) -> None:
    assert files.is_folder(tmp_path) and not files.is_folder(tmp_path / "none")
    assert not files.is_folder("x" * 3000) and not files.is_folder("a\0b")


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    files.write_json(path, {"r2": float("nan"), "bins": [(1.0, float("inf"))], "loss": -float("inf")})
    files.update_json(path, lambda before: before | {"mse": float("nan")})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "r2": None,
        "bins": [[1.0, None]],
        "loss": None,
        "mse": None,
    }


def test_names_are_new_and_nobody_can_guess_them(tmp_path: Path) -> None:
    created = [files.new_file(tmp_path) for _ in range(3)]
    assert len({path for path, _ in created}) == 3
    for path, file in created:
        assert path.name.startswith(files.TEMPORARY) and len(path.name) > 20
        file.close()


def test_a_name_that_is_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even through a link that somebody put where the next name will be."""
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    (tmp_path / "target").write_text("mine")
    (tmp_path / ".writing-guessed").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        files.new_file(tmp_path)
    with pytest.raises(FileExistsError):
        files.new_folder(tmp_path)
    assert (tmp_path / "target").read_text() == "mine"


def test_sweep_leaves_what_a_living_process_writes(tmp_path: Path) -> None:
    path, file = files.new_file(tmp_path)
    with files.temporary_folder(tmp_path) as folder:
        files.sweep(tmp_path)
        assert path.exists() and folder.exists()
    assert path.exists() and not folder.exists()
    file.close()
    files.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_sweep_follows_no_link(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    (elsewhere / ".writing-mine").mkdir(parents=True)
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    (run / ".writing-link").symlink_to(elsewhere)
    files.sweep_run(run)
    assert (elsewhere / ".writing-mine").exists() and (run / ".writing-link").is_symlink()


def test_a_name_that_was_swept_before_it_was_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = files.lock_descriptor, list[Path]()

    def sweep_then_lock(handle: int, **options: Any) -> bool:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        return lock(handle, **options)

    monkeypatch.setattr(files, "lock_descriptor", sweep_then_lock)
    path, file = files.new_file(tmp_path)
    with file:
        assert path != swept[0] and os.path.samestat(path.stat(), os.fstat(file.fileno()))
