"""Variants from a VCF file or a table, one for each alternative allele, with what the file says of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chordmixer.data.numbers import real_number, whole_number
from chordmixer.data.sources import open_source
from chordmixer.data.tables import open_table
from chordmixer.data.vcf import MAGIC, Line, Variant, open_vcf

USUAL = {
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
"""The names, in any case, under which a table's column is found for each role."""
NEEDED = ("contig", "position", "ref", "alt")
TOLD = ("label", "target", "split", "group", "context")
"""What a file may say of a variant."""


@dataclass(frozen=True)
class VariantColumns:
    """The names of a table's columns, None: found by its usual names; or keys of a VCF's INFO, None: not there."""

    contig: str | None = None
    """Of the reference; a VCF has its own, and so of the next three."""
    position: str | None = None
    """Of the first base of the reference allele, counted from 1."""
    ref: str | None = None
    """The reference allele."""
    alt: str | None = None
    """The alternative, or several with commas between."""
    label: str | None = None
    """A class."""
    target: str | None = None
    """A number to predict."""
    split: str | None = None
    """train, validation or test."""
    group: str | None = None
    """Variants of one group never cross a split."""
    context: str | None = None
    """The tissue or cells that it was measured in."""


def read_variants(
    path: Path | str, columns: VariantColumns, names: str | None = None, told: Sequence[str] = TOLD
) -> Iterator[Variant]:
    """The variants of a VCF file or a table; `told` is what of them is read besides their alleles.

    `names` is a pattern for the file's name, whose named groups tell of all variants in it.

    >>> gtex = r"(?P<context>.+)_(?P<label>pos|neg)"
    >>> sorted(of_name("vcfs/Whole_Blood_pos.vcf.gz", gtex).items())
    [('context', 'Whole_Blood'), ('label', 'pos')]
    """
    said = of_name(path, names) if names else {}
    if is_vcf(path):
        with open_vcf(path) as lines:
            for line in lines:
                yield from of_line(line, columns, said, told) if line.fields else ()
    else:
        yield from _of_table(path, columns, said, told)


def is_vcf(path: Path | str) -> bool:
    with open_source(path) as source:
        return source.head.startswith(MAGIC)


def of_name(path: Path | str, names: str) -> dict[str, str]:
    """What a file's name says of its variants."""
    try:
        pattern = re.compile(names)
    except re.error as error:
        raise ValueError(f"--names {names!r} is not a regular expression ({error}): correct it") from None
    named = ", ".join(pattern.groupindex) or "none"
    if not {*pattern.groupindex} <= {*TOLD} or named == "none":
        raise ValueError(
            f"--names {names!r} has the groups {named}: give some of {', '.join(TOLD)}, as (?P<label>...)"
        )
    match = pattern.match(Path(path).name)
    if match is None:
        raise ValueError(f"{path}: its name does not fit --names {names!r}: rename it, or leave it out")
    return {role: text for role, text in match.groupdict().items() if text}


def of_line(
    line: Line, columns: VariantColumns, said: Mapping[str, str], told: Sequence[str] = TOLD
) -> list[Variant]:
    """A variant for each alternative; a value of INFO with as many parts as alternatives has one for each."""
    keys = {role: key for role in told if (key := getattr(columns, role)) is not None}
    alts, info = line.alts, line.info() if keys else {}
    found = {role: info.get(key) for role, key in keys.items()}
    made = []
    for k, alt in enumerate(alts):
        own = {
            role: text.split(",")[k] if text is not None and text.count(",") == len(alts) - 1 else text
            for role, text in found.items()
        }
        made.append(_variant(line.contig, line.position, line.ref, alt, line.place, {**own, **said}))
    return made


def _variant(contig: str, position: str, ref: str, alt: str, place: str, told: Mapping[str, Any]) -> Variant:
    where = whole_number(position)
    if where is None:
        raise ValueError(f"{place}: position {position!r} is not a whole number: correct it")
    words: dict[str, Any] = {role: None if text in (None, "", ".") else text for role, text in told.items()}
    if (target := words.get("target")) is not None:
        words["target"] = real_number(target)
        if not math.isfinite(words["target"]):
            raise ValueError(f"{place}: target {target!r} is not a finite number: correct it, or leave it empty")
    return Variant(contig, where, ref, alt, place, **words)


# --- Tables ---


def _of_table(
    path: Path | str, columns: VariantColumns, said: Mapping[str, str], told: Sequence[str]
) -> Iterator[Variant]:
    with open_table(path) as table:
        found = _find(columns, table.names, path, told)
        for number, row in enumerate(table.rows(list(dict.fromkeys(found.values()))), start=1):
            cells = {role: _text(row[name]) for role, name in found.items()}
            besides = {**{role: cells[role] for role in told if role in cells}, **said}
            for alt in cells["alt"].split(","):
                yield _variant(
                    cells["contig"], cells["position"], cells["ref"], alt, f"{path}, row {number}", besides
                )


def _find(columns: VariantColumns, names: Sequence[str], path: Path | str, told: Sequence[str]) -> dict[str, str]:
    """The column of each role that the table has."""
    found = {}
    for role in (*NEEDED, *told):
        given = getattr(columns, role)
        wanted = USUAL[role] if given is None else (given.casefold(),)
        matches = [name for name in names if name.strip().casefold() in wanted]
        if len(matches) > 1:
            raise ValueError(f"{path} has {matches} for the {role}: choose one with --column {role}=NAME")
        if matches:
            found[role] = matches[0]
        elif given is not None or role in NEEDED:
            shown = ", ".join(map(repr, names[:20]))
            raise ValueError(f"{path} has no column for the {role}: it has {shown}; choose with --column {role}=NAME")
    return found


def _text(value: Any) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    return "" if missing else str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
