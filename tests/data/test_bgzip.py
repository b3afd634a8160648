from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import pytest
from Bio import bgzf
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.bgzip import BLOCK, END, BgzipReader, BgzipWriter, check_whole, compressed

LETTERS = bytes(range(256)) * 700  # three blocks


def packed(data: bytes) -> bytes:
    file = io.BytesIO()
    with BgzipWriter(file) as writer:
        for start in range(0, len(data), 1000):
            writer.write(data[start : start + 1000])
    return file.getvalue()


@given(st.sampled_from([0, 1, 999, BLOCK - 1, BLOCK, BLOCK + 1, len(LETTERS)]))
def test_what_is_written_is_gzip_and_bgzip(size: int) -> None:
    written = packed(LETTERS[:size])
    assert gzip.decompress(written) == LETTERS[:size] and written.endswith(END)
    assert bgzf.BgzfReader(fileobj=io.BytesIO(written), mode="rb").read(size + 1) == LETTERS[:size]


@given(st.integers(0, len(LETTERS)), st.integers(0, len(LETTERS)))
def test_any_part(tmp_path_factory: pytest.TempPathFactory, first: int, second: int) -> None:
    path = tmp_path_factory.getbasetemp() / "letters.gz"
    if not path.exists():
        with bgzf.BgzfWriter(path) as file:
            file.write(LETTERS)
    start, stop = sorted((first, second))
    assert BgzipReader(path).read(start, stop) == LETTERS[start:stop]


def test_a_file_that_is_cut_between_blocks(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(packed(LETTERS).removesuffix(END))
    with pytest.raises(ValueError, match=r"cut\.gz is cut: a bgzip file ends with an empty block; use another copy$"):
        check_whole(path)
    path.write_bytes(gzip.compress(LETTERS))
    check_whole(path)  # plain gzip has no such block


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gz"
    whole = bytearray(packed(LETTERS))
    whole[200] ^= 255
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"damaged\.gz: a block of bgzip is damaged \(.*\): use another copy$"):
        BgzipReader(path).read(0, len(LETTERS))
    path.write_bytes(compressed(b"ACGT") + b"rubbish" + END)
    with pytest.raises(ValueError, match=r"byte 32 should begin a block of bgzip: use another copy$"):
        BgzipReader(path)


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gz"
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(bytes(1 << 24)) + deflate.flush()
    bomb = END[:16] + struct.pack("<H", 18 + len(body) + 7) + body
    path.write_bytes(bomb + struct.pack("<II", zlib.crc32(bytes(1 << 24)), 1 << 24) + END)
    with pytest.raises(ValueError, match=r"the block of bgzip at byte 0 has an impossible size: use another copy$"):
        BgzipReader(path)
    path.write_bytes(bomb + struct.pack("<II", 0, 100) + END)  # it lies
    with pytest.raises(ValueError, match=r"a block of bgzip is damaged \(its size is not what it says\)"):
        BgzipReader(path).read(0, 100)
    path.write_bytes(END[:16] + b"\0\0" + END)
    with pytest.raises(ValueError, match=r"the block of bgzip at byte 0 has an impossible size"):
        BgzipReader(path)
