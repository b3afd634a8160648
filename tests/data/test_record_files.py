from __future__ import annotations

import gzip
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer.data.entries import Account, Entry
from chordmixer.data.record_files import as_series, class_files, read_folder, read_record
from chordmixer.data.sources import source_of


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read(folder: Path) -> list[Entry]:
    return list(read_folder(folder, "text", Account()))


def test_folders_name_the_classes(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {"pos/b.txt": b"good", "neg/a.txt": b"bad", "pos/a.txt": "größer".encode(), "neg/sub.d": b"x\r\ny\n"},
    )
    assert [(e.id, e.sequence, e.label) for e in read(tmp_path)] == [
        ("neg/a.txt", "bad", "neg"),
        ("neg/sub.d", "x\r\ny\n", "neg"),
        ("pos/a.txt", "größer", "pos"),
        ("pos/b.txt", "good", "pos"),
    ]
    assert read(tmp_path)[0].place == str(tmp_path / "neg" / "a.txt")


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    fill(tmp_path, {"b": b"2", "a": b"1", "B": b"3", "10": b"4", "9": b"5"})
    assert [(e.id, e.label) for e in read(tmp_path)] == [
        ("10", None),
        ("9", None),
        ("B", None),
        ("a", None),
        ("b", None),
    ]


def test_hidden_files_are_counted(tmp_path: Path) -> None:
    fill(tmp_path, {".DS_Store": b"\xff", "a/.x": b"", "a/1": b"one", ".git/config": b""})
    account = Account()
    assert [e.id for e in read_folder(tmp_path, "text", account)] == ["a/1"]
    assert account.notes == {"hidden files left out": 3}


def test_compressed_and_marked_texts(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt.gz": gzip.compress(b"\xef\xbb\xbfhello")})
    assert read(tmp_path)[0].sequence == "hello"


def test_an_empty_file_is_an_empty_record(tmp_path: Path) -> None:
    fill(tmp_path, {"c/a": b"", "c/b": b"x"})
    assert [(e.id, e.sequence) for e in read(tmp_path)] == [("c/a", ""), ("c/b", "x")]


def test_a_single_text() -> None:
    entry = read_record(source_of(b"> quoted,\n@ all", "letters/first.txt"), "text")
    assert entry == Entry("first.txt", "> quoted,\n@ all", "letters/first.txt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"gr\xfc\xdfe", r"a: byte 2 is not UTF-8 \(0xfc\): save it as UTF-8"),
        ("ä".encode()[:1], r"a: byte 0 is not UTF-8 \(0xc3\)"),
        (b"a\0b", r"a: byte 1 is NUL: this is no text, or UTF-16; save it as UTF-8"),
        (gzip.compress(b"hello" * 99, mtime=0)[:-9], r"a: the gzip stream is cut"),
    ],
    ids=repr,
)
def test_texts_that_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(fill(tmp_path, {"a": data}))
    assert str(tmp_path / "a") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([".hidden"], r"texts holds no files: give a folder of files, or of a folder for each class"),
        (["a/1", "b/.hidden"], r"texts/b holds no files"),
        (["a/1", "README"], r"texts holds folders and also the file 'README': .*; move the file"),
        (
            ["train/pos/1"],
            r"texts/train/pos is a folder in the folder of a class: .*; give .*texts/train if it holds",
        ),
    ],
    ids=str,
)
def test_folders_that_are_refused(tmp_path: Path, files: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(class_files(fill(tmp_path / "texts", dict.fromkeys(files, b"x")), Account()))


def test_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"a is not a file: remove it or fix the link"):
        read(tmp_path)


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("x")
    except OSError:
        pytest.skip("this file system has only UTF-8 names")
    with pytest.raises(ValueError, match=r"holds the name '\\udcff': names must be UTF-8; rename it"):
        read(tmp_path)


def test_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone cannot be listed: No such file or directory; give a folder"):
        read(tmp_path / "gone")


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def load(data: bytes) -> np.ndarray:
    entry = read_record(source_of(data, "series/ecg.npy"), "npy")
    assert (entry.id, entry.place, entry.label) == ("ecg.npy", "series/ecg.npy", None)
    assert isinstance(entry.sequence, np.ndarray)
    return entry.sequence


def header(text: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """A `.npy` file with this header, valid or not."""
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text.encode("latin-1") + data


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=np.float32),
        np.arange(6, dtype=np.float64).reshape(3, 2),
        np.asfortranarray(np.arange(6, dtype=">f8").reshape(3, 2)),
        np.arange(5, dtype=">i2"),
        np.array([True, False]),
        np.zeros((0,), np.float32),
        np.arange(4, dtype=np.float16),
        np.ones((1, 3), np.uint8),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_numbers_become_float32(array: np.ndarray) -> None:
    series = load(saved(array))
    assert series.dtype == np.float32 and series.flags.c_contiguous
    np.testing.assert_array_equal(series, array.astype(np.float32))


def test_a_compressed_series() -> None:
    assert load(gzip.compress(saved(np.arange(3.0)))).tolist() == [0, 1, 2]


def test_a_header_of_version_2() -> None:
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"
    assert load(header(text, np.ones(2, "<f4").tobytes(), (2, 0))).tolist() == [1, 1]


def test_folders_name_the_classes_series(tmp_path: Path) -> None:
    for name, value in (("b/2.npy", 2), ("a/1.npy", 1), ("b/.x", 3)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(saved(np.full(3, value)))
    account = Account()
    entries = list(read_folder(tmp_path, "npy", account))
    assert [(e.id, e.label, e.sequence[0]) for e in entries] == [("a/1.npy", "a", 1), ("b/2.npy", "b", 2)]
    assert account.notes == {"hidden files left out": 1}


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    file = io.BytesIO()
    np.save(file, np.array([Trap(trap)], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"series/ecg.npy holds object, not real numbers: save it as float32"):
        load(file.getvalue())
    with pytest.raises(ValueError, match=r"is not a .npy file"):
        load(pickle.dumps(Trap(trap)))
    assert not trap.exists()


VALID = saved(np.arange(10, dtype=np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (VALID[:-1], r"ecg.npy claims 40 bytes of numbers and holds 39: it is cut or damaged; use another copy"),
        (VALID + b"\0", r"claims 40 bytes of numbers and holds 41"),
        (VALID[:50], r"ecg.npy is not a .npy file \(.+\): save it with numpy.save"),
        (b"text", r"ecg.npy is not a .npy file"),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"),
            r"claims 4,398,046,511,104 byt",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", b"1234"),
            r"not a .npy file \(shape \(-1,\)",
        ),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1)}", b"1234"), r"not a .npy file \(shape"),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", b"1234"),
            r"shape \(\) is not \(steps,\) or",
        ),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (1e9,)}"), r"is not a .npy file"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 1)}", b"1234"), r"not a .npy file \(shape"),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, " + "9" * 30 + ")}"),
            r"not a .npy file \(shape",
        ),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}"), r"is not a .npy file"),
        (header("(" * 9000), r"is not a .npy file"),
        (header("__import__('os')"), r"is not a .npy file"),
        (header("{'descr': '<f4', 'fortran_order': '\\d', 'shape': (1,)}"), r"is not a .npy file"),
        (header("x" * 20_000), r"is not a .npy file"),
        (header("{}", version=(3, 0)), r"is not a .npy file \(version 3.0\)"),
        (saved(np.array(["a"])), r"ecg.npy holds <U1, not real numbers"),
        (saved(np.array([1j])), r"ecg.npy holds complex128, not real numbers"),
        (saved(np.zeros(3, [("a", "f4")])), r"not real numbers"),
        (
            saved(np.zeros((2, 2, 2))),
            r"ecg.npy: shape \(2, 2, 2\) is not \(steps,\) or \(steps, channels\): a record is",
        ),
        (saved(np.zeros((2, 0))), r"ecg.npy: shape \(2, 0\) is not"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else "",
)
def test_series_that_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load(data)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_missing_numbers_are_left_to_the_tokenizer() -> None:
    assert np.isnan(load(saved(np.array([0, np.nan])))).tolist() == [False, True]
    assert load(saved(np.array([1e300]))).tolist() == [np.inf]
    np.testing.assert_array_equal(as_series([[1, None], [2.5, 3]]), [[1, np.nan], [2.5, 3]])


def test_lists_of_unequal_lengths() -> None:
    with pytest.raises(
        ValueError, match="lists of unequal lengths: every step of a series must have the same channels"
    ):
        as_series([[1, 2], [3]])


def test_numbers_that_are_words() -> None:
    with pytest.raises(ValueError, match="<U3 is not a type of real number: save the series as float32"):
        as_series(["1.5"])
