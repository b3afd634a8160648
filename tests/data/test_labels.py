from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chordmixer.data.columns import Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.labels import (
    file_label,
    header_pattern,
    in_header,
    joined,
    named,
    named_files,
    own_name,
    read_label_table,
)


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("fish/cyprinidae.fa.gz", "cyprinidae"),
        ("E.coli.fna", "E.coli"),
        ("genes.v2.FASTA.zst", "genes.v2"),
        ("reads.gz", "reads"),
        ("a.fa.fa", "a.fa"),
        ("plain", "plain"),
        ("other.tar", "other.tar"),
        (".fa", ".fa"),
        ("folder/", "folder"),
    ],
)
def test_a_files_name_is_its_label(path: str, label: str) -> None:
    assert file_label(path) == file_label(Path(path)) == label


def test_standard_input_has_no_name() -> None:
    with pytest.raises(ValueError, match="standard input has no name to take a label from: give files, or a table"):
        file_label("-")


def test_a_class_may_be_named_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k=3.fa").touch()
    assert named_files(["k=3.fa", "worm.fa"]) == (["k=3.fa", "worm.fa"], ())
    assert named_files(["worm = a=b.fa", "k=3.fa", "worm=-"]) == ([" a=b.fa", "k=3.fa", "-"], ("worm", "k=3", "worm"))
    for wrong in ("=a.fa", "worm=", "a\tb=a.fa"):
        with pytest.raises(ValueError, match="is not NAME=FILE: write a class and the path of its file"):
            named_files([wrong])


def test_the_name_of_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fish" / "carp").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "fish" / "carp")
    assert own_name(Path()) == "carp" and own_name(Path("..")) == "fish"


def found(rule: str, header: str) -> str | None:
    name, _, description = header.partition(" ")
    return in_header(header_pattern(rule), Entry(name, b"A", "x.fa, record 1", description))


GENE = r"header:/(?:Transcript|CDS):([^.\s]+(?:\.\d+)?)/"
"""Of worms `K09D9.6.1` is a transcript of the gene `K09D9.6`; the name of a fly's has no dots."""


@pytest.mark.parametrize(
    ("rule", "header", "value"),
    [
        ("header:Transcript", "dm_00000 Transcript:FBtr0084520", "FBtr0084520"),
        ("header:Transcript", "ce_00000 Transcript:K09D9.6.1 146", "K09D9.6.1"),
        ("header:gene", "t1 gene_biotype:x gene:G1 transcript_gene:G2", "G1"),
        ("header:gene", "t1 mygene=G0;gene=G1;note=x", "G1"),
        ("header:gene", "t1 gene=G1, product=x", "G1"),
        ("header:gene", "gene=G1|x", "G1"),
        ("header:organism", "t1 [organism=Homo sapiens] [gene=G1]", "Homo sapiens"),
        ("header:gene", "t1 [organism=Homo sapiens] [gene=G1]", "G1"),
        ("header:product", 't1 product="a protein" x', "a protein"),
        ("header:a.b", "t1 axb=1 a.b=2", "2"),
        ("header:gene", "t1 gene G1", None),
        ("header:gene", "t1 gene= G1", None),
        ("header:gene", "t1", None),
        (GENE, "ce_00000 Transcript:K09D9.6.1 146", "K09D9.6"),
        (GENE, "ce_00001 Transcript:K09D9.6a.2 146", "K09D9.6"),
        (GENE, "ce_00041 CDS:Y66D12A.2 0", "Y66D12A.2"),
        (GENE, "dm_00000 Transcript:FBtr0084520", "FBtr0084520"),
        (r"header:/^(\w+?)_/", "ce_00000 Transcript:K09D9.6.1", "ce"),
        (r"header:/x()/", "x", None),
        (r"header:/a|(b)/", "a", None),
    ],
)
def test_what_a_header_says(rule: str, header: str, value: str | None) -> None:
    assert found(rule, header) == value


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("header:/(a/", r"'header:/\(a/' is not a regular expression \(.*\): mend it"),
        (
            "header:/a/",
            r"'header:/a/' has 0 groups: one pair of parentheses says what to take; write others as \(\?:",
        ),
        ("header:/(a)(b)/", r"has 2 groups"),
        ("header:", r"'header:' names nothing in a header: write header:NAME or header:/REGEX/ with one group"),
        ("header:a b", r"'header:a b' names nothing in a header"),
        ("header://", r"names nothing in a header"),
    ],
)
def test_rules_that_are_refused(rule: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        header_pattern(rule)


ENTRIES = [
    Entry("a", b"AC", "x.fa, record 1", "gene=g1"),
    Entry("b", b"GT", "x.fa, record 2", "nothing", label="old"),
    Entry("c", b"GG", "x.fa, record 3", "gene=g2"),
]


def test_labels_and_groups_by_rules() -> None:
    account = Account()
    rules = {"label": "files", "group": "header:gene"}
    made = list(named(iter(ENTRIES), "fish.fa.gz", rules, "reject", account))
    assert [(e.id, e.label, e.group) for e in made] == [("a", "fish", "g1"), ("c", "fish", "g2")]
    assert account.rejected == {"no group in its header": 1} and account.examples["no group in its header"] == ["b"]


def test_a_files_name_comes_before_the_label_inside() -> None:
    made = named(iter(ENTRIES), "fish.fa", {"label": "files"}, "error", Account())
    assert [e.label for e in made] == ["fish"] * 3


def test_a_header_without_the_label() -> None:
    message = (
        r"x.fa, record 2: 'header:gene' finds no label in the header 'b nothing': correct it, or .* --on-unmatched re"
    )
    with pytest.raises(ValueError, match=message):
        list(named(iter(ENTRIES), "x.fa", {"label": "header:gene"}, "error", Account()))


def test_without_rules_nothing_changes() -> None:
    assert list(named(iter(ENTRIES), "x.fa", {}, "error", Account())) == ENTRIES


def test_folders_of_classes_keep_them(tmp_path: Path) -> None:
    made = named(iter(ENTRIES), tmp_path / "..", {"label": "files", "group": "files"}, "error", Account())
    name = own_name(tmp_path / "..")
    assert [(e.label, e.group) for e in made] == [(name, name), ("old", name), (name, name)]


def table(path: Path, text: str, columns: Columns = Columns()) -> dict[str, dict[str, Any]]:  # noqa: B008
    path.write_text(text)
    return read_label_table(path, columns)


def test_a_table_of_labels(tmp_path: Path) -> None:
    text = "id,label,split,text\na,x,train,not read\nb,,test,\n"
    assert table(tmp_path / "t.csv", text) == {
        "a": {"label": "x", "split": "training"},
        "b": {"label": None, "split": "test"},
    }
    assert table(tmp_path / "t.csv", "gene;kind\na;x\n", Columns(id="gene", label="kind")) == {"a": {"label": "x"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,label\na,x\n,y\n", r"t.csv, row 2 has no id: it tells which record is meant; fill it in"),
        ("id,label\na,x\na,x\n", r"t.csv, row 2: id 'a' stands in an earlier row too: keep one"),
        ("id,kind\na,x\n", r"t.csv has ids and nothing else that is known: choose with --column label=NAME"),
        (
            "gene,label\na,x\n",
            r"t.csv has no column for the id: it has 'gene', 'label'; choose with --column id=NAME",
        ),
        ("id,label\n", r"t.csv has a header and no rows"),
        (">a\nACGT\n", r"t.csv has no column for the id"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(tmp_path / "t.csv", text)


ROWS: dict[str, dict[str, Any]] = {"a": {"label": "x"}, "b": {"label": None}, "c": {"target": 1.0, "weight": 2.0}}


def test_rows_are_joined_by_id() -> None:
    account = Account()
    a, b, c = joined(iter(ENTRIES), ROWS, "t.csv", "error", account)
    assert (a.label, b.label, c.label, c.target, c.weight) == ("x", None, None, 1.0, 2.0)
    assert a.place == "x.fa, record 1" and account == Account()


def test_what_has_no_partner_is_left_out_by_policy() -> None:
    account = Account()
    rows = {name: {"label": "x"} for name in ("c", *"pqrstu")}
    assert [e.id for e in joined(iter(ENTRIES), rows, "t.csv", "reject", account)] == ["c"]
    assert account.rejected == {"no row in t.csv": 2} and account.read == 2
    assert account.notes == {"rows of t.csv without a record: p, q, r, s, t, ...": 6}


def test_a_record_without_a_row() -> None:
    with pytest.raises(
        ValueError, match=r"x.fa, record 1: id 'a' has no row in t.csv: add one, or .* --on-unmatched rej"
    ):
        list(joined(iter(ENTRIES), {}, "t.csv", "error", Account()))


def test_rows_without_a_record() -> None:
    with pytest.raises(
        ValueError, match=r"t.csv has 2 rows without a record, b, c: give the files with those records, or"
    ):
        list(joined(iter(ENTRIES[:1]), ROWS, "t.csv", "error", Account()))


@pytest.mark.parametrize("policy", ["error", "reject"])
def test_an_id_that_is_there_twice(policy: Any) -> None:
    with pytest.raises(
        ValueError, match=r"x.fa, record 1: id 'a' was there before: it is the key to t.csv; make it unique"
    ):
        list(joined(iter([ENTRIES[0], ENTRIES[0]]), ROWS, "t.csv", policy, Account()))
