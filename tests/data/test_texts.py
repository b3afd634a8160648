from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from chordmixer.data.entries import Account, Entry
from chordmixer.data.sources import source_of
from chordmixer.data.texts import class_files, read_text, read_text_folder


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read(folder: Path) -> list[Entry]:
    return list(read_text_folder(folder, Account()))


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
    assert [e.id for e in read_text_folder(tmp_path, account)] == ["a/1"]
    assert account.notes == {"hidden files left out": 3}


def test_compressed_and_marked_texts(tmp_path: Path) -> None:
    fill(tmp_path, {"a.txt.gz": gzip.compress(b"\xef\xbb\xbfhello")})
    assert read(tmp_path)[0].sequence == "hello"


def test_an_empty_file_is_an_empty_record(tmp_path: Path) -> None:
    fill(tmp_path, {"c/a": b"", "c/b": b"x"})
    assert [(e.id, e.sequence) for e in read(tmp_path)] == [("c/a", ""), ("c/b", "x")]


def test_a_single_text() -> None:
    (entry,) = read_text(source_of(b"> quoted,\n@ all", "letters/first.txt"))
    assert entry == Entry("first.txt", "> quoted,\n@ all", "letters/first.txt")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"gr\xfc\xdfe", r"a: byte 2 is 0xfc, which is not UTF-8: save it as UTF-8"),
        ("ä".encode()[:1], r"a: byte 0 is 0xc3, which is not UTF-8"),
        (b"a\0b", r"a: byte 1 is NUL: this is no text, or UTF-16; save it as UTF-8"),
        (gzip.compress(b"hello" * 99, mtime=0)[:-9], r"a: the gzip stream is cut"),
    ],
    ids=repr,
)
def test_texts_that_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(fill(tmp_path, {"a": data}))
    assert str(tmp_path / "a") in str(caught.value) and "\n" not in str(caught.value)


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
    with pytest.raises(ValueError, match=r"a is not a file: remove it or mend the link"):
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
