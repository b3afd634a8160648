"""Near-copies among records, found by comparing sketches: a few hashes of each record's k-mers.

A sketch is the `size` smallest hashes of a record's k-mers (MinHash), and also every hash below a limit that all
records share, so that a fragment of a hundred letters is still found inside a genome of millions. For DNA, a k-mer
and its reverse complement are one.

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy import ndarray

from chordmixer.data.features import LETTERS, RADIX, chunks, complement, mix, whole, windows

HASHES = 8_000_000
"""About how many hashes the sketches of a data set may hold for its long records, and twice as many for all."""
CHUNK = 2_000_000
"""Tokens that are hashed at a time."""

_BITS = 48
WHOLE = 1 << _BITS
"""All hashes are below it."""


@dataclass(frozen=True)
class SketchConfig:
    """How near-copies are found; the defaults are for DNA."""

    k: int = 16
    """Letters of a k-mer."""
    size: int = 256
    """Hashes kept of a record at least, if it has as many; fewer, but 32, from 60,000 records on."""
    threshold: float = 0.25
    """The share of the shorter record's k-mers that the other must have."""
    canonical: bool = True
    """A k-mer and its reverse complement are one: tokens 0 to 3 are A, C, G, T, and others break k-mers."""

    def __post_init__(self) -> None:
        most = 31 if self.canonical else 255
        if not 1 <= self.k <= most:
            raise ValueError(f"k={self.k} is not a k-mer's length: give 1 to {most}")
        if self.size < 1:
            raise ValueError(f"size={self.size} keeps no hash: give 1 or more")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} is not a share: give more than 0, and at most 1")

    @staticmethod
    def of(kind: str) -> SketchConfig:
        """For `dna`, `protein` or `text`."""
        configs = {
            "dna": SketchConfig(),
            "protein": SketchConfig(k=6, canonical=False),
            "text": SketchConfig(k=16, canonical=False),
        }
        if kind not in configs:
            raise ValueError(f"{kind!r} cannot be compared by k-mers, only {', '.join(configs)}: give groups")
        return configs[kind]


@dataclass(frozen=True)
class Sketches:
    """The sketches of many records, end to end."""

    hashes: ndarray
    """The hashes of each record in ascending order."""
    offsets: ndarray
    limits: ndarray
    """All hashes of a record below its limit are kept, and only those."""

    def __len__(self) -> int:
        return len(self.limits)

    def __getitem__(self, record: int) -> ndarray:
        return self.hashes[self.offsets[record] : self.offsets[record + 1]]

    @property
    def sizes(self) -> ndarray:
        return np.diff(self.offsets)

    @property
    def records(self) -> ndarray:
        """The record of each hash."""
        return np.repeat(np.arange(len(self)), self.sizes)


def sketch_all(sequences: Sequence[ndarray], config: SketchConfig, every: int = 0) -> Sketches:
    """The sketches of all records; `every=0` keeps of long records, and of very many, what `HASHES` allows."""
    if not every:
        every = -(-sum(map(len, sequences)) // HASHES) or 1
        config = replace(config, size=min(config.size, max(2 * HASHES // max(len(sequences), 1), 32)))
    parts = [_sketch_chunk(chunk, config, every) for chunk in chunks(sequences, CHUNK, 1 << 64 - _BITS)]
    if not parts:
        return Sketches(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint64))
    hashes, sizes, limits = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Sketches(hashes, np.concatenate([[0], np.cumsum(sizes)]), limits)


def _sketch_chunk(chunk: list[ndarray], config: SketchConfig, every: int) -> tuple[ndarray, ndarray, ndarray]:
    """Hashes, how many each record has, and the limits."""
    common = np.uint64(WHOLE // every)
    pieces = [_short_records(chunk, config)]
    for records, tokens, lengths in _pieces(chunk, config.k):
        hashes, place = _hashes(tokens, lengths, config)
        pieces.append(_smallest(records[place] << np.uint64(_BITS) | hashes, config.size, common))
    keys = _smallest(np.concatenate(pieces), config.size, common)
    sizes = np.bincount((keys >> np.uint64(_BITS)).astype(np.int64), minlength=len(chunk))
    hashes = keys & np.uint64(WHOLE - 1)
    limits = np.full(len(chunk), WHOLE, np.uint64)
    cut = sizes >= config.size
    limits[cut] = np.maximum(hashes[np.cumsum(sizes)[cut] - 1] + np.uint64(1), common)
    return hashes, sizes, limits


def _pieces(chunk: list[ndarray], k: int) -> Iterator[tuple[ndarray, ndarray, ndarray]]:
    """Record numbers, tokens end to end, and lengths; a record beyond a chunk comes in overlapping pieces."""
    if len(chunk) > 1 or len(chunk[0]) <= CHUNK:
        lengths = np.array([len(sequence) for sequence in chunk])
        yield np.arange(len(chunk), dtype=np.uint64), np.concatenate(chunk), lengths
        return
    for start in range(0, len(chunk[0]) - k + 1, CHUNK):
        piece = chunk[0][start : start + CHUNK + k - 1]
        yield np.zeros(1, np.uint64), piece, np.array([len(piece)])


def _hashes(tokens: ndarray, lengths: ndarray, config: SketchConfig) -> tuple[ndarray, ndarray]:
    """The hash of every k-mer within a record, and the record's place."""
    k = config.k
    if len(tokens) < k:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    inside = whole(tokens, lengths, k, LETTERS if config.canonical else None)
    if config.canonical:
        letters = np.minimum(tokens, LETTERS - 1).astype(np.uint64)
        codes = np.minimum(windows(letters, k, LETTERS), windows(LETTERS - 1 - letters[::-1], k, LETTERS)[::-1])
    else:
        codes = windows(tokens.astype(np.uint64), k, RADIX)
    place = np.repeat(np.arange(len(lengths)), lengths)[: len(inside)]
    return mix(codes[inside]) >> np.uint64(64 - _BITS), place[inside]


def _smallest(keys: ndarray, size: int, common: np.uint64) -> ndarray:
    """The distinct keys that a sketch keeps, in order; a key is a record's place and a hash."""
    keys = np.sort(keys)
    keys = keys[np.diff(keys, prepend=~keys[:1]) != 0]
    record = (keys >> np.uint64(_BITS)).astype(np.int64)
    sizes = np.bincount(record)
    rank = np.arange(len(keys)) - (np.cumsum(sizes) - sizes)[record]
    return keys[(rank < size) | (keys & np.uint64(WHOLE - 1) < common)]


def _short_records(chunk: list[ndarray], config: SketchConfig) -> ndarray:
    """Records shorter than a k-mer: the whole as one, so that their copies are found."""
    keys = [
        place << _BITS | min(digest(tokens), digest(complement(tokens) if config.canonical else tokens)) >> 64 - _BITS
        for place, tokens in enumerate(chunk)
        if 0 < len(tokens) < config.k
    ]
    return np.array(keys, np.uint64)


def digest(tokens: ndarray) -> int:
    """64 bits of the whole record: equal for equal records."""
    return int.from_bytes(blake2b(np.ascontiguousarray(tokens).data, digest_size=8).digest(), "little")


def strand_digests(sequences: Iterable[ndarray], opposite: Callable[[ndarray], ndarray] | None) -> ndarray:
    """Two digests per record: its own, and that of its other strand, where tokens have one, or its own again."""
    pairs = ((tokens, tokens if opposite is None else opposite(tokens)) for tokens in map(np.asarray, sequences))
    rows = [(own := digest(one), own if other is one else digest(other)) for one, other in pairs]
    return np.array(rows, np.uint64).reshape(-1, 2)


REACH = 8
"""Among the records that share a hash, each is compared with at most this many others."""
COMPARED = 256
"""Hashes of a pair that are compared at most, the smallest ones."""
EVIDENCE = 4
"""Hashes compared at least, unless both sketches are complete."""


def clusters(sketches: Sketches, threshold: float) -> ndarray:
    """A group number for each record: near ones have the same, and so have those that a chain of near ones joins."""
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
        first, second = index.row[:-step][together], index.row[step:][together]
        chosen = wanted(first, second)
        first, second = np.sort([first[chosen], second[chosen]], axis=0)
        pairs = np.sort(first * len(sketches) + second)  # np.unique hashes numbers, which takes far longer
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
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
        """For each pair, the share of the smaller record's hashes below both limits that the larger has too."""
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
        return np.asarray(low - start)
