"""Read variants from VCF files and tables, one per alternative allele, and write scores into a VCF's INFO.

Lines keep the order of the file and are otherwise written back byte for byte. The format is VCF 4.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from chordmixer import files
from chordmixer.data.columns import ABSENT, TableColumns, find_columns, format_number, real_number, whole_number
from chordmixer.data.reference import BgzipWriter, check_bgzip_end
from chordmixer.data.sources import BLOCK, BrokenStream, Source, open_source
from chordmixer.data.tables import open_table

MAGIC = b"##fileformat=VCF"
HEADER = b"#CHROM\t"
INFO = 7
"""The index of INFO among a line's fields; the first eight are mandatory."""
SCORE = "CHORDMIXER"
"""The key of our scores in INFO."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant with one alternative allele."""

    contig: str
    position: int
    """Position of the reference allele's first base, from 1."""
    ref: str
    alt: str
    place: str
    """Its position in the input, for messages."""
    label: str | None = None
    target: float | None = None
    split: str | None = None
    group: str | None = None
    """Variants of one group never cross a split."""
    context: str | None = None
    """The tissue or cell type in which it was measured."""

    @property
    def id(self) -> str:
        return f"{self.contig}:{self.position}:{self.ref}>{self.alt}"


class Line(NamedTuple):
    """A line of a VCF file."""

    number: int
    """The line number from 1."""
    raw: bytes
    """The bytes of the line, including its end."""
    fields: list[bytes]
    """The fields; empty for a header line."""
    place: str

    def text(self, index: int) -> str:
        """The text of a field."""
        return self.fields[index].decode(errors="backslashreplace")

    @property
    def alts(self) -> list[str]:
        """The alternative alleles, each of which is a variant."""
        return self.text(4).split(",")

    def info(self) -> dict[str, str]:
        """Keys and values of INFO; the value of a flag is `yes`."""
        pairs = (item.partition("=") for item in self.text(INFO).strip().split(";") if item not in ("", "."))
        return {key: value if equals else "yes" for key, equals, value in pairs}


@contextmanager
def open_vcf(path: Path | str) -> Iterator[Iterator[Line]]:
    """Open a VCF file, plain or compressed, as lines; a truncated file is an error."""
    with open_source(path) as source:
        check_bgzip_end(Path(path))
        yield _lines(source)


def _lines(source: Source) -> Iterator[Line]:
    if not source.head.startswith(MAGIC):
        raise ValueError(f"{source.name} does not begin with {MAGIC.decode()}: give a VCF file, or a table")
    columns = count = 0
    try:
        for number, raw in enumerate(_raw_lines(source), start=1):
            place, fields = f"{source.name}, line {number}", []
            if raw.startswith(b"#"):
                columns = raw.count(b"\t") + 1 if raw.startswith(HEADER) else columns
            elif raw.strip():
                fields = raw.rstrip(b"\r\n").split(b"\t")
                _check_fields(place, fields, columns)
                count += 1
            source.start_record()
            yield Line(number, raw, fields, place)
    except BrokenStream as error:
        raise ValueError(f"{error}; {count:,} line{'s' if count != 1 else ''} with variants came before it") from None
    if not columns:
        raise ValueError(f"{source.name} has no line that begins with #CHROM: the file is cut; use another copy")
    if not count:
        raise ValueError(f"{source.name} has no variants, only a header: leave it out, or give another file")


def _check_fields(place: str, fields: Sequence[bytes], columns: int) -> None:
    if not columns:
        raise ValueError(f"{place} has a variant before the line that begins with #CHROM: use another copy")
    if columns <= INFO or len(fields) != columns:
        raise ValueError(
            f"{place} has {len(fields)} fields and the header {columns}: they must agree and be 8 or more, with tabs "
            "between; the file may be cut, use another copy"
        )


def _raw_lines(source: Source) -> Iterator[bytes]:
    """Lines with their ends; all complete lines before a fault of the stream are yielded."""
    rest = b""
    while block := source.stream.read1(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


# --- Writing ---


def header_line(description: str) -> bytes:
    """The header line that describes the scores.

    >>> header_line("probability of pos")
    b'##INFO=<ID=CHORDMIXER,Number=A,Type=Float,Description="probability of pos">\\n'
    """
    text = description.replace("\\", "\\\\").replace('"', '\\"')
    return f'##INFO=<ID={SCORE},Number=A,Type=Float,Description="{text}">\n'.encode()


def with_scores(line: Line, scores: Mapping[int, float]) -> bytes:
    """A line with scores by index of the alternative, a dot for those without one; unchanged without any scores.

    >>> raw = b"chr1\\t5\\t.\\tA\\tC,<DEL>\\t.\\t.\\t.\\n"
    >>> with_scores(Line(9, raw, raw.rstrip().split(b"\\t"), "calls.vcf, line 9"), {0: 0.25})
    b'chr1\\t5\\t.\\tA\\tC,<DEL>\\t.\\t.\\tCHORDMIXER=0.25,.\\n'
    """
    if not scores:
        return line.raw
    info = line.fields[INFO]
    if SCORE in line.info():
        raise ValueError(
            f"{line.place} has {SCORE} in INFO already: scores are not mixed; remove it first, for example with "
            f"`bcftools annotate -x INFO/{SCORE}`"
        )
    values = ",".join(format_number(scores[k]) if k in scores else "." for k in range(len(line.alts)))
    item = f"{SCORE}={values}".encode()
    fields = [*line.fields[:INFO], item if info in (b".", b"") else info.rstrip(b";") + b";" + item]
    end = line.raw[len(line.raw.rstrip(b"\r\n")) :]
    return b"\t".join([*fields, *line.fields[INFO + 1 :]]) + end


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO | BgzipWriter]:
    """Write a file that is put in place if the block succeeds; a name that ends in .gz is compressed by bgzip."""
    with files.explaining_no_room(path, "more", ""), files.replacing(path, sweeping=True) as file:
        if path.suffix != ".gz":
            yield file
            return
        packed = BgzipWriter(file)
        yield packed
        packed.finish()


USUAL_NAMES = {
    "contig": ("chrom", "#chrom", "chromosome", "chr", "contig", "seqname", "element"),
    "position": ("pos", "position"),
    "ref": ("ref", "reference", "reference_allele"),
    "alt": ("alt", "alternative", "alternate", "alternate_allele"),
    "label": ("label", "class", "category"),
    "target": ("target", "y"),
    "split": ("split",),
    "group": ("group",),
    "context": ("context", "tissue", "cell_type"),
}
"""Names, in any case, by which a table's column for each role is found."""
REQUIRED = ("contig", "position", "ref", "alt")
OPTIONAL = ("label", "target", "split", "group", "context")
"""Optional columns of a variant."""


@dataclass(frozen=True)
class VariantColumns(TableColumns):
    """Column names of a table of variants, or keys of a VCF's INFO; None in a VCF: there is no such key."""

    usual_names = USUAL_NAMES
    needed = REQUIRED

    contig: str | None = None
    """A contig of the reference; ignored for a VCF, as are the next three."""
    position: str | None = None
    """Position of the reference allele's first base, from 1."""
    ref: str | None = None
    """The reference allele."""
    alt: str | None = None
    """The alternative allele, or several separated by commas."""
    label: str | None = None
    """A class."""
    target: str | None = None
    """A number to predict."""
    split: str | None = None
    """train, validation or test."""
    group: str | None = None
    """Variants of one group never cross a split."""
    context: str | None = None
    """The tissue or cell type in which it was measured."""


def read_variants(
    path: Path | str, columns: VariantColumns, names: str | None = None, roles: Sequence[str] = OPTIONAL
) -> Iterator[Variant]:
    """Read the variants of a VCF file or a table; `roles` are the optional columns to read.

    `names` is a regular expression for the file's name, whose named groups are values of all its variants.

    >>> gtex = r"(?P<context>.+)_(?P<label>pos|neg)"
    >>> sorted(values_of_name("vcfs/Whole_Blood_pos.vcf.gz", gtex).items())
    [('context', 'Whole_Blood'), ('label', 'pos')]
    """
    from_name = values_of_name(path, names) if names else {}
    if is_vcf(path):
        with open_vcf(path) as lines:
            for line in lines:
                yield from variants_of_line(line, columns, from_name, roles) if line.fields else ()
    else:
        yield from _table_variants(path, columns, from_name, roles)


def is_vcf(path: Path | str) -> bool:
    with open_source(path) as source:
        return source.head.startswith(MAGIC)


def values_of_name(path: Path | str, names: str) -> dict[str, str]:
    """The values that the named groups of `names` match in a file's name."""
    try:
        pattern = re.compile(names)
    except re.error as error:
        raise ValueError(f"--names {names!r} is not a regular expression ({error}): correct it") from None
    named = ", ".join(pattern.groupindex) or "none"
    if not {*pattern.groupindex} <= {*OPTIONAL} or named == "none":
        raise ValueError(f"--names {names!r} has the groups {named}: use {', '.join(OPTIONAL)}, as (?P<label>...)")
    match = pattern.match(Path(path).name)
    if match is None:
        raise ValueError(f"{path}: its name does not fit --names {names!r}: rename it, or leave it out")
    return {role: text for role, text in match.groupdict().items() if text}


def variants_of_line(
    line: Line, columns: VariantColumns, from_name: Mapping[str, str], roles: Sequence[str] = OPTIONAL
) -> list[Variant]:
    """A variant for each alternative; an INFO value with one part per alternative is split among them."""
    keys = {role: key for role in roles if (key := getattr(columns, role)) is not None}
    alts, info = line.alts, line.info() if keys else {}
    texts = {role: info.get(key) for role, key in keys.items()}
    variants = []
    for k, alt in enumerate(alts):
        values = {
            role: text.split(",")[k] if text is not None and text.count(",") == len(alts) - 1 else text
            for role, text in texts.items()
        }
        variants.append(_variant(line.text(0), line.text(1), line.text(3), alt, line.place, {**values, **from_name}))
    return variants


def _variant(contig: str, position: str, ref: str, alt: str, place: str, values: Mapping[str, Any]) -> Variant:
    start = whole_number(position)
    if start is None:
        raise ValueError(f"{place}: position {position!r} is not a whole number: correct it")
    fields: dict[str, Any] = {role: None if text in (None, "", ".") else text for role, text in values.items()}
    if (target := fields.get("target")) is not None:
        fields["target"] = real_number(target)
        if not math.isfinite(fields["target"]):
            raise ValueError(f"{place}: target {target!r} is not a finite number: correct it, or leave it empty")
    return Variant(contig, start, ref, alt, place, **fields)


# --- Tables ---


def _table_variants(
    path: Path | str, columns: VariantColumns, from_name: Mapping[str, str], roles: Sequence[str]
) -> Iterator[Variant]:
    with open_table(path) as table:
        absent = {role: ABSENT for role in OPTIONAL if role not in roles}
        by_role = find_columns(replace(columns, **absent), table.names, str(path))
        for number, row in enumerate(table.rows(list(dict.fromkeys(by_role.values()))), start=1):
            cells = {role: _cell_text(row[name]) for role, name in by_role.items()}
            values = {**{role: cells[role] for role in roles if role in cells}, **from_name}
            for alt in cells["alt"].split(","):
                yield _variant(cells["contig"], cells["position"], cells["ref"], alt, f"{path}, row {number}", values)


def _cell_text(value: Any) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
