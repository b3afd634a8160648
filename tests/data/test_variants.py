from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.reference import BGZIP_END
from chordmixer.data.variants import (
    Line,
    Variant,
    VariantColumns,
    header_line,
    open_vcf,
    read_variants,
    values_of_name,
    with_scores,
    writing,
)

HEAD = "##fileformat=VCFv4.3\n##contig=<ID=chr1>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tHG002\n"
ROWS = (
    "chr2\t40\trs7\tA\tC,<DEL>\t.\tPASS\tDB;AF=0.5,0.1\tGT\t0/1\n",
    "chr1\t3\t.\tGT\tG\t29\t.\t.\tGT\t1/1\n",
)


def lines(path: Path) -> list[Line]:
    with open_vcf(path) as vcf:
        return list(vcf)


def variant_line(raw: str) -> Line:
    return Line(1, raw.encode(), raw.rstrip("\r\n").encode().split(b"\t"), "calls.vcf, line 1")


@pytest.mark.parametrize("compressed", [False, True])
def test_lines(tmp_path: Path, compressed: bool) -> None:
    path, text = tmp_path / "calls.vcf", HEAD + "".join(ROWS)
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    parsed = lines(path)
    assert b"".join(line.raw for line in parsed) == text.encode(), "lines keep the order of the file, sorted or not"
    assert [line.fields == [] for line in parsed] == [True] * 3 + [False] * 2
    first = parsed[3]
    assert ([first.text(i) for i in (0, 1, 3)], first.alts) == (["chr2", "40", "A"], ["C", "<DEL>"])
    assert first.info() == {"DB": "yes", "AF": "0.5,0.1"} and first.place == f"{path}, line 4"
    assert parsed[4].info() == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chr1\t5\n", r"calls\.vcf does not begin with ##fileformat=VCF: give a VCF file, or a table$"),
        ("##fileformat=VCFv4.3\n", r"calls\.vcf has no line that begins with #CHROM: the file is cut; use another"),
        ("##fileformat=VCFv4.3\n" + ROWS[0], r"line 2 has a variant before the line that begins with #CHROM: use"),
        (HEAD + ROWS[0][:30], r"line 4 has 8 fields and the header 10: they must agree and be 8 or more, with tabs"),
        ("##fileformat=VCFv4.3\n#CHROM\tPOS\nchr1\t5\n", r"line 3 has 2 fields and the header 2: .* be 8 or more"),
    ],
    ids=["no-vcf", "cut-header", "no-header", "cut-line", "few-fields"],
)
def test_what_is_no_vcf(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        lines(path)


def test_a_gzip_that_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf.gz"
    compressed = gzip.compress(
        (HEAD + "".join(f"chr1\t{i}\t.\tA\tC\t{i * i}\t.\t.\tGT\t0\n" for i in range(9999))).encode()
    )
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(
        ValueError, match=r"gzip stream is cut or corrupt .*; [1-9],\d{3} lines with variants came befor"
    ):
        lines(path)


def test_a_bgzip_that_is_cut_between_blocks(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf.gz"
    with writing(path) as file:
        file.write((HEAD + ROWS[0]).encode())
    path.write_bytes(path.read_bytes().removesuffix(BGZIP_END))
    with pytest.raises(ValueError, match="is cut: a bgzip file ends with an empty block"):
        lines(path)


@pytest.mark.parametrize(
    ("raw", "scores", "info"),
    [
        (ROWS[0], {0: 0.25}, "DB;AF=0.5,0.1;CHORDMIXER=0.25,."),
        (ROWS[0], {0: 0.25, 1: 1e-9}, "DB;AF=0.5,0.1;CHORDMIXER=0.25,1e-09"),
        (ROWS[1], {0: -3.0}, "CHORDMIXER=-3"),
        ("c\t1\t.\tA\tC\t.\t.\tDB;\r\n", {0: 1.0}, "DB;CHORDMIXER=1"),
        ("c\t1\t.\tA\tC\t.\t.\t.", {0: 1.0}, "CHORDMIXER=1"),
    ],
)
def test_a_score_in_info(raw: str, scores: dict[int, float], info: str) -> None:
    line = variant_line(raw)
    written = with_scores(line, scores).decode()
    before, after = raw.split("\t"), written.split("\t")
    assert after[7].strip() == info
    assert after[:7] == before[:7] and after[8:] == before[8:] and written.endswith(raw[len(raw.rstrip()) :])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), max_size=20))
def test_a_line_without_a_score_is_as_it_was(text: str) -> None:
    raw = f"chr1\t5\t.\tA\t<DEL>\t.\t.\t{text}\n"
    assert with_scores(variant_line(raw), {}) == raw.encode()


def test_existing_scores_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"line 1 has CHORDMIXER in INFO already: .* `bcftools annotate -x INFO/CHORD"
    ):
        with_scores(variant_line("c\t1\t.\tA\tC\t.\t.\tCHORDMIXER=1\n"), {0: 1.0})


def test_quotes_in_a_description() -> None:
    assert header_line('of "pos"').endswith(b'Description="of \\"pos\\"">\n')


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "out.vcf") as file:
        file.write(b"##")
        _ = 1 / 0
    assert not [*tmp_path.iterdir()]
    with writing(tmp_path / "out.vcf") as file:
        file.write(b"##")
    assert [path.name for path in tmp_path.iterdir()] == ["out.vcf"]


def test_a_file_without_variants_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(HEAD)
    with pytest.raises(ValueError, match=r"calls\.vcf has no variants, only a header: leave it out, or give another"):
        lines(path)


VARIANTS_HEAD = "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def test_a_line_with_several_alternatives_is_several_variants(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(
        VARIANTS_HEAD + "chr1\t5\t.\tA\tC,AT\t.\t.\tCLASS=pos,neg;GENE=G1;DB\nchr1\t2\t.\tC\tT\t.\t.\tBETA=0.5\n"
    )
    columns = VariantColumns(label="CLASS", group="GENE", target="BETA", context="DB")
    place = f"{path}, line 3"
    assert list(read_variants(path, columns)) == [
        Variant("chr1", 5, "A", "C", place, label="pos", group="G1", context="yes"),
        Variant("chr1", 5, "A", "AT", place, label="neg", group="G1", context="yes"),
        Variant("chr1", 2, "C", "T", f"{path}, line 4", target=0.5),
    ]
    assert {v.label for v in read_variants(path, columns, roles=())} == {None}


VARIANTS_ROWS = {
    "chrom": ["chr1", "chr2"],
    "pos": [5, 2],
    "ref": ["A", "C"],
    "alt": ["C,G", "T"],
    "Tissue": ["liver", None],
    "y": [0.5, None],
}


def write(path: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(pa.table(VARIANTS_ROWS), path)
        return
    delimiter = {"csv": ",", "tsv": "\t", "tsv.gz": "\t"}[kind]
    cells = [list(VARIANTS_ROWS), *zip(*VARIANTS_ROWS.values(), strict=True)]
    quoted = [[f'"{c}"' if "," in str(c) else "" if c is None else str(c) for c in row] for row in cells]
    text = "".join(delimiter.join(row) + "\n" for row in quoted).encode()
    path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)


@pytest.mark.parametrize("kind", ["csv", "tsv", "tsv.gz", "parquet"])
def test_a_table(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"table.{kind}"
    write(path, kind)
    variants = list(read_variants(path, VariantColumns()))
    assert [variant.id for variant in variants] == ["chr1:5:A>C", "chr1:5:A>G", "chr2:2:C>T"]
    assert [(variant.context, variant.target) for variant in variants] == [("liver", 0.5)] * 2 + [(None, None)]
    assert variants[2].place == f"{path}, row 2"


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "chrom\tpos\tref\n1\t2\tA\n",
            {},
            r"has no column for the alt: it has 'chrom', 'pos', 'ref'; choose with --col",
        ),
        ("chrom\tpos\tref\talt\n1\t2\tA\tC\n", {"label": "CLASS"}, "has no column 'CLASS': it has"),
        (
            "chrom\tchr\tpos\tref\talt\n1\t1\t2\tA\tC\n",
            {},
            r"has 2 columns that may be the contig, 'chrom', 'chr': choose one with",
        ),
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
    compressed = gzip.compress(f"chrom\tpos\tref\talt\tnote\n{rows}".encode())
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(ValueError, match=r"gzip stream is cut or corrupt .*; [\d,]+ rows were read before it$"):
        list(read_variants(path, VariantColumns()))
    write(tmp_path / "whole.parquet", "parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"cut\.parquet cannot be read as Parquet \(.*\): use another copy$"):
        list(read_variants(tmp_path / "cut.parquet", VariantColumns()))


def test_names_tell_of_all_variants_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Whole_Blood_pos.vcf"
    path.write_text(VARIANTS_HEAD + "chr1\t5\t.\tA\tC\t.\t.\t.\n")
    [variant] = read_variants(path, VariantColumns(), r"(?P<context>.+)_(?P<label>pos|neg)\.vcf")
    assert (variant.context, variant.label) == ("Whole_Blood", "pos")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("(", r"--names '\(' is not a regular expression \(.*\): correct it$"),
        (
            "(?P<tissue>.+)",
            r"has the groups tissue: use label, target, split, group, context, as \(\?P<",
        ),
        (".+", "has the groups none: use"),
        ("(?P<label>pos|neg)", r"calls\.vcf: its name does not fit --names .*: rename it, or leave it out$"),
    ],
)
def test_patterns_with_a_fault(names: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        values_of_name("calls.vcf", names)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
def test_line_ends_of_tables(tmp_path: Path, end: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(end.join(["chrom,pos,ref,alt,label", "chr1,5,A,C,hit", "chr1,7,G,T,miss", ""]).encode())
    labels = [(variant.id, variant.label) for variant in read_variants(path, VariantColumns())]
    assert labels == [("chr1:5:A>C", "hit"), ("chr1:7:G>T", "miss")]


@pytest.mark.parametrize("position", ["2_0", " 20", "2e1", "\N{ARABIC-INDIC DIGIT TWO}", "9" * 30])
def test_a_position_is_digits(tmp_path: Path, position: str) -> None:
    path = tmp_path / "calls.vcf"
    path.write_text(VARIANTS_HEAD + f"chr1\t{position}\t.\tA\tC\t.\t.\t.\n")
    with pytest.raises(ValueError, match=r"calls\.vcf, line 3: position '.*' is not a whole number: correct it"):
        list(read_variants(path, VariantColumns()))
