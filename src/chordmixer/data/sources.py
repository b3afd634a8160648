"""Open a file as a stream of plain bytes or lines; compression is detected from the content, not from the name.

Every fault of a file is raised as a one-line `ValueError`.
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
"""Bytes of a plain file that are read at a time, and approximate size of a decompressor's output."""
HEAD = 1 << 16
MAX_RECORD = 1 << 30
"""Maximum bytes of one record, decompressed, unless the user gives another limit: four times human chromosome 1."""
READ_AHEAD = 4 * BLOCK
"""Bytes that a reader may consume beyond a record's end before it yields the record."""


T = TypeVar("T")


class BrokenStream(ValueError):
    """A stream is cut, corrupt or too large; `until_broken` adds the number of records that were read before."""


@dataclass(frozen=True)
class Source:
    """An open file as a stream of plain bytes."""

    name: str
    """The path as given; `-` for standard input."""
    stream: io.BufferedReader
    """Decompressed, without a byte order mark. `read1` returns all bytes before a fault; `read` may not."""
    head: bytes
    """The first 64 KB, or all if there are fewer, to detect the format; they remain in the stream."""
    limit: int
    """Maximum bytes of one record."""
    blocks: Blocks
    """The raw stream below `stream`."""

    def start_record(self) -> None:
        """Reset the count of bytes towards the limit, at the end of each record."""
        self.blocks.taken = 0


@contextmanager
def open_source(path: Path | str, limit: int | None = None) -> Iterator[Source]:
    """Open a file, or standard input for `-`: gzip, bzip2, xz, Zstandard or plain, detected from the first bytes.

    A record of more than `limit` bytes is an error; None: `MAX_RECORD`, and the error does not suggest --max-record.
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
    """Yield records, each within the limit; if the stream is broken, the error says how many were read before."""
    count = 0
    try:
        for record in records:
            source.start_record()
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
    blocks = _merged_blocks(blocks)
    head = next(blocks).removeprefix(codecs.BOM_UTF8)
    if not head:
        raise ValueError(f"{name} is empty{f' inside its {kind}' if kind else ''}: give a file with a record in it")
    for mark, encoding in _OTHER_ENCODINGS.items():
        if head.startswith(mark):
            raise ValueError(f"{name} is {encoding} text: UTF-8 is read; save it as UTF-8")
    for what, pattern in _ARCHIVES.items():
        if pattern.match(head):
            raise ValueError(f"{name} is a {what} archive: single files are read; unpack it and give what is inside")
    most = MAX_RECORD if limit is None else limit
    cure = "use another copy of the file" if limit is None else "raise --max-record if the file is sound"
    fault = BrokenStream(f"{name}: one record has over {most:,} bytes, the most that is read of one: {cure}")
    raw = Blocks(chain([head], blocks), most + READ_AHEAD, fault)
    return Source(name, io.BufferedReader(raw, BLOCK), head[:HEAD], most, raw)


_OTHER_ENCODINGS = {  # UTF-32 first: its little-endian mark begins with that of UTF-16
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


def _merged_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Merge blocks into blocks of at least 64 KB, except the last; a fault is raised after all bytes before it."""
    pieces: list[bytes] = []
    size = 0
    try:
        for block in blocks:
            pieces.append(block)
            size += len(block)
            if size >= HEAD:
                yield b"".join(pieces)
                pieces, size = [], 0
    except BrokenStream:
        if size:
            yield b"".join(pieces)
        raise
    yield b"".join(pieces)


class Blocks(io.RawIOBase):
    """Blocks of bytes as a file for `io.BufferedReader`; `too_much` is raised if a record exceeds `most` bytes."""

    def __init__(self, blocks: Iterator[bytes], most: int, too_much: BrokenStream) -> None:
        self.blocks, self.most, self.too_much = blocks, most, too_much
        self.rest = memoryview(b"")
        self.taken = 0
        self.fault: BrokenStream | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self.fault is not None:
            raise self.fault  # again, so that a second read does not look like the file's end
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
class _Format:
    """A compression format."""

    magic: re.Pattern[bytes]
    start: Callable[[], Any]
    """Create a decompressor for one stream, with `eof` and `unused_data`, that verifies the checksum."""
    feed: Callable[[Any, bytes], Iterator[bytes]]
    """Decompress bytes into blocks of bounded size."""
    read: int = 1 << 18
    """Compressed bytes that are read at a time."""


def _plain_blocks(name: str, file: BinaryIO) -> tuple[str | None, Iterator[bytes]]:
    """The name of the compression, None for none, and the decompressed blocks."""
    try:
        start = file.read(16)
    except OSError as error:
        raise ValueError(f"{name} cannot be read ({error.strerror}): check the disk, or use another copy") from None
    for kind, form in _FORMATS.items():
        if form.magic.match(start):
            return kind, _guarded(name, f"the {kind} stream is cut or corrupt", _decompress(form, start, file))
    return None, _guarded(name, "the file cannot be read on", _read_plain(start, file))


def _guarded(name: str, what: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Convert errors of reading and decompressing into `BrokenStream`."""
    try:
        yield from blocks
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise BrokenStream(f"{name}: {what} ({error}): use another copy of the file") from None


def _read_plain(start: bytes, file: BinaryIO) -> Iterator[bytes]:
    yield start
    while block := file.read(BLOCK):
        yield block


def _decompress(form: _Format, data: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Decompress the consecutive streams of a file; zeros after a stream are padding."""
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
    # One decompressor per frame: `stream_reader` is simpler, but ends without an error in a cut frame.
    return ZstdDecompressor().decompressobj()


_FORMATS = {
    "gzip": _Format(re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(wbits=31), _feed_zlib),
    "bzip2": _Format(re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.BZ2Decompressor, _feed),
    "xz": _Format(re.compile(rb"\xfd7zXZ\0"), lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30), _feed),
    # Data can grow 30,000-fold and `decompress` has no limit, so it is fed in small pieces.
    "zstd": _Format(re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _start_zstd, _feed_zstd, read=1 << 8),
}


def line_blocks(source: Source) -> Iterator[bytes]:
    """The text in large blocks, with `\\n` before every line, including the first, for any kind of line end.

    A block ends with a line, unless the line is longer than a block; then the next block does not begin with `\\n`.
    """
    rest, carriage_return = b"\n", b""
    while block := source.stream.read1(BLOCK):
        if carriage_return or b"\r" in block:
            block = carriage_return + block
            carriage_return = b"\r" if block.endswith(b"\r") else b""  # a \n may follow in the next block
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
    if carriage_return or rest not in (b"\n", b""):
        yield rest


def plain_lines(source: Source) -> Iterator[bytes]:
    """Lines without their ends."""
    pieces: list[bytes] | None = None  # of the current line
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
