from __future__ import annotations

import gzip
import re
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.mutants import survivors

from chordmixer.data import lines
from chordmixer.data.entries import Entry
from chordmixer.data.fasta import read_fasta, read_fastq
from chordmixer.data.sources import BLOCK, source_of


def entries(data: bytes, name: str = "x.fa") -> list[Entry]:
    return list(read_fasta(source_of(data, name)))


def pairs(data: bytes) -> list[tuple[str, bytes]]:
    return [(entry.id, bytes(entry.sequence)) for entry in entries(data)]  # type: ignore[arg-type]


def reads(data: bytes) -> list[tuple[str, bytes]]:
    return [(entry.id, bytes(entry.sequence)) for entry in read_fastq(source_of(data, "x.fq"))]  # type: ignore[arg-type]


def slowly(data: bytes) -> list[tuple[str, bytes]]:
    """FASTA line by line: what the reader must give wherever it gives anything."""
    found: list[tuple[str, bytes]] = []
    for line in re.split(rb"\r\n|\r|\n", data):
        if line.startswith(b">"):
            words = line[1:].split()
            found.append((words[0].decode() if words else f"record {len(found) + 1}", b""))
        elif found and not line.startswith(b";"):
            found[-1] = (found[-1][0], found[-1][1] + line.replace(b" ", b"").replace(b"\t", b""))
    return found


# --- FASTA: what is accepted ---


def test_an_entry() -> None:
    first, second = entries(b">gene7  of a\tworm \nACGTacgtNnRY-*\n> gene8\nA", "-")
    assert first == Entry("gene7", b"ACGTacgtNnRY-*", place="-, record 1", description="of a\tworm")
    assert second == Entry("gene8", b"A", place="-, record 2")


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=repr)
def test_line_ends(end: bytes) -> None:
    text = end.join([b">a b", b"ACG", b"", b"T", b"", b">c", b"GG", b"AA"])
    assert pairs(text) == pairs(text + end) == pairs(end + text + end * 3) == [("a", b"ACGT"), ("c", b"GGAA")]
    assert entries(text)[0].description == "b"


def test_ragged_lines_blanks_and_marks() -> None:
    assert pairs(b"\xef\xbb\xbf>a\nA C\tG\n\n  \nTTTTTTT\nA\n") == [("a", b"ACGTTTTTTTA")]
    assert pairs(b">a\nAC>GT\n >b\n") == [("a", b"AC>GT>b")]  # only where a line starts; a tokenizer refuses it


def test_comments_before_a_sequence() -> None:
    assert pairs(b"; old\n\n;file\n>a\n;one\n\n; > two\nACGT\n>b;c\nA;C\n") == [("a", b"ACGT"), ("b;c", b"A;C")]


def test_records_without_id_or_letters() -> None:
    assert pairs(b">\nA\n>  \n>c\n\n>\n") == [("record 1", b"A"), ("record 2", b""), ("c", b""), ("record 4", b"")]


def test_headers_are_utf8() -> None:
    assert pairs(">gène\nA".encode()) == [("gène", b"A")]


@given(st.lists(st.sampled_from([b"\n", b"\r\n", b">", b";", b"A", b"cg", b" ", b"\t"]), max_size=30).map(b"".join))
def test_as_line_by_line(data: bytes) -> None:
    data = b">" + data
    try:
        assert pairs(data) == slowly(data)
    except ValueError as error:
        assert "a comment (;) stands among its letters" in str(error)


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b">b\n", b"\n>c d\n", b";e\n", b"ACGT", b" "])).map(b"".join),
    st.integers(6, 20),
)
def test_blocks_of_every_size(data: bytes, size: int) -> None:
    data = b">a\n" + data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK", size)
        try:
            assert pairs(data) == slowly(data)
        except ValueError as error:
            assert re.search("comment (has over|.;. stands)|header or a comment has over", str(error))


@pytest.mark.parametrize("width", [60, 10**9])
def test_a_record_longer_than_a_block(width: int) -> None:
    letters = b"ACGTTGCAAC" * (BLOCK * 5 // 20)
    text = b"\n".join(letters[at : at + width] for at in range(0, len(letters), width))
    assert pairs(b">a\nAC\n>b\n" + text + b"\n>c\nGT") == [("a", b"AC"), ("b", letters), ("c", b"GT")]


def test_memory_does_not_grow_with_the_file() -> None:
    data = b"".join(b">%d\n%s\n" % (i, b"ACGT" * 500) for i in range(10_000))
    tracemalloc.start()
    count = sum(1 for _ in read_fasta(source_of(data, "x")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < len(data) / 2


# --- FASTA: what is refused ---


def test_text_before_the_first_record() -> None:
    with pytest.raises(
        ValueError,
        match=r"^x.fa, line 3: 'ACGT' stands before the first record: a FASTA record begins with >; remove",
    ):
        entries(b"\r\n;comment\r\nACGT\r\n>a\r\nACGT")
    with pytest.raises(ValueError, match=r"^x.fa, line 2: '>b' stands before"):
        entries(b"\n >b\nACGT")
    with pytest.raises(ValueError, match=r"^x.fa, line 1: '\\\\xff\\x00A+'\.\.\. stands before"):
        entries(b"\xff\0" + b"A" * 99)
    with pytest.raises(ValueError, match=rf"^x.fa, line {BLOCK + 1}: 'x' stands before"):
        entries(b"\n" * BLOCK + b"x\n>a\nA")


def test_no_record() -> None:
    with pytest.raises(ValueError, match=r"^x.fa has no record: no line begins with >; give a FASTA file"):
        entries(b"\n  \n; nothing\n")


def test_comments_among_letters() -> None:
    message = r"^x.fa, record 2: a comment \(;\) stands among its letters: it may stand before them; move it"
    for text in (b">a\nA\n>b\nAC\n;no\nGT", b">a\nA\n>b\n" + b"ACGT\n" * BLOCK + b";no\nGT"):
        with pytest.raises(ValueError, match=message):
            entries(text)


@pytest.mark.parametrize("start", [b">a ", b">a\n;"])
def test_headers_without_end(start: bytes) -> None:
    message = "x.fa, record 1: its header or a comment has over 1,048,576 bytes: the sequence goes on the next line"
    with pytest.raises(ValueError, match=message):
        entries(start + b"ACGT" * BLOCK)


def test_headers_that_are_not_text() -> None:
    with pytest.raises(
        ValueError, match=r"^x.fa, record 2: its header '\\\\xe9t' is not UTF-8: save the file as UTF-8"
    ):
        entries(b">a\nA\n>\xe9t\nA")
    with pytest.raises(
        ValueError, match=r"^x.fa, record 1: its id 'a\\x1b\[1m' holds control characters: the file may"
    ):
        entries(b">a\x1b[1m b\nA\n")


def test_a_cut_gzip_says_how_many_records_were_read() -> None:
    data = b"".join(b">%d\n%s\n" % (i, b"ACGT" * 500) for i in range(100))
    packed = gzip.compress(data, 0)
    with pytest.raises(ValueError, match=r"^x.fa: the gzip stream is cut .*; (4\d|50) records were read before it$"):
        entries(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"99 records were read before it$"):
        entries(packed[:-1])


# --- FASTQ ---


def test_fastq() -> None:
    first, second = read_fastq(source_of(b"@a one\r\nACGT\r\n+\r\n@III\r\n\r\n@b\r\n\r\n+b\r\n\r\n\r\n", "x"))
    assert first == Entry("a", b"ACGT", place="x, record 1", description="one")
    assert second == Entry("b", b"", place="x, record 2")
    assert reads(b"@\nAC\n+\n+@") == [("record 1", b"AC")]


def test_fastq_with_long_reads() -> None:
    letters = b"ACGTTGCAAC" * (BLOCK // 4)
    assert reads(b"@a\n%s\n+\n%s\n@b\nA\n+\nI" % (letters, b"I" * len(letters))) == [("a", letters), ("b", b"A")]


def test_fastq_over_several_lines() -> None:
    message = (
        r"^x.fq, record 2: its third line is 'GT': sequences over several lines are not read, so it must begin .*"
    )
    with pytest.raises(ValueError, match=message + "`seqtk seq -l 0`"):
        reads(b"@a\nA\n+\nI\n@b\nAC\nGT\n+\nII\nII\n")


@pytest.mark.parametrize("end", [b"@b", b"@b\nACGT", b"@b\nACGT\n+\n", b"@b\nACGT\n+"])
def test_fastq_cut(end: bytes) -> None:
    with pytest.raises(ValueError, match=r"^x.fq, record 2: the file ends within it: a record has four lines; use"):
        reads(b"@a\nA\n+\nI\n" + end)


def test_fastq_that_is_not_well_formed() -> None:
    with pytest.raises(
        ValueError, match=r"^x.fq, record 1: 4 letters and 3 qualities: there is one for each letter;"
    ):
        reads(b"@a\nACGT\n+\nIII\n")
    with pytest.raises(
        ValueError, match=r"^x.fq, record 2 begins with 'b': a FASTQ record begins with @ and has four"
    ):
        reads(b"@a\nA\n+\nI\nb\nA\n+\nI\n")
    with pytest.raises(ValueError, match=r"^x.fq, record 1: '\+b' is not the name after @: repeat that, or give \+"):
        reads(b"@a\nA\n+b\nI\n")
    with pytest.raises(ValueError, match=r"^x.fq has no record: its lines are blank; give a FASTQ file"):
        reads(b"\n\n")


# --- Mutants ---

FASTA = b"".join(b">id%d of %d\n%s\n" % (i, i, b"ACGTTGCA\n" * (i % 5)) for i in range(40))
FASTQ = b"".join(b"@id%d\n%s\n+\n%s\n" % (i, b"ACGTN" * i, b"IIII#" * i) for i in range(40))


def test_mutants_of_fasta() -> None:
    for mutant, found in survivors(FASTA, pairs, seed=2):
        assert found == slowly(mutant.removeprefix(b"\xef\xbb\xbf"))


def test_mutants_of_compressed_fasta() -> None:
    for mutant, found in survivors(gzip.compress(FASTA, mtime=0), pairs, seed=3):
        plain = not mutant.startswith(b"\x1f\x8b")  # without its magic it may pass for FASTA with odd letters
        assert found == (slowly(mutant) if plain else pairs(FASTA) * (len(found) // 40))


def test_mutants_of_fastq() -> None:
    for mutant, found in survivors(FASTQ, reads, seed=4):
        lines = re.split(rb"\r\n|\r|\n", mutant.removeprefix(b"\xef\xbb\xbf"))
        for name, letters in found:
            while not lines[0]:
                del lines[0]
            assert (lines[0].split() or [b""])[0].decode() in (f"@{name}", "@") and lines[1] == letters
            del lines[:4]
        assert not any(lines)
