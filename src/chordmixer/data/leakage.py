"""What a split leaks: records held out whose copies, reverse complements or near-copies are trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray

from chordmixer.data.kmers import complement
from chordmixer.data.neighbours import near_pairs
from chordmixer.data.sketches import Sketches, digest

SHOWN = 5


@dataclass(frozen=True)
class Leak:
    """What one part has in common with the training part; a record counts once, under the first that holds."""

    records: int
    """Of the part."""
    exact: int = 0
    reverse: int = 0
    """The reverse complement of a training record."""
    near: int = 0
    examples: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """A few of each: the record's number and the training record's."""

    @property
    def total(self) -> int:
        return self.exact + self.reverse + self.near

    def lines(self, part: str, name: Callable[[int], str] = str) -> Iterator[str]:
        r"""For a person.

        >>> print(*Leak(90, exact=3, examples={"exact": [(7, 2)]}).lines("test", "r{}".format), sep="\n")
        test: 3 of 90 records (3.3 %) have a copy in training: 3 exact, 0 reverse complement, 0 near
        exact: r7 = r2, ...
        """
        share = 100 * self.total / max(self.records, 1)
        yield (
            f"{part}: {self.total:,} of {self.records:,} records ({share:.1f} %) have a copy in training: "
            f"{self.exact:,} exact, {self.reverse:,} reverse complement, {self.near:,} near"
        )
        signs = {"exact": "=", "reverse": "= reverse complement of", "near": "~"}
        for kind, pairs in self.examples.items():
            shown = ", ".join(f"{name(held)} {signs[kind]} {name(trained)}" for held, trained in pairs)
            yield f"{kind}: {shown}{', ...' if getattr(self, kind) > len(pairs) else ''}"


def digests(sequences: Sequence[ndarray], canonical: bool) -> ndarray:
    """Two numbers a record: of itself, and of its reverse complement where it is DNA (`canonical`), else again."""
    rows = ((digest(s), digest(complement(s) if canonical else s)) for s in map(np.asarray, sequences))
    return np.fromiter((number for row in rows for number in row), np.uint64).reshape(-1, 2)


def copies(digests: ndarray) -> ndarray:
    """A group number for each record: exact copies and reverse complements have the same.

    >>> dna = [np.array(letters, dtype=np.uint8) for letters in ([0, 0, 1], [2, 3, 3], [0, 0, 1], [1, 1, 1])]
    >>> copies(digests(dna, canonical=True)).tolist()
    [1, 1, 1, 0]
    """
    return np.unique(digests.min(axis=1), return_inverse=True)[1]


def leakage(
    digests: ndarray, sketches: Sketches | None, threshold: float, parts: Mapping[str, Sequence[int] | ndarray]
) -> dict[str, Leak]:
    """For every part but `training`, how many of its records have a copy there; without sketches, no near ones."""
    training = np.asarray(parts["training"], dtype=np.int64)
    found = _same(digests, training, column=0), _same(digests, training, column=1)
    near = np.full(len(digests), -1)
    if sketches is not None:
        near = _near(sketches, threshold, training, np.maximum(*found) < 0)
    kinds = {"exact": found[0], "reverse": found[1], "near": near}
    return {
        part: _leak(kinds, np.asarray(records, np.int64)) for part, records in parts.items() if part != "training"
    }


def _same(digests: ndarray, training: ndarray, column: int) -> ndarray:
    """For each record a training record that is its copy, or -1."""
    known, where = np.unique(digests[training, 0], return_index=True)
    if not len(known):
        return np.full(len(digests), -1)
    place = np.searchsorted(known, digests[:, column]).clip(max=len(known) - 1)
    return np.where(known[place] == digests[:, column], training[where[place]], -1)


def _near(sketches: Sketches, threshold: float, training: ndarray, open_: ndarray) -> ndarray:
    """For each open record outside training a near training record, or -1."""
    trained = np.zeros(len(sketches), bool)
    trained[training] = True
    found = np.full(len(sketches), -1)

    def wanted(first: ndarray, second: ndarray) -> ndarray:
        held = np.where(trained[first], second, first)
        return (trained[first] != trained[second]) & open_[held] & (found[held] < 0)

    for first, second in near_pairs(sketches, threshold, wanted):
        found[np.where(trained[first], second, first)] = np.where(trained[first], first, second)
    return found


def _leak(kinds: Mapping[str, ndarray], records: ndarray) -> Leak:
    counts, examples = {}, {}
    left = records
    for kind, found in kinds.items():
        hit = left[found[left] >= 0]
        left = left[found[left] < 0]
        counts[kind] = len(hit)
        if len(hit):
            examples[kind] = [(int(i), int(found[i])) for i in hit[:SHOWN]]
    return Leak(len(records), **counts, examples=examples)
