"""Which variants must not be parted by a split: those whose windows share bases, or whose loci are copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from chordmixer.data.alleles import Window
from chordmixer.data.alphabets import Dna
from chordmixer.data.neighbours import clusters
from chordmixer.data.reference import Reference
from chordmixer.data.sketches import SketchConfig, sketch_all

COMPARED = 300_000_000
"""Bases of all loci up to which near-copies among them are looked for: some two minutes."""


def loci(windows: Sequence[Window]) -> ndarray:
    """A number for each window: the same for those that overlap, or that a chain of overlapping ones joins.

    >>> around = [Window("a", 0, 10, 5, "A", "C"), Window("a", 10, 20, 5, "A", "C"), Window("a", 5, 15, 5, "A", "C")]
    >>> loci(around).tolist(), loci(around[:2]).tolist()
    ([0, 0, 0], [0, 1])
    """
    numbers = np.empty(len(windows), np.int64)
    contig, reach, number = "", 0, -1
    for i in sorted(range(len(windows)), key=lambda i: windows[i][:2]):
        own = windows[i]
        if own.contig != contig or own.start >= reach:
            contig, reach, number = own.contig, 0, number + 1
        reach = max(reach, own.stop)
        numbers[i] = number
    return numbers


def near_copies(windows: Sequence[Window], numbers: ndarray, reference: Reference) -> ndarray:
    """The same numbers for loci that are copies of each other, on either strand, as for one measured twice."""
    spans: dict[int, tuple[str, int, int]] = {}
    for window, number in zip(windows, numbers.tolist(), strict=True):
        contig, start, stop = spans.get(number, window[:3])
        spans[number] = contig, min(start, window.start), max(stop, window.stop)
    if sum(stop - start for _, start, stop in spans.values()) > COMPARED:
        return numbers
    letters, config = Dna(), SketchConfig.of("dna")
    sequences = [letters.encode(reference.fetch(*spans[number])) for number in range(len(spans))]
    return clusters(sketch_all(sequences, config), config.threshold)[numbers]


def joined(*numbers: Sequence[object] | ndarray) -> ndarray:
    """One grouping from several: records that any of them puts together are together; None puts with no other.

    >>> joined([0, 0, 1, 2], ["x", None, "y", "y"]).tolist()
    [0, 0, 2, 2]
    """
    parent = list(range(len(numbers[0])))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = i = parent[parent[i]]
        return i

    for groups in numbers:
        first: dict[object, int] = {}
        for i, group in enumerate(groups):
            if group is not None:
                a, b = root(i), root(first.setdefault(group, i))
                parent[max(a, b)] = min(a, b)
    return np.array([root(i) for i in range(len(parent))])
