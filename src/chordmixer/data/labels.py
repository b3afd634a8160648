"""Labels and groups that stand beside the records: in the files' names, in the headers, in a table of ids.

`files` takes the name of each file, or the class that a user names as `NAME=FILE`. `header:NAME` takes what follows
`NAME:` or `NAME=` in a record's header, and `header:/REGEX/` what the one pair of parentheses of a regular expression
catches there. Anything else is a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from chordmixer.data.columns import ABSENT, Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.tables import table_rows
from chordmixer.files import is_folder

FILES = "files"
HEADER = "header:"

Policy = Literal["error", "reject"]

_COMPRESSION = ("gz", "bz2", "xz", "zst")
_FORMATS = (
    *("fa", "fasta", "fas", "fna", "ffn", "faa", "frn", "fq", "fastq", "gb", "gbk", "gbff", "genbank"),
    *("csv", "tsv", "txt", "jsonl", "ndjson", "json", "parquet", "npy"),
)
_SUFFIX = re.compile(rf"(?<=.)(\.({'|'.join(_FORMATS)}))?(\.({'|'.join(_COMPRESSION)}))?$", re.IGNORECASE)


def file_label(path: Path | str) -> str:
    """A file's name without what says its format; a folder's name.

    >>> file_label("bacteria/E.coli.fa.gz")
    'E.coli'
    """
    if str(path) == "-":
        raise ValueError("standard input has no name to take a label from: give files, or a table of labels")
    return _SUFFIX.sub("", own_name(Path(path)), count=1)


def named_files(inputs: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """The paths of inputs, and a class for each where at least one is given as `NAME=FILE`.

    A path that exists is taken as it is, whatever its name.

    >>> named_files(["worm=new/a.fa", "fly.fa"]), named_files(["worm.fa"])
    ((['new/a.fa', 'fly.fa'], ('worm', 'fly')), (['worm.fa'], ()))
    """
    there = os.path.exists  # unlike that of Path it takes names of any length
    pairs = [text.partition("=") if "=" in text and not there(text) else ("", "", text) for text in inputs]
    for text, (name, given, path) in zip(inputs, pairs, strict=True):
        if given and not (name.strip() and name.isprintable() and path):
            raise ValueError(
                f"{text!r} is not NAME=FILE: write a class and the path of its file, or a path that exists"
            )
    paths = [path for _, _, path in pairs]
    if not any(given for _, given, _ in pairs):
        return paths, ()
    return paths, tuple(name.strip() if given else file_label(path) for name, given, path in pairs)


def own_name(path: Path) -> str:
    """A path's last name, also of `.` and `..`."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def header_pattern(rule: str) -> re.Pattern[str]:
    """What `header:NAME` or `header:/REGEX/` looks for; its last group that took part is what was found.

    >>> [header_pattern("header:gene").search(h).group("bare") for h in ("t1 gene:g7 x", "t1 length=9;gene=g7")]
    ['g7', 'g7']
    """
    text = rule.removeprefix(HEADER)
    if len(text) > 2 and text.startswith("/") and text.endswith("/"):
        try:
            pattern = re.compile(text[1:-1])
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{rule!r} is not a regular expression ({error}): mend it") from None
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


def in_header(pattern: re.Pattern[str], entry: Entry) -> str | None:
    """What the pattern finds in a record's id and description."""
    match = pattern.search(f"{entry.id} {entry.description}")
    return (match[match.lastindex or 0].strip().rstrip(",") or None) if match and match.lastindex else None


def named(
    entries: Iterator[Entry],
    path: Path | str,
    rules: Mapping[str, str],
    on_unmatched: Policy,
    account: Account,
    name: str | None = None,
) -> Iterator[Entry]:
    """The entries of one path with label and group by these rules, `files` or `header:`.

    A folder that holds a folder for each class keeps these classes as the labels, unless the user has given it a
    `name`, which is the label of all that it holds.
    """
    folder = is_folder(path) and name is None
    by_file = [role for role, rule in rules.items() if rule == FILES]
    names = {role: name if role == "label" and name is not None else file_label(path) for role in by_file}
    patterns = {role: header_pattern(rule) for role, rule in rules.items() if rule.startswith(HEADER)}
    for entry in entries:
        found: dict[str, Any] = {role: in_header(pattern, entry) for role, pattern in patterns.items()}
        missing = next((role for role, value in found.items() if value is None), None)
        if missing is None:
            found |= names
            if folder and entry.label is not None and "label" in names:
                found["label"] = entry.label
            yield replace(entry, **found) if found else entry
        elif on_unmatched == "reject":
            account.reject(entry.id, f"no {missing} in its header")
        else:
            header = f"{entry.id} {entry.description}".strip()[:80]
            raise ValueError(
                f"{entry.place}: {rules[missing]!r} finds no {missing} in the header {header!r}: "
                "correct it, or leave such records out with --on-unmatched reject"
            )


def read_label_table(path: Path | str, columns: Columns, limit: int | None = None) -> dict[str, dict[str, Any]]:
    """What a table says of each id: label, target, split, group or weight, as far as it has such columns."""
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


def joined(
    entries: Iterator[Entry], table: dict[str, dict[str, Any]], name: str, on_unmatched: Policy, account: Account
) -> Iterator[Entry]:
    """The entries with what the table says of their ids; neither side may have an id that the other has not.

    With `on_unmatched="reject"`, such records are rejected and such rows are counted in the account's notes.
    """
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen:
            raise ValueError(
                f"{entry.place}: id {entry.id!r} was there before: it is the key to {name}; make it unique"
            )
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
    alone = [row for row in table if row not in seen]
    if alone:
        shown = ", ".join(alone[: Account.SHOWN]) + (", ..." if len(alone) > Account.SHOWN else "")
        if on_unmatched == "error":
            raise ValueError(
                f"{name} has {len(alone):,} rows without a record, {shown}: give the files with those records, or "
                "leave such rows out with --on-unmatched reject"
            )
        account.notes[f"rows of {name} without a record: {shown}"] += len(alone)
