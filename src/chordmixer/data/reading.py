"""The door for users' files: what a path holds is told by its content, and its records come out as entries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Literal, get_args

from chordmixer.data.columns import Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.fasta import read_fasta, read_fastq
from chordmixer.data.genbank import read_genbank
from chordmixer.data.labels import FILES, HEADER, Policy, header_pattern, joined, named, own_name, read_label_table
from chordmixer.data.series import MAGIC, read_series, read_series_folder
from chordmixer.data.sources import MAX_RECORD, Source, open_source
from chordmixer.data.tables import PARQUET, delimiter, read_csv, read_jsonl, read_parquet
from chordmixer.data.texts import class_files, read_text, read_text_folder
from chordmixer.files import is_folder

Kind = Literal["auto", "fasta", "fastq", "genbank", "csv", "jsonl", "parquet", "text", "npy"]


@dataclass(frozen=True)
class Reading:
    """How files are read; the default asks the files."""

    kind: Kind = "auto"
    """The format of all files; auto: told by the first bytes of each."""
    columns: Columns = field(default_factory=Columns)
    """The columns of tables."""
    labels: str | None = None
    """Where labels are: None, as the records have them; `files`, each file is a class; `header:NAME` or
    `header:/REGEX/`, in each header; else the path of a table with ids and with labels, targets, splits, groups or
    weights, and then `columns` names its columns."""
    group: str | None = None
    """Where groups are: None, as the records have them; `files`, `header:NAME` or `header:/REGEX/`."""
    features: str | None = None
    """The GenBank features that are the records, such as CDS; None: whole records."""
    rank: str | None = None
    """What of a GenBank record is its label: organism, genus, lineage:N, or qualifier:NAME."""
    on_empty: Policy = "error"
    """What becomes of a record without letters."""
    on_unmatched: Policy = "error"
    """What becomes of a record without a row in the table of labels, of a row without a record, and of a record
    whose header lacks the label or group."""
    names: tuple[str, ...] = ()
    """With labels `files`, the class of each file in their order; (): their own names."""
    max_record: int = MAX_RECORD
    """The most letters, steps or bytes that one record may have, decompressed; 1 GiB, which is four times the longest
    human chromosome. A longer one is an error, so that a damaged or hostile file cannot fill the memory."""

    def __post_init__(self) -> None:
        for option, value, options in (
            ("--format", self.kind, get_args(Kind)),
            ("--on-empty", self.on_empty, get_args(Policy)),
            ("--on-unmatched", self.on_unmatched, get_args(Policy)),
        ):
            if value not in options:
                raise ValueError(f"{option} {value} is not a choice: give one of {', '.join(options)}")
        if self.max_record < 1:
            raise ValueError(f"--max-record {self.max_record} is too small: give 1 byte or more")
        for rule in (self.labels, self.group):
            if rule is not None and rule.startswith(HEADER):
                header_pattern(rule)
        if self.group is not None and self.group != FILES and not self.group.startswith(HEADER):
            raise ValueError(
                f"--group {self.group} is not files, header:NAME or header:/REGEX/: give one; "
                "a column of a table is named with --column group=NAME"
            )

    @property
    def table(self) -> str | None:
        """The path of the table of labels."""
        if self.labels is None or self.labels == FILES or self.labels.startswith(HEADER):
            return None
        return self.labels


def read(paths: Sequence[Path | str], reading: Reading, account: Account) -> Iterator[Entry]:
    """The records of files, folders, or standard input (`-`), one after the other, as a stream.

    Every record is given out, rejected in the account, or an error. `account.use` is for whoever uses it.
    """
    if not paths:
        raise ValueError("no files were given: name at least one, or - for standard input")
    if reading.names and len(reading.names) != len(paths):
        raise ValueError(f"{len(reading.names):,} class names for {len(paths):,} files: give each file one")
    names = reading.names or (None,) * len(paths)
    entries: Iterator[Entry] = chain.from_iterable(
        _entries(path, reading, account, name) for path, name in zip(paths, names, strict=True)
    )
    if reading.table is not None:
        table = read_label_table(reading.table, reading.columns, reading.max_record)
        entries = joined(entries, table, reading.table, reading.on_unmatched, account)
    for entry in entries:
        if entry.length > reading.max_record:
            raise ValueError(
                f"{entry.place}: record {entry.id!r} has a length of {entry.length:,}, and {reading.max_record:,} is "
                "the most that is read of one: leave it out, or raise --max-record"
            )
        if entry.length:
            yield entry
        elif reading.on_empty == "reject":
            account.reject(entry.id, "empty")
        else:
            raise ValueError(
                f"{entry.place}: record {entry.id!r} is empty: a record needs a letter; fill it, or leave such "
                "records out with --on-empty reject"
            )


def sniff(source: Source) -> Kind:
    """The format of an open file.

    >>> from chordmixer.data.sources import source_of
    >>> sniff(source_of(b">gene7\\nACGT\\n", "genes.fa")), sniff(source_of(b"text;label\\n", "reviews"))
    ('fasta', 'csv')
    """
    kind = _marked(source)
    if kind is not None:
        return kind
    head = source.head.lstrip()
    line, *_ = head.splitlines() or [b""]
    if b"\0" not in head and delimiter(line.decode(errors="replace")):
        return "csv"
    seen = f"begins with {line[:40]!r}" if line else "begins with nothing but blanks"
    raise ValueError(
        f"{source.name} {seen}: this is not FASTA, FASTQ, GenBank, JSONL, Parquet, .npy, or a table with a header; "
        "give such a file, or say what it is with --format (text: each file is one record)"
    )


def content_key(paths: Sequence[Path | str], reading: Reading) -> str | None:
    """A SHA-256 of all that `read` depends on: bytes, names and settings; None for a stream, which is read once.

    Names count without their folders: they are in the ids of records that have none, and may be the labels.
    """
    given = [Path(path) for path in (*paths, *([reading.table] if reading.table is not None else []))]
    if any(str(path) == "-" or _is_stream(path) for path in given):
        return None
    settings = asdict(replace(reading, labels="table") if reading.table is not None else reading)
    if not reading.names:
        del settings["names"]  # so that keys are those of versions without it
    del settings["max_record"]  # what is read, if it is, does not depend on it
    contents = [[name, _sha256(path)] for top in given for name, path in _files(top)]
    return hashlib.sha256(json.dumps([settings, contents], sort_keys=True).encode()).hexdigest()


# --- One path ---


def _entries(path: Path | str, reading: Reading, account: Account, name: str | None) -> Iterator[Entry]:
    """The records of one path, with what its name, or the one that it was given, or their headers say."""
    inside = _folder(Path(path), reading, account) if is_folder(path) else _file(path, reading)
    rules = {role: rule for role, rule in (("label", reading.labels), ("group", reading.group)) if rule is not None}
    return named(inside, path, rules, reading.on_unmatched, account, name)


def _file(path: Path | str, reading: Reading) -> Iterator[Entry]:
    # The columns that were given are those of the table of labels; of the records' own, their sequence and id.
    columns = reading.columns
    if reading.table is not None:
        columns = Columns(id=columns.id, sequence=columns.sequence)
    with open_source(path, reading.max_record) as source:
        kind = sniff(source) if reading.kind == "auto" else reading.kind
        yield from _READERS[kind](source, replace(reading, columns=columns))


def _parquet(source: Source, reading: Reading) -> Iterator[Entry]:
    """Its end is read before its start, so that it cannot be a stream."""
    path = Path(source.name)
    if not path.is_file() or _first_bytes(path) != source.head[: len(PARQUET)]:
        raise ValueError(f"{path} is Parquet in a stream or compressed: it is read from a plain file; save it as one")
    return read_parquet(path, reading.columns)


_READERS: dict[str, Callable[[Source, Reading], Iterator[Entry]]] = {
    "fasta": lambda source, reading: read_fasta(source),
    "fastq": lambda source, reading: read_fastq(source),
    "genbank": lambda source, reading: read_genbank(source, reading.features, reading.rank),
    "csv": lambda source, reading: read_csv(source, reading.columns),
    "jsonl": lambda source, reading: read_jsonl(source, reading.columns),
    "parquet": _parquet,
    "text": lambda source, reading: read_text(source),
    "npy": lambda source, reading: read_series(source),
}


def _marked(source: Source) -> Kind | None:
    """The format that the first bytes prove; a damaged binary file is not taken for a text."""
    head = source.head.lstrip()
    named = Path(source.name).suffix.lower()
    binary: tuple[Kind, ...] = ("npy", "parquet")
    for kind in binary:
        if named == f".{kind}" and head and not source.head.startswith(_MARKS[kind]):
            raise ValueError(
                f"{source.name} is called .{kind} and does not begin like such a file: use another copy, or rename it"
            )
    if head.startswith(b";") and b"\n>" in head.replace(b"\r", b"\n"):
        return "fasta"  # older files begin with comments
    return next((kind for kind, mark in _MARKS.items() if head.startswith(mark)), None)


_MARKS: dict[Kind, bytes] = {
    "npy": MAGIC,
    "parquet": PARQUET,
    "fasta": b">",
    "fastq": b"@",
    "genbank": b"LOCUS ",
    "jsonl": b"{",
}


def _folder(folder: Path, reading: Reading, account: Account) -> Iterator[Entry]:
    """A folder of texts or of series."""
    kind = reading.kind if reading.kind != "auto" else _sniff_folder(folder)
    if kind not in ("text", "npy"):
        raise ValueError(
            f"{folder} is a folder of {kind} files: of folders, texts and .npy files are read; "
            f"give {folder / '*'}, or --format text"
        )
    read_folder = read_text_folder if kind == "text" else read_series_folder
    return read_folder(folder, account, reading.max_record)


def _sniff_folder(folder: Path) -> Kind:
    """What the first file that is not empty proves; where it proves nothing, it is a text."""
    for path, _ in class_files(folder, Account()):
        if path.stat().st_size:
            with open_source(path) as source:
                return _marked(source) or "text"
    return "text"


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """The files of a path, under the names that `read` sees."""
    if is_folder(path):
        inside = (file for file, _ in class_files(path, Account()))
        yield from ((f"{own_name(path)}/{file.relative_to(path).as_posix()}", file) for file in inside)
    else:
        yield own_name(path), path


def _is_stream(path: Path) -> bool:
    """Neither a file nor a folder, but there."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (S_ISREG(mode) or S_ISDIR(mode))


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(PARQUET))


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a file") from None
