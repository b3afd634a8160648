"""Readers of FASTA, FASTQ and GenBank files.

FASTA and FASTQ are read in blocks of a megabyte, since a loop over lines would be slow. GenBank is parsed by
Biopython, whose warnings are errors here.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chordmixer.data.entries import Entry
from chordmixer.data.sources import BLOCK, Source, line_blocks, plain_lines

if TYPE_CHECKING:
    from Bio.SeqFeature import SeqFeature
    from Bio.SeqRecord import SeqRecord


def read_fasta(source: Source) -> Iterator[Entry]:
    """Read the records of a FASTA file, with letters unchanged.

    >>> from chordmixer.data.sources import source_of
    >>> for entry in read_fasta(source_of(b">gene7 of a worm\\nACG\\nTn\\n>\\n", "genes.fa")):
    ...     print(f"{entry.id} ({entry.description}), {entry.place}: {entry.sequence}")
    gene7 (of a worm), genes.fa, record 1: b'ACGTn'
    record 2 (), genes.fa, record 2: b''

    Line ends of every kind, blank lines, and spaces and tabs among the letters are removed. Lines that begin with `;`
    are comments, and are allowed only before a record's letters.
    """
    count = lines_before = 0
    head, letters = b"", [b""]  # header and pieces of letters of the current record
    place = source.name
    for block in line_blocks(source):
        more, *starts = block.split(b"\n>") if b">" in block else [block]
        if count:
            letters.append(_letters(more, place, begun=_begun(letters, more, place)))
        else:
            _check_preamble(source, more, lines_before)
            lines_before += more.count(b"\n")
        for start in starts:
            if count:
                yield _head_entry(head, b"".join(letters), place, count)
            count += 1
            place = f"{source.name}, record {count}"
            end = start.find(b"\n")
            head, lines = (start, b"") if end < 0 else (start[:end], start[end:])
            letters = [_letters(lines, place, begun=False)]
    if not count:
        raise ValueError(f"{source.name} has no record: no line begins with >; give a FASTA file")
    yield _head_entry(head, b"".join(letters), place, count)


_SEMICOLON, _SPACE, _TAB = b"; \t"  # integers: `in` is five times as fast for them as for byte strings
_COMMENTS = re.compile(rb"(?:\n++;[^\n]*+)*+")
_TEXT = re.compile(rb"\n(?!;)[ \t]*+([^ \t\n][^\n]*)")


def _letters(lines: bytes, place: str, begun: bool) -> bytes:
    """The letters in a record's lines; `begun` is whether the record has earlier letters."""
    if _SEMICOLON in lines:
        if not begun and (comments := _COMMENTS.match(lines)):
            lines = lines[comments.end() :]
        if b"\n;" in lines:
            raise ValueError(f"{place}: a comment (;) stands among its letters: it may stand before them; move it")
    lines = lines.replace(b"\n", b"")
    return lines.translate(None, b" \t") if _SPACE in lines or _TAB in lines else lines


def _begun(letters: list[bytes], more: bytes, place: str) -> bool:
    """Whether a record that continues in the next block already has letters."""
    begun = any(letters)
    if not begun and more and not more.startswith(b"\n"):
        raise ValueError(f"{place}: its header or comment has over {BLOCK:,} bytes: start the sequence on a new line")
    return begun


def _check_preamble(source: Source, lines: bytes, lines_before: int) -> None:
    """Raise an error if there is anything but blank lines and comments before the first record."""
    if text := _TEXT.search(lines):
        line = lines_before + lines.count(b"\n", 0, text.start() + 1)
        raise ValueError(
            f"{source.name}, line {line}: {_quoted(text[1])} stands before the first record: "
            "a FASTA record begins with >; remove it or give a FASTA file"
        )


def read_fastq(source: Source) -> Iterator[Entry]:
    """Read the records of a FASTQ file, of four lines each. Of the qualities only the number is checked."""
    count = 0
    lines = plain_lines(source)
    for head in lines:
        if not head:
            continue
        count += 1
        place = f"{source.name}, record {count}"
        sequence, plus, qualities = next(lines, b""), next(lines, None), next(lines, None)
        if not head.startswith(b"@"):
            raise ValueError(
                f"{place} begins with {_quoted(head)}: a FASTQ record begins with @ and has four lines; "
                "rewrite the file, for example with `seqtk seq`"
            )
        if plus is not None and not plus.startswith(b"+"):
            raise ValueError(
                f"{place}: its third line is {_quoted(plus)}: sequences over several lines are not read, so it must "
                "begin with +; rewrite the file, for example with `seqtk seq -l 0`"
            )
        if plus is None or qualities is None:
            raise ValueError(f"{place}: the file ends within it: a record has four lines; use another copy")
        if len(sequence) != len(qualities):
            raise ValueError(
                f"{place}: {len(sequence)} letters and {len(qualities)} qualities: there is one for each letter; "
                "the file may be cut, use another copy"
            )
        if len(plus) > 1 and plus[1:] != head[1:]:
            raise ValueError(f"{place}: {_quoted(plus)} is not the name after @: repeat that, or give + alone")
        yield _head_entry(head[1:], sequence, place, count)
    if not count:
        raise ValueError(f"{source.name} has no record: its lines are blank; give a FASTQ file")


def _head_entry(head: bytes, sequence: bytes, place: str, count: int) -> Entry:
    words = head.split(None, 1)
    try:
        name = words[0].decode() if words else f"record {count}"
        description = words[1].decode().rstrip() if len(words) > 1 else ""
    except UnicodeDecodeError:
        raise ValueError(f"{place}: its header {_quoted(head)} is not UTF-8: save the file as UTF-8") from None
    return Entry(_printable(name, place), sequence, place, description)


def _quoted(text: bytes) -> str:
    """The start of an invalid text, quoted on one line, for error messages."""
    return repr(text[:40].decode(errors="backslashreplace")) + ("..." if len(text) > 40 else "")


def read_genbank(source: Source, features: str | None = None, rank: str | None = None) -> Iterator[Entry]:
    """Read the records of a GenBank file, or their features of one type, such as `CDS` or `gene`, in upper case.

    A feature is extracted by its location: parts are joined, the other strand is complemented. `rank` is the label:

    - `organism`: the organism's name;
    - `genus`: the last name of the lineage, which usually is the genus: GenBank lists names without their ranks;
    - `lineage:3`: the third name of the lineage, counted from 1;
    - `qualifier:product`: the qualifier `product` of the feature, or else of the record's `source` feature.

    A record without this information has no label.
    """
    if rank is not None and not _RANK.fullmatch(rank):
        raise ValueError(
            f"--rank {rank} is not in GenBank: give organism, genus, lineage:N (from 1), or qualifier:NAME"
        )
    feature_counts: Counter[str] = Counter()
    for count, text in enumerate(_record_texts(source), start=1):
        place = f"{source.name}, record {count}"
        record = _parse_record(text, place)
        if features is None:
            yield _record_entry(record, place, rank)
            continue
        feature_counts.update(feature.type for feature in record.features)
        chosen = (feature for feature in record.features if feature.type == features)
        for number, feature in enumerate(chosen, start=1):
            yield _part_entry(record, feature, f"{features} {number}", place, rank, source.limit)
    if features is not None and not feature_counts[features]:
        types = ", ".join(repr(kind) for kind, _ in feature_counts.most_common(8)) or "none"
        raise ValueError(f"{source.name} has no feature {features!r}: it has {types}; choose one of its own")


_RANK = re.compile(r"organism|genus|lineage:[1-9]\d{0,3}|qualifier:\S+")
_LENGTH = re.compile(r"LOCUS\s.*?\s([0-9]{1,18})\s+(?:bp|aa)\b")
_FEATURE = re.compile(r"^ {5}\S", re.MULTILINE)  # no other line before ORIGIN is indented by five
_IDS = ("locus_tag", "protein_id", "gene")


def _record_entry(record: SeqRecord, place: str, rank: str | None) -> Entry:
    return Entry(
        _printable(record.id or record.name, place),
        bytes(record.seq).upper(),
        place,
        description=record.description,
        label=_label(record, None, rank),
        circular=record.annotations.get("topology") == "circular",
    )


def _part_entry(
    record: SeqRecord, feature: SeqFeature, which: str, place: str, rank: str | None, limit: int
) -> Entry:
    """The entry of one feature."""
    try:
        # `len` of a feature fails beyond 64 bits, and a join may repeat the same letters many times.
        size = sum(int(part.end) - int(part.start) for part in feature.location.parts)
        if size > max(limit, len(record)):
            raise ValueError(f"it has {size:,} letters, and {limit:,} is the most that is read of one record")
        letters = bytes(feature.extract(record.seq)).upper()
    except Exception as error:  # whatever Biopython raises: locations in other records, unknown strands
        raise ValueError(f"{place}, {which} cannot be cut out ({_line(error)}): remove it from the file") from None
    if len(letters) != size:
        raise ValueError(
            f"{place}, {which} is at {str(feature.location)[:100]}, outside of the {len(record)} letters: "
            "correct the location"
        )
    name = next((feature.qualifiers[key][0] for key in _IDS if feature.qualifiers.get(key)), None)
    return Entry(
        _printable(name or f"{record.id}_{which.replace(' ', '_')}", place),
        letters,
        f"{place}, {which}",
        description=next(iter(feature.qualifiers.get("product", ())), record.description),
        label=_label(record, feature, rank),
    )


def _label(record: SeqRecord, feature: SeqFeature | None, rank: str | None) -> str | None:
    if rank is None:
        return None
    lineage = record.annotations.get("taxonomy", [])
    kind, _, which = rank.partition(":")
    if kind == "organism":
        return record.annotations.get("organism") or None
    if kind == "genus":
        return lineage[-1] if lineage else None
    if kind == "lineage":
        return lineage[int(which) - 1] if len(lineage) >= int(which) else None
    candidates = [feature] if feature is not None else []
    candidates += [other for other in record.features if other.type == "source"]
    return next((f.qualifiers[which][0] for f in candidates if f.qualifiers.get(which)), None)


def _record_texts(source: Source) -> Iterator[str]:
    """The text of each record, from `LOCUS` to `//`. Biopython would silently skip text before `LOCUS`."""
    lines: list[bytes] = []
    count = 0
    for line in plain_lines(source):
        if lines or line.strip():
            lines.append(line)
        if line.rstrip() == b"//":
            count += 1
            yield _record_text(lines, f"{source.name}, record {count}", first=count == 1)
            lines = []
    if lines:
        place = f"{source.name}, record {count + 1}"
        raise ValueError(f"{place}: the file ends within it: a record ends with //; use another copy")
    if not count:
        raise ValueError(f"{source.name} has no record: its lines are blank; give a GenBank file")


def _record_text(lines: list[bytes], place: str, first: bool) -> str:
    try:
        text = b"\n".join((*lines, b"")).decode()
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{place}: its line {line} is not UTF-8: save the file as UTF-8") from None
    if first and not text.startswith("LOCUS") and "Genetic Sequence Data Bank" in text:
        text = text[text.find("\nLOCUS") + 1 :]  # NCBI's releases begin with a notice
    if not text.startswith("LOCUS"):
        raise ValueError(f"{place} begins with {text[:40]!r}: a GenBank record begins with LOCUS; fix it")
    return text


def _parse_record(text: str, place: str) -> SeqRecord:
    """Parse a record with Biopython, and check that it is complete."""
    try:
        from Bio import BiopythonWarning, SeqIO
    except ImportError:
        raise ValueError("GenBank files need Biopython: pip install 'chordmixer[genbank]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("error", BiopythonWarning)
        try:
            record: SeqRecord = SeqIO.read(io.StringIO(text), "genbank")
        except Exception as error:  # the parser raises exceptions of many kinds
            raise ValueError(f"{place} is not sound GenBank ({_line(error)}): fix it, or use another copy") from None
    if not record.seq.defined:
        raise ValueError(f"{place} has no sequence, only a CONTIG: fetch it with its sequence (gbwithparts)")
    declared = _LENGTH.match(text)
    if declared is None or int(declared[1]) != len(record):
        locus_says = "no length" if declared is None else f"{declared[1]} letters"
        raise ValueError(f"{place} has {len(record)} letters and its LOCUS says {locus_says}: use another copy")
    # If the FEATURES line is damaged, the parser silently reads the whole table as a part of the header.
    lines = len(_FEATURE.findall(text, 0, text.find("\nORIGIN")))
    if lines != len(record.features):
        raise ValueError(
            f"{place} has {lines} lines of features and {len(record.features)} features can be parsed: "
            "its FEATURES table is damaged; use another copy"
        )
    return record


def _printable(name: str, place: str) -> str:
    if not name.isprintable():
        raise ValueError(f"{place}: its id {name[:40]!r} has control characters: the file may be damaged; rename it")
    return name


def _line(error: Exception) -> str:
    """An error of Biopython as one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
