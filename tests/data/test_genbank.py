from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from tests.data.mutants import survivors

from chordmixer.data.entries import Entry
from chordmixer.data.genbank import read_genbank
from chordmixer.data.sources import open_source, source_of

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


def entries(text: str | bytes, features: str | None = None, rank: str | None = None) -> list[Entry]:
    data = text.encode() if isinstance(text, str) else text
    return list(read_genbank(source_of(data, "x.gb"), features, rank))


# --- What is read ---


def test_whole_records() -> None:
    first, second = entries(record() + "\n\n" + record("OTHER", "acgt", "", "linear"))
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
    joined, complement, over_the_origin = entries(record(), "CDS")
    assert joined == Entry("W_0001", b"ATGCCC", place="x.gb, record 1, CDS 1", description="a small protein")
    assert (complement.id, complement.sequence) == ("abc-2", b"CTAGGGTTT")
    assert (over_the_origin.id, over_the_origin.sequence) == ("WORM.1_CDS_3", b"CAGATG")
    assert over_the_origin.description == "Caenorhabditis elegans, a piece"
    assert [entry.place for entry in entries(record() * 2, "gene")] == [
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
    assert [entry.label for entry in entries(record(), rank=rank)] == [label]
    assert {entry.label for entry in entries(record(), "CDS", rank)} == {label}


def test_labels_of_features() -> None:
    labels = [entry.label for entry in entries(record(), "CDS", "qualifier:product")]
    assert labels == ["a small protein", None, None]


@pytest.mark.parametrize("end", ["\r\n", "\r"], ids=repr)
def test_line_ends(end: str) -> None:
    assert entries(record().replace("\n", end)) == entries(record())
    assert entries(record().rstrip().replace("\n", end)) == entries(record())


def test_notice_of_a_release() -> None:
    notice = "GBINV1.SEQ          Genetic Sequence Data Bank\n                    June 15 2022\n\n 1 loci\n\n"
    assert entries(notice + record()) == entries(record())


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
        ValueError, match=rf"^--rank {rank} is not in GenBank: give organism, genus, lineage:N with N"
    ):
        read_genbank(source_of(b"LOCUS", "x.gb"), rank=rank)


def test_features_that_are_not_there() -> None:
    with pytest.raises(ValueError, match=r"^x.gb has no feature 'cds': it has 'CDS', 'source', 'gene'; choose one"):
        entries(record(), "cds")


@pytest.mark.parametrize("keep", range(6, len(record()) - 4, 41))
def test_cut_anywhere(keep: int) -> None:
    text = record()
    with pytest.raises(ValueError, match=r"^x.gb, record 2: the file ends within it: a record ends with //; use"):
        entries(text + text[:keep])
    with pytest.raises(ValueError, match=r"^x.gb, record 2 (is not sound GenBank|has \d+ letters and its LOCUS)"):
        entries(text + text[:keep] + "\n//\n")


def test_lengths_that_differ() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1 is not sound GenBank \(BiopythonParserWarning: Expected seq"
    ):
        entries(record().replace(" 64 bp", " 65 bp"))
    with pytest.raises(ValueError, match=r"^x.gb, record 1 has 64 letters and its LOCUS says no length: use another"):
        entries(record().replace(record().partition("\n")[0], "LOCUS       WORM"))


def test_warnings_are_errors() -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1 is not sound GenBank \(BiopythonParserWarning: "):
        entries(record(features=FEATURES.replace("join(1..3,7..9)", "join(1..3,7..").replace("4..12", "4-12")))


def test_a_record_without_sequence() -> None:
    text = record()
    contig = text[: text.index("ORIGIN")] + "CONTIG      join(U00096.3:1..64)\n//\n"
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1 has no sequence, only a CONTIG: fetch it with its sequence"
    ):
        entries(contig)


def test_records_that_do_not_begin() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 2 begins with 'LOCAS .*: a GenBank record begins with LOCUS"
    ):
        entries(record() + record().replace("LOCUS", "LOCAS"))
    with pytest.raises(ValueError, match=r"^x.gb has no record: its lines are blank; give a GenBank file"):
        entries("\n \n")


def test_features_outside_of_the_record() -> None:
    with pytest.raises(
        ValueError, match=r"^x.gb, record 1, CDS 2 (is at \[3:90\]\(-\), outside of the 64 letters:|can)"
    ):
        entries(record(features=FEATURES.replace("complement(4..12)", "complement(4..90)")), "CDS")
    with pytest.raises(ValueError, match=r"^x.gb, record 1, CDS 1 cannot be cut out \(.*: remove it from the file"):
        entries(record(features=FEATURES.replace("join(1..3,7..9)", "join(1..3,J00194.1:7..9)")), "CDS")


@pytest.mark.parametrize("end", ["9" * 19, "9" * 30, "1" + "0" * 13])
def test_features_beyond_every_record(end: str) -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1, CDS 2 cannot be cut out \(.*: remove it from the file"):
        entries(record(features=FEATURES.replace("complement(4..12)", f"complement(4..{end})")), "CDS")


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
        entries(text, features)


def test_text_that_is_not_text() -> None:
    with pytest.raises(ValueError, match=r"^x.gb, record 1: its line 2 is not UTF-8: save the file as UTF-8"):
        entries(record().encode().replace(b"a piece", b"a pi\xe9ce"))
    with pytest.raises(ValueError, match=r"^x.gb, record 1: its id 'W\\x1bRM.1' holds control characters"):
        entries(record("W\x1bRM"))


def test_a_cut_gzip_says_how_many_records_were_read() -> None:
    packed = gzip.compress((record() * 5).encode(), 0)
    with pytest.raises(ValueError, match=r"the gzip stream is cut .*; 4 records were read before it$"):
        entries(packed[:-20])


def test_without_biopython(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Bio", None)
    with pytest.raises(ValueError, match=r"^GenBank files need Biopython: pip install 'chordmixer\[genbank\]'"):
        entries(record())


@pytest.mark.parametrize("features", [None, "CDS"])
def test_mutants_of_genbank(features: str | None) -> None:
    data = (record() + record("OTHER", LETTERS * 3) + record("THIRD", "acgt", "")).encode()
    for mutant, found in survivors(data, lambda mutant: entries(mutant, features), seed=5):
        lines = mutant.decode().replace("\r", "\n").split("\n")
        if features is None:
            assert len(found) == sum(line.rstrip() == "//" for line in lines)
        else:
            assert len(found) == sum(line[2:21].strip() == "CDS" for line in lines)
