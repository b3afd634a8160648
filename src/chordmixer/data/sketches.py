"""Sketches: a few hashes of a record's k-mers, by which near-copies are found without comparing letters.

A sketch is the `size` smallest hashes of a record's k-mers (MinHash), and beside them every hash below a limit that
all records have in common, so that a fragment of a hundred letters is still seen inside a genome of millions. Of DNA,
a k-mer and its reverse complement are one. `neighbours` compares sketches and says what that finds and what not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from numpy import ndarray

from chordmixer.data.kmers import LETTERS, RADIX, chunks, complement, mix, whole, windows

HASHES = 8_000_000
"""About how many hashes the sketches of a data set may hold for its long records, and twice as many for all."""
CHUNK = 2_000_000
"""Tokens that are hashed at a time."""

_BITS = 48
WHOLE = 1 << _BITS
"""All hashes are below it."""


@dataclass(frozen=True)
class SketchConfig:
    """What near means; the defaults are for DNA.

    >>> SketchConfig.of("protein").k
    6
    """

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
            raise ValueError(
                f"{kind!r} cannot be compared by k-mers: the kinds are {', '.join(configs)}; give groups"
            )
        return configs[kind]


@dataclass(frozen=True)
class Sketches:
    """The sketches of many records, end to end."""

    hashes: ndarray
    """Of each record in ascending order."""
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


def sketch(tokens: ndarray, k: int = 16, size: int = 256, canonical: bool = True, every: int = 1 << 20) -> ndarray:
    """The `size` smallest hashes of the record's k-mers, and all others below the `every`-th part of the range.

    >>> dna = np.array([0, 1, 2, 3, 3, 0, 2, 2], dtype=np.uint8)
    >>> sketch(dna, k=4, size=3).shape, bool((sketch(dna, k=4) == sketch(complement(dna), k=4)).all())
    ((3,), True)
    """
    return sketch_all([tokens], SketchConfig(k, size, canonical=canonical), every).hashes


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
