"""VCF: variants a line, read in the order of the file, and written back byte for byte with a score more in INFO.

Sorted or not is no matter. Read with the VCF specification, version 4.3, at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from chordmixer import files
from chordmixer.data.bgzip import BgzipWriter, check_whole
from chordmixer.data.numbers import written
from chordmixer.data.sources import BLOCK, BrokenStream, Source, open_source

MAGIC = b"##fileformat=VCF"
HEADER = b"#CHROM\t"
INFO = 7
"""The place of INFO among a line's fields; eight are always there."""
SCORE = "CHORDMIXER"
"""The key of our scores in INFO."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One change of a contig's letters.

    >>> Variant("chr7", 140753336, "A", "T", place="calls.vcf, line 40").id
    'chr7:140753336:A>T'
    """

    contig: str
    position: int
    """Of the reference allele's first base, counted from 1."""
    ref: str
    alt: str
    place: str
    """Where it stands, for messages."""
    label: str | None = None
    target: float | None = None
    split: str | None = None
    group: str | None = None
    """Variants of one group never cross a split."""
    context: str | None = None
    """In which tissue or cells it was measured."""

    @property
    def id(self) -> str:
        return f"{self.contig}:{self.position}:{self.ref}>{self.alt}"


class Line(NamedTuple):
    """A line of a VCF file."""

    number: int
    """From 1."""
    raw: bytes
    """With its end."""
    fields: list[bytes]
    """None of a header's line."""
    place: str

    @property
    def contig(self) -> str:
        return self.fields[0].decode(errors="backslashreplace")

    @property
    def position(self) -> str:
        return self.fields[1].decode(errors="backslashreplace")

    @property
    def ref(self) -> str:
        return self.fields[3].decode(errors="backslashreplace")

    @property
    def alts(self) -> list[str]:
        """The alternatives of a line, each of which is a variant."""
        return self.fields[4].decode(errors="backslashreplace").split(",")

    def info(self) -> dict[str, str]:
        """Keys and values; of a flag, which has no value, `yes`."""
        text = self.fields[INFO].decode(errors="backslashreplace").strip()
        pairs = (item.partition("=") for item in text.split(";") if item not in ("", "."))
        return {key: value if equals else "yes" for key, equals, value in pairs}


@contextmanager
def open_vcf(path: Path | str) -> Iterator[Iterator[Line]]:
    """The lines of a VCF file, plain or compressed; a file that is cut is an error."""
    with open_source(path) as source:
        check_whole(Path(path))
        yield _lines(source)


def _lines(source: Source) -> Iterator[Line]:
    if not source.head.startswith(MAGIC):
        raise ValueError(f"{source.name} does not begin with {MAGIC.decode()}: give a VCF file, or a table")
    columns = count = 0
    try:
        for number, raw in enumerate(_raw(source), start=1):
            place, fields = f"{source.name}, line {number}", []
            if raw.startswith(b"#"):
                columns = raw.count(b"\t") + 1 if raw.startswith(HEADER) else columns
            elif raw.strip():
                fields = raw.rstrip(b"\r\n").split(b"\t")
                _check(place, fields, columns)
                count += 1
            source.renew()
            yield Line(number, raw, fields, place)
    except BrokenStream as error:
        raise ValueError(f"{error}; {count:,} line{'s' if count != 1 else ''} with variants came before it") from None
    if not columns:
        raise ValueError(f"{source.name} has no line that begins with #CHROM: the file is cut; use another copy")
    if not count:
        raise ValueError(f"{source.name} has no variants, only a header: leave it out, or give another file")


def _check(place: str, fields: Sequence[bytes], columns: int) -> None:
    if not columns:
        raise ValueError(f"{place} has a variant before the line that begins with #CHROM: use another copy")
    if columns <= INFO or len(fields) != columns:
        raise ValueError(
            f"{place} has {len(fields)} fields and the header {columns}: they must agree and be 8 or more, with tabs "
            "between; the file may be cut, use another copy"
        )


def _raw(source: Source) -> Iterator[bytes]:
    """Lines with their ends; all that stand before a fault come."""
    rest = b""
    while block := source.stream.read1(BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


# --- Writing ---


def header_line(description: str) -> bytes:
    """What a VCF says of our scores, in its header.

    >>> header_line("probability of pos")
    b'##INFO=<ID=CHORDMIXER,Number=A,Type=Float,Description="probability of pos">\\n'
    """
    text = description.replace("\\", "\\\\").replace('"', '\\"')
    return f'##INFO=<ID={SCORE},Number=A,Type=Float,Description="{text}">\n'.encode()


def with_scores(line: Line, scores: Mapping[int, float]) -> bytes:
    """A line with a score for each alternative that has one, a dot for others; without any, as it was.

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
    values = ",".join(written(scores[k]) if k in scores else "." for k in range(len(line.alts)))
    own = f"{SCORE}={values}".encode()
    fields = [*line.fields[:INFO], own if info in (b".", b"") else info.rstrip(b";") + b";" + own]
    end = line.raw[len(line.raw.rstrip(b"\r\n")) :]
    return b"\t".join([*fields, *line.fields[INFO + 1 :]]) + end


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file that is put in place when the block ends well; a name that ends in .gz is compressed, as bgzip does."""
    with files.explaining_no_room(path, "more", ""), files.replacing(path, sweeping=True) as file:
        if path.suffix == ".gz":
            with BgzipWriter(file) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file
