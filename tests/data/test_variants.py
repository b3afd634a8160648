from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chordmixer.data.variants import VariantColumns, of_name, read_variants
from chordmixer.data.vcf import Variant

HEAD = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def test_a_line_with_several_alternatives_is_several_variants(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(HEAD + "chr1\t5\t.\tA\tC,AT\t.\t.\tCLASS=pos,neg;GENE=G1;DB\nchr1\t2\t.\tC\tT\t.\t.\tBETA=0.5\n")
    columns = VariantColumns(label="CLASS", group="GENE", target="BETA", context="DB")
    place = f"{path}, line 3"
    assert list(read_variants(path, columns)) == [
        Variant("chr1", 5, "A", "C", place, label="pos", group="G1", context="yes"),
        Variant("chr1", 5, "A", "AT", place, label="neg", group="G1", context="yes"),
        Variant("chr1", 2, "C", "T", f"{path}, line 4", target=0.5),
    ]
    assert {v.label for v in read_variants(path, columns, told=())} == {None}


ROWS = {
    "chrom": ["chr1", "chr2"],
    "pos": [5, 2],
    "ref": ["A", "C"],
    "alt": ["C,G", "T"],
    "Tissue": ["liver", None],
    "y": [0.5, None],
}


def write(path: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(pa.table(ROWS), path)
        return
    mark = {"csv": ",", "tsv": "\t", "tsv.gz": "\t"}[kind]
    cells = [list(ROWS), *zip(*ROWS.values(), strict=True)]
    quoted = [[f'"{c}"' if "," in str(c) else "" if c is None else str(c) for c in row] for row in cells]
    text = "".join(mark.join(row) + "\n" for row in quoted).encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)


@pytest.mark.parametrize("kind", ["csv", "tsv", "tsv.gz", "parquet"])
def test_a_table(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    write(path, kind)
    read = list(read_variants(path, VariantColumns()))
    assert [variant.id for variant in read] == ["chr1:5:A>C", "chr1:5:A>G", "chr2:2:C>T"]
    assert [(variant.context, variant.target) for variant in read] == [("liver", 0.5)] * 2 + [(None, None)]
    assert read[2].place == f"{path}, row 2"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "chrom\tpos\tref\n1\t2\tA\n",
            {},
            r"has no column for the alt: it has 'chrom', 'pos', 'ref'; choose with --col",
        ),
        ("chrom\tpos\tref\talt\n1\t2\tA\tC\n", {"label": "CLASS"}, "has no column for the label"),
        ("chrom\tchr\tpos\tref\talt\n1\t1\t2\tA\tC\n", {}, r"has \['chrom', 'chr'\] for the contig: choose one with"),
        ("chrom\tpos\tref\talt\n1\tx\tA\tC\n", {}, r"row 1: position 'x' is not a whole number: correct it$"),
        (
            "chrom\tpos\tref\talt\ty\n1\t2\tA\tC\tinf\n",
            {},
            r"row 1: target 'inf' is not a finite number: correct it, or",
        ),
        (
            "chrom\tpos\tref\talt\n1\t2\tA\tC\n1\t2\n",
            {},
            r"row 2 \(before line 4\) has 2 fields and the header 4: they must agree; quote fields",
        ),
        ("chrom\tpos\tref\talt\n", {}, r"has a header and no rows: give a table with records$"),
        ('chrom\tpos\tref\talt\n1\t2\tA\t"C\n', {}, r"line 2 cannot be parsed \(.*\): quote the field well$"),
    ],
)
def test_a_table_with_a_fault(tmp_path: Path, text: str, columns: dict[str, Any], message: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        list(read_variants(path, VariantColumns(**columns)))


def test_tables_that_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv.gz"
    rows = "".join(f"chr1\t{i}\tA\tC\t{i * i}\n" for i in range(20_000))
    whole = gzip.compress(f"chrom\tpos\tref\talt\tnote\n{rows}".encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"gzip stream is cut or corrupt .*; [\d,]+ rows were read before it$"):
        list(read_variants(path, VariantColumns()))
    write(tmp_path / "whole.parquet", "parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"cut\.parquet cannot be read as Parquet \(.*\): use another copy$"):
        list(read_variants(tmp_path / "cut.parquet", VariantColumns()))


def test_names_tell_of_all_variants_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Whole_Blood_pos.vcf"
    path.write_text(HEAD + "chr1\t5\t.\tA\tC\t.\t.\t.\n")
    [variant] = read_variants(path, VariantColumns(), r"(?P<context>.+)_(?P<label>pos|neg)\.vcf")
    assert (variant.context, variant.label) == ("Whole_Blood", "pos")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("(", r"--names '\(' is not a regular expression \(.*\): correct it$"),
        (
            "(?P<tissue>.+)",
            r"has the groups tissue: give some of label, target, split, group, context, as \(\?P<",
        ),
        (".+", "has the groups none: give some of"),
        ("(?P<label>pos|neg)", r"calls\.vcf: its name does not fit --names .*: rename it, or leave it out$"),
    ],
)
def test_patterns_with_a_fault(names: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_name("calls.vcf", names)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends_of_tables(tmp_path: Path, end: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(end.join(["chrom,pos,ref,alt,label", "chr1,5,A,C,hit", "chr1,7,G,T,miss", ""]).encode())
    found = [(variant.id, variant.label) for variant in read_variants(path, VariantColumns())]
    assert found == [("chr1:5:A>C", "hit"), ("chr1:7:G>T", "miss")]


@pytest.mark.parametrize("position", ["2_0", " 20", "2e1", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 30])
def test_a_position_is_digits(tmp_path: Path, position: str) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(HEAD + f"chr1\t{position}\t.\tA\tC\t.\t.\t.\n")
    with pytest.raises(ValueError, match=r"calls\.vcf, line 3: position '.*' is not a whole number: correct it"):
        list(read_variants(path, VariantColumns()))
