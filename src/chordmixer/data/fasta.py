"""FASTA and FASTQ, read a megabyte at a time, so that a line costs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chordmixer.data.entries import Entry
from chordmixer.data.lines import line_blocks, plain_lines
from chordmixer.data.sources import BLOCK, Source, until_broken


def read_fasta(source: Source) -> Iterator[Entry]:
    """The records of a FASTA file, letters as they stand.

    >>> from chordmixer.data.sources import source_of
    >>> for entry in read_fasta(source_of(b">gene7 of a worm\\nACG\\nTn\\n>\\n", "genes.fa")):
    ...     print(f"{entry.id} ({entry.description}), {entry.place}: {entry.sequence}")
    gene7 (of a worm), genes.fa, record 1: b'ACGTn'
    record 2 (), genes.fa, record 2: b''

    Line ends of every kind, blank lines, and spaces and tabs among the letters are taken out. Lines that begin with
    `;` are comments, and stand before a record's letters.
    """
    return until_broken(source, _fasta(source))


def read_fastq(source: Source) -> Iterator[Entry]:
    """The records of a FASTQ file with four lines each; the qualities are checked for their number only.

    >>> from chordmixer.data.sources import source_of
    >>> [(entry.id, entry.sequence) for entry in read_fastq(source_of(b"@read1\\nACGT\\n+\\nIIII\\n", "reads.fq"))]
    [('read1', b'ACGT')]
    """
    return until_broken(source, _fastq(source))


def _fasta(source: Source) -> Iterator[Entry]:
    count = lines_before = 0
    head, letters = b"", [b""]  # of the record whose end is not yet seen; letters in pieces
    place = source.name
    for block in line_blocks(source):
        more, *starts = block.split(b"\n>") if b">" in block else [block]
        if count:
            letters.append(_letters(more, place, begun=_begun(letters, more, place)))
        else:
            _refuse_text(source, more, lines_before)
            lines_before += more.count(b"\n")
        for start in starts:
            if count:
                yield _entry(head, b"".join(letters), place, count)
            count += 1
            place = f"{source.name}, record {count}"
            end = start.find(b"\n")
            head, lines = (start, b"") if end < 0 else (start[:end], start[end:])
            letters = [_letters(lines, place, begun=False)]
    if not count:
        raise ValueError(f"{source.name} has no record: no line begins with >; give a FASTA file")
    yield _entry(head, b"".join(letters), place, count)


_SEMICOLON, _SPACE, _TAB = b"; \t"  # a number is looked up in bytes five times as fast as a byte string
_COMMENTS = re.compile(rb"(?:\n++;[^\n]*+)*+")
_TEXT = re.compile(rb"\n(?!;)[ \t]*+([^ \t\n][^\n]*)")


def _letters(lines: bytes, place: str, begun: bool) -> bytes:
    """A record's lines without what is not of the sequence; `begun` is whether letters came before them."""
    if _SEMICOLON in lines:
        lines = lines if begun else lines[_COMMENTS.match(lines).end() :]  # type: ignore[union-attr]
        if b"\n;" in lines:
            raise ValueError(f"{place}: a comment (;) stands among its letters: it may stand before them; move it")
    lines = lines.replace(b"\n", b"")
    return lines.translate(None, b" \t") if _SPACE in lines or _TAB in lines else lines


def _begun(letters: list[bytes], more: bytes, place: str) -> bool:
    """Whether a record has letters already, where a block goes on with it."""
    begun = any(letters)
    if not begun and more and not more.startswith(b"\n"):
        raise ValueError(
            f"{place}: its header or a comment has over {BLOCK:,} bytes: the sequence goes on the next line; move it"
        )
    return begun


def _refuse_text(source: Source, lines: bytes, lines_before: int) -> None:
    """Before the first record there may be blank lines and comments."""
    if text := _TEXT.search(lines):
        line = lines_before + lines.count(b"\n", 0, text.start() + 1)
        raise ValueError(
            f"{source.name}, line {line}: {_shown(text[1])} stands before the first record: "
            "a FASTA record begins with >; remove it or give a FASTA file"
        )


def _fastq(source: Source) -> Iterator[Entry]:
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
                f"{place} begins with {_shown(head)}: a FASTQ record begins with @ and has four lines; "
                "rewrite the file, for example with `seqtk seq`"
            )
        if plus is not None and not plus.startswith(b"+"):
            raise ValueError(
                f"{place}: its third line is {_shown(plus)}: sequences over several lines are not read, so it must "
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
            raise ValueError(f"{place}: {_shown(plus)} is not the name after @: repeat that, or give + alone")
        yield _entry(head[1:], sequence, place, count)
    if not count:
        raise ValueError(f"{source.name} has no record: its lines are blank; give a FASTQ file")


def _entry(head: bytes, sequence: bytes, place: str, count: int) -> Entry:
    words = head.split(None, 1)
    try:
        name = words[0].decode() if words else f"record {count}"
        description = words[1].decode().rstrip() if len(words) > 1 else ""
    except UnicodeDecodeError:
        raise ValueError(f"{place}: its header {_shown(head)} is not UTF-8: save the file as UTF-8") from None
    if not name.isprintable():
        raise ValueError(
            f"{place}: its id {name[:40]!r} holds control characters: the file may be damaged; rename it"
        )
    return Entry(name, sequence, place, description)


def _shown(text: bytes) -> str:
    """The start of something wrong, on one line."""
    return repr(text[:40].decode(errors="backslashreplace")) + ("..." if len(text) > 40 else "")
