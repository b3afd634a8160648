"""Find near-copies among records by comparing sketches: a few hashes of each record's k-mers.

A sketch is the `size` smallest hashes of a record's k-mers (MinHash), and also every hash below a limit that all
records share, so that a fragment of a hundred letters is still found inside a genome of millions. For DNA, a k-mer
and its reverse complement have the same hash.

Two records are near-copies if the one with fewer k-mers shares at least `threshold` of them with the other
(containment, estimated from the sketches), and more than one. Strand and the start of a circle do not matter.

Measured with the defaults for DNA (k 16, threshold 0.25) on copies planted among random records, half of them on the
other strand, without false positives; the probability that a k-mer is unchanged is identity ** k:

    identity             99 %   97 %   95 %   92 %   90 %   85 %   80 %
    of 60 letters         99     91     71     45     29      7      2     % found
    of 300 letters       100    100     98     53     19      0      0
    of 1,000 letters     100    100    100     61      8      0      0
    of 10,000 letters    100    100    100     65      1      0      0

    fragments of E. coli in its genome, alone:   all at 100 % identity from 40 letters on, 86 % of 100 at 95 %
    the same with 42 million letters more:       69 % of 40 letters at 100 %, all of 100; 81 % of 100 at 95 %

A fragment needs about 4 hashes below the common limit. In data of up to 8 million tokens every fragment has them;
beyond that it needs 16 + 4 * (tokens / 8 million) letters. More distant relatives, such as homologous genes, are not
near-copies here: use groups for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy import ndarray

from chordmixer.data.features import LETTERS, RADIX, chunks, complement, kmer_codes, mix, valid_kmers

HASHES = 8_000_000
"""Approximate maximum of hashes in all sketches for long records below the common limit; twice as many in all."""
CHUNK = 2_000_000
"""Tokens that are hashed at a time."""

_BITS = 48
HASH_LIMIT = 1 << _BITS
"""Exclusive upper bound of all hashes."""


@dataclass(frozen=True)
class SketchConfig:
    """Settings of the search for near-copies; the defaults are for DNA."""

    k: int = 16
    """Length of k-mers."""
    size: int = 256
    """Minimum number of hashes in a record's sketch, if it has as many; fewer, down to 32, above 60,000 records."""
    threshold: float = 0.25
    """Minimum share of the smaller record's k-mers that the other record contains."""
    canonical: bool = True
    """A k-mer and its reverse complement are the same. Tokens 0 to 3 are A, C, G, T; k-mers have no others."""

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
        """The settings for `dna`, `protein` or `text`."""
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
    """The concatenated sketches of many records."""

    hashes: ndarray
    """The hashes of all records, those of each record in ascending order."""
    offsets: ndarray
    limits: ndarray
    """The limit of each record: its sketch has exactly those of its hashes that are below it."""

    def __len__(self) -> int:
        return len(self.limits)

    def __getitem__(self, record: int) -> ndarray:
        return self.hashes[self.offsets[record] : self.offsets[record + 1]]

    @property
    def sizes(self) -> ndarray:
        return np.diff(self.offsets)

    @property
    def records(self) -> ndarray:
        """The record number of each hash."""
        return np.repeat(np.arange(len(self)), self.sizes)


def sketch_all(sequences: Sequence[ndarray], config: SketchConfig, every: int = 0) -> Sketches:
    """Compute all sketches. The common limit keeps 1 in `every` hashes of a record; 0: as many as `HASHES` allows."""
    if not every:
        every = -(-sum(map(len, sequences)) // HASHES) or 1
        config = replace(config, size=min(config.size, max(2 * HASHES // max(len(sequences), 1), 32)))
    parts = [_sketch_chunk(chunk, config, every) for chunk in chunks(sequences, CHUNK, 1 << 64 - _BITS)]
    if not parts:
        return Sketches(np.empty(0, np.uint64), np.zeros(1, np.int64), np.empty(0, np.uint64))
    hashes, sizes, limits = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Sketches(hashes, np.concatenate([[0], np.cumsum(sizes)]), limits)


def _sketch_chunk(chunk: list[ndarray], config: SketchConfig, every: int) -> tuple[ndarray, ndarray, ndarray]:
    """The hashes of a chunk's records, the number of hashes of each record, and its limit."""
    common = np.uint64(HASH_LIMIT // every)
    pieces = [_short_records(chunk, config)]
    for records, tokens, lengths in _pieces(chunk, config.k):
        hashes, place = _hashes(tokens, lengths, config)
        pieces.append(_smallest(records[place] << np.uint64(_BITS) | hashes, config.size, common))
    keys = _smallest(np.concatenate(pieces), config.size, common)
    sizes = np.bincount((keys >> np.uint64(_BITS)).astype(np.int64), minlength=len(chunk))
    hashes = keys & np.uint64(HASH_LIMIT - 1)
    limits = np.full(len(chunk), HASH_LIMIT, np.uint64)
    cut = sizes >= config.size
    limits[cut] = np.maximum(hashes[np.cumsum(sizes)[cut] - 1] + np.uint64(1), common)
    return hashes, sizes, limits


def _pieces(chunk: list[ndarray], k: int) -> Iterator[tuple[ndarray, ndarray, ndarray]]:
    """Record numbers, concatenated tokens, and lengths; a record longer than a chunk is split with overlaps."""
    if len(chunk) > 1 or len(chunk[0]) <= CHUNK:
        lengths = np.array([len(sequence) for sequence in chunk])
        yield np.arange(len(chunk), dtype=np.uint64), np.concatenate(chunk), lengths
        return
    for start in range(0, len(chunk[0]) - k + 1, CHUNK):
        piece = chunk[0][start : start + CHUNK + k - 1]
        yield np.zeros(1, np.uint64), piece, np.array([len(piece)])


def _hashes(tokens: ndarray, lengths: ndarray, config: SketchConfig) -> tuple[ndarray, ndarray]:
    """The hash of every valid k-mer, and the position of its record."""
    k = config.k
    if len(tokens) < k:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    valid = valid_kmers(tokens, lengths, k, LETTERS if config.canonical else None)
    if config.canonical:
        letters = np.minimum(tokens, LETTERS - 1).astype(np.uint64)
        codes = np.minimum(kmer_codes(letters, k, LETTERS), kmer_codes(LETTERS - 1 - letters[::-1], k, LETTERS)[::-1])
    else:
        codes = kmer_codes(tokens.astype(np.uint64), k, RADIX)
    place = np.repeat(np.arange(len(lengths)), lengths)[: len(valid)]
    return mix(codes[valid]) >> np.uint64(64 - _BITS), place[valid]


def _smallest(keys: ndarray, size: int, common: np.uint64) -> ndarray:
    """The distinct keys that belong to sketches, in order; a key combines a record's position and a hash."""
    keys = np.sort(keys)
    keys = keys[np.diff(keys, prepend=~keys[:1]) != 0]
    record = (keys >> np.uint64(_BITS)).astype(np.int64)
    sizes = np.bincount(record)
    rank = np.arange(len(keys)) - (np.cumsum(sizes) - sizes)[record]
    return keys[(rank < size) | (keys & np.uint64(HASH_LIMIT - 1) < common)]


def _short_records(chunk: list[ndarray], config: SketchConfig) -> ndarray:
    """Keys of records shorter than a k-mer, one hash of the whole record each, so that exact copies are found."""
    keys = [
        place << _BITS | min(digest(tokens), digest(complement(tokens) if config.canonical else tokens)) >> 64 - _BITS
        for place, tokens in enumerate(chunk)
        if 0 < len(tokens) < config.k
    ]
    return np.array(keys, np.uint64)


def digest(tokens: ndarray) -> int:
    """A 64-bit hash of all tokens of a record."""
    return int.from_bytes(blake2b(np.ascontiguousarray(tokens).data, digest_size=8).digest(), "little")


def strand_digests(sequences: Iterable[ndarray], opposite: Callable[[ndarray], ndarray] | None) -> ndarray:
    """Two digests per record: of its tokens, and of its other strand, or the same again if tokens have none."""
    pairs = ((tokens, tokens if opposite is None else opposite(tokens)) for tokens in map(np.asarray, sequences))
    rows = [(forward := digest(one), forward if other is one else digest(other)) for one, other in pairs]
    return np.array(rows, np.uint64).reshape(-1, 2)


MAX_NEIGHBOURS = 8
"""Maximum number of others with which each of the records that share a hash is compared."""
MAX_HASHES = 256
"""Maximum number of hashes by which a pair is compared, the smallest ones."""
MIN_HASHES = 4
"""Minimum number of hashes by which a pair is compared, unless both sketches contain all hashes."""


def clusters(sketches: Sketches, threshold: float) -> ndarray:
    """A group number for each record: near-copies, direct or through other records, share a group."""
    root = np.arange(len(sketches))
    for first, second in near_pairs(sketches, threshold, lambda a, b: root[a] != root[b]):
        while (separate := root[first] != root[second]).any():
            first, second = root[first[separate]], root[second[separate]]
            np.minimum.at(root, np.maximum(first, second), np.minimum(first, second))
            while (root[root] != root).any():
                root[:] = root[root]
    return np.unique(root, return_inverse=True)[1]


def near_pairs(
    sketches: Sketches, threshold: float, wanted: Callable[[ndarray, ndarray], ndarray]
) -> Iterator[tuple[ndarray, ndarray]]:
    """Yield pairs of near-copies, in blocks; `wanted` filters candidates just before they are compared.

    Candidates share a hash that is among the smallest of one of them. The records with the same hash form a row, and
    each is compared with the next `MAX_NEIGHBOURS` records of the row. For a group of many copies that is enough,
    and the work grows linearly with the number of hashes.
    """
    index = _Index(sketches)
    contained = index.small & index.may_be_contained(threshold)[index.row]
    for step in range(1, MAX_NEIGHBOURS + 1):
        same_bucket = index.bucket[step:] == index.bucket[:-step]
        same_bucket &= contained[step:] | contained[:-step]
        first, second = index.row[:-step][same_bucket], index.row[step:][same_bucket]
        chosen = wanted(first, second)
        first, second = np.sort([first[chosen], second[chosen]], axis=0)
        pairs = np.sort(first * len(sketches) + second)  # sorting is far faster than np.unique
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        for block in np.array_split(pairs, len(pairs) // 20_000 + 1):
            first, second = np.divmod(block, len(sketches))
            chosen = wanted(first, second)
            first, second = first[chosen], second[chosen]
            near = index.containment(first, second) >= threshold
            yield first[near], second[near]


class _Index:
    """The hashes that two or more records share: as buckets, each with a row of records, and as keys by record."""

    def __init__(self, sketches: Sketches) -> None:
        self.sketches = sketches
        order = np.argsort(sketches.hashes)
        ordered = sketches.hashes[order]
        repeats = np.zeros(len(order) + 1, bool)
        repeats[1:-1] = ordered[1:] == ordered[:-1]
        shared, starts = repeats[1:] | repeats[:-1], repeats[1:] & ~repeats[:-1]
        entry, bucket = order[shared], np.cumsum(starts)[shared] - 1
        record = sketches.records[entry]
        # Rows are shuffled: if all test records are last in a file, few would be neighbours of a training record.
        in_row = np.lexsort((np.random.default_rng(0).permutation(len(sketches))[record], bucket))
        self.bucket, self.row = bucket[in_row], record[in_row]
        self.small = (entry - sketches.offsets[record] < MAX_HASHES)[in_row]
        self.buckets = int(starts.sum())
        self.keys = np.sort(record * self.buckets + bucket)
        self.shared = np.zeros(len(order) + 1, np.int64)
        """The number of shared hashes before each hash."""
        self.shared[entry + 1] = 1
        np.cumsum(self.shared, out=self.shared)

    def may_be_contained(self, threshold: float) -> ndarray:
        """Mask of the records of which enough hashes, up to some limit, are shared to reach the threshold."""
        sizes, offsets = self.sketches.sizes, self.sketches.offsets
        rank = np.arange(len(self.sketches.hashes)) - np.repeat(offsets[:-1], sizes) + 1
        enough = self.shared[1:] - np.repeat(self.shared[offsets[:-1]], sizes) >= threshold * rank
        enough &= rank >= np.minimum(MIN_HASHES, np.repeat(sizes, sizes))
        return np.bincount(self.sketches.records, weights=enough, minlength=len(sizes)) > 0

    def containment(self, first: ndarray, second: ndarray) -> ndarray:
        """For each pair, the share of the smaller record's hashes below both limits that are in the larger record."""
        limit = np.minimum(self.sketches.limits[first], self.sketches.limits[second])
        below_first, below_second = self._below(first, limit), self._below(second, limit)
        smaller = np.where(below_first <= below_second, first, second)
        larger = np.where(below_first <= below_second, second, first)
        compared = np.minimum(np.minimum(below_first, below_second), MAX_HASHES)
        start = self.sketches.offsets[smaller]
        counts = self.shared[start + compared] - self.shared[start]
        place = np.repeat(self.shared[start] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        query = self.keys[place] + np.repeat((larger - smaller) * self.buckets, counts)
        is_shared = self.keys[np.searchsorted(self.keys, query).clip(max=len(self.keys) - 1)] == query
        common = np.bincount(np.repeat(np.arange(len(first)), counts), weights=is_shared, minlength=len(first))
        reliable = (compared >= MIN_HASHES) | (limit == HASH_LIMIT)
        reliable &= common >= np.minimum(compared, 2)  # a single 16-mer occurs in a gigabase by chance
        return np.where(reliable, common / np.maximum(compared, 1), 0)

    def _below(self, records: ndarray, limits: ndarray) -> ndarray:
        """The number of hashes of each record below a limit, by binary search."""
        start, high = self.sketches.offsets[records], self.sketches.offsets[records + 1]
        low = start
        while (active := low < high).any():
            middle = np.where(active, (low + high) // 2, 0)
            below = self.sketches.hashes[middle] < limits
            low, high = np.where(active & below, middle + 1, low), np.where(active & ~below, middle, high)
        return np.asarray(low - start)
