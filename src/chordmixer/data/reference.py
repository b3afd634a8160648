"""Random access to a reference genome, a FASTA file that is plain or compressed by bgzip.

Contigs are located by an index, `genome.fa.fai`, in the format of samtools. If it is missing or older than the FASTA
file, an index is computed and, for a large file, saved in the user's cache folder, never next to the file. bgzip is
gzip in blocks of at most 64 KB (SAM/BAM specification, section 4.1), which can be decompressed separately.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

import numpy as np

from chordmixer import files
from chordmixer.data.sources import BLOCK, MAX_RECORD, Blocks, BrokenStream
from chordmixer.data.store_cache import cache_folder

BGZIP_HEADER = 18
"""Bytes of a block's header; the last two are the block's size minus one."""
BGZIP_BLOCK = 0xFF00
"""Plain bytes per block in files that we write: even incompressible data stay below 64 KB."""
BGZIP_LARGEST = 1 << 16
"""Maximum plain bytes in a block."""
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
"""The empty block at the end of a complete file."""


def is_bgzip(head: bytes) -> bool:
    """Whether a file begins with a block of bgzip rather than plain gzip.

    >>> is_bgzip(bgzip_block(b"ACGT")), is_bgzip(zlib.compress(b"ACGT", wbits=31))
    (True, False)
    """
    return head[:4] == BGZIP_END[:4] and head[12:16] == BGZIP_END[12:16]


def bgzip_block(data: bytes) -> bytes:
    """Compress at most `BGZIP_BLOCK` plain bytes into one block."""
    assert len(data) <= BGZIP_BLOCK
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(data) + deflate.flush()
    head = BGZIP_END[: BGZIP_HEADER - 2] + struct.pack("<H", BGZIP_HEADER + len(body) + 7)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


class BgzipWriter:
    """Compresses into another file, block by block; `finish` writes the last block and the end marker."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.rest = file, bytearray()

    def write(self, data: bytes) -> int:
        self.rest += data
        while len(self.rest) >= BGZIP_BLOCK:
            self.file.write(bgzip_block(bytes(self.rest[:BGZIP_BLOCK])))
            del self.rest[:BGZIP_BLOCK]
        return len(data)

    def finish(self) -> None:
        self.file.write((bgzip_block(bytes(self.rest)) if self.rest else b"") + BGZIP_END)


class PlainReader:
    """Reads any part of a plain file; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self.file, self.lock = path.open("rb", buffering=0), Lock()
        weakref.finalize(self, self.file.close)

    @property
    def size(self) -> int:
        return os.fstat(self.file.fileno()).st_size

    def read(self, start: int, stop: int) -> bytes:
        with self.lock:
            self.file.seek(start)
            return self.file.read(stop - start)

    def blocks(self) -> Iterator[bytes]:
        return (self.read(start, start + BLOCK) for start in range(0, self.size, BLOCK))


class BgzipReader:
    """Reads any part of a bgzip file's plain content; positions of blocks are read once, from the block headers."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, PlainReader(path)
        ends = [(0, 0), *_block_ends(self.file, path)]
        self.packed, self.plain = (np.array(column, dtype=np.int64) for column in zip(*ends, strict=True))
        self._block = lru_cache(maxsize=64)(self._read_block)

    @property
    def size(self) -> int:
        """Bytes of the plain content."""
        return int(self.plain[-1])

    def read(self, start: int, stop: int) -> bytes:
        first, last = np.searchsorted(self.plain, [start, stop], side="right") - 1
        blocks = range(int(first), min(int(last), len(self.plain) - 2) + 1)
        offset = start - int(self.plain[first])
        return b"".join(map(self._block, blocks))[offset : offset + stop - start]

    def blocks(self) -> Iterator[bytes]:
        """The plain content, block by block."""
        return map(self._read_block, range(len(self.plain) - 1))

    def _read_block(self, number: int) -> bytes:
        stream = zlib.decompressobj(wbits=31)
        try:
            data = stream.decompress(self.file.read(*self.packed[number : number + 2].tolist()), BGZIP_LARGEST + 1)
            if not stream.eof or stream.unused_data or len(data) != self.plain[number + 1] - self.plain[number]:
                raise zlib.error("its size is not what it says")
        except zlib.error as error:
            raise ValueError(f"{self.path}: a block of bgzip is damaged ({error}): use another copy") from None
        return data


def check_bgzip_end(path: Path) -> None:
    """Raise an error for a bgzip file without its end block: cut between blocks, it would still be valid gzip."""
    with path.open("rb") as file:
        if is_bgzip(file.read(BGZIP_HEADER)):
            file.seek(-min(len(BGZIP_END), file.seek(0, os.SEEK_END)), os.SEEK_END)
            if file.read() != BGZIP_END:
                raise ValueError(f"{path} is cut: a bgzip file ends with an empty block; use another copy")


def _block_ends(file: PlainReader, path: Path) -> Iterator[tuple[int, int]]:
    """The end position of each block, in the file and in its plain content."""
    check_bgzip_end(path)
    packed, plain, size = 0, 0, file.size
    while packed < size:
        head = file.read(packed, packed + BGZIP_HEADER)
        if not is_bgzip(head) or len(head) < BGZIP_HEADER:
            raise ValueError(f"{path}: byte {packed:,} should begin a block of bgzip: use another copy")
        block_size = struct.unpack_from("<H", head, BGZIP_HEADER - 2)[0] + 1
        end = packed + max(block_size, 4)
        plain_size = struct.unpack("<I", file.read(end - 4, end).ljust(4, b"\0"))[0]
        if block_size < len(BGZIP_END) or plain_size > BGZIP_LARGEST:
            raise ValueError(f"{path}: the bgzip block at byte {packed:,} has an impossible size: use another copy")
        packed, plain = packed + block_size, plain + plain_size
        yield packed, plain


MIN_INDEXED_BYTES = 1 << 20
"""Size of a file from which on its index is saved in the cache."""
EQUAL_LINES = "all lines of a contig but the last must be of one length; rewrite it with `seqtk seq -l 60`"


class Contig(NamedTuple):
    """A contig's line in the index."""

    length: int
    """Number of bases."""
    offset: int
    """Byte offset of the first base in the plain file."""
    bases: int
    """Bases per line."""
    width: int
    """Bytes per line, including its end."""


class Reference:
    """A FASTA file, plain or compressed by bgzip, open for random access.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "genome.fa").write_text(">chr1 of a worm\\nACGT\\nAC\\n>chr2\\nTTT\\n")
    ...     genome = Reference(Path(folder) / "genome.fa")
    ...     genome.contigs["chr1"].length, genome.fetch("chr1", 2, 6)
    (6, b'GTAC')
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ValueError(f"{path} is not a file: give a reference as FASTA, plain or of bgzip")
        with _explaining(self.path):
            with self.path.open("rb") as file:
                head = file.read(BGZIP_HEADER)
            if head.startswith(b"\x1f\x8b") and not is_bgzip(head):
                raise ValueError(
                    f"{path} is compressed by gzip, of which no part can be read alone: unpack it, or compress it "
                    "again with bgzip"
                )
            self.bytes: PlainReader | BgzipReader = (
                BgzipReader(self.path) if is_bgzip(head) else PlainReader(self.path)
            )
            self.contigs = _contigs(self.path, self.bytes)

    def fetch(self, name: str, start: int, stop: int) -> bytes:
        """The letters of bases `start` to `stop` - 1, counted from 0, in the case of the file."""
        contig = self.contigs[name]
        assert 0 <= start < stop <= contig.length
        with _explaining(self.path):
            letters = self.bytes.read(_offset(contig, start), _offset(contig, stop - 1) + 1).translate(None, b"\r\n")
        if len(letters) != stop - start or b">" in letters:
            raise ValueError(
                f"{self.path} is not as its index says, {name} from base {start + 1:,} on: remove "
                f"{self.path.name}.fai, and an index is rebuilt"
            )
        return letters

    def check_contig(self, name: str, place: str) -> None:
        """Raise an error for an unknown contig; the usual cause is chr1 in one file and 1 in the other."""
        if name in self.contigs:
            return
        other = name.removeprefix("chr") if name.startswith("chr") else f"chr{name}"
        known = ", ".join(list(self.contigs)[:5]) + (", ..." if len(self.contigs) > 5 else "")
        cure = f"it has {known}; give the reference that the variants were called on"
        if other in self.contigs:
            cure = f"it has {other!r}; rename those of one side, for example with `bcftools annotate --rename-chrs`"
        raise ValueError(f"{place}: contig {name!r} is not in {self.path}: {cure}")

    def __reduce__(self) -> tuple[type[Reference], tuple[Path]]:
        return Reference, (self.path,)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Convert errors of the disk or of a damaged file into a `ValueError`."""
    try:
        yield
    except (OSError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} or its index cannot be read ({error}): use another copy") from None


def _offset(contig: Contig, base: int) -> int:
    return contig.offset + base // contig.bases * contig.width + base % contig.bases


# --- The index ---


def _contigs(path: Path, reader: PlainReader | BgzipReader) -> dict[str, Contig]:
    """The contigs by the index next to the file, or one in the cache. Never writes to the user's folder."""
    stat, index = path.stat(), path.with_name(path.name + ".fai")
    if index.is_file() and index.stat().st_mtime >= stat.st_mtime:
        return _read_index(index, reader.size)
    cached = _cached_index(path, stat)
    if cached is not None and cached.is_file():
        return _read_index(cached, reader.size)
    contigs = dict(scan(_lines(reader, path), str(path)))
    if not contigs:
        raise ValueError(f"{path} has no contig: no line begins with >; give a FASTA file")
    if cached is not None and stat.st_size >= MIN_INDEXED_BYTES:
        lines = ("\t".join(map(str, (name, *contig))) for name, contig in contigs.items())
        with suppress(ValueError):  # on a full disk it is rebuilt each time
            files.write_text(cached, "\n".join(lines) + "\n")
    return contigs


def _cached_index(path: Path, stat: os.stat_result) -> Path | None:
    """The path of an index in the cache; None if the user has no cache folder."""
    identity = repr((str(path.absolute()), stat.st_size, stat.st_mtime_ns))
    with suppress(ValueError):
        return cache_folder().parent / "indices" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.fai"
    return None


def _lines(reader: PlainReader | BgzipReader, path: Path) -> Iterable[bytes]:
    """Lines with their ends; a line longer than `MAX_RECORD` is an error."""

    def blocks() -> Iterator[bytes]:
        for block in reader.blocks():
            raw.taken = 0 if b"\n" in block else raw.taken
            yield block

    fault = BrokenStream(f"{path}: one line has over {MAX_RECORD:,} bytes, the most that is read: use shorter lines")
    raw = Blocks(blocks(), MAX_RECORD, fault)
    return io.BufferedReader(raw, BLOCK)


_INDEX = re.compile(r"([^\t]+)\t(\d{1,18})\t(\d{1,18})\t(\d{1,18})\t(\d{1,18})", re.ASCII)


def _read_index(path: Path, size: int) -> dict[str, Contig]:
    """The contigs of an index, after checking that they lie within the `size` bytes of the plain file."""
    contigs: dict[str, Contig] = {}
    for number, line in enumerate(path.read_text(errors="backslashreplace").splitlines(), start=1):
        words = _INDEX.fullmatch(line)
        contig = Contig(*map(int, words.groups()[1:])) if words else Contig(0, 0, 0, 0)
        if not words or not (contig.length and 1 <= contig.bases <= contig.width <= contig.bases + 2):
            raise ValueError(f"{path}, line {number} is not of an index: remove the file, and it is rebuilt")
        if _offset(contig, contig.length - 1) >= size:
            raise ValueError(
                f"{path}, line {number} is of another file: {words[1]} would end beyond the {size:,} bytes of the "
                "FASTA file; remove the index, and it is rebuilt"
            )
        contigs[words[1]] = contig
    if not contigs:
        raise ValueError(f"{path} is empty: remove the file, and it is rebuilt")
    return contigs


def scan(lines: Iterable[bytes], path: str) -> Iterator[tuple[str, Contig]]:
    """Compute the index of a FASTA file from its lines, which include their ends.

    >>> dict(scan([b">a\\n", b"ACGT\\n", b"AC\\n"], "genome.fa"))
    {'a': Contig(length=6, offset=3, bases=4, width=5)}
    """
    names: set[str] = set()
    name: str | None = None
    offset = length = start = bases = width = 0
    ended = False  # a line of another length must be the last
    for line in lines:
        offset += len(line)
        if line.startswith(b">"):
            if name is not None:
                yield name, _contig(path, name, length, start, bases, width)
            words = line[1:].split(None, 1)
            name = words[0].decode(errors="backslashreplace") if words else ""
            if not name or name in names or not name.isprintable():
                raise ValueError(
                    f"{path}: contig {name[:40]!r} has no name, that of another, or control characters in it: each "
                    "needs a name of its own; rename"
                )
            names.add(name)
            length, start, bases, width, ended = 0, offset, 0, 0, False
            continue
        count = len(line.rstrip(b"\r\n"))
        if name is None and count:
            raise ValueError(f"{path} does not begin with >: give a FASTA file, plain or of bgzip")
        if not width:
            bases, width = count, len(line)
        if count > bases or (ended and count):
            raise ValueError(f"{path}, contig {name}: its lines differ in length: {EQUAL_LINES}")
        length, ended = length + count, ended or len(line) != width
    if name is not None:
        yield name, _contig(path, name, length, start, bases, width)


def _contig(path: str, name: str, *numbers: int) -> Contig:
    if not numbers[0]:
        raise ValueError(f"{path}, contig {name} has no base: remove it, or use another copy")
    return Contig(*numbers)
