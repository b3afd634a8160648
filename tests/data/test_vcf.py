from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.bgzip import END
from chordmixer.data.vcf import Line, header_line, open_vcf, with_scores, writing

HEAD = "##fileformat=VCFv4.3\n##contig=<ID=chr1>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tHG002\n"
ROWS = (
    "chr2\t40\trs7\tA\tC,<DEL>\t.\tPASS\tDB;AF=0.5,0.1\tGT\t0/1\n",
    "chr1\t3\t.\tGT\tG\t29\t.\t.\tGT\t1/1\n",
)


def lines(path: Path) -> list[Line]:
    with open_vcf(path) as read:
        return list(read)


def variant_line(raw: str) -> Line:
    return Line(1, raw.encode(), raw.rstrip("\r\n").encode().split(b"\t"), "calls.vcf, line 1")


@pytest.mark.parametrize("zip", [False, True])
def test_lines(tmp_path: Path, zip: bool) -> None:
    path, text = tmp_path / "calls.vcf", HEAD + "".join(ROWS)
    path.write_bytes(gzip.compress(text.encode()) if zip else text.encode())
    read = lines(path)
    assert b"".join(line.raw for line in read) == text.encode(), "in the file's order, sorted or not"
    assert [line.fields == [] for line in read] == [True] * 3 + [False] * 2
    first = read[3]
    assert (first.contig, first.position, first.ref, first.alts) == ("chr2", "40", "A", ["C", "<DEL>"])
    assert first.info() == {"DB": "yes", "AF": "0.5,0.1"} and first.place == f"{path}, line 4"
    assert read[4].info() == {}


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
    whole = gzip.compress(
        (HEAD + "".join(f"chr1\t{i}\t.\tA\tC\t{i * i}\t.\t.\tGT\t0\n" for i in range(9999))).encode()
    )
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError, match=r"gzip stream is cut or corrupt .*; [1-9],\d{3} lines with variants came befor"
    ):
        lines(path)


def test_a_bgzip_that_is_cut_between_blocks(tmp_path: Path) -> None:
    path = tmp_path / "calls.vcf.gz"
    with writing(path) as file:
        file.write((HEAD + ROWS[0]).encode())
    path.write_bytes(path.read_bytes().removesuffix(END))
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


def test_scores_are_not_mixed() -> None:
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
