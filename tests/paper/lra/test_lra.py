from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.paper import lra
from chordmixer.paper.lra import (
    BytesRecords,
    Part,
    ReleaseLayout,
    build_once,
    class_of,
    in_chunks,
    listops,
    load,
    part_of,
    pathfinder,
    read_once,
    split_records,
)
from chordmixer.paper.subprocesses import ProcessPool, importable

LABELS = ("no", "yes")


def parts(part: str) -> Iterator[Part]:
    """Forty training records of 2 to 41 bytes, the first and the last of a class alike, or six for the test."""
    for label in (0, 1):
        texts = [bytes([label, *range(n)]) for n in range(1, 21 if part == "training" else 4)]
        texts[-1] = texts[0]
        lengths = np.array([len(text) for text in texts])
        yield np.frombuffer(b"".join(texts), np.uint8), lengths, np.full(len(texts), label)


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "source").write_text("as it is")
    layout = ReleaseLayout(tmp_path / "source", [tmp_path / "source"], parts)
    return read_once(layout, str(tmp_path / "cache"), "set", LABELS, "get it again")


def test_what_was_read_is_read_once(folders: dict[str, Path], tmp_path: Path) -> None:
    def never(part: str) -> Iterator[Part]:
        raise AssertionError(f"{part} is read again")

    source, cache = tmp_path / "source", str(tmp_path / "cache")
    assert read_once(ReleaseLayout(source, [source], never), cache, "set", LABELS, "") == folders
    source.write_text("something else")
    with pytest.raises(AssertionError, match="training is read again"):
        read_once(ReleaseLayout(source, [source], never), cache, "set", LABELS, "")


@given(st.integers(2, 30), st.integers(0, 5))
def test_validation_is_of_the_training_part(validation: int, seed: int) -> None:
    folders = made()
    training, held = (
        split_records(folders, s, validation, seed, real=False, longest=99) for s in ("training", "validation")
    )
    assert sorted([*training.indices, *held.indices]) == list(range(40))
    assert abs(len(held) - validation) <= 2
    assert abs(np.diff(np.bincount(held.targets, minlength=2)).item()) <= 2
    trained = {bytes(record.values) for record in map(training.__getitem__, range(len(training)))}
    assert all(bytes(held[i].values) not in trained for i in range(len(held)))


def test_a_seed_is_a_split() -> None:
    def held(seed: int) -> list[int]:
        return split_records(made(), "validation", 10, seed, real=False, longest=99).indices.tolist()

    assert held(0) == held(0) != held(1)


def test_records_are_cut_counted_and_named(folders: dict[str, Path]) -> None:
    records = split_records(folders, "test", 4, 0, real=False, longest=2)
    whole = split_records(folders, "test", 4, 0, real=False, longest=99)
    assert (whole.lengths, whole.cut) == ([2, 3, 2] * 2, 0) and (records.lengths, records.cut) == ([2] * 6, 2)
    assert records.targets.tolist() == whole.targets.tolist() == [0, 0, 0, 1, 1, 1]
    assert bytes(records[4].values) == b"\1\0" and bytes(whole[4].values) == b"\1\0\1"
    held = split_records(folders, "validation", 4, 0, real=False, longest=2)
    where = int(held.indices[3])
    assert held.name(3) == f"training-{where}" and held.targets[3] == (where >= 20)
    inputs, targets = held.batch([3, 1], torch.device("cpu"))
    assert torch.equal(inputs.to_list()[0], held[3].values) and targets[1] == held.targets[1]
    sent: BytesRecords = pickle.loads(pickle.dumps(held))
    assert torch.equal(sent[2].values, held[2].values) and sent.name(2) == held.name(2)


def test_real_values(folders: dict[str, Path]) -> None:
    values = split_records(folders, "test", 4, 0, real=True, longest=99)[4].values
    assert values.shape == (3, 1) and torch.equal(values, torch.tensor([[1.0], [0.0], [1.0]]) / 255)


def test_too_many_for_validation(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="validation=40 of 40 training records leaves none to train on: give fewer"):
        split_records(folders, "training", 40, 0, real=False, longest=99)


@pytest.mark.parametrize(
    ("kept", "match"), [(1, "20 of no and|of yes and 20 of no"), (0, "0 training records of no")]
)
def test_what_is_not_whole_is_refused(tmp_path: Path, kept: int, match: str) -> None:
    def half(part: str) -> Iterator[Part]:
        return iter(list(parts(part))[:kept])

    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match=f"set has .*({match}).* not whole; get it again"):
        read_once(ReleaseLayout(Path("set"), [], half), str(cache), "set", LABELS, "get it again")
    assert not [*cache.iterdir()]


def test_words_of_tables(tmp_path: Path) -> None:
    assert [class_of(word, LABELS, "") for word in ("no", " yes ", 1, "0")] == [0, 1, 1, 0]
    for word in ("maybe", 2, None, "-1", ""):
        with pytest.raises(ValueError, match=f"row 3: class '{word}' is none of no, yes, nor the number of one"):
            class_of(word, LABELS, "row 3")
    assert [part_of(word, "") for word in ("Train", "test", "training")] == ["training", "test", "training"]
    for word in ("validation", "unsupervised", None):
        with pytest.raises(ValueError, match=f"row 3: split '{word}' is not train or test"):
            part_of(word, "row 3")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\): mend that"):
        load(tmp_path)


def made() -> dict[str, Path]:
    """In the tests' own cache folder, since hypothesis takes no folder of one test."""
    return read_once(ReleaseLayout(Path("set"), [], parts), None, "official", LABELS, "")


# --- In chunks ---

MAKERS = {
    "listops": partial(listops.generate, listops.ListOpsConfig(), "training"),
    "pathfinder": partial(pathfinder.generate, pathfinder.PathfinderConfig(contour=6), "training"),
}
TABLE = np.arange(90).reshape(3, 30)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[ProcessPool]:
    """The pools that `in_chunks` starts, where any work is worth them and there are two cores."""
    started: list[ProcessPool] = []

    class Seen(ProcessPool):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            started.append(self)

    monkeypatch.setattr(lra, "MIN_PROCESS_WORK", -1.0)
    monkeypatch.setattr(lra, "cores", lambda: 2)
    monkeypatch.setattr(lra, "ProcessPool", Seen)
    return started


def joined(parts: list[Part]) -> list[bytes]:
    return [np.concatenate([part[k].ravel() for part in parts]).tobytes() for k in range(3)]


def gone(pool: ProcessPool) -> bool:
    return all(process.returncode is not None for process in pool.processes)


def test_the_same_bytes_in_processes(pools: list[ProcessPool]) -> None:
    make = MAKERS["listops"]
    parts = list(in_chunks(make, 13, 2))
    assert [len(part[1]) for part in parts] == [2] * 6 + [1] and joined(parts) == joined([make(np.arange(13))])
    assert [len(pool.processes) for pool in pools] == [2] and gone(pools[0])


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_bytes_in_any_chunks(name: str, pools: list[ProcessPool], monkeypatch: pytest.MonkeyPatch) -> None:
    make = MAKERS[name]
    monkeypatch.setattr(lra, "MIN_PROCESS_WORK", 1e9)
    for workers in (1, 3):
        monkeypatch.setattr(lra, "cores", lambda workers=workers: workers)
        assert joined(list(in_chunks(make, 13, 4))) == joined([make(np.arange(13))])
    assert not pools


@pytest.mark.parametrize(("count", "lengths"), [(0, []), (1, [1]), (4, [4]), (9, [4, 4, 1])])
def test_little_work_stays_here(count: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lra, "ProcessPool", None)
    assert [len(part[1]) for part in in_chunks(partial(np.take, TABLE, axis=1), count, 4)] == lengths


def test_what_no_other_process_can_find_stays_here(pools: list[ProcessPool], monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(own: np.ndarray) -> Part:
        return tuple(TABLE[:, own])

    assert len([*in_chunks(mine, 30, 4)]) == 8  # a closure has no name
    monkeypatch.setattr(mine, "__module__", "__main__")
    monkeypatch.setattr(mine, "__qualname__", "mine")
    monkeypatch.setattr(sys.modules["__main__"], "mine", mine, raising=False)
    assert len([*in_chunks(mine, 30, 4)]) == 8 and not importable(partial(mine, 3))
    assert not pools and importable(MAKERS["listops"])
    monkeypatch.setattr(sys, "executable", "")
    assert not importable(MAKERS["listops"])


def test_no_more_parts_wait_than_are_soon_taken(pools: list[ProcessPool]) -> None:
    parts = in_chunks(partial(np.take, TABLE, axis=1), 30, 1)
    next(parts), next(parts)
    assert parts.gi_frame.f_locals["indices"].tolist() == [8] and not gone(pools[0])  # type: ignore[attr-defined]
    parts.close()  # type: ignore[attr-defined]
    assert gone(pools[0])


def test_an_error_elsewhere_is_an_error_here(pools: list[ProcessPool]) -> None:
    with pytest.raises(IndexError, match="index 30 is out of bounds") as raised:
        list(in_chunks(partial(np.take, TABLE, axis=1), 40, 10))
    assert "Traceback" in raised.value.__notes__[0] and gone(pools[0])


def test_a_writer_that_fails_ends_them(pools: list[ProcessPool], tmp_path: Path) -> None:
    objects = np.array([[0] * 29 + ["x"]] * 3, dtype=object)  # the last one is no byte
    with pytest.raises(ValueError, match="invalid literal") as raised:
        build_once(str(tmp_path), "x", (), lambda: in_chunks(partial(np.take, objects, axis=1), 40, 15))
    assert gone(pools[0]) and raised.tb and not [*tmp_path.iterdir()]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(lra, "BAR_DELAY", -1.0)
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    list(in_chunks(partial(np.take, TABLE, axis=1), 30, 10))
    written = re.sub(r"\x1b\[[\d;?]*\w", "", capsys.readouterr().err)
    assert re.search(r"making data ━+ +30/30 0:00:00 left", written)
