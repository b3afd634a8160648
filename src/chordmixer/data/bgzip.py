"""bgzip: gzip in blocks of at most 64 KB, so that a part can be read alone (SAM/BAM specification, section 4.1)."""

from __future__ import annotations

import io
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import numpy as np

HEADER = 18
"""Bytes before a block's data; the block's size less one is in the last two."""
BLOCK = 0xFF00
"""Plain bytes in a block that we write: even those that do not shrink stay below 64 KB."""
LARGEST = 1 << 16
"""Plain bytes in any block."""
END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block that ends a whole file."""


def is_bgzip(head: bytes) -> bool:
    """Whether a file begins with a block of bgzip, and not of plain gzip.

    >>> is_bgzip(compressed(b"ACGT")), is_bgzip(zlib.compress(b"ACGT", wbits=31))
    (True, False)
    """
    return head[:4] == END[:4] and head[12:16] == END[12:16]


def compressed(data: bytes) -> bytes:
    """One block; data must not be longer than `BLOCK`.

    >>> zlib.decompress(compressed(b"ACGT") + END, wbits=31)
    b'ACGT'
    """
    assert len(data) <= BLOCK
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(data) + deflate.flush()
    head = END[: HEADER - 2] + struct.pack("<H", HEADER + len(body) + 7)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


class BgzipWriter(io.RawIOBase):
    """What is written goes on to another file, in blocks; closing it writes the last one and the end."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.rest = file, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.rest += data
        while len(self.rest) >= BLOCK:
            self.file.write(compressed(bytes(self.rest[:BLOCK])))
            del self.rest[:BLOCK]
        return len(data)

    def close(self) -> None:
        if not self.closed:
            if self.rest:
                self.file.write(compressed(bytes(self.rest)))
            self.file.write(END)
        super().close()


class BgzipReader:
    """Any part of a bgzip file's plain content; where its blocks are is read from their headers, once."""

    def __init__(self, path: Path) -> None:
        self.path, self.handle = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.handle)
        found = [(0, 0), *_blocks(self.handle, path)]
        self.packed, self.plain = (np.array(column, dtype=np.int64) for column in zip(*found, strict=True))
        self._block = lru_cache(maxsize=64)(self._read_block)

    @property
    def size(self) -> int:
        """Of the plain content."""
        return int(self.plain[-1])

    def read(self, start: int, stop: int) -> bytes:
        first, last = np.searchsorted(self.plain, [start, stop], side="right") - 1
        blocks = range(int(first), min(int(last), len(self.plain) - 2) + 1)
        at = start - int(self.plain[first])
        return b"".join(map(self._block, blocks))[at : at + stop - start]

    def blocks(self) -> Iterator[bytes]:
        """All of the plain content, block by block."""
        return map(self._read_block, range(len(self.plain) - 1))

    def _read_block(self, number: int) -> bytes:
        start, stop = self.packed[number : number + 2].tolist()
        stream = zlib.decompressobj(wbits=31)
        try:
            data = stream.decompress(os.pread(self.handle, stop - start, start), LARGEST + 1)
            if not stream.eof or stream.unused_data or len(data) != self.plain[number + 1] - self.plain[number]:
                raise zlib.error("its size is not what it says")
        except zlib.error as error:
            raise ValueError(f"{self.path}: a block of bgzip is damaged ({error}): use another copy") from None
        return data


def check_whole(path: Path) -> None:
    """Refuse a bgzip file without its last block: one that is cut between two blocks is a sound gzip file."""
    with path.open("rb") as file:
        if is_bgzip(file.read(HEADER)):
            file.seek(-min(len(END), file.seek(0, os.SEEK_END)), os.SEEK_END)
            if file.read() != END:
                raise ValueError(f"{path} is cut: a bgzip file ends with an empty block; use another copy")


def _blocks(handle: int, path: Path) -> Iterator[tuple[int, int]]:
    """Where each block ends: in the file, and in its plain content."""
    check_whole(path)
    packed, plain, size = 0, 0, os.fstat(handle).st_size
    while packed < size:
        head = os.pread(handle, HEADER, packed)
        if not is_bgzip(head) or len(head) < HEADER:
            raise ValueError(f"{path}: byte {packed:,} should begin a block of bgzip: use another copy")
        own = struct.unpack_from("<H", head, HEADER - 2)[0] + 1
        held = struct.unpack("<I", os.pread(handle, 4, packed + max(own, 4) - 4).ljust(4, b"\0"))[0]
        if own < len(END) or held > LARGEST:
            raise ValueError(
                f"{path}: the block of bgzip at byte {packed:,} has an impossible size: use another copy"
            )
        packed, plain = packed + own, plain + held
        yield packed, plain
