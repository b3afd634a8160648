from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch
from tests.data.mutants import survivors

from chordmixer.data import sources
from chordmixer.data.entries import Entry
from chordmixer.data.sources import (
    BLOCK,
    HEAD,
    BrokenStream,
    line_blocks,
    open_source,
    plain_lines,
    source_of,
    until_broken,
)

TEXT = b"".join(b">record %d\n%s\n" % (i, b"ACGTTGCA" * (i % 7 * 3)) for i in range(500))
zstd = zstandard.ZstdCompressor(write_checksum=True).compress
KINDS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def read_all(data: bytes, name: str = "x") -> bytes:
    return source_of(data, name).stream.read()


# --- What is accepted ---


@pytest.mark.parametrize("kind", ["plain", *KINDS])
def test_the_content_tells_and_not_the_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("genes.fa.gz" if kind in ("plain", "zstd") else "genes.fa")
    path.write_bytes(KINDS.get(kind, bytes)(TEXT))
    with open_source(path) as source:
        assert source.name == str(path)
        assert source.head == TEXT[:HEAD]
        assert source.stream.read() == TEXT


@each_kind
def test_several_streams_one_after_the_other(kind: str) -> None:
    pack = KINDS[kind]
    assert read_all(pack(TEXT) + pack(b"") + pack(b"last")) == TEXT + b"last"


@each_kind
def test_zeros_after_a_stream_are_padding(kind: str) -> None:
    packed = KINDS[kind](TEXT)
    assert read_all(packed + bytes(1 << 19)) == TEXT
    assert read_all(packed + bytes(512) + packed) == TEXT * 2


@each_kind
def test_more_than_a_block_of_everything(kind: str) -> None:
    text = bytes(range(256)) * (3 * BLOCK // 256) + b"end"
    source = source_of(KINDS[kind](text), "x")
    assert source.head == text[:HEAD]
    assert source.stream.read() == text


@pytest.mark.parametrize("kind", ["plain", *KINDS])
def test_standard_input(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.BytesIO(KINDS.get(kind, bytes)(TEXT))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    with open_source("-") as source:
        assert (source.name, source.stream.read()) == ("-", TEXT)
    assert not stdin.closed


def test_byte_order_mark_is_removed() -> None:
    assert read_all(b"\xef\xbb\xbf>a\nA") == b">a\nA"
    assert read_all(gzip.compress(b"\xef\xbb\xbf>a\nA")) == b">a\nA"
    assert source_of(b"\xef\xbb\xbf>a\nA", "x").head == b">a\nA"


@pytest.mark.parametrize("text", [b"B", b"BZh9 is not bzip2", b"PK", b"7z", b"\x1f"])
def test_texts_that_begin_like_a_format(text: bytes) -> None:
    assert read_all(text) == text


@each_kind
def test_memory_is_constant(kind: str) -> None:
    packed = KINDS[kind](bytes(64 * BLOCK))
    tracemalloc.start()
    source = source_of(packed, "x")
    size = 0
    while block := source.stream.read1(BLOCK):
        size += len(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 64 * BLOCK
    assert peak < {"xz": 20, "zstd": 32}.get(kind, 8) * BLOCK  # xz has a dictionary of 8 MB


# --- What is refused ---


@each_kind
def test_cut(kind: str) -> None:
    packed = KINDS[kind](TEXT)
    for keep in (len(packed) - 1, len(packed) // 2, 11):
        with pytest.raises(ValueError, match=rf"^x: the {kind} stream is cut or corrupt \(.+\): use another copy"):
            read_all(packed[:keep])


@each_kind
def test_corrupt(kind: str) -> None:
    packed = bytearray(KINDS[kind](TEXT))
    packed[len(packed) // 2] ^= 1
    with pytest.raises(ValueError, match=rf"^x: the {kind} stream is cut or corrupt"):
        read_all(bytes(packed))


@pytest.mark.parametrize("at", [-8, -4], ids=["checksum", "length"])
def test_gzip_checksum_and_length(at: int) -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[at] ^= 1
    with pytest.raises(ValueError, match=r"incorrect (data|length) check"):
        read_all(bytes(packed))


@each_kind
def test_rubbish_after_a_stream(kind: str) -> None:
    with pytest.raises(ValueError, match=f"the {kind} stream is cut or corrupt"):
        read_all(KINDS[kind](TEXT) + b"rubbish" * 9)


def test_data_before_a_fault_is_given_and_the_fault_repeats() -> None:
    text = bytes(range(256)) * 2000
    source = source_of(gzip.compress(text, 0)[: HEAD * 3], "x")
    received = b""
    with pytest.raises(BrokenStream, match="it ends too early"):
        while block := source.stream.read1(BLOCK):
            received += block
    assert text.startswith(received) and len(received) > HEAD * 2
    with pytest.raises(BrokenStream, match="it ends too early"):
        source.stream.read1(BLOCK)


def test_an_error_says_how_many_records_came_before() -> None:
    def entries(count: int) -> Iterator[Entry]:
        yield from (Entry(str(i), b"A", place="x") for i in range(count))
        raise BrokenStream("x: it broke")

    with pytest.raises(ValueError, match=r"^x: it broke; 2 records were read before it$"):
        list(until_broken(source_of(b"x", "x"), entries(2)))
    with pytest.raises(ValueError, match=r"^x: it broke; 1 record was read before it$"):
        list(until_broken(source_of(b"x", "x"), entries(1)))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_empty(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^x is empty: give a file with a record in it"):
        read_all(data)
    for kind, pack in KINDS.items():
        with pytest.raises(ValueError, match=f"^x is empty inside its {kind}: give"):
            read_all(pack(data))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be", "utf-32-be"])
def test_other_encodings(encoding: str) -> None:
    text = f"{'' if encoding in ('utf-16', 'utf-32') else chr(0xFEFF)}>a\nA".encode(encoding)
    with pytest.raises(ValueError, match=f"^x is {encoding[:6].upper()} text: UTF-8 is read; save it as UTF-8"):
        read_all(text)


@pytest.mark.parametrize(
    "kind, data", [("zip", b"PK\x03\x04..."), ("7z", b"7z\xbc\xaf\x27\x1c"), ("tar", bytes(257) + b"ustar")]
)
def test_archives(kind: str, data: bytes) -> None:
    for packed in (data, gzip.compress(data)):
        with pytest.raises(ValueError, match=f"^x is a {kind} archive: single files are read; unpack it"):
            read_all(packed)


def test_paths_that_are_not_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(path: Path | str) -> None:
        with open_source(path):
            pass

    with pytest.raises(ValueError, match="nothing does not exist: give the path of a file"):
        opened(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is a folder: give a file in it"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"^'a\\x00b' cannot be opened \(embedded null byte\)"):
        opened("a\0b")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be opened"):
        opened(tmp_path / "file" / "within")

    def forbidden(*_: object) -> NoReturn:
        raise PermissionError

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(ValueError, match="may not be read: its permissions forbid it; change them or copy it"):
        opened("genes.fa")


class Failing(io.BytesIO):
    """A disk that fails after some reads."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise OSError(5, "Input/output error")
        return super().read(size)


def test_a_disk_that_fails() -> None:
    file = Failing(TEXT * 1000)
    with pytest.raises(ValueError, match=r"^x cannot be read \(Input/output error\): check the disk"):
        sources._source("x", file)
    file.reads = 2
    source = sources._source("x", file)
    with pytest.raises(ValueError, match=r"^x: the file cannot be read on \(.*Input/output error\)"):
        source.stream.read()


def test_without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ValueError, match="Zstandard files need the package zstandard: pip install zstandard"):
        read_all(zstd(TEXT))


@each_kind
def test_a_record_without_end_stops_at_the_limit(kind: str) -> None:
    bomb = KINDS[kind](b">a\nACGT\n>b\n" + bytes(16 * BLOCK))
    source = source_of(bomb, "x", limit=BLOCK)
    source.start_record()
    received = 0
    with pytest.raises(BrokenStream, match=r"^x: one record has over 1,048,576 bytes, .*: raise --max-record if the"):
        while block := source.stream.read1(BLOCK):
            received += len(block)
    assert received <= BLOCK + sources.READ_AHEAD
    with pytest.raises(BrokenStream, match="one record has over"):
        source.stream.read1(BLOCK)  # and not the end of the file


def test_standard_input_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with (
        pytest.raises(ValueError, match=r"^- is standard input, which is closed: pipe a file into it"),
        open_source("-"),
    ):
        pass


@each_kind
def test_mutants(kind: str) -> None:
    for mutant, text in survivors(KINDS[kind](TEXT), read_all, seed=1):
        # A checksum lets nothing through but whole streams; without its magic a file is plain.
        assert text in (TEXT, mutant.removeprefix(b"\xef\xbb\xbf")) or text == TEXT * text.count(b">record 0\n")


texts = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"A", b"CGT", b"long" * 5]), min_size=1).map(b"".join)


def split_lines(text: bytes) -> list[bytes]:
    lines = re.split(rb"\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


@given(texts, st.integers(2, 12))
def test_lines_of_every_kind_in_blocks_of_every_size(text: bytes, size: int) -> None:
    with MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", size)
        assert list(plain_lines(source_of(text, "x"))) == split_lines(text)
        assert b"".join(line_blocks(source_of(text, "x"))) == b"".join(b"\n" + line for line in split_lines(text))


@given(texts, st.integers(2, 12))
def test_a_block_ends_with_a_line_unless_the_line_is_longer(text: bytes, size: int) -> None:
    with MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", size)
        before = b""
        for block in line_blocks(source_of(text, "x")):
            assert block.startswith(b"\n") or len(before) >= size
            before = block if block.startswith(b"\n") else before + block
