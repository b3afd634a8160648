"""Near-copies: which records share so many k-mers that one must not be trained on and the other tested.

Two records are near when the one with fewer k-mers has at least `threshold` of them in the other (containment), as
far as their sketches tell, and more than one. Where a circle was cut, and on which strand, is no matter.

Measured with the defaults for DNA (k 16, threshold 0.25) on copies planted among random records, half of them on the
other strand, none joined wrongly; the chance that a k-mer survives is identity ** k:

    identity             99 %   97 %   95 %   92 %   90 %   85 %   80 %
    of 60 letters         99     91     71     45     29      7      2     % found
    of 300 letters       100    100     98     53     19      0      0
    of 1,000 letters     100    100    100     61      8      0      0
    of 10,000 letters    100    100    100     65      1      0      0

    fragments of E. coli in its genome, alone:   all at 100 % identity from 40 letters on, 86 % of 100 at 95 %
    the same beside 42 million letters more:     69 % of 40 letters at 100 %, all of 100; 81 % of 100 at 95 %

A fragment needs some 4 hashes below the common limit: any has them in data of up to 8 million tokens, and beyond that
it takes 16 + 4 * (tokens / 8 million) letters. What has changed more than this, such as a homologous gene, is not
a near-copy here: give groups for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy import ndarray

from chordmixer.data.sketches import WHOLE, Sketches

REACH = 8
"""Of the records that share a hash, each is compared with this many others at most."""
COMPARED = 256
"""Of each pair, hashes that are compared at most, the smallest."""
EVIDENCE = 4
"""And at least, where not all k-mers of both are there."""


def clusters(sketches: Sketches, threshold: float) -> ndarray:
    """A group number for each record: near ones have the same, and so have those that a chain of near ones joins.

    >>> from chordmixer.data.sketches import SketchConfig, sketch_all
    >>> dna = [np.array([0, 1, 2, 3, 3, 0, 2, 2] * 4, dtype=np.uint8), np.zeros(30, np.uint8)]
    >>> clusters(sketch_all([*dna, dna[0][3:]], SketchConfig(k=8)), threshold=0.5).tolist()
    [0, 1, 0]
    """
    root = np.arange(len(sketches))
    for first, second in near_pairs(sketches, threshold, lambda a, b: root[a] != root[b]):
        while (apart := root[first] != root[second]).any():
            first, second = root[first[apart]], root[second[apart]]
            np.minimum.at(root, np.maximum(first, second), np.minimum(first, second))
            while (root[root] != root).any():
                root[:] = root[root]
    return np.unique(root, return_inverse=True)[1]


def near_pairs(
    sketches: Sketches, threshold: float, wanted: Callable[[ndarray, ndarray], ndarray]
) -> Iterator[tuple[ndarray, ndarray]]:
    """Pairs of near records, some at a time, of those that are `wanted` when their turn comes.

    Candidates share a hash that is among the smallest of one. The records of a hash stand in a row, and each is held
    against those up to `REACH` places on: of a thousand copies the next ones are enough, and the work grows with the
    hashes, not with their squares.
    """
    index = _Index(sketches)
    contained = index.small & index.may_be_contained(threshold)[index.row]
    for step in range(1, REACH + 1):
        together = index.bucket[step:] == index.bucket[:-step]
        together &= contained[step:] | contained[:-step]
        first, second = np.sort([index.row[:-step][together], index.row[step:][together]], axis=0)
        pairs = np.unique(first * len(sketches) + second)
        for block in np.array_split(pairs, len(pairs) // 20_000 + 1):
            first, second = np.divmod(block, len(sketches))
            chosen = wanted(first, second)
            first, second = first[chosen], second[chosen]
            near = index.containment(first, second) >= threshold
            yield first[near], second[near]


class _Index:
    """The hashes that several records have: in buckets, with a row of records each, and as keys by record."""

    def __init__(self, sketches: Sketches) -> None:
        self.sketches = sketches
        order = np.argsort(sketches.hashes)
        ordered = sketches.hashes[order]
        again = np.zeros(len(order) + 1, bool)
        again[1:-1] = ordered[1:] == ordered[:-1]
        shared, starts = again[1:] | again[:-1], again[1:] & ~again[:-1]
        entry, bucket = order[shared], np.cumsum(starts)[shared] - 1
        record = sketches.records[entry]
        # A shuffled row: of a file in which all test records stand last, few would meet a training record otherwise.
        in_row = np.lexsort((np.random.default_rng(0).permutation(len(sketches))[record], bucket))
        self.bucket, self.row = bucket[in_row], record[in_row]
        self.small = (entry - sketches.offsets[record] < COMPARED)[in_row]
        self.buckets = int(starts.sum())
        self.keys = np.sort(record * self.buckets + bucket)
        self.shared = np.zeros(len(order) + 1, np.int64)
        """Before each hash, how many are shared."""
        self.shared[entry + 1] = 1
        np.cumsum(self.shared, out=self.shared)

    def may_be_contained(self, threshold: float) -> ndarray:
        """Records of which, up to some limit, enough hashes are shared."""
        sizes, offsets = self.sketches.sizes, self.sketches.offsets
        rank = np.arange(len(self.sketches.hashes)) - np.repeat(offsets[:-1], sizes) + 1
        enough = self.shared[1:] - np.repeat(self.shared[offsets[:-1]], sizes) >= threshold * rank
        enough &= rank >= np.minimum(EVIDENCE, np.repeat(sizes, sizes))
        return np.bincount(self.sketches.records, weights=enough, minlength=len(sizes)) > 0

    def containment(self, first: ndarray, second: ndarray) -> ndarray:
        """Of each pair, the share of the smaller record's hashes below both limits that the larger has too."""
        limit = np.minimum(self.sketches.limits[first], self.sketches.limits[second])
        below_first, below_second = self._below(first, limit), self._below(second, limit)
        smaller = np.where(below_first <= below_second, first, second)
        larger = np.where(below_first <= below_second, second, first)
        compared = np.minimum(np.minimum(below_first, below_second), COMPARED)
        start = self.sketches.offsets[smaller]
        counts = self.shared[start + compared] - self.shared[start]
        place = np.repeat(self.shared[start] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        query = self.keys[place] + np.repeat((larger - smaller) * self.buckets, counts)
        found = self.keys[np.searchsorted(self.keys, query).clip(max=len(self.keys) - 1)] == query
        common = np.bincount(np.repeat(np.arange(len(first)), counts), weights=found, minlength=len(first))
        believed = (compared >= EVIDENCE) | (limit == WHOLE)
        believed &= common >= np.minimum(compared, 2)  # any one k-mer of 16 letters is in a gigabase by chance
        return np.where(believed, common / np.maximum(compared, 1), 0)

    def _below(self, records: ndarray, limits: ndarray) -> ndarray:
        """How many hashes of each record are below a limit, by halving."""
        start, high = self.sketches.offsets[records], self.sketches.offsets[records + 1]
        low = start
        while (open_ := low < high).any():
            middle = np.where(open_, (low + high) // 2, 0)
            below = self.sketches.hashes[middle] < limits
            low, high = np.where(open_ & below, middle + 1, low), np.where(open_ & ~below, middle, high)
        return low - start
