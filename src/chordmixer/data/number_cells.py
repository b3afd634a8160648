"""Series in the cells of CSV files, which have no types: `0.1 0.2`, `0.1;0.2`, `[0.1, 0.2]`, `[[1, 2], [3, 4]]`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import numpy as np

from chordmixer.data.series import as_series

MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""Words, in any case, that stand for a number that is not there."""
BETWEEN = re.compile(r"\s*[,;]\s*|\s+")


def hold_series(cells: Sequence[str]) -> bool:
    """Whether every cell with something in it is a list of numbers, and one of them holds two or more.

    >>> hold_series(["0.1 0.2", "", "[3, 4]"]), hold_series(["7", "8"]), hold_series(["3 4", "a text"])
    (True, False, False)
    """
    filled = [cell for cell in cells if cell.strip()]
    try:
        counts = [int(np.isfinite(read_numbers(cell)).sum()) for cell in filled]
    except ValueError:
        return False
    return bool(counts) and min(counts) > 0 and max(counts) > 1


def read_numbers(cell: str) -> np.ndarray:
    """The series of a cell, float32 of shape (N,), or (N, channels) of nested lists; NaN where one is missing.

    >>> read_numbers("[0.5, NA, 2]").tolist()
    [0.5, nan, 2.0]
    """
    text = cell.strip()
    if text.startswith("[["):
        return as_series(_nested(text))
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return as_series(np.array([_number(word) for word in BETWEEN.split(text)] if text else [], dtype=np.float64))


def _number(word: str) -> float:
    if word.lower() in MISSING:
        return math.nan
    try:
        if "_" not in word:  # Python's own, of no file
            return float(word)
    except ValueError:
        pass
    raise ValueError(
        f"{word[:40]!r} is not a number, as all others of this column are: mend it; texts of numbers are read as "
        "text from JSONL"
    )


def _nested(text: str) -> list[list[float]]:
    try:
        steps: list[list[float]] = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{text[:40]!r} is not a list of steps: write it as [[1, 2], [3, 4]]") from None
    return steps
