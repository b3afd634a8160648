from __future__ import annotations

import gzip
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.mutants import survivors

from chordmixer.data import sources
from chordmixer.data.entries import Entry
from chordmixer.data.sequence_files import read_fasta, read_fastq, read_genbank
from chordmixer.data.sources import BLOCK, open_source, source_of, until_broken


def entries(data: bytes, name: str = "x.fa") -> list[Entry]:
    source = source_of(data, name)
    return list(until_broken(source, read_fasta(source)))


def pairs(data: bytes) -> list[tuple[str, bytes]]:
    return [(entry.id, bytes(entry.sequence)) for entry in entries(data)]  # type: ignore[arg-type]


def reads(data: bytes) -> list[tuple[str, bytes]]:
    return [(entry.id, bytes(entry.sequence)) for entry in read_fastq(source_of(data, "x.fq"))]  # type: ignore[arg-type]


def parse_by_line(data: bytes) -> list[tuple[str, bytes]]:
    """Parse FASTA line by line: the reader must return the same, or refuse the file."""
    records: list[tuple[str, bytes]] = []
    for line in re.split(rb"\r\n|\r|\n", data):
        if line.startswith(b">"):
            words = line[1:].split()
            records.append((words[0].decode() if words else f"record {len(records) + 1}", b""))
        elif records and not line.startswith(b";"):
            records[-1] = (records[-1][0], records[-1][1] + line.replace(b" ", b"").replace(b"\t", b""))
    return records


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
        assert pairs(data) == parse_by_line(data)
    except ValueError as error:
        assert "a comment (;) stands among its letters" in str(error)


@given(
    st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b">b\n", b"\n>c d\n", b";e\n", b"ACGT", b" "])).map(b"".join),
    st.integers(6, 20),
)
def test_blocks_of_every_size(data: bytes, size: int) -> None:
    data = b">a\n" + data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", size)
        try:
            assert pairs(data) == parse_by_line(data)
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
    message = "x.fa, record 1: its header or comment has over 1,048,576 bytes: start the sequence on a new line"
    with pytest.raises(ValueError, match=message):
        entries(start + b"ACGT" * BLOCK)


def test_headers_that_are_not_text() -> None:
    with pytest.raises(
        ValueError, match=r"^x.fa, record 2: its header '\\\\xe9t' is not UTF-8: save the file as UTF-8"
    ):
        entries(b">a\nA\n>\xe9t\nA")
    with pytest.raises(
        ValueError, match=r"^x.fa, record 1: its id 'a\\x1b\[1m' has control characters: the file may"
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
    for mutant, records in survivors(FASTA, pairs, seed=2):
        assert records == parse_by_line(mutant.removeprefix(b"\xef\xbb\xbf"))


def test_mutants_of_compressed_fasta() -> None:
    for mutant, records in survivors(gzip.compress(FASTA, mtime=0), pairs, seed=3):
        plain = not mutant.startswith(b"\x1f\x8b")  # without its magic it may pass for FASTA with odd letters
        assert records == (parse_by_line(mutant) if plain else pairs(FASTA) * (len(records) // 40))


def test_mutants_of_fastq() -> None:
    for mutant, records in survivors(FASTQ, reads, seed=4):
        lines = re.split(rb"\r\n|\r|\n", mutant.removeprefix(b"\xef\xbb\xbf"))
        for name, letters in records:
            while not lines[0]:
                del lines[0]
            assert (lines[0].split() or [b""])[0].decode() in (f"@{name}", "@") and lines[1] == letters
            del lines[:4]
        assert not any(lines)


pytest.importorskip("Bio", reason="GenBank needs Biopython: pip install 'chordmixer[genbank]'")
ECOLI = Path(__file__).parents[3] / "shared" / "data" / "genbank" / "ecoli_k12.gbff.gz"

LETTERS = "atgaaaccctaggttttacgtacgtnacgtagctagctatcgatcgatcgactagctgactcag"
FEATURES = """
     source          1..64
                     /organism="Caenorhabditis elegans"
                     /host="soil"
     gene            4..12
                     /gene="abc-1"
     CDS             join(1..3,7..9)
                     /locus_tag="W_0001"
                     /product="a small protein"
     CDS             complement(4..12)
                     /gene="abc-2"
     CDS             join(62..64,1..3)
"""


def record(name: str = "WORM", letters: str = LETTERS, features: str = FEATURES, topology: str = "circular") -> str:
    rows = [letters[at : at + 60] for at in range(0, len(letters), 60)]
    origin = [
        f"{at * 60 + 1:>9} " + " ".join(row[i : i + 10] for i in range(0, len(row), 10))
        for at, row in enumerate(rows)
    ]
    return "\n".join(
        [
            f"LOCUS       {name:<16} {len(letters):>11} bp    DNA     {topology:<8} INV 09-MAR-2022",
            "DEFINITION  Caenorhabditis elegans, a piece.",
            f"ACCESSION   {name}",
            f"VERSION     {name}.1",
            "KEYWORDS    .",
            "SOURCE      Caenorhabditis elegans",
            "  ORGANISM  Caenorhabditis elegans",
            "            Eukaryota; Metazoa; Nematoda; Caenorhabditis.",
            "FEATURES             Location/Qualifiers",
            features.strip("\n"),
            "ORIGIN",
            *origin,
            "//",
            "",
        ]
    )


def genbank_entries(text: str | bytes, features: str | None = None, rank: str | None = None) -> list[Entry]:
    data = text.encode() if isinstance(text, str) else text
    source = source_of(data, "x.gb")
    return list(until_broken(source, read_genbank(source, features, rank)))


# --- What is read ---


def test_whole_records() -> None:
    first, second = genbank_entries(record() + "\n\n" + record("OTHER", "acgt", "", "linear"))
    assert first == Entry(
        "WORM.1",
        LETTERS.upper().encode(),
        place="x.gb, record 1",
        description="Caenorhabditis elegans, a piece",
        circular=True,
    )
    assert (second.id, second.sequence, second.place, second.circular) == (
        "OTHER.1",
        b"ACGT",
        "x.gb, record 2",
        False,
    )


def test_features() -> None:
    joined, complement, over_the_origin = genbank_entries(record(), "CDS")
    assert joined == Entry("W_0001", b"ATGCCC", place="x.gb, record 1, CDS 1", description="a small protein")
    assert (complement.id, complement.sequence) == ("abc-2", b"CTAGGGTTT")
    assert (over_the_origin.id, over_the_origin.sequence) == ("WORM.1_CDS_3", b"CAGATG")
    assert over_the_origin.description == "Caenorhabditis elegans, a piece"
    assert [entry.place for entry in genbank_entries(record() * 2, "gene")] == [
        "x.gb, record 1, gene 1",
        "x.gb, record 2, gene 1",
    ]


@pytest.mark.parametrize(
    "rank, label",
    [
        (None, None),
        ("organism", "Caenorhabditis elegans"),
        ("genus", "Caenorhabditis"),
        ("lineage:1", "Eukaryota"),
        ("lineage:4", "Caenorhabditis"),
        ("lineage:5", None),
        ("qualifier:host", "soil"),
        ("qualifier:strain", None),
    ],
)
def test_labels(rank: str | None, label: str | None) -> None:
    assert [entry.label for entry in genbank_entries(record(), rank=rank)] == [label]
    assert {entry.label for entry in genbank_entries(record(), "CDS", rank)} == {label}


def test_labels_of_features() -> None:
    labels = [entry.label for entry in genbank_entries(record(), "CDS", "qualifier:product")]
    assert labels == ["a small protein", None, None]


@pytest.mark.parametrize("end", ["\r\n", "\r"], ids=repr)
def test_line_ends_genbank(end: str) -> None:
    assert genbank_entries(record().replace("\n", end)) == genbank_entries(record())
    assert genbank_entries(record().rstrip().replace("\n", end)) == genbank_entries(record())


def test_notice_of_a_release() -> None:
    notice = "GBINV1.SEQ          Genetic Sequence Data Bank\n                    June 15 2022\n\n 1 loci\n\n"
    assert genbank_entries(notice + record()) == genbank_entries(record())


@pytest.mark.skipif(not ECOLI.exists(), reason="needs ../shared/data/genbank, which is not part of the repository")
def test_a_whole_genome() -> None:
    with open_source(ECOLI) as source:
        (genome,) = read_genbank(source, rank="genus")
    assert (genome.length, genome.circular, genome.label) == (4_641_652, True, "Escherichia")
    with open_source(ECOLI) as source:
        genes = list(read_genbank(source, "CDS"))
    assert len(genes) == 4315 and len({gene.id for gene in genes}) > 4000
    assert sum(bytes(gene.sequence[:3]) in (b"ATG", b"GTG", b"TTG") for gene in genes) > 4250  # type: ignore[arg-type]


# --- What is refused ---


@pytest.mark.parametrize("rank", ["species", "lineage:0", "lineage:", "lineage:x", "qualifier:", ""])
def test_ranks_that_are_not_there(rank: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^--rank {rank} is not in GenBank: give organism, genus, lineage:N \(from 1"
    ):
        genbank_entries(b"LOCUS", rank=rank)


def test_features_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"^x.gb has no feature 'cds': it has 'CDS', 'source', 'gene'; choose one"):
        genbank_entries(record(), "cds")


def test_cut_anywhere() -> None:
    text = record()
    for keep in range(6, len(text) - 4, 41):
        with pytest.raises(ValueError, match=r"^x.gb, record 2: the file ends within it: a record ends with //; use"):
            genbank_entries(text + text[:keep])
        with pytest.raises(ValueError, match=r"^x.gb, record 2 (is not sound GenBank|has \d+ letters and its LOCUS)"):
            genbank_entries(text + text[:keep] + "\n//\n")


def test_lengths_that_differ() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1 is not sound GenBank \(BiopythonParserWarning: Expected seq"
    ):
        genbank_entries(record().replace(" 64 bp", " 65 bp"))
    with pytest.raises(ValueError, match=r"^x.gb, record 1 has 64 letters and its LOCUS says no length: use another"):
        genbank_entries(record().replace(record().partition("\n")[0], "LOCUS       WORM"))


def test_warnings_are_errors() -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1 is not sound GenBank \(BiopythonParserWarning: "):
        genbank_entries(
            record(features=FEATURES.replace("join(1..3,7..9)", "join(1..3,7..").replace("4..12", "4-12"))
        )


def test_a_record_without_sequence() -> None:
    text = record()
    contig = text[: text.index("ORIGIN")] + "CONTIG      join(U00096.3:1..64)\n//\n"
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1 has no sequence, only a CONTIG: fetch it with its sequence"
    ):
        genbank_entries(contig)


def test_records_that_do_not_begin() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 2 begins with 'LOCAS .*: a GenBank record begins with LOCUS"
    ):
        genbank_entries(record() + record().replace("LOCUS", "LOCAS"))
    with pytest.raises(ValueError, match=r"^x.gb has no record: its lines are blank; give a GenBank file"):
        genbank_entries("\n \n")


def test_features_outside_of_the_record() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1, CDS 2 (is at \[3:90\]\(-\), outside of the 64 letters:|can)"
    ):
        genbank_entries(record(features=FEATURES.replace("complement(4..12)", "complement(4..90)")), "CDS")
    with pytest.raises(ValueError, match=r"^x.gb, record 1, CDS 1 cannot be cut out \(.*: remove it from the file"):
        genbank_entries(record(features=FEATURES.replace("join(1..3,7..9)", "join(1..3,J00194.1:7..9)")), "CDS")


@pytest.mark.parametrize("end", ["9" * 19, "9" * 30, "1" + "0" * 13])
def test_features_beyond_every_record(end: str) -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1, CDS 2 cannot be cut out \(.*: remove it from the file"):
        genbank_entries(record(features=FEATURES.replace("complement(4..12)", f"complement(4..{end})")), "CDS")


def test_a_feature_that_names_the_same_letters_again_and_again() -> None:
    text = record(features=FEATURES.replace("join(1..3,7..9)", f"join({','.join(['1..64'] * 40)})"))
    source = source_of(text.encode(), "x.gb", limit=2000)
    with pytest.raises(ValueError, match=r"CDS 1 cannot be cut out \(ValueError: it has 2,560 letters, and 2,000 is"):
        list(read_genbank(source, "CDS"))


@pytest.mark.parametrize("features", [None, "CDS"])
def test_a_damaged_table_of_features(features: str | None) -> None:
    text = record() + record().replace("FEATURES  ", "FEATXRES  ")
    with pytest.raises(
        ValueError, match=r"^x.gb, record 2 has 5 lines of features and 0 features can be parsed: its F"
    ):
        genbank_entries(text, features)


def test_text_that_is_not_text() -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1: its line 2 is not UTF-8: save the file as UTF-8"):
        genbank_entries(record().encode().replace(b"a piece", b"a pi\xe9ce"))
    with pytest.raises(ValueError, match=r"^x.gb, record 1: its id 'W\\x1bRM.1' has control characters"):
        genbank_entries(record("W\x1bRM"))


def test_a_cut_gzip_says_how_many_records_were_read_genbank() -> None:
    packed = gzip.compress((record() * 5).encode(), 0)
    with pytest.raises(ValueError, match=r"the gzip stream is cut .*; 4 records were read before it$"):
        genbank_entries(packed[:-20])


def test_without_biopython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Bio", None)
    with pytest.raises(ValueError, match=r"^GenBank files need Biopython: pip install 'chordmixer\[genbank\]'"):
        genbank_entries(record())


@pytest.mark.parametrize("features", [None, "CDS"])
def test_mutants_of_genbank(features: str | None) -> None:
    data = (record() + record("OTHER", LETTERS * 3) + record("THIRD", "acgt", "")).encode()
    for mutant, records in survivors(data, lambda mutant: genbank_entries(mutant, features), seed=5):
        lines = mutant.decode().replace("\r", "\n").split("\n")
        if features is None:
            assert len(records) == sum(line.rstrip() == "//" for line in lines)
        else:
            assert len(records) == sum(line[2:21].strip() == "CDS" for line in lines)
