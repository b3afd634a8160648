"""Read records from files. The format is detected from the content; labels come from file names, headers or a table.

Rules for labels: `files` takes the name of each file, or the class that a user gives as `NAME=FILE`. `header:NAME`
takes the text after `NAME:` or `NAME=` in a record's header, `header:/REGEX/` the match of its only group.
Anything else is the path of a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from chordmixer.data.columns import ABSENT, Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.record_files import MAGIC, class_files, read_folder, read_record
from chordmixer.data.recordings import RIFF
from chordmixer.data.sequence_files import read_fasta, read_fastq, read_genbank
from chordmixer.data.sources import MAX_RECORD, Source, open_source, until_broken
from chordmixer.data.tables import PARQUET, delimiter, read_table, table_rows
from chordmixer.files import is_folder

FILES = "files"
HEADER = "header:"

Policy = Literal["error", "reject"]
ONE_RECORD = ("text", "npy", "wav")
"""Formats of files with one record each."""

_COMPRESSION = ("gz", "bz2", "xz", "zst")
_FORMATS = (
    *("fa", "fasta", "fas", "fna", "ffn", "faa", "frn", "fq", "fastq", "gb", "gbk", "gbff", "genbank"),
    *("csv", "tsv", "txt", "jsonl", "ndjson", "json", "parquet", "npy", "wav"),
)
_SUFFIX = re.compile(rf"(?<=.)(\.({'|'.join(_FORMATS)}))?(\.({'|'.join(_COMPRESSION)}))?$", re.IGNORECASE)


def file_label(path: Path | str) -> str:
    """The label from a path: a file's name without suffixes of format and compression, or a folder's name.

    >>> file_label("bacteria/E.coli.fa.gz")
    'E.coli'
    """
    if str(path) == "-":
        raise ValueError("standard input has no name to take a label from: give files, or a table of labels")
    return _SUFFIX.sub("", base_name(Path(path)), count=1)


def named_files(inputs: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The paths of inputs, and a class for each if at least one is given as `NAME=FILE`, else ().

    An existing path is not split, even if its name contains `=`.

    >>> named_files(["worm=new/a.fa", "fly.fa"]), named_files(["worm.fa"])
    ((['new/a.fa', 'fly.fa'], ('worm', 'fly')), (['worm.fa'], ()))
    """
    exists = os.path.exists  # unlike Path.exists, it accepts names of any length
    pairs = [text.partition("=") if "=" in text and not exists(text) else ("", "", text) for text in inputs]
    for text, (name, separator, path) in zip(inputs, pairs, strict=True):
        if separator and not (name.strip() and name.isprintable() and path):
            raise ValueError(
                f"{text!r} is not NAME=FILE: give a class and the path of its file, or a path that exists"
            )
    paths = [path for _, _, path in pairs]
    if not any(separator for _, separator, _ in pairs):
        return paths, ()
    return paths, tuple(name.strip() if separator else file_label(path) for name, separator, path in pairs)


def base_name(path: Path) -> str:
    """The last component of a path, resolved for `.` and `..`."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def header_pattern(rule: str) -> re.Pattern[str]:
    """The regular expression for a rule `header:NAME` or `header:/REGEX/`; the last matching group is the value.

    >>> [header_pattern("header:gene").search(h).group("bare") for h in ("t1 gene:g7 x", "t1 length=9;gene=g7")]
    ['g7', 'g7']
    """
    text = rule.removeprefix(HEADER)
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        try:
            pattern = re.compile(text[1:-1])
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{rule!r} is not a regular expression ({error}): fix it") from None
        if pattern.groups != 1:
            raise ValueError(
                f"{rule!r} has {pattern.groups} groups: one pair of parentheses says what to take; "
                "write others as (?:...)"
            )
        return pattern
    if not re.fullmatch(r"[\w.-]+", text):
        raise ValueError(f"{rule!r} names nothing in a header: write header:NAME or header:/REGEX/ with one group")
    quoted, bracketed, bare = r'"(?P<quoted>[^"]+)"', r"(?<=\[{0}.)(?P<bracketed>[^]]+)\]", r"(?P<bare>[^\s;|\]]+)"
    name = re.escape(text)
    return re.compile(rf"(?<![\w.-]){name}[:=](?:{quoted}|{bracketed.format(name)}|{bare})")


def header_value(pattern: re.Pattern[str], entry: Entry) -> str | None:
    """The value that the pattern finds in a record's id and description; None if it does not match."""
    match = pattern.search(f"{entry.id} {entry.description}")
    return (match[match.lastindex or 0].strip().rstrip(",") or None) if match and match.lastindex else None


def with_rules(
    entries: Iterator[Entry],
    path: Path | str,
    rules: Mapping[str, str],
    on_unmatched: Policy,
    account: Account,
    name: str | None = None,
) -> Iterator[Entry]:
    """Set label and group of the entries of one path by rules, `files` or `header:`.

    In a folder with a folder for each class, these classes remain the labels, unless the user has given the path a
    `name`, which is then the label of all its records.
    """
    keeps_classes = is_folder(path) and name is None
    by_file = [role for role, rule in rules.items() if rule == FILES]
    names = {role: name if role == "label" and name is not None else file_label(path) for role in by_file}
    patterns = {role: header_pattern(rule) for role, rule in rules.items() if rule.startswith(HEADER)}
    for entry in entries:
        values: dict[str, Any] = {role: header_value(pattern, entry) for role, pattern in patterns.items()}
        missing = next((role for role, value in values.items() if value is None), None)
        if missing is None:
            values |= names
            if keeps_classes and entry.label is not None and "label" in names:
                values["label"] = entry.label
            yield replace(entry, **values) if values else entry
        elif on_unmatched == "reject":
            account.reject(entry.id, f"no {missing} in its header")
        else:
            header = f"{entry.id} {entry.description}".strip()[:80]
            raise ValueError(
                f"{entry.place}: {rules[missing]!r} finds no {missing} in the header {header!r}: "
                "correct it, or leave such records out with --on-unmatched reject"
            )


def read_label_table(path: Path | str, columns: Columns, limit: int | None = None) -> dict[str, dict[str, Any]]:
    """Read label, target, split, group and weight of each id, as far as the table has such columns."""
    table: dict[str, dict[str, Any]] = {}
    for number, row in table_rows(path, replace(columns, sequence=ABSENT), limit):
        name = row.pop("id")
        if name is None:
            raise ValueError(f"{path}, row {number} has no id: it tells which record is meant; fill it in")
        if name in table:
            raise ValueError(f"{path}, row {number}: id {name!r} stands in an earlier row too: keep one")
        if not row:
            raise ValueError(
                f"{path} has ids and nothing else that is known: choose with --column label=NAME, or target, split, "
                "group, weight"
            )
        table[name] = row
    return table


def with_table(
    entries: Iterator[Entry], table: dict[str, dict[str, Any]], name: str, on_unmatched: Policy, account: Account
) -> Iterator[Entry]:
    """Set the fields of entries from the table's rows, matched by id; every entry needs a row and vice versa.

    With `on_unmatched="reject"`, entries without a row are rejected, rows without an entry are noted in the account.
    """
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise ValueError(f"{entry.place}: id {entry.id!r} is not unique: it is the key to {name}; rename it")
        seen.add(entry.id)
        if entry.id in table:
            yield replace(entry, **table[entry.id])
        elif on_unmatched == "reject":
            account.reject(entry.id, f"no row in {name}")
        else:
            raise ValueError(
                f"{entry.place}: id {entry.id!r} has no row in {name}: add one, or leave such records out with "
                "--on-unmatched reject"
            )
    unused = [row for row in table if row not in seen]
    if unused:
        shown = ", ".join(unused[: Account.SHOWN]) + (", ..." if len(unused) > Account.SHOWN else "")
        if on_unmatched == "error":
            raise ValueError(
                f"{name} has {len(unused):,} rows without a record, {shown}: give the files with those records, or "
                "leave such rows out with --on-unmatched reject"
            )
        account.notes[f"rows of {name} without a record: {shown}"] += len(unused)


Kind = Literal["auto", "fasta", "fastq", "genbank", "csv", "jsonl", "parquet", "text", "npy", "wav"]


@dataclass(frozen=True)
class Reading:
    """Settings for reading files."""

    kind: Kind = "auto"
    """The format of all files. Default `auto`: detected from the first bytes of each file."""
    columns: Columns = field(default_factory=Columns)
    """Column names of tables."""
    labels: str | None = None
    """The source of labels: `files`, each file is a class; `header:NAME` or `header:/REGEX/`, the record's header;
    else the path of a table with ids and labels, targets, splits, groups or weights, whose columns `columns` names.
    Default None: the records' own labels."""
    group: str | None = None
    """The source of groups: `files`, `header:NAME` or `header:/REGEX/`. Default None: the records' own groups."""
    features: str | None = None
    """The type of GenBank features that become records, such as CDS. Default None: whole GenBank records."""
    rank: str | None = None
    """The label of a GenBank record: organism, genus, lineage:N, or qualifier:NAME."""
    on_empty: Policy = "error"
    """Whether a record without letters is an error or rejected."""
    on_unmatched: Policy = "error"
    """Whether it is an error or a rejection if a record has no row in the table of labels, a row has no record, or a
    header lacks the label or group."""
    names: tuple[str, ...] = ()
    """With labels `files`, the class of each file, in order. Default (): the files' names."""
    max_record: int = MAX_RECORD
    """Maximum letters, steps or bytes of one record, decompressed. Default 1 GiB, four times the longest human
    chromosome. A longer record is an error, so that a damaged or hostile file cannot fill the memory."""

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
                "a column of a table is chosen with --column group=NAME"
            )

    @property
    def table(self) -> str | None:
        """The path of the table of labels; None if labels come from elsewhere."""
        if self.labels is None or self.labels == FILES or self.labels.startswith(HEADER):
            return None
        return self.labels

    @property
    def unlabelled(self) -> Reading:
        """A copy that reads only ids and sequences, since errors in labels must not stop a prediction."""
        absent = dict.fromkeys(("label", "target", "split", "group", "weight"), ABSENT)
        columns = Columns(id=self.columns.id, sequence=self.columns.sequence, **absent)
        return replace(self, columns=columns, labels=None, names=(), group=None, rank=None)


def read(paths: Sequence[Path | str], reading: Reading, account: Account) -> Iterator[Entry]:
    """Stream the records of files, folders, or standard input (`-`).

    Every record is yielded, rejected in the account, or an error. The caller calls `account.use` for used records.
    """
    if not paths:
        raise ValueError("no files were given: name at least one, or - for standard input")
    if reading.names and len(reading.names) != len(paths):
        raise ValueError(f"{len(reading.names):,} class names for {len(paths):,} files: give each file one")
    names = reading.names or (None,) * len(paths)
    rules = {role: rule for role, rule in (("label", reading.labels), ("group", reading.group)) if rule is not None}
    streams = (
        _folder_entries(Path(p), reading, account) if is_folder(p) else _file_entries(p, reading) for p in paths
    )
    entries: Iterator[Entry] = chain.from_iterable(
        with_rules(stream, path, rules, reading.on_unmatched, account, name)
        for stream, path, name in zip(streams, paths, names, strict=True)
    )
    if reading.table is not None:
        table = read_label_table(reading.table, reading.columns, reading.max_record)
        entries = with_table(entries, table, reading.table, reading.on_unmatched, account)
    rates: dict[int, str] = {}
    for entry in entries:
        if entry.rate is not None:
            _check_rate(entry.rate, entry.place, rates, account)
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


def _check_rate(rate: int, place: str, rates: dict[int, str], account: Account) -> None:
    """Refuse recordings with different numbers of samples per second: `rates` has the first file of each."""
    rates.setdefault(rate, place)
    if len(rates) > 1:
        (first, earlier), *_ = rates.items()
        raise ValueError(
            f"{place} has {rate:,} samples per second, and {earlier} {first:,}: all recordings need the same; "
            "resample them, as by ffmpeg -i IN.wav -ar 16000 OUT.wav"
        )
    account.notes[f"recordings at {rate:,} samples per second"] += 1


def sniff(source: Source) -> Kind:
    """Detect the format of an open file from its first bytes."""
    if (kind := _format_by_mark(source)) is not None:
        return kind
    head = source.head.lstrip()
    line, *_ = head.splitlines() or [b""]
    if b"\0" not in head and delimiter(line.decode(errors="replace")):
        return "csv"
    seen = f"begins with {line[:40]!r}" if line else "begins with nothing but blanks"
    raise ValueError(
        f"{source.name} {seen}: this is not FASTA, FASTQ, GenBank, JSONL, Parquet, .npy, WAV, or a table with a "
        "header; give such a file, or say what it is with --format (text: each file is one record)"
    )


# --- One path ---


def _file_entries(path: Path | str, reading: Reading) -> Iterator[Entry]:
    # With a table of labels, the given columns are those of that table; only sequence and id apply to the records.
    given = reading.columns
    columns = given if reading.table is None else Columns(id=given.id, sequence=given.sequence)
    with open_source(path, reading.max_record) as source:
        kind = sniff(source) if reading.kind == "auto" else reading.kind
        if kind in ONE_RECORD:
            yield read_record(source, kind)
        else:
            yield from until_broken(source, _format_reader(source, kind, reading, columns))


def _format_reader(source: Source, kind: Kind, reading: Reading, columns: Columns) -> Iterator[Entry]:
    if kind == "genbank":
        return read_genbank(source, reading.features, reading.rank)
    if kind in ("fasta", "fastq"):
        return read_fasta(source) if kind == "fasta" else read_fastq(source)
    return read_table(source, columns, kind)


def _format_by_mark(source: Source) -> Kind | None:
    """The format that the first bytes identify, None if they do not; a damaged binary file is an error."""
    head = source.head.lstrip()
    suffix = Path(source.name).suffix.lower()
    mark = {".npy": MAGIC, ".parquet": PARQUET, ".wav": RIFF}.get(suffix)
    if mark is not None and head and not source.head.startswith(mark):
        raise ValueError(f"{source.name} does not begin like a {suffix} file: use another copy, or rename it")
    if head.startswith(b";") and b"\n>" in head.replace(b"\r", b"\n"):
        return "fasta"  # old FASTA files may begin with comments
    return next((kind for kind, mark in _FORMAT_MARKS.items() if head.startswith(mark)), None)


_FORMAT_MARKS: dict[Kind, bytes] = {
    "npy": MAGIC,
    "wav": RIFF,
    "parquet": PARQUET,
    "fasta": b">",
    "fastq": b"@",
    "genbank": b"LOCUS ",
    "jsonl": b"{",
}


def _folder_entries(folder: Path, reading: Reading, account: Account) -> Iterator[Entry]:
    """Read a folder of texts, `.npy` series or WAV recordings."""
    kind = reading.kind if reading.kind != "auto" else _sniff_folder(folder)
    if kind not in ONE_RECORD:
        raise ValueError(
            f"{folder} is a folder of {kind} files: of folders, texts, .npy and .wav files are read; "
            f"give {folder / '*'}, or --format text"
        )
    return read_folder(folder, kind, account, reading.max_record)


def _sniff_folder(folder: Path) -> Kind:
    """The format of the first file that is not empty; text if its first bytes do not identify it."""
    for path, _ in class_files(folder, Account()):
        if path.stat().st_size:
            with open_source(path) as source:
                return _format_by_mark(source) or "text"
    return "text"
