from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from Bio import bgzf
from hypothesis import given
from hypothesis import strategies as st
from tests.data.mutants import survivors

from chordmixer.data.reference import (
    BGZIP_BLOCK,
    BGZIP_END,
    BgzipReader,
    BgzipWriter,
    Reference,
    bgzip_block,
    check_bgzip_end,
)

LETTERS = bytes(range(256)) * 700  # three blocks


def packed(data: bytes) -> bytes:
    file = io.BytesIO()
    writer = BgzipWriter(file)
    for start in range(0, len(data), 1000):
        writer.write(data[start : start + 1000])
    writer.finish()
    return file.getvalue()


@given(st.sampled_from([0, 1, 999, BGZIP_BLOCK - 1, BGZIP_BLOCK, BGZIP_BLOCK + 1, len(LETTERS)]))
def test_what_is_written_is_gzip_and_bgzip(size: int) -> None:
    written = packed(LETTERS[:size])
    assert gzip.decompress(written) == LETTERS[:size] and written.endswith(BGZIP_END)
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
    path.write_bytes(packed(LETTERS).removesuffix(BGZIP_END))
    with pytest.raises(ValueError, match=r"cut\.gz is cut: a bgzip file ends with an empty block; use another copy$"):
        check_bgzip_end(path)
    path.write_bytes(gzip.compress(LETTERS))
    check_bgzip_end(path)  # plain gzip has no such block


def test_damage(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gz"
    data = bytearray(packed(LETTERS))
    data[200] ^= 255
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged\.gz: a block of bgzip is damaged \(.*\): use another copy$"):
        BgzipReader(path).read(0, len(LETTERS))
    path.write_bytes(bgzip_block(b"ACGT") + b"rubbish" + BGZIP_END)
    with pytest.raises(ValueError, match=r"byte 32 should begin a block of bgzip: use another copy$"):
        BgzipReader(path)


def test_sizes_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gz"
    deflate = zlib.compressobj(wbits=-15)
    body = deflate.compress(bytes(1 << 24)) + deflate.flush()
    bomb = BGZIP_END[:16] + struct.pack("<H", 18 + len(body) + 7) + body
    path.write_bytes(bomb + struct.pack("<II", zlib.crc32(bytes(1 << 24)), 1 << 24) + BGZIP_END)
    with pytest.raises(ValueError, match=r"the bgzip block at byte 0 has an impossible size: use another copy$"):
        BgzipReader(path)
    path.write_bytes(bomb + struct.pack("<II", 0, 100) + BGZIP_END)  # it lies
    with pytest.raises(ValueError, match=r"a block of bgzip is damaged \(its size is not what it says\)"):
        BgzipReader(path).read(0, 100)
    path.write_bytes(BGZIP_END[:16] + b"\0\0" + BGZIP_END)
    with pytest.raises(ValueError, match=r"the bgzip block at byte 0 has an impossible size"):
        BgzipReader(path)


CHR1 = "ACGTacgtNN" * 13
REFERENCE_LETTERS = CHR1.encode() + b"TTTT"
TEXT = ">chr1 of a worm\n" + "".join(CHR1[i : i + 60] + "\n" for i in range(0, 130, 60)) + ">chr2\nTTTT\n"


def plain(path: Path, text: str = TEXT) -> None:
    path.write_bytes(text.encode())


def zipped(path: Path, text: str = TEXT) -> None:
    with bgzf.BgzfWriter(path) as file:
        file.write(text)


@pytest.fixture(params=[plain, zipped], ids=["plain", "bgzip"])
def genome(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "genome.fa"
    request.param(path)
    return path


def test_parts(genome: Path) -> None:
    lines = "chr1\t130\t16\t60\t61\nchr2\t4\t155\t4\t5\n"
    for index in ("", lines):  # without one, then with that of samtools
        if index:
            genome.with_name("genome.fa.fai").write_text(index)
        reference = Reference(genome)
        assert reference.fetch("chr1", 0, 130) == CHR1.encode() and reference.fetch("chr2", 3, 4) == b"T"
        assert reference.fetch("chr1", 58, 62) == CHR1[58:62].encode()
    assert reference.contigs == {"chr1": (130, 16, 60, 61), "chr2": (4, 155, 4, 5)}
    assert pickle.loads(pickle.dumps(reference)).fetch("chr2", 0, 1) == b"T"


@given(st.integers(0, 129), st.integers(1, 130))
def test_any_part_of_lines_that_end_in_two_bytes(tmp_path_factory: pytest.TempPathFactory, a: int, b: int) -> None:
    path = tmp_path_factory.getbasetemp() / "windows.fa"
    if not path.exists():
        plain(path, TEXT.replace("\n", "\r\n"))
    start, stop = min(a, b - 1), max(a + 1, b)
    assert Reference(path).fetch("chr1", start, stop) == CHR1[start:stop].encode()


def test_an_index_that_is_older_is_not_used(genome: Path) -> None:
    index = genome.with_name("genome.fa.fai")
    index.write_text("chr9\t4\t0\t4\t5\n")
    os.utime(index, (0, 0))
    assert list(Reference(genome).contigs) == ["chr1", "chr2"] and index.read_text().startswith("chr9")


def test_an_index_of_our_own_is_kept_elsewhere(genome: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordmixer.data.reference.MIN_INDEXED_BYTES", 1)
    before = Reference(genome).contigs
    assert [path.name for path in genome.parent.iterdir()] == ["genome.fa"], "the user's folder is not written to"

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("chordmixer.data.reference.scan", refuse)
    assert Reference(genome).contigs == before
    os.utime(genome, (1, 1))
    with pytest.raises(AssertionError, match="read again"):
        Reference(genome)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("chr1\t130\t16\t60\n", r"genome\.fa\.fai, line 1 is not of an index: remove the file, and it is rebuilt$"),
        ("chr1\t130\t16\t0\t61\n", "is not of an index"),
        ("chr1\t130\t9223372036854775808\t60\t61\n", "is not of an index"),
        (
            "chr1\t130\t999999999999999999\t60\t61\n",
            r"fai, line 1 is of another file: chr1 would end beyond the 160 by",
        ),
        ("chr1\t130\t16\t1\t1000000000000\n", "is not of an index"),
        ("chr1\t500\t16\t60\t61\n", r"line 1 is of another file"),
        ("", r"genome\.fa\.fai is empty: remove the file, and it is rebuilt$"),
    ],
)
def test_a_damaged_index(genome: Path, line: str, message: str) -> None:
    genome.with_name("genome.fa.fai").write_text(line)
    with pytest.raises(ValueError, match=message):
        Reference(genome)


def test_an_index_of_another_file(genome: Path) -> None:
    genome.with_name("genome.fa.fai").write_text("chr1\t135\t16\t60\t61\n")
    with pytest.raises(
        ValueError, match=r"genome\.fa is not as its index says, chr1 from base 101 on: remove genome\.fa\.fai"
    ):
        Reference(genome).fetch("chr1", 100, 135)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"genome\.fa has no contig: no line begins with >; give a FASTA file$"),
        ("ACGT\n", r"genome\.fa does not begin with >: give a FASTA file, plain or of bgzip$"),
        (
            ">a\nACGT\nAC\nACGT\n",
            r"contig a: its lines differ in length: all lines of a contig .* `seqtk seq -l 60`$",
        ),
        (">a\nAC\nACGT\n", "contig a: its lines differ in length"),
        (">a\nACGT\n\nACGT\n", "contig a: its lines differ in length"),
        (">a\nAC\n>a\nAC\n", r"contig 'a' has no name, that of another, .*: each needs a name of its own; rename$"),
        (">a\n>b\nAC\n", r"contig a has no base: remove it, or use another copy$"),
    ],
)
@pytest.mark.parametrize("write", [plain, zipped])
def test_what_cannot_be_indexed(tmp_path: Path, write: Callable[..., None], text: str, message: str) -> None:
    write(tmp_path / "genome.fa", text)
    with pytest.raises(ValueError, match=message):
        Reference(tmp_path / "genome.fa")


def test_files_that_are_no_reference(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.fa is not a file: give a reference as FASTA, plain or of bgzip$"):
        Reference(tmp_path / "none.fa")
    (tmp_path / "genome.fa.gz").write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(ValueError, match=r"is compressed by gzip, .*: unpack it, or compress it again with bgzip$"):
        Reference(tmp_path / "genome.fa.gz")


def test_a_contig_that_is_not_there(genome: Path) -> None:
    reference = Reference(genome)
    reference.check_contig("chr1", "")
    with pytest.raises(
        ValueError, match=r"^calls\.vcf, line 3: contig '1' is not in .*: it has 'chr1'; rename those"
    ):
        reference.check_contig("1", "calls.vcf, line 3")
    with pytest.raises(ValueError, match=r"contig 'chrX' is not in .*: it has chr1, chr2; give the reference that"):
        reference.check_contig("chrX", "calls.vcf, line 3")


def test_a_folder_in_place_of_the_index(genome: Path) -> None:
    genome.with_name("genome.fa.fai").mkdir()
    assert Reference(genome).fetch("chr2", 0, 4) == b"TTTT"


def test_without_a_cache_folder(genome: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chordmixer.data.reference.MIN_INDEXED_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/none")
    assert Reference(genome).fetch("chr2", 0, 4) == b"TTTT"


def test_mutants(genome: Path) -> None:
    def letters(mutant: bytes) -> list[bytes]:
        genome.write_bytes(mutant)
        reference = Reference(genome)
        return [reference.fetch(name, 0, contig.length) for name, contig in reference.contigs.items()]

    data, compressed = genome.read_bytes(), genome.read_bytes().startswith(b"\x1f\x8b")
    for mutant, sequences in survivors(data, letters, seed=4):
        assert (
            not compressed
            or not mutant.startswith(b"\x1f\x8b")
            or b"".join(sequences) in (REFERENCE_LETTERS, REFERENCE_LETTERS * 2)
        )
