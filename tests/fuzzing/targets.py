"""What a target of `benchmarks/fuzz.py` is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.data.mutants import CHANGES, Change

Files = Mapping[str, bytes]


class SilentChange(Exception):
    """A damaged input was accepted, and its result is wrong."""


@dataclass(frozen=True)
class Target:
    """One kind of input."""

    files: Files
    """A valid input, by the names of its files in a folder."""
    call: Callable[[Path, random.Random, str], None]
    """What commands do with the folder, of which one file was damaged; `ValueError` is a refusal."""
    damaged: tuple[str, ...] = ()
    """The files that may be damaged; empty: all."""
    changes: tuple[Change, ...] = CHANGES
