from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.data.mutants import survivors

from chordmixer import config
from chordmixer.data.columns import Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import (
    Reading,
    base_name,
    file_label,
    header_pattern,
    header_value,
    named_files,
    read,
    read_label_table,
    sniff,
    with_rules,
    with_table,
)
from chordmixer.data.sources import source_of
from chordmixer.data.store_cache import content_key


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
        with pytest.raises(ValueError, match="is not NAME=FILE: give a class and the path of its file"):
            named_files([wrong])


def test_the_name_of_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fish" / "carp").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "fish" / "carp")
    assert base_name(Path()) == "carp" and base_name(Path("..")) == "fish"


def value_in_header(rule: str, header: str) -> str | None:
    name, _, description = header.partition(" ")
    return header_value(header_pattern(rule), Entry(name, b"A", "x.fa, record 1", description))


GENE = r"header:/(?:Transcript|CDS):([^.\s]+(?:\.\d+)?)/"
"""In worms, `K09D9.6.1` is a transcript of the gene `K09D9.6`; names of fly genes have no dots."""


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
    assert value_in_header(rule, header) == value


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("header:/(a/", r"'header:/\(a/' is not a regular expression \(.*\): fix it"),
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
    labelled = list(with_rules(iter(ENTRIES), "fish.fa.gz", rules, "reject", account))
    assert [(e.id, e.label, e.group) for e in labelled] == [("a", "fish", "g1"), ("c", "fish", "g2")]
    assert account.rejected == {"no group in its header": 1} and account.examples["no group in its header"] == ["b"]


def test_a_files_name_comes_before_the_label_inside() -> None:
    labelled = with_rules(iter(ENTRIES), "fish.fa", {"label": "files"}, "error", Account())
    assert [e.label for e in labelled] == ["fish"] * 3


def test_a_header_without_the_label() -> None:
    message = (
        r"x.fa, record 2: 'header:gene' finds no label in the header 'b nothing': correct it, or .* --on-unmatched re"
    )
    with pytest.raises(ValueError, match=message):
        list(with_rules(iter(ENTRIES), "x.fa", {"label": "header:gene"}, "error", Account()))


def test_without_rules_nothing_changes() -> None:
    assert list(with_rules(iter(ENTRIES), "x.fa", {}, "error", Account())) == ENTRIES


def test_folders_of_classes_keep_them(tmp_path: Path) -> None:
    labelled = with_rules(iter(ENTRIES), tmp_path / "..", {"label": "files", "group": "files"}, "error", Account())
    name = base_name(tmp_path / "..")
    assert [(e.label, e.group) for e in labelled] == [(name, name), ("old", name), (name, name)]


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
    a, b, c = with_table(iter(ENTRIES), ROWS, "t.csv", "error", account)
    assert (a.label, b.label, c.label, c.target, c.weight) == ("x", None, None, 1.0, 2.0)
    assert a.place == "x.fa, record 1" and account == Account()


def test_what_has_no_partner_is_left_out_by_policy() -> None:
    account = Account()
    rows = {name: {"label": "x"} for name in ("c", *"pqrstu")}
    assert [e.id for e in with_table(iter(ENTRIES), rows, "t.csv", "reject", account)] == ["c"]
    assert account.rejected == {"no row in t.csv": 2} and account.read == 2
    assert account.notes == {"rows of t.csv without a record: p, q, r, s, t, ...": 6}


def test_rows_without_a_record() -> None:
    with pytest.raises(
        ValueError, match=r"t.csv has 2 rows without a record, b, c: give the files with those records, or"
    ):
        list(with_table(iter(ENTRIES[:1]), ROWS, "t.csv", "error", Account()))


SHARED = Path(__file__).parents[3] / "shared" / "data"
TABLE = {"id": ["a", "b"], "text": ["first, text", "second"], "label": ["x", "y"]}


def as_csv(table: dict[str, list[Any]]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([[*table], *zip(*table.values(), strict=True)])
    return file.getvalue().encode()


def as_jsonl(table: dict[str, list[Any]]) -> bytes:
    rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()


def as_parquet(table: dict[str, list[Any]]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(table), file, row_group_size=16, write_page_checksum=True)
    return file.getvalue()


def as_npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FILES: dict[str, bytes] = {
    "fasta": b">a x\nAC\nGT\n>b\nGG\n",
    "fastq": b"@a\nACGT\n+\nIIII\n",
    "csv": as_csv(TABLE),
    "jsonl": as_jsonl(TABLE),
    "parquet": as_parquet(TABLE),
    "npy": as_npy(np.arange(3.0)),
}


def entries(*paths: Path | str, account: Account | None = None, **settings: Any) -> list[Entry]:
    return list(read(paths, Reading(**settings), account if account is not None else Account()))


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


# --- What a file is ---


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("before", [b"", b"\n \r\n"], ids=["", "blank-lines"])
def test_formats_are_told_by_content(kind: str, before: bytes) -> None:
    assert sniff(source_of(before + FILES[kind], "misleading.png")) == kind


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"LOCUS       X 4 bp DNA\n", "genbank"),
        (b"; an old comment\r>a\rACGT\r", "fasta"),
        (b"text\tlabel\r\n", "csv"),
        (b"text;label", "csv"),
        ("größe,text\n".encode("latin-1"), "csv"),
    ],
    ids=repr,
)
def test_more_formats(data: bytes, kind: str) -> None:
    assert sniff(source_of(data, "x")) == kind


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"Once upon a time\nthere was", r"begins with b'Once upon a time'"),
        (b"ACGTACGT\n", r"begins with b'ACGTACGT'"),
        (b"[1]", r"begins with b'\[1\]'"),
        (b"\x89PNG,,\r\n\0", r"begins with b'\\x89PNG,,'"),
        (b" \n \n", r"begins with nothing but blanks"),
        (b"LOCUST plagues", r"begins with b'LOCUST plagues'"),
    ],
    ids=repr,
)
def test_what_is_none_of_these(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=rf"notes.txt {text}: this is not FASTA, .* with --format \(text: each file"):
        sniff(source_of(data, "notes.txt"))


@pytest.mark.parametrize("kind", FILES)
def test_files_are_read_whatever_their_name(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path / "data", FILES[kind])
    assert str(entries(path)) == str(entries(str(path))) == str(entries(path, kind=kind))
    assert [len(e.sequence) for e in entries(path)] == {"fasta": [4, 2], "fastq": [4], "npy": [3]}.get(kind, [11, 6])


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind != "parquet"])
def test_compressed_files(tmp_path: Path, kind: str) -> None:
    assert len(entries(put(tmp_path / "data", gzip.compress(FILES[kind])))) == {"fastq": 1, "npy": 1}.get(kind, 2)


def test_parquet_must_be_a_plain_file(tmp_path: Path) -> None:
    message = r"data is Parquet in a stream or compressed: it is read from a plain file; save it as one"
    with pytest.raises(ValueError, match=message):
        entries(put(tmp_path / "data", gzip.compress(FILES["parquet"])))


@pytest.mark.parametrize("kind", ["fasta", "fastq", "csv", "jsonl"])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(FILES[kind])))
    assert entries("-")[0].place.startswith("-, r")


def test_genbank(tmp_path: Path) -> None:
    pytest.importorskip("Bio", reason="biopython is not installed: GenBank cannot be read")
    path = put(
        tmp_path / "x.gb",
        "LOCUS       X                          4 bp    DNA     circular BCT 01-JAN-2000\n"
        "DEFINITION  a record.\nACCESSION   X\nVERSION     X.1\nKEYWORDS    .\nSOURCE      Escherichia coli\n"
        "  ORGANISM  Escherichia coli\n            Bacteria; Pseudomonadota.\n"
        "FEATURES             Location/Qualifiers\n"
        '     source          1..4\n     gene            complement(1..2)\n                     /gene="thr"\n'
        "ORIGIN\n        1 acgt\n//\n",
    )
    (record,) = entries(path, rank="lineage:2")
    assert (record.id, record.sequence, record.label, record.circular) == ("X.1", b"ACGT", "Pseudomonadota", True)
    (gene,) = entries(path, features="gene", rank="organism")
    assert (gene.id, gene.sequence, gene.label) == ("thr", b"GT", "Escherichia coli")


def test_a_text_is_read_when_asked(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", ">Once, upon a time")
    assert entries(path, kind="text") == [Entry("a.txt", ">Once, upon a time", str(path))]


def test_files_one_after_the_other(tmp_path: Path) -> None:
    paths = [put(tmp_path / "b", FILES["csv"]), put(tmp_path / "a", FILES["fasta"])]
    assert [e.id for e in entries(*paths)] == ["a", "b", "a", "b"]


def test_files_are_read_lazily(tmp_path: Path) -> None:
    """The second file is not opened before the first has been read."""
    stream = read([put(tmp_path / "a", FILES["fasta"]), tmp_path / "gone"], Reading(), Account())
    assert [next(stream).id, next(stream).id] == ["a", "b"]
    with pytest.raises(ValueError, match="gone does not exist"):
        next(stream)


def test_a_cut_stream_says_how_many_came_before(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b">r%d\n%d\n" % (i, i**9) for i in range(99_999)))
    with pytest.raises(ValueError, match=r"the gzip stream is cut .*; \d[\d,]+ records were read before it"):
        entries(put(tmp_path / "a.fa.gz", data[: len(data) // 2]))


def test_no_files() -> None:
    with pytest.raises(ValueError, match="no files were given: name at least one, or - for standard input"):
        entries()


# --- Folders ---


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for name, text in (("pos/1", "good, very"), ("neg/1", "bad"), ("neg/0", "")):
        put(tmp_path / name, text)
    account = Account()
    records = entries(tmp_path, account=account, on_empty="reject")
    assert [(e.id, e.label) for e in records] == [("neg/1", "neg"), ("pos/1", "pos")]
    assert account.examples == {"empty": ["neg/0"]}
    assert [e.label for e in entries(tmp_path, labels="files", on_empty="reject")] == ["neg", "pos"]


def test_a_folder_of_empty_texts(tmp_path: Path) -> None:
    put(tmp_path / "a", "")
    with pytest.raises(ValueError, match=r"a: record 'a' is empty"):
        entries(tmp_path)


def test_a_folder_of_series(tmp_path: Path) -> None:
    put(tmp_path / "sick" / "1.npy", FILES["npy"])
    assert [(e.id, e.label, e.length) for e in entries(tmp_path)] == [("sick/1.npy", "sick", 3)]


def test_flat_folders_as_classes(tmp_path: Path) -> None:
    put(tmp_path / "pos" / "1", "good")
    put(tmp_path / "neg" / "1", "bad")
    records = entries(tmp_path / "pos", tmp_path / "neg", labels="files", group="files")
    assert [(e.label, e.group) for e in records] == [("pos", "pos"), ("neg", "neg")]


def test_a_folder_of_other_files(tmp_path: Path) -> None:
    put(tmp_path / "a.fa", FILES["fasta"])
    with pytest.raises(
        ValueError, match=r"is a folder of fasta files: of folders, texts, .npy and .wav .*; give .*/\*, or --for"
    ):
        entries(tmp_path)
    with pytest.raises(ValueError, match=r"is a folder of csv files"):
        entries(tmp_path, kind="csv")
    assert entries(tmp_path, kind="text")[0].sequence == FILES["fasta"].decode()


# --- Labels, groups, empty records ---


def test_one_file_per_class(tmp_path: Path) -> None:
    paths = [put(tmp_path / name, FILES["fasta"]) for name in ("worm.fa", "fly.fa")]
    assert [e.label for e in entries(*paths)] == [None] * 4
    assert [e.label for e in entries(*paths, labels="files")] == ["worm", "worm", "fly", "fly"]


def test_labels_and_groups_in_headers(tmp_path: Path) -> None:
    path = put(tmp_path / "a.fa", ">a kind=x gene:g1.2\nA\n>b gene:g1.3 kind=y\nC\n")
    records = entries(path, labels="header:kind", group=r"header:/gene:(\w+)/")
    assert [(e.label, e.group) for e in records] == [("x", "g1"), ("y", "g1")]


@pytest.mark.parametrize("write", [as_csv, as_jsonl, as_parquet])
def test_labels_in_a_table(tmp_path: Path, write: Callable[[Any], bytes]) -> None:
    path = put(tmp_path / "a.fa", FILES["fasta"])
    labels = put(tmp_path / "labels", write({"gene": ["b", "a"], "kind": ["y", "x"], "split": ["test", "train"]}))
    records = entries(path, labels=str(labels), columns=Columns(id="gene", label="kind"))
    assert [(e.label, e.split, e.description) for e in records] == [("x", "training", "x"), ("y", "test", "")]


def test_a_table_for_a_table(tmp_path: Path) -> None:
    """Given column names refer to the table of labels; fields that it lacks keep their values."""
    path = put(tmp_path / "a.csv", "id,bases,label,kind\na,AC,old,k\n")
    labels = put(tmp_path / "labels.csv", "id,kind\na,0.5\n")
    (record,) = entries(path, labels=str(labels), columns=Columns(sequence="bases", target="kind"))
    assert (record.sequence, record.label, record.target) == ("AC", "old", 0.5)


def test_records_and_rows_without_each_other(tmp_path: Path) -> None:
    path = put(tmp_path / "a.fa", FILES["fasta"])
    labels = put(tmp_path / "l.csv", "id,label\nb,x\nc,y\n")
    with pytest.raises(ValueError, match=r"a.fa, record 1: id 'a' has no row in .*l.csv: add one, or .* --on-unmat"):
        entries(path, labels=str(labels))
    account = Account()
    assert [e.id for e in entries(path, labels=str(labels), on_unmatched="reject", account=account)] == ["b"]
    assert account.rejected.total() == 1 and account.notes == {f"rows of {labels} without a record: c": 1}


def test_ids_must_differ_only_where_they_are_keys(tmp_path: Path) -> None:
    path = put(tmp_path / "a.fa", ">a\nA\n>a\nC\n")
    assert len(entries(path)) == 2
    labels = str(put(tmp_path / "l.csv", "id,label\na,x\n"))
    for policy in ("error", "reject"):
        with pytest.raises(ValueError, match=r"a.fa, record 2: id 'a' is not unique: it is the key to .*; rename it"):
            entries(path, labels=labels, on_unmatched=policy)


def test_empty_records(tmp_path: Path) -> None:
    path = put(tmp_path / "a.fa", ">a\nAC\n>b\n>c\nG\n")
    message = r"a.fa, record 2: record 'b' is empty: a record needs a letter; fill it, or leave .* --on-empty reject"
    with pytest.raises(ValueError, match=message):
        entries(path)
    account = Account()
    for _ in read([path], Reading(on_empty="reject"), account):
        account.use()
    assert list(account.lines()) == ["3 records read: 2 used, 1 rejected", "1 rejected, empty: b"]


def test_an_empty_record_has_had_its_row(tmp_path: Path) -> None:
    path = put(tmp_path / "a.fa", ">a\nAC\n>b\n")
    labels = put(tmp_path / "l.csv", "id,label\na,x\nb,y\n")
    assert len(entries(path, labels=str(labels), on_empty="reject")) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "word"}, r"--format word is not a choice: give one of auto, fasta, .*npy"),
        ({"on_empty": "skip"}, r"--on-empty skip is not a choice: give one of error, reject"),
        ({"on_unmatched": "skip"}, r"--on-unmatched skip is not a choice"),
        ({"labels": "header:/a/"}, r"has 0 groups"),
        ({"group": "header:/(/"}, r"is not a regular expression"),
        ({"group": "family"}, r"--group family is not files, header:NAME or header:/REGEX/: .* --column group=NAME"),
    ],
    ids=str,
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reading(**settings)


def test_settings_survive_a_run_folder() -> None:
    reading = Reading(kind="csv", columns=Columns(label="-"), labels="header:x", on_empty="reject")
    assert config.from_dict(Reading, json.loads(json.dumps(config.to_dict(reading))), "reading") == reading


# --- The key of a cache ---


def test_the_key_is_of_bytes_names_and_settings(tmp_path: Path) -> None:
    path, copy = put(tmp_path / "a" / "x.fa", FILES["fasta"]), put(tmp_path / "b" / "x.fa", FILES["fasta"])
    labels = put(tmp_path / "l.csv", "id,label\na,x\n")
    key = content_key([path], Reading())
    assert key is not None and len(key) == 64
    assert key == content_key([str(path)], Reading()) == content_key([copy], Reading())
    with_table = content_key([path], Reading(labels=str(labels)))
    keys = [
        key,
        with_table,
        content_key([path, copy], Reading()),
        content_key([path], Reading(labels="files")),
        content_key([path], Reading(columns=Columns(label="x"))),
        content_key([path.rename(path.with_name("y.fa"))], Reading()),
    ]
    put(labels, "id,label\na,y\n")
    keys.append(content_key([copy], Reading(labels=str(labels))))
    put(copy, b">a x\nAC\nGT\n>b\nGA\n")
    keys.append(content_key([copy], Reading()))
    assert len(set(keys)) == len(keys)


def test_files_have_the_classes_that_they_are_given(tmp_path: Path) -> None:
    paths = [put(tmp_path / name, FILES["fasta"]) for name in ("new1.fa", "new2.fa", "new3.fa")]
    reading = Reading(labels="files", names=("worm", "fly", "worm"), group="files")
    entries = [*read(paths, reading, Account())]
    assert [entry.label for entry in entries[:: len(entries) // 3]] == ["worm", "fly", "worm"]
    assert {entry.group for entry in entries} == {"new1", "new2", "new3"}
    with pytest.raises(ValueError, match="3 class names for 2 files: give each file one"):
        [*read(paths[:2], reading, Account())]
    texts = put(tmp_path / "texts" / "good" / "1.txt", "one").parents[1]
    assert [e.label for e in read([texts], Reading(labels="files", names=("bad",)), Account())] == ["bad"]


def test_names_count_in_the_key_and_none_leave_it_as_it_was(tmp_path: Path) -> None:
    path = put(tmp_path / "x.fa", b">a\nACGT\n")
    assert content_key([path], Reading()) == "b17727d047d01c084783b3062b6aead2eeb6614495d472380cfed038cf440f2e"
    keys = {content_key([path], Reading(labels="files", names=names)) for names in ((), ("worm",), ("fly",))}
    assert len(keys) == 3


def test_the_key_of_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a" / "1", "one")
    put(tmp_path / "t" / "b" / "2", "two")
    keys = [content_key([tmp_path / "t"], Reading())]
    put(tmp_path / "t" / "a" / ".hidden", "")
    assert content_key([tmp_path / "t"], Reading()) == keys[0]
    (tmp_path / "t" / "b").rename(tmp_path / "t" / "c")
    keys.append(content_key([tmp_path / "t"], Reading()))
    put(tmp_path / "t" / "c" / "2", "too")
    keys.append(content_key([tmp_path / "t"], Reading()))
    assert len(set(keys)) == 3


def test_files_that_run_together_have_another_key(tmp_path: Path) -> None:
    first = [put(tmp_path / "a" / "x", b"12"), put(tmp_path / "b" / "x", b"3")]
    second = [put(tmp_path / "c" / "x", b"1"), put(tmp_path / "d" / "x", b"23")]
    assert content_key(first, Reading()) != content_key(second, Reading())


def test_a_stream_has_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert content_key(["-"], Reading()) is None
    assert content_key([tmp_path / "pipe"], Reading()) is None
    with pytest.raises(
        ValueError, match=r"gone cannot be read \(No such file or directory\): give the path of a file"
    ):
        content_key([tmp_path / "gone"], Reading())


HUGE = b"A" * 7_000_000
BOMBS: dict[str, bytes] = {
    "fasta": b">a\nACGT\n>b\n" + HUGE,
    "fastq": b"@a\nACGT\n+\nIIII\n@b\n" + HUGE,
    "genbank": b"LOCUS       A 4 bp DNA\nDEFINITION  " + HUGE,
    "csv": b"text,label\na,b\n" + HUGE,
    "jsonl": b'{"text": "a"}\n{"text": "' + HUGE,
    "text": HUGE,
    "npy": as_npy(np.zeros(2, dtype=np.float32)) + HUGE,
    "npy that claims it": as_npy(np.zeros(2_000_000, dtype=np.float32)),
    "blank lines": b">a\nACGT\n" + b"\n" * len(HUGE),
}
"""Files with one record that is too long."""


@pytest.mark.parametrize("kind", BOMBS)
def test_a_record_over_the_limit(tmp_path: Path, kind: str) -> None:
    path = put(tmp_path / "bomb.gz", gzip.compress(BOMBS[kind], 1))
    with pytest.raises(
        ValueError, match=r"^\S+bomb\.gz(: one record has over 1,000 bytes.*--max-record| claims )"
    ) as error:
        entries(path, kind="text" if kind == "text" else "auto", max_record=1000)
    assert "\n" not in str(error.value)


def test_the_limit_is_of_one_record_and_exact(tmp_path: Path) -> None:
    many = put(tmp_path / "many.fa", b">a\n" + b"A" * 1000 + b"\n" + (b">b\n" + b"A" * 999 + b"\n") * 6000)
    reading = Reading(max_record=1000)
    assert sum(1 for _ in read([many], reading, Account())) == 6001
    with pytest.raises(
        ValueError, match=r"record 1: record 'a' has a length of 1,000, and 999 is the most .*raise --max"
    ):
        list(read([many], Reading(max_record=999), Account()))
    assert content_key([many], reading) == content_key([many], Reading())  # what is read is the same
    with pytest.raises(ValueError, match="--max-record 0 is too small: give 1 byte or more"):
        Reading(max_record=0)


def test_a_table_of_labels_over_the_limit(tmp_path: Path) -> None:
    table = put(tmp_path / "labels.csv.gz", gzip.compress(b"id,label\na,b\n" + HUGE, 1))
    with pytest.raises(
        ValueError, match=r"labels\.csv\.gz: one record has over 9 bytes.*; 1 row was read before it$"
    ):
        entries(put(tmp_path / "a.fa", ">a\nACGT\n"), labels=str(table), max_record=9)


def test_a_name_that_no_disk_can_hold() -> None:
    with pytest.raises(ValueError, match=r"cannot be opened .*: give the path of a file"):
        entries("x" * 3000)
    with pytest.raises(ValueError, match=r"cannot be read \(File name too long\): give the path of a file"):
        content_key(["x" * 3000], Reading())


# --- Damage ---

READING_ROWS = {
    "id": [f"g{i}" for i in range(40)],
    "text": ['some text, with "quotes" and\nlines ü ' * (i % 5 + 1) for i in range(40)],
    "label": ["ab"[i % 2] for i in range(40)],
    "split": [("train", "val", "test")[i % 3] for i in range(40)],
    "target": [i / 7 for i in range(40)],
}
SERIES = {"id": READING_ROWS["id"], "series": [[[float(i), 2.0]] * (i + 1) for i in range(40)]}
DAMAGED: dict[str, tuple[bytes, int | None]] = {
    "csv": (as_csv(READING_ROWS), None),
    "jsonl": (as_jsonl(READING_ROWS), None),
    "parquet": (as_parquet(READING_ROWS), 40),
    "parquet-series": (as_parquet(SERIES), 40),
    "text": ("Grüße, some words\nand lines\r\n".encode() * 20, 1),
    "npy": (as_npy(np.arange(60, dtype=np.float32).reshape(20, 3)), 1),
}
"""Files, and the number of records of each readable mutant, where the format stores it."""


@pytest.mark.parametrize("kind", DAMAGED)
def test_mutants(tmp_path: Path, kind: str) -> None:
    data, expected = DAMAGED[kind]
    reading = Reading(kind="text" if kind == "text" else "auto", on_empty="reject")

    def accounted(mutant: bytes) -> Account:
        account = Account()
        for _ in read([put(tmp_path / "mutant", mutant)], reading, account):
            account.use()
        return account

    seed = {"parquet": 5, "parquet-series": 3}.get(
        kind, 2
    )  # others have a page for which Arrow takes seconds and 2 GB
    for mutant, account in survivors(data, accounted, seed):
        if mutant.startswith(data[:4]) and expected is not None:
            assert account.read == expected
        assert account.read == account.used + account.rejected.total() > 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data is not here: real files cannot be read")
def test_real_introns() -> None:
    paths = [SHARED / "introns" / f"{name}.fa.gz" for name in ("caenorhabditis", "drosophila")]
    reading = Reading(labels="files", group=r"header:/(?:Transcript|CDS):([^.\s]+(?:\.\d+)?)/")
    pairs = [(e.label, e.group) for e in read(paths, reading, Account())]
    assert Counter(label for label, _ in pairs) == {"caenorhabditis": 36_902, "drosophila": 31_066}
    assert not {group for label, group in pairs if label == "drosophila"} & {g for n, g in pairs if n != "drosophila"}


@pytest.mark.parametrize("name", ["t.parquet", "t.npy"])
def test_a_damaged_binary_file_is_not_read_as_text(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b">\nN\xef\x15\x04 was a table")
    with pytest.raises(ValueError, match=rf"{name} does not begin like a \.{name[2:]} file"):
        list(read([tmp_path / name], Reading(), Account()))


def test_without_labels_only_ids_and_sequences_are_read() -> None:
    reading = Reading(
        "genbank", Columns(id="a", sequence="b", label="c"), "files", "files", "CDS", "genus", on_empty="reject"
    )
    assert reading.unlabelled == Reading(
        "genbank", Columns("a", "b", *["-"] * 5), features="CDS", on_empty="reject", on_unmatched="error"
    )
