from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forked import Forked

from chordmixer import files
from chordmixer.data import store as store_module
from chordmixer.data import storing
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import Store, cached_store
from chordmixer.data.storing import write_store

DATA = ("tokens.bin", "offsets.bin", "records.arrow")
FULL = [
    Entry("a", b"ACGT", "x, record 1", label="worm", target=1.5, split="test", group="g", weight=2.0, circular=True),
    Entry("b", b"GG", "x, record 2"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(FULL, Dna(), tmp_path / "store", Account(), sources=["x"])


def rewrite(folder: Path, **changes: Any) -> None:
    """A store.json that says something else, with its SHA-256."""
    about = files.read_json(folder / "store.json")
    files.write_json(folder / "store.json", about | changes)
    files.write_manifest(folder, ["store.json"])


def test_columns(store: Store) -> None:
    assert store.columns == ("id", "label", "target", "split", "group", "weight", "circular")
    assert store.column("id").tolist() == ["a", "b"]
    assert store.column("label").tolist() == ["worm", None]
    np.testing.assert_array_equal(store.column("target"), [1.5, np.nan])
    assert store.column("weight").tolist() == [2.0, 1.0]
    assert store.column("circular").tolist() == [True, False]


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    store = write_store(FULL[1:], Dna(), tmp_path / "store", Account())
    assert store.columns == ("id",)
    with pytest.raises(ValueError, match="store has no label: it has id; name one of these"):
        store.column("label")


def test_lengths_and_tokens(store: Store) -> None:
    assert store.lengths.tolist() == [4, 2] and store.lengths.dtype == np.int64 and len(store) == 2
    assert store.tokens(1).tolist() == [2, 2] and type(store.tokens(1)) is np.ndarray
    assert store.sources == ["x"] and store.account.used == 2 and store.letters["G"] == 3


def test_nobody_writes_into_a_store(store: Store) -> None:
    with pytest.raises(ValueError, match="read-only"):
        store.tokens(0)[0] = 1
    for path in store.folder.iterdir():
        path.chmod(0o444)
    assert Store.open(store.folder).tokens(0).tolist() == [0, 1, 2, 3]


def test_pickled_by_its_path(store: Store) -> None:
    data = pickle.dumps(store)
    assert len(data) < 500
    assert pickle.loads(data).tokens(0).tolist() == [0, 1, 2, 3]


def test_in_another_process(store: Store, tmp_path: Path) -> None:
    (tmp_path / "pickled").write_bytes(pickle.dumps(store))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).id(1))"
    assert Forked([sys.executable, "-c", code, str(tmp_path / "pickled")]).communicate(60) == ("b\n", "")


# --- Damage ---


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("damage", ["cut", "longer", "gone"])
def test_a_torn_store_never_opens(store: Store, name: str, damage: str) -> None:
    path = store.folder / name
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data[:-1] if damage == "cut" else data + b"\0")
    with pytest.raises(ValueError, match=rf"{name} has [\d,]+ bytes of [\d,]+: the store is torn; make it anew"):
        Store.open(store.folder)


@pytest.mark.parametrize("name", DATA)
def test_changed_bytes_are_seen_when_asked(store: Store, name: str) -> None:
    path = store.folder / name
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        ValueError, match=f"{name} was changed or damaged: its SHA-256 is not the one in manifest.json"
    ):
        Store.open(store.folder, verify=True)


def test_what_a_store_says_of_itself_is_always_checked(store: Store) -> None:
    path = store.folder / "store.json"
    path.write_text(path.read_text().replace('"records": 2', '"records": 3'))
    with pytest.raises(ValueError, match=r"store\.json was changed or damaged"):
        Store.open(store.folder)


@pytest.mark.parametrize("missing", ["store.json", "manifest.json"])
def test_not_a_store(store: Store, missing: str) -> None:
    (store.folder / missing).unlink()
    with pytest.raises(ValueError, match=f"{missing} does not exist"):
        Store.open(store.folder)


def test_another_format(store: Store) -> None:
    rewrite(store.folder, format=2)
    with pytest.raises(ValueError, match="store is a store of format 2: this version reads 1; make it anew"):
        Store.open(store.folder)


@pytest.mark.parametrize("changes", [{"sizes": {}}, {"sizes": None}, {"account": {}}, {"channels": [2]}], ids=str)
def test_a_made_up_store(store: Store, changes: dict[str, Any]) -> None:
    rewrite(store.folder, **changes)
    with pytest.raises(ValueError, match=r"store cannot be opened \(.*\): make it anew"):
        Store.open(store.folder)


@pytest.mark.parametrize("offsets", [[0, 7, 6], [1, 4, 6], [0, 4, 5], [0, 0, 6]], ids=str)
def test_offsets_that_contradict_the_rest(store: Store, offsets: list[int]) -> None:
    np.array(offsets, dtype=np.int64).tofile(store.folder / "offsets.bin")
    with pytest.raises(ValueError, match="store contradicts itself about its 2 records: make it anew"):
        Store.open(store.folder)


def test_rows_that_are_not_arrow(store: Store) -> None:
    path = store.folder / "records.arrow"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(ValueError, match=r"store cannot be opened \(.*\): make it anew"):
        Store.open(store.folder)


# --- The cache ---


class Built:
    """A builder that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, folder: Path) -> None:
        self.times += 1
        write_store(FULL, Dna(), folder, Account())


KEY, OTHER = "a" * 64, "b" * 64


def test_built_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = Built()
    for _ in range(3):
        assert len(cached_store(KEY, tmp_path / "cache", build)) == 2
    assert build.times == 1 and not capsys.readouterr().err
    cached_store(OTHER, tmp_path / "cache", build)
    assert build.times == 2 and {p.name for p in (tmp_path / "cache").iterdir()} == {KEY, OTHER}


def test_a_torn_cache_is_built_again_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = Built()
    store = cached_store(KEY, tmp_path, build)
    (store.folder / "tokens.bin").write_bytes(b"")
    assert cached_store(KEY, tmp_path, build).tokens(1).tolist() == [2, 2]
    assert build.times == 2 and [p.name for p in tmp_path.iterdir()] == [KEY]
    torn = f"{store.folder / 'tokens.bin'} has 0 bytes of 6: the store is torn; make it anew; doing so"
    assert capsys.readouterr().err == f"warning: {torn}\n"


def flip(path: Path, at: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("large", [False, True], ids=["whole", "in blocks"])
@pytest.mark.parametrize("name", DATA)
def test_a_changed_byte_is_built_again_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, large: bool
) -> None:
    if large:
        for place in (store_module, storing):
            monkeypatch.setattr(place, "WHOLE", 3)
            monkeypatch.setattr(place, "BLOCK", 256)
    build = Built()
    folder = cached_store(KEY, tmp_path, build).folder
    assert (name in files.read_json(folder / "store.json")["sums"]) == large
    flip(folder / name, at={"tokens.bin": 5, "offsets.bin": 8, "records.arrow": 500}[name])
    assert cached_store(KEY, tmp_path, build).tokens(0).tolist() == [0, 1, 2, 3]
    assert build.times == 2 and [p.name for p in tmp_path.iterdir()] == [KEY]
    said = capsys.readouterr().err
    assert said == f"warning: {folder / name} was changed or damaged since it was written: make it anew; doing so\n"


def test_what_cannot_be_built_again_stays(tmp_path: Path) -> None:
    folder = cached_store(KEY, tmp_path, Built()).folder
    flip(folder / "tokens.bin")

    def gone(folder: Path) -> None:
        raise ValueError("genes.fa is gone")

    with pytest.raises(ValueError, match=r"genes\.fa is gone"):
        cached_store(KEY, tmp_path, gone)
    assert [p.name for p in tmp_path.iterdir()] == [KEY] and Store.open(folder).id(0) == "a"


@pytest.mark.parametrize("marked", [False, True], ids=["foreign", "a store and more"])
def test_nothing_is_deleted_that_is_not_a_store(tmp_path: Path, marked: bool) -> None:
    build, folder = Built(), tmp_path / KEY
    if marked:
        flip(cached_store(KEY, tmp_path, build).folder / "tokens.bin")
    folder.mkdir(exist_ok=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not a store of chordmixer and stays as it is: move it, or give another"):
        cached_store(KEY, tmp_path, build)
    assert (folder / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("key", ["home", "../home", "/home", "", KEY + "/..", "A" * 64])
def test_a_key_is_a_digest(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a store, 64 digits from 0 to f: leave it out"):
        cached_store(key, tmp_path, Built())


def test_another_process_builds_the_same(tmp_path: Path) -> None:
    quick = Built()

    def slow(folder: Path) -> None:
        quick(folder)
        write_store(FULL, Dna(), folder, Account())

    assert len(cached_store(KEY, tmp_path, slow)) == 2


def test_what_fails_to_build_is_not_there(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        raise ValueError("genes.fa is empty")

    with pytest.raises(ValueError, match=r"genes\.fa is empty"):
        cached_store(KEY, tmp_path, build)


def test_store_json_is_readable(store: Store) -> None:
    about = json.loads((store.folder / "store.json").read_text())
    assert about["tokenizer"] == Dna().to_json()
