from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import lock_descriptor
from hypothesis import given
from hypothesis import strategies as st
from tests.forked import Forked

from chordmixer import files
from chordmixer.data import store as store_module
from chordmixer.data.alphabets import Dna, Kmers
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import Store, write_store
from chordmixer.data.tokenizers import Bytes, Characters, Numbers, Tokenizer

DATA = ("tokens.bin", "offsets.bin", "records.arrow")
FULL = [
    Entry("a", b"ACGT", "x, record 1", label="worm", target=1.5, split="test", group="g", weight=2.0, circular=True),
    Entry("b", b"GG", "x, record 2"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(FULL, Dna(), tmp_path / "store", Account(), sources=["x"])


def rewrite(folder: Path, **changes: Any) -> None:
    """Change store.json, and its SHA-256 with it."""
    metadata = files.read_json(folder / "store.json")
    files.write_json(folder / "store.json", metadata | changes)
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


# --- Damage ---


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("damage", ["cut", "longer", "gone"])
def test_a_torn_store_never_opens(store: Store, name: str, damage: str) -> None:
    path = store.folder / name
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data[:-1] if damage == "cut" else data + b"\0")
    with pytest.raises(ValueError, match=rf"{name} has [\d,]+ bytes of [\d,]+: the store is torn; rebuild it"):
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


def test_store_json_is_always_checked(store: Store) -> None:
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
    with pytest.raises(ValueError, match="store has format 2: this version reads 1; rebuild it"):
        Store.open(store.folder)


@pytest.mark.parametrize("changes", [{"sizes": {}}, {"sizes": None}, {"account": {}}, {"channels": [2]}], ids=str)
def test_a_made_up_store(store: Store, changes: dict[str, Any]) -> None:
    rewrite(store.folder, **changes)
    with pytest.raises(ValueError, match=r"store cannot be opened \(.*\): rebuild it"):
        Store.open(store.folder)


@pytest.mark.parametrize("offsets", [[0, 7, 6], [1, 4, 6], [0, 4, 5], [0, 0, 6]], ids=str)
def test_offsets_that_contradict_the_rest(store: Store, offsets: list[int]) -> None:
    np.array(offsets, dtype=np.int64).tofile(store.folder / "offsets.bin")
    with pytest.raises(ValueError, match="store contradicts itself about its 2 records: rebuild it"):
        Store.open(store.folder)


def test_rows_that_are_not_arrow(store: Store) -> None:
    path = store.folder / "records.arrow"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(ValueError, match=r"store cannot be opened \(.*\): rebuild it"):
        Store.open(store.folder)


# --- The cache ---


def test_store_json_is_readable(store: Store) -> None:
    metadata = json.loads((store.folder / "store.json").read_text())
    assert metadata["tokenizer"] == Dna().to_json()


LETTERS = [b"ACGTACGT", b"GG", b"TTTT", b"CAGTC"]


@pytest.fixture
def cutting_store(tmp_path: Path) -> Store:
    entries = [Entry(f"r{i}", letters, f"x, record {i}", label="ab"[i % 2]) for i, letters in enumerate(LETTERS)]
    return write_store(entries, Dna(), tmp_path / "store", Account(), sources=["x"])


def decode_all(cutting_store: Store) -> list[bytes]:
    return [cutting_store.tokenizer.decode(cutting_store.tokens(i)).encode() for i in range(len(cutting_store))]


@pytest.mark.parametrize("limit", [1, 4, 5, 100])
def test_cut_records_end_at_the_limit(cutting_store: Store, limit: int) -> None:
    cut = cutting_store.cut(limit)
    assert decode_all(cut) == [letters[:limit] for letters in LETTERS]
    assert cut.lengths.tolist() == [min(len(letters), limit) for letters in LETTERS]
    assert [cut.id(i) for i in range(4)] == ["r0", "r1", "r2", "r3"] and cut.column("label").tolist() == [*"abab"]


def test_the_account_counts_cut_records(cutting_store: Store) -> None:
    assert [*cutting_store.cut(4).account.lines()] == [
        "4 records read: 4 used, 0 rejected",
        "2 records cut at 4 tokens",
    ]
    assert [*cutting_store.cut(8).account.lines()] == ["4 records read: 4 used, 0 rejected"]


def test_cutting_does_not_change_the_store(cutting_store: Store) -> None:
    cutting_store.cut(3)
    assert decode_all(cutting_store) == LETTERS and not cutting_store.account.notes


def test_a_cut_store_is_pickled_by_its_path(cutting_store: Store) -> None:
    data = pickle.dumps(cutting_store.cut(3))
    assert len(data) < 400
    loaded = pickle.loads(data)
    assert decode_all(loaded) == [letters[:3] for letters in LETTERS] and loaded.account.notes.total() == 3


def entries(*sequences: bytes | str | np.ndarray, **columns: Any) -> Iterator[Entry]:
    for number, sequence in enumerate(sequences, start=1):
        fields = {name: values[number - 1] for name, values in columns.items()}
        yield Entry(f"gene{number}", sequence, f"x.fa, record {number}", **fields)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_folder_holds(tmp_path: Path) -> None:
    account = Account()
    store = write_store(entries(b"ACGT", b"acn"), Dna(), tmp_path / "a" / "store", account, sources=["x.fa"])
    assert names(store.folder) == {"tokens.bin", "offsets.bin", "records.arrow", "store.json", "manifest.json"}
    assert names(store.folder.parent) == {"store"}
    assert (store.folder / "tokens.bin").read_bytes() == bytes([0, 1, 2, 3, 0, 1, 4])
    assert np.fromfile(store.folder / "offsets.bin", np.int64).tolist() == [0, 4, 7]
    metadata = json.loads((store.folder / "store.json").read_text())
    assert {
        key: metadata[key] for key in ("format", "records", "tokens", "dtype", "channels", "columns", "sources")
    } == {
        "format": 1,
        "records": 2,
        "tokens": 7,
        "dtype": "uint8",
        "channels": None,
        "columns": ["id"],
        "sources": ["x.fa"],
    }
    assert metadata["letters"] == {"A": 1, "C": 1, "G": 1, "T": 1, "a": 1, "c": 1, "n": 1}
    assert account.notes == {"lower-case letters taken as upper case": 3, "letters N": 1}
    assert metadata["account"]["used"] == account.read == 2
    files.verify(store.folder, names(store.folder) - {"manifest.json"})


@pytest.mark.parametrize(
    "tokenizer, sequences",
    [
        (Dna(), [b"ACGT", "acgu", b"N"]),
        (Kmers(k=4), [b"ACGTACGT", b"ACG"]),
        (Kmers(k=9), [b"ACGTACGTACGT"]),
        (Bytes(), ["grün", b"\xff\x00"]),
        (Characters("abc"), ["abcd", "c"]),
        (Numbers(), [np.array([0.5, 1.0]), np.array([2.0])]),
        (Numbers(channels=2), [np.ones((3, 2)), np.zeros((1, 2))]),
    ],
    ids=str,
)
def test_every_tokenizer(tmp_path: Path, tokenizer: Tokenizer, sequences: list[Any]) -> None:
    store = write_store(entries(*sequences), tokenizer, tmp_path / "store", Account())
    assert store.tokenizer == tokenizer and len(store) == len(sequences)
    for index, sequence in enumerate(sequences):
        expected = tokenizer.encode(sequence)
        assert store.tokens(index).dtype == tokenizer.dtype
        np.testing.assert_array_equal(store.tokens(index), expected)
        assert store.lengths[index] == len(expected)


@given(
    st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20), st.sampled_from([1, 16]), st.integers(1, 5)
)
def test_any_records_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory, sequences: list[bytes], size: int, count: int
) -> None:
    folder = tmp_path_factory.mktemp("stores") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "BYTES_AT_A_TIME", size)
        patch.setattr(store_module, "RECORDS_AT_A_TIME", count)
        patch.setattr(os, "fsync", lambda _: None)
        labels = [None if len(s) % 2 else str(len(s)) for s in sequences]
        store = write_store(entries(*sequences, label=labels), Bytes(), folder, Account())
    assert [store.tokens(i).tobytes() for i in range(len(store))] == sequences
    assert [store.id(i) for i in range(len(store))] == [f"gene{i + 1}" for i in range(len(sequences))]
    assert store.columns == (("id", "label") if any(labels) else ("id",))
    assert not any(labels) or store.column("label").tolist() == labels
    assert store.letters.total() == sum(map(len, sequences))


# --- Records that cannot be stored ---


def test_a_bad_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^x.fa, record 2 \(gene2\): character '7' at position 3 is not a nucleotide"
    ):
        write_store(entries(b"ACGT", b"AC7T"), Dna(), tmp_path / "store", Account())
    assert not names(tmp_path)


def test_a_bad_record_is_rejected_by_policy(tmp_path: Path) -> None:
    account = Account()
    store = write_store(entries(b"ACGT", b"AC7T", b"G"), Dna(), tmp_path / "store", account, on_bad="reject")
    assert [store.id(i) for i in range(len(store))] == ["gene1", "gene3"]
    assert list(account.lines()) == [
        "3 records read: 2 used, 1 rejected",
        "1 rejected, refused by the dna tokenizer: gene2",
    ]
    assert store.account == account and "7" not in store.letters


def test_an_empty_record(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"x.fa, record 2 \(gene2\) is empty: a record has a token or more; leave it"
    ):
        write_store(entries(b"ACGT", b""), Dna(), tmp_path / "store", Account())


def test_no_record_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no record is left of 1 read: nothing to store"):
        write_store(entries(b"7"), Dna(), tmp_path / "store", Account(), on_bad="reject")
    assert not names(tmp_path)


def test_an_id_that_is_not_unicode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a\\udcff' is an id or label that is not Unicode: fix that record"):
        write_store([Entry("a\udcff", b"A", "x.fa, record 1")], Dna(), tmp_path / "store", Account())
    assert not names(tmp_path)


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is there already: a store is written once; remove it or choose another"):
        write_store(entries(b"A"), Dna(), tmp_path, Account())


# --- Faults ---


def failing_after(calls: int, error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls < 0:
            raise error
        return real(*arguments)

    return call


@pytest.mark.parametrize("calls", range(6))
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(os, "fsync", failing_after(calls, error, os.fsync))
    with pytest.raises(
        ValueError, match=r"store needs more than [\d,]+ bytes and [\d,]+ are free: make room"
    ) as raised:
        write_store(entries(b"ACGT"), Dna(), tmp_path / "store", Account())
    assert "\n" not in str(raised.value)
    assert not names(tmp_path)


def test_a_real_limit(tmp_path: Path) -> None:
    """In a separate process, the tokens and then the ids exceed a limit of the file size."""
    code = """
import resource, signal, sys
from chordmixer.data.store import write_store
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account, Entry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for name, entries in {
    "tokens": (Entry(str(i), b"ACGT" * 1000, "x") for i in range(1000)),
    "ids": (Entry("a" * 1000, b"A", "x") for i in range(1000)),
}.items():
    try:
        write_store(entries, Dna(), sys.argv[1] + "/" + name, Account())
    except ValueError as error:
        print(error)
"""
    output, errors = Forked([sys.executable, "-c", code, str(tmp_path)]).communicate(timeout=60)
    first, second = output.splitlines()
    assert "tokens needs more than" in first and "ids needs more than" in second
    assert not errors and not names(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(ValueError, match=r"file/store cannot be written: .*; choose another folder"):
        write_store(entries(b"A"), Dna(), tmp_path / "file" / "store", Account())


def test_a_reader_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def cut() -> Iterator[Entry]:
        yield Entry("a", b"ACGT", "x.fa.gz, record 1")
        raise ValueError("x.fa.gz: the gzip stream is cut")

    with pytest.raises(ValueError, match=r"^x.fa.gz: the gzip stream is cut$"):
        write_store(cut(), Dna(), tmp_path / "store", Account())
    assert not names(tmp_path)


def test_a_killed_writer_leaves_nothing_that_opens(tmp_path: Path) -> None:
    """The next writer removes its files, but not those of a writer that still runs."""
    code = """
import os, signal, sys
from chordmixer.data.store import write_store
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account, Entry
def entries():
    yield Entry("a", b"ACGT" * 1_000_000, "x")
    os.kill(os.getpid(), signal.SIGKILL)
write_store(entries(), Dna(), sys.argv[1], Account())
"""
    killed = Forked([sys.executable, "-c", code, str(tmp_path / "store")])
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".writing-store-") and (leftover / "tokens.bin").stat().st_size == 4_000_000
    with pytest.raises(ValueError, match="does not exist"):
        Store.open(leftover)
    active = tmp_path / ".writing-store-living"
    active.mkdir()
    handle = os.open(active, os.O_RDONLY)
    assert lock_descriptor(handle, blocking=False)
    write_store(entries(b"ACGT"), Dna(), tmp_path / "store", Account())
    assert names(tmp_path) == {"store", ".writing-store-living"}
    os.close(handle)


def test_another_writer_was_faster(tmp_path: Path) -> None:
    def slow() -> Iterator[Entry]:
        yield Entry("slow", b"ACGT", "x.fa, record 1")
        write_store(entries(b"GG"), Dna(), tmp_path / "store", Account())

    with pytest.raises(ValueError, match="store was made meanwhile by another process: that one stays"):
        write_store(slow(), Dna(), tmp_path / "store", Account())
    assert names(tmp_path) == {"store"} and Store.open(tmp_path / "store", verify=True).id(0) == "gene1"
