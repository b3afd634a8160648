"""A file as a stream of plain bytes or lines, decompressed by its content and not by its name.

Every fault of the file is raised as a one-line `ValueError`.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

BLOCK = 1 << 20
"""Bytes of a plain file that are read at once, and about what a decompressor gives at once."""
HEAD = 1 << 16
MAX_RECORD = 1 << 30
"""Bytes of one record, decompressed, unless the user gives another limit: four human chromosomes 1."""
AHEAD = 4 * BLOCK
"""Bytes that readers may take beyond a record's end before they give it out."""


T = TypeVar("T")


class BrokenStream(ValueError):
    """The bytes end, turn to rubbish or grow without bound; `until_broken` adds how many records came before."""


@dataclass(frozen=True)
class Source:
    """An open file."""

    name: str
    """The path as given; `-` for standard input."""
    stream: io.BufferedReader
    """Decompressed, without a byte order mark. `read1` gives all that came before a fault; `read` may not."""
    head: bytes
    """The first 64 KB, or all if it is less, for telling formats apart; the stream has them still."""
    limit: int
    """The most bytes of one record."""
    blocks: Blocks
    """The raw stream below `stream`."""

    def renew(self) -> None:
        """A record ends here: the next one may have as many bytes again."""
        self.blocks.taken = 0


@contextmanager
def open_source(path: Path | str, limit: int | None = None) -> Iterator[Source]:
    """Open a file, or standard input for `-`: gzip, bzip2, xz, Zstandard or plain, told by the first bytes.

    A record of more than `limit` bytes is an error; None: more than `MAX_RECORD`, where the user has no say.
    """
    name = str(path)
    if name == "-":
        if sys.stdin is None:
            raise ValueError("- is standard input, which is closed: pipe a file into it, or give the path of a file")
        yield _source(name, sys.stdin.buffer, limit)
        return
    with _opened(name) as file:
        yield _source(name, file, limit)


def source_of(data: bytes, name: str, limit: int | None = None) -> Source:
    """A source from bytes in memory, under a name for messages."""
    return _source(name, io.BytesIO(data), limit)


def until_broken(source: Source, records: Iterable[T], what: str = "record") -> Iterator[T]:
    """The records as they come, each within the limit; where their stream breaks, the error counts those before."""
    count = 0
    try:
        for record in records:
            source.renew()
            yield record
            count += 1
    except BrokenStream as error:
        raise ValueError(f"{error}; {count:,} {what}{'s were' if count != 1 else ' was'} read before it") from None


def _opened(name: str) -> BinaryIO:
    try:
        return Path(name).open("rb")
    except FileNotFoundError:
        raise ValueError(f"{name} does not exist: give the path of a file") from None
    except IsADirectoryError:
        raise ValueError(f"{name} is a folder: give a file in it") from None
    except PermissionError:
        raise ValueError(f"{name} may not be read: its permissions forbid it; change them or copy it") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name!r} cannot be opened ({error}): give the path of a file") from None


def _source(name: str, file: BinaryIO, limit: int | None = None) -> Source:
    kind, blocks = _plain_blocks(name, file)
    blocks = _gathered(blocks)
    head = next(blocks).removeprefix(codecs.BOM_UTF8)
    if not head:
        raise ValueError(f"{name} is empty{f' inside its {kind}' if kind else ''}: give a file with a record in it")
    for mark, encoding in _WRONG_MARKS.items():
        if head.startswith(mark):
            raise ValueError(f"{name} is {encoding} text: UTF-8 is read; save it as UTF-8")
    for what, pattern in _ARCHIVES.items():
        if pattern.match(head):
            raise ValueError(f"{name} is a {what} archive: single files are read; unpack it and give what is inside")
    most = MAX_RECORD if limit is None else limit
    cure = "use another copy of the file" if limit is None else "raise --max-record if the file is sound"
    fault = BrokenStream(f"{name}: one record has over {most:,} bytes, the most that is read of one: {cure}")
    raw = Blocks(chain([head], blocks), most + AHEAD, fault)
    return Source(name, io.BufferedReader(raw, BLOCK), head[:HEAD], most, raw)


_WRONG_MARKS = {  # UTF-32 first: its little-endian mark begins with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ARCHIVES = {
    "zip": re.compile(rb"PK\x03\x04"),
    "7z": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "tar": re.compile(rb".{257}ustar", re.DOTALL),
}


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Larger blocks, each of at least 64 KB but the last; a fault waits until all before it is given."""
    taken: list[bytes] = []
    size = 0
    try:
        for block in blocks:
            taken.append(block)
            size += len(block)
            if size >= HEAD:
                yield b"".join(taken)
                taken, size = [], 0
    except BrokenStream:
        if size:
            yield b"".join(taken)
        raise
    yield b"".join(taken)


class Blocks(io.RawIOBase):
    """Blocks of bytes as a file, for `io.BufferedReader`; `too_much` is raised after `most` without a new record."""

    def __init__(self, blocks: Iterator[bytes], most: int, too_much: BrokenStream) -> None:
        self.blocks, self.most, self.too_much = blocks, most, too_much
        self.rest = memoryview(b"")
        self.taken = 0
        self.fault: BrokenStream | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self.fault is not None:
            raise self.fault  # a second try must not look like the file's end
        try:
            while not self.rest:
                self.rest = memoryview(next(self.blocks))
        except StopIteration:
            return 0
        except BrokenStream as fault:
            self.fault = fault
            raise
        count = min(len(target), len(self.rest))
        self.taken += count
        if self.taken > self.most:
            self.fault = self.too_much
            raise self.fault
        target[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count


# --- Decompression ---


@dataclass(frozen=True)
class _Kind:
    """One format of compression."""

    magic: re.Pattern[bytes]
    start: Callable[[], Any]
    """A decompressor for one stream; it knows its `eof` and its `unused_data`, and verifies the checksum."""
    feed: Callable[[Any, bytes], Iterator[bytes]]
    """Decompress some bytes, into blocks of bounded size."""
    read: int = 1 << 18
    """Compressed bytes that are read at once."""


def _plain_blocks(name: str, file: BinaryIO) -> tuple[str | None, Iterator[bytes]]:
    """The kind of compression, None for none, and what is inside."""
    try:
        start = file.read(16)
    except OSError as error:
        raise ValueError(f"{name} cannot be read ({error.strerror}): check the disk, or use another copy") from None
    for kind, form in _KINDS.items():
        if form.magic.match(start):
            return kind, _explained(name, f"the {kind} stream is cut or corrupt", _decompressed(form, start, file))
    return None, _explained(name, "the file cannot be read on", _read(start, file))


def _explained(name: str, what: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Turn faults of the bytes into `BrokenStream`."""
    try:
        yield from blocks
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BrokenStream(f"{name}: {what} ({error}): use another copy of the file") from None


def _read(start: bytes, file: BinaryIO) -> Iterator[bytes]:
    yield start
    while block := file.read(BLOCK):
        yield block


def _decompressed(form: _Kind, data: bytes, file: BinaryIO) -> Iterator[bytes]:
    """The streams that stand one after the other in the file; zeros after a stream are padding."""
    while data:
        stream = form.start()
        while not stream.eof:
            if not (data := data or file.read(form.read)):
                raise EOFError("it ends too early")
            yield from form.feed(stream, data)
            data = b""
        data = stream.unused_data.lstrip(b"\0")
        while not data and (more := file.read(form.read)):
            data = more.lstrip(b"\0")


def _feed_zlib(stream: Any, data: bytes) -> Iterator[bytes]:
    while data:
        yield stream.decompress(data, BLOCK)
        data = stream.unconsumed_tail


def _feed(stream: Any, data: bytes) -> Iterator[bytes]:
    yield stream.decompress(data, BLOCK)
    while not (stream.needs_input or stream.eof):
        yield stream.decompress(b"", BLOCK)


def _feed_zstd(stream: Any, data: bytes) -> Iterator[bytes]:
    from zstandard import ZstdError

    try:
        yield stream.decompress(data)
    except ZstdError as error:
        raise EOFError(str(error)) from None


def _start_zstd() -> Any:
    try:
        from zstandard import ZstdDecompressor
    except ImportError:
        raise ValueError("Zstandard files need the package zstandard: pip install zstandard") from None
    # One frame each: `stream_reader` is simpler, but ends without a word where a frame is cut.
    return ZstdDecompressor().decompressobj()


_KINDS = {
    "gzip": _Kind(re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(wbits=31), _feed_zlib),
    "bzip2": _Kind(re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor, _feed),
    "xz": _Kind(re.compile(rb"\xfd7zXZ\0"), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30), _feed),
    # It can grow thirty thousandfold and `decompress` knows no limit, so it gets little at once.
    "zstd": _Kind(re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _start_zstd, _feed_zstd, read=1 << 8),
}


def line_blocks(source: Source) -> Iterator[bytes]:
    """The text in large blocks: `\\n` before every line, the first too, and after none; other line ends become it.

    A block ends with a line, unless the line is longer than a block: only then does the next not begin with `\\n`.
    """
    rest, held = b"\n", b""
    while block := source.stream.read1(BLOCK):
        if held or b"\r" in block:
            block = held + block
            held = b"\r" if block.endswith(b"\r") else b""  # a \n may follow it
            block = block.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        text = rest + block
        end = text.rfind(b"\n", 1)
        if end > 0:
            yield text[:end]
            rest = text[end:]
        elif len(text) < BLOCK:
            rest = text
        else:
            yield text
            rest = b""
    if held or rest not in (b"\n", b""):
        yield rest


def plain_lines(source: Source) -> Iterator[bytes]:
    """Lines without their ends."""
    pieces: list[bytes] | None = None  # of the line whose end is not yet seen
    for block in line_blocks(source):
        more, *lines = block.split(b"\n")
        if pieces is not None:
            pieces.append(more)
        if lines:
            if pieces is not None:
                yield b"".join(pieces)
            pieces = [lines.pop()]
            yield from lines
    if pieces is not None:
        yield b"".join(pieces)
