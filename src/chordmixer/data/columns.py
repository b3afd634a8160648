"""The columns of a table: find those of the sequence, label and so on, and parse their cells."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from chordmixer.data.entries import Entry

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def whole_number(text: str) -> int | None:
    """A whole number of up to 18 digits, or None.

    >>> whole_number("20"), whole_number("2_0"), whole_number(" 20"), whole_number("\N{ARABIC-INDIC DIGIT TWO}")
    (20, None, None, None)
    """
    return int(text) if _INTEGER.fullmatch(text) else None


def real_number(text: str) -> float:
    """A finite number; NaN if the text is not one. Spaces around it are ignored.

    >>> real_number("-1.5e3"), real_number(" 2 "), real_number("1_0"), real_number("inf"), real_number("1e999")
    (-1500.0, 2.0, nan, nan, nan)
    """
    number = float(text) if _REAL.fullmatch(text := text.strip(" ")) else math.nan
    return number if math.isfinite(number) else math.nan


def format_number(number: float) -> str:
    """The shortest text that parses to the same number.

    >>> format_number(0.25), format_number(1_000_000_007.0), format_number(1e-7)
    ('0.25', '1000000007', '1e-07')
    """
    return repr(float(number)).removesuffix(".0")


ABSENT = "-"
"""Given as a column's name: the table has no column for this role."""

USUAL_NAMES = {
    "id": ("id", "name", "accession", "identifier", "record_id", "seq_id", "sequence_id"),
    "sequence": ("sequence", "seq", "text", "dna", "rna", "protein", "series", "signal"),
    "label": ("label", "labels", "class", "category"),
    "target": ("target", "y"),
    "split": ("split",),
    "group": ("group",),
    "weight": ("weight", "sample_weight"),
}
"""Names, in any case, by which the column of each role is found if the user does not name it."""

MISSING = ("", "na", "n/a", "nan", "null", "none")
"""Spellings, in any case, of a missing number. In a label column they are names: NA is a gene."""

SPLITS = {
    **dict.fromkeys(("train", "training"), "training"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


class TableColumns:
    """A dataclass with a column name for each role. None: found by `usual_names`; `-`: the table has none."""

    usual_names: ClassVar[Mapping[str, tuple[str, ...]]]
    """Names, in any case, by which the column of each role is found."""
    hint: ClassVar[str] = ""
    """A further suggestion in the error for a column that is not found."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The roles for which a table must have a column."""
        raise NotImplementedError


@dataclass(frozen=True)
class Columns(TableColumns):
    """Column names of a table of records."""

    usual_names = USUAL_NAMES
    hint = ", or give --format if this is no such table"

    id: str | None = None
    """The name of a record; a column `id` takes precedence over `name` and `accession`."""
    sequence: str | None = None
    """Letters, text, or a list of numbers."""
    label: str | None = None
    """A class."""
    target: str | None = None
    """A number to predict."""
    split: str | None = None
    """train, validation or test."""
    group: str | None = None
    """Records of one group never cross a split."""
    weight: str | None = None
    """Weight of a record in the loss."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The sequence; in a table of labels without sequences, the id."""
        return ("id",) if self.sequence == ABSENT else ("sequence",)


def find_columns(columns: TableColumns, names: Sequence[str], where: str, *, partial: bool = False) -> dict[str, str]:
    """The column name of each role that the table has a column for.

    With `partial`, `names` are the keys of one row, which may lack columns that the user has named.

    >>> find_columns(Columns(label="Phylum"), ["Accession", "Seq", "Phylum", "notes"], "genes.csv")
    {'id': 'Accession', 'sequence': 'Seq', 'label': 'Phylum'}
    """
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"{where} has {repeated[0]!r} as the name of several columns: names must differ; rename one")
    chosen = {role: name for role, name in vars(columns).items() if name != ABSENT}
    requested = {
        role: [n for n in names if n == name] or [n for n in names if _normalised(n) == _normalised(name)]
        for role, name in chosen.items()
        if name is not None
    }
    used = {name for matches in requested.values() for name in matches}
    by_role = {}
    for role, name in chosen.items():
        matches = requested.get(
            role, [n for n in names if n not in used and _normalised(n) in columns.usual_names[role]]
        )
        if role == "id" and name is None:
            matches = [n for n in matches if _normalised(n) == "id"] or matches
        if len(matches) > 1:
            raise ValueError(
                f"{where} has {len(matches)} columns that may be the {role}, {_shown(matches)}: "
                f"choose one with --column {role}=NAME"
            )
        if matches:
            by_role[role] = matches[0]
        elif (name is not None and not partial) or role in columns.needed:
            what = f"column {name!r}" if name is not None else f"column for the {role}"
            raise ValueError(
                f"{where} has no {what}: it has {_shown(names)}; choose with --column {role}=NAME{columns.hint}"
            )
    return by_role


def has_known_name(columns: Columns, names: Sequence[str]) -> bool:
    """Whether any of these is the usual name of a column or one that the user has given."""
    usual_names = {name for role_names in USUAL_NAMES.values() for name in role_names}
    given = {_normalised(name) for name in vars(columns).values() if name is not None}
    return any(_normalised(name) in usual_names | given for name in names)


def parse_row(
    row: Mapping[str, Any], by_role: Mapping[str, str], place: str, numeric: bool = False
) -> dict[str, Any]:
    """Parse the cells of a row, by role. `by_role`: the column of each role; `numeric`: sequences are number lists.

    >>> row = {"seq": "ACGT", "class": 3, "part": "dev"}
    >>> parse_row(row, {"sequence": "seq", "label": "class", "split": "part"}, "")
    {'sequence': 'ACGT', 'label': '3', 'split': 'validation'}
    """
    parsed = {}
    for role, name in by_role.items():
        try:
            parse = read_numbers if numeric and role == "sequence" else _PARSERS[role]
            parsed[role] = parse(row[name])
        except ValueError as error:
            raise ValueError(f"{place}, column {name!r}: {error}") from None
    return parsed


def row_entry(name: str, number: int, parsed: Mapping[str, Any]) -> Entry:
    """The entry of a parsed row; `number` counts the table's rows from 1."""
    fields = {**parsed, "id": parsed.get("id") or f"{Path(name).name}:{number}"}
    return Entry(place=f"{name}, row {number}", **fields)


def _normalised(name: str) -> str:
    return name.strip().casefold()


def _shown(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "no columns"


# --- Cells ---

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _cell_text(value: Any) -> str:
    """A scalar as text that UTF-8 can encode; a missing value is the empty string."""
    text = value if isinstance(value, str) else _scalar_text(value)
    if "\0" in text:
        raise ValueError(f"a NUL character at position {text.index(chr(0))}: text must have none; remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"half a character (a surrogate) at position {error.start}: fix it") from None
    return text


def _scalar_text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start} is not UTF-8: text must be; fix it") from None
    if isinstance(value, (list, tuple, dict, ndarray)):
        raise ValueError(f"{_shortened(value)} is not a single value: give one")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_name(value: Any) -> str | None:
    """Parse a name, text without control characters; None if it is empty."""
    word = _cell_text(value).strip()
    if _CONTROL.search(word):
        raise ValueError(
            f"{_shortened(word)} holds a line break, tab or control character: a name has none; rename it"
        )
    return word or None


def _parse_sequence(value: Any) -> str | bytes | ndarray:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (list, ndarray)):
        return as_series(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{_shortened(value)} is not a sequence: give text or a list of numbers")
    return _cell_text(value)


def _parse_label(value: Any) -> str | None:
    """Parse a label; a list of labels becomes one string with semicolons between."""
    if not isinstance(value, (list, ndarray)):
        return _parse_name(value)
    words = [_parse_name(v) or "" for v in list(value)]
    bad = next((word for word in words if not word or ";" in word), None)
    if bad is not None:
        raise ValueError(f"label {bad!r} in a list: labels must not be empty or hold a semicolon; rename it")
    return ";".join(words)


def is_missing_number(value: Any) -> bool:
    """Whether a cell stands for a missing number.

    >>> [is_missing_number(value) for value in (None, " NA ", float("nan"), "0", "tall")]
    [True, True, True, False, False]
    """
    return value is None or (isinstance(value, str | float) and str(value).strip().casefold() in MISSING)


def _parse_target(value: Any) -> float | None:
    cure = "give one, or leave the cell empty where there is none"
    return None if is_missing_number(value) else _finite_number(value, "a finite number", cure)


def _parse_weight(value: Any) -> float:
    weight = _finite_number(value, "a number above 0")
    if weight <= 0:
        raise ValueError(f"{_shortened(value)} is not a number above 0: give one")
    return weight


def _finite_number(value: Any, rule: str, cure: str = "give one") -> float:
    try:
        parse = real_number if isinstance(value, str) else float
        number = math.nan if isinstance(value, (bool, bytes)) else parse(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{_shortened(value)} is not {rule}: {cure}")
    return number


def _parse_split(value: Any) -> str:
    word = (_parse_name(value) or "").casefold()
    if word not in SPLITS:
        raise ValueError(f"{_shortened(value)} is not a split: write train, validation or test")
    return SPLITS[word]


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "id": _parse_name,
    "sequence": _parse_sequence,
    "label": _parse_label,
    "group": _parse_name,
}
_PARSERS |= {"target": _parse_target, "split": _parse_split, "weight": _parse_weight}


# --- Series ---

SEPARATOR = re.compile(r"\s*[,;]\s*|\s+")


def as_series(numbers: Any) -> np.ndarray:
    """Numbers as float32 of shape (N,) or (N, channels). Missing ones become NaN, which the tokenizer handles."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        raise ValueError("lists of unequal lengths: every step of a series must have the same channels") from None
    if array.dtype == object and all(v is None or isinstance(v, float) or type(v) is int for v in array.flat):
        with suppress(OverflowError):  # None becomes NaN; an integer too large for float64 keeps the object type
            array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} is not a type of real number: save the series as float32")
    if array.ndim not in (1, 2) or array.shape[1:] == (0,):
        raise ValueError(f"shape {array.shape} is not (steps,) or (steps, channels): a record is one series; reshape")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def hold_series(cells: Sequence[str]) -> bool:
    """Whether every non-empty cell is a list of numbers, at least one with two or more."""
    filled = [cell for cell in cells if cell.strip()]
    try:
        counts = [int(np.isfinite(read_numbers(cell)).sum()) for cell in filled]
    except ValueError:
        return False
    return bool(counts) and min(counts) > 0 and max(counts) > 1


def read_numbers(cell: str) -> np.ndarray:
    """The series in a cell: float32 of shape (N,), or (N, channels) from nested lists; missing numbers are NaN.

    >>> read_numbers("[0.5, NA, 2]").tolist()
    [0.5, nan, 2.0]
    """
    text = cell.strip()
    if text.startswith("[["):
        try:
            return as_series(json.loads(text))
        except (json.JSONDecodeError, RecursionError):
            raise ValueError(f"{text[:40]!r} is not a list of steps: write it as [[1, 2], [3, 4]]") from None
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return as_series(np.array([_number(word) for word in SEPARATOR.split(text)] if text else [], dtype=np.float64))


def _number(word: str) -> float:
    if word.lower() in MISSING:
        return math.nan
    with suppress(ValueError):
        if "_" not in word:  # Python accepts 1_000, data files do not use it
            return float(word)
    raise ValueError(
        f"{word[:40]!r} is not a number, as all others of this column are: fix it; texts of numbers are read as "
        "text from JSONL"
    )
