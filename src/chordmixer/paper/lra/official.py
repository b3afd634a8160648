"""Data sets that come with a test part of their own: read once, kept as bytes, never written twice.

Which training records are held out for validation, and where a text is cut, are ways to look at what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from chordmixer.data.columns import SPLITS
from chordmixer.data.leakage import copies, digests
from chordmixer.data.splits import grouped
from chordmixer.paper.lra import BytesRecords, Part, made_once

PARTS = ("training", "test")
FORMAT = 1
"""Of the data as they are kept: another way to read them is another number."""


class ReleaseLayout(NamedTuple):
    """How a user keeps a data set."""

    place: Path
    """For messages."""
    files: list[Path]
    """All that is read, so that a change is seen."""
    read: Callable[[str], Iterator[Part]]
    """The records of `training` or of `test`."""


class ChosenRecords(BytesRecords):
    """Some records of a folder of `made_once`, in the order of `indices`, cut at `longest` bytes."""

    def __init__(self, folder: Path, part: str, real: bool, indices: ndarray, longest: int) -> None:
        super().__init__(folder, part, real)
        whole = np.diff(self.offsets)[indices]
        self.indices, self.longest = indices, longest
        self.starts, self.targets = self.offsets[indices], self.targets[indices]
        self.lengths = np.minimum(whole, longest).tolist()
        self.cut = int((whole > longest).sum())
        """How many are not whole."""

    def name(self, index: int) -> str:
        """The number in the official part, from 0: validation records are `training-7` too."""
        return f"{self.split}-{self.indices[index]}"

    def __reduce__(self) -> Any:
        return ChosenRecords, (self.folder, self.split, self.real, self.indices, self.longest)

    def _bytes(self, index: int) -> ndarray:
        view: ndarray = self.values[self.starts[index] : self.starts[index] + self.lengths[index]]
        return view


def read_once(
    layout: ReleaseLayout, cache: str | None, name: str, labels: Sequence[str], cure: str
) -> dict[str, Path]:
    """The folder of each official part: found in the cache, or read from the files; `cure` ends an error."""
    found = [(str(path.absolute()), path.stat()) for path in layout.files]
    states = [(path, state.st_size, state.st_mtime_ns) for path, state in found]
    return {
        part: made_once(cache, name, (FORMAT, part, states), partial(_whole, layout, part, labels, cure))
        for part in PARTS
    }


def chosen(
    folders: Mapping[str, Path], split: str, validation: int, seed: int, *, real: bool, longest: int
) -> ChosenRecords:
    """The records of `training`, `validation` or `test`, of what `read_once` gave.

    Validation is drawn from the official training part by the seed, classes in proportion; of records that are there
    twice, both are on one side.
    """
    if split == "test":
        everything = np.arange(len(BytesRecords(folders["test"], "test", real)))
        return ChosenRecords(folders["test"], "test", real, everything, longest)
    whole = BytesRecords(folders["training"], "training", real=False)
    if validation >= len(whole):
        raise ValueError(
            f"validation={validation:,} of {len(whole):,} training records leaves none to train on: give fewer"
        )
    same = copies(digests(np.split(whole.values, whole.offsets[1:-1]), canonical=False))
    share = validation / len(whole)
    kept, held = grouped(same.tolist(), whole.targets.tolist(), [1 - share, share], seed)
    own = np.array(kept if split == "training" else held)
    return ChosenRecords(folders["training"], "training", real, own, longest)


# --- For readers ---


def class_of(value: Any, labels: Sequence[str], place: str) -> int:
    """A class by its name, or by its number where a copy of the data has numbers.

    >>> class_of("pos", ("neg", "pos"), "row 1"), class_of(0, ("neg", "pos"), "row 2")
    (1, 0)
    """
    word = str(value).strip()
    if word in labels:
        return labels.index(word)
    if word.isdecimal() and int(word) < len(labels):
        return int(word)
    raise ValueError(
        f"{place}: class {word[:40]!r} is none of {', '.join(labels)}, nor the number of one: correct it"
    )


def part_of(word: Any, place: str) -> str:
    """The official part that a table names.

    >>> part_of("train", "row 1")
    'training'
    """
    part = SPLITS.get(str(word).strip().casefold())
    if part not in PARTS:
        raise ValueError(
            f"{place}: split {str(word)[:40]!r} is not train or test: validation records are drawn from train; "
            "name them so"
        )
    return part


def load(path: Path) -> bytes:
    """A file's bytes."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): mend that, or use another copy") from None


def _whole(layout: ReleaseLayout, part: str, labels: Sequence[str], cure: str) -> Iterator[Part]:
    """The records of a part, once it is sure that none are missing: official classes are equally large."""
    counts = np.zeros(len(labels), dtype=np.int64)
    for values, lengths, targets in layout.read(part):
        counts += np.bincount(targets, minlength=len(labels))
        yield values, lengths, targets
    few, many = int(counts.argmin()), int(counts.argmax())
    if counts[few] < max(counts[many], 1):
        raise ValueError(
            f"{layout.place} has {counts[few]:,} {part} records of {labels[few]} and {counts[many]:,} of "
            f"{labels[many]}: there are equally many of each, so it is not whole; {cure}"
        )
