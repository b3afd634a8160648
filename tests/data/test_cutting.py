"""A store whose longer records are cut: what is seen of it, and what is not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from chordmixer.data.alphabets import Dna
from chordmixer.data.cutting import CutStore
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import Store
from chordmixer.data.storing import write_store

LETTERS = [b"ACGTACGT", b"GG", b"TTTT", b"CAGTC"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    entries = [Entry(f"r{i}", letters, f"x, record {i}", label="ab"[i % 2]) for i, letters in enumerate(LETTERS)]
    return write_store(entries, Dna(), tmp_path / "store", Account(), sources=["x"])


def read(store: Store) -> list[bytes]:
    return [store.tokenizer.decode(store.tokens(i)).encode() for i in range(len(store))]


@pytest.mark.parametrize("most", [1, 4, 5, 100])
def test_records_end_there(store: Store, most: int) -> None:
    cut = CutStore(store, most)
    assert read(cut) == [letters[:most] for letters in LETTERS]
    assert cut.lengths.tolist() == [min(len(letters), most) for letters in LETTERS]
    assert [cut.id(i) for i in range(4)] == ["r0", "r1", "r2", "r3"] and cut.column("label").tolist() == [*"abab"]


def test_the_account_counts_them(store: Store) -> None:
    assert [*CutStore(store, 4).account.lines()] == [
        "4 records read: 4 used, 0 rejected",
        "2 records cut at 4 tokens",
    ]
    assert [*CutStore(store, 8).account.lines()] == ["4 records read: 4 used, 0 rejected"]


def test_the_store_is_as_it_was(store: Store) -> None:
    CutStore(store, 3)
    assert read(store) == LETTERS and not store.account.notes


def test_it_travels_by_path(store: Store) -> None:
    data = pickle.dumps(CutStore(store, 3))
    assert len(data) < 400
    again = pickle.loads(data)
    assert read(again) == [letters[:3] for letters in LETTERS] and again.account.notes.total() == 3
