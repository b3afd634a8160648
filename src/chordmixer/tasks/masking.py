"""Pre-training without labels: tokens of a user's files are masked and predicted from the others.

Records are read whole, or as random segments. Segments and masks of training are drawn anew in every epoch; those of
validation and test are fixed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray
from torch import Tensor

from chordmixer.config import LONGEST, MANY, check_numbers
from chordmixer.data import draws
from chordmixer.data.entries import Account
from chordmixer.data.loading import Record, as_tensor
from chordmixer.data.reading import FILES
from chordmixer.data.splits import PARTS, SplitConfig
from chordmixer.data.store import Store
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.tasks.files import KINDS, StoreConfig, split_store
from chordmixer.tasks.masks import Markov, MaskedTokens, baselines


class TokenRanges(NamedTuple):
    """Ranges of consecutive tokens in a store, usually whole records."""

    records: ndarray
    """The record number of each range."""
    starts: ndarray
    """The index of each range's first token in the store's `values`."""
    lengths: ndarray


Draws = tuple[Int[Tensor, "n"], Int[Tensor, "n"]]
"""Keys of an epoch's masks, and positions of its segments among all positions for their lengths, by index."""


class WholeRecords:
    """The token ranges of one part as records. The target of each is the key of its mask, drawn for each epoch.

    All random numbers are a function of (seed, part, index, epoch), so that a run can be resumed.
    """

    def __init__(self, store: Store, ranges: TokenRanges, seed: int, part: str) -> None:
        self.store, self.ranges, self.part = store, ranges, part
        self.key = draws.key(seed, "masking", part)
        self._set_lengths(ranges.lengths.tolist(), torch.ones(len(ranges.lengths), dtype=torch.long))

    def _set_lengths(self, lengths: list[int], limits: Int[Tensor, "n"]) -> None:
        self.lengths, self.limits = lengths, limits
        self.first = self._draw(0)
        self.epoch, self.current = 0, self.first

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        """The record as drawn in the first epoch."""
        return self.drawn(index, 0)

    def drawn(self, index: int, epoch: int) -> Record:
        """The sequence of an epoch, and the key of its mask."""
        if epoch != self.epoch:
            self.epoch, self.current = epoch, self._draw(epoch)
        start = self._locate(index, self.current)[1]
        return Record(as_tensor(self.store.values[start : start + self.lengths[index]]), self.current[0][index])

    def name(self, index: int) -> str:
        """The record's id, with the first and last token (from 1) if it is only a part of the record."""
        number, start = self._locate(index, self.first)
        record, length = int(self.ranges.records[number]), self.lengths[index]
        if length == self.store.lengths[record]:
            return self.store.id(record)
        before = start - int(self.store.offsets[record])
        return f"{self.store.id(record)}:{before + 1}-{before + length}"

    def _draw(self, epoch: int) -> Draws:
        index = torch.arange(len(self.lengths))
        masks = draws.bits(draws.key(self.key, "masks", epoch), index)
        return masks, draws.below(draws.key(self.key, "places", epoch), index, self.limits)

    def _locate(self, index: int, drawn: Draws) -> tuple[int, int]:
        """The range's number, and the index in the store where reading starts."""
        return index, int(self.ranges.starts[index])


class SegmentRecords(WholeRecords):
    """Random segments of token ranges. Each index has a fixed length and kind; the position is drawn for each epoch.

    Kinds are groups of ranges, such as files. All positions where a segment of its length fits into a range of its
    kind are equally probable. A kind with n such positions is chosen in proportion to n ** balance; with 1, all
    positions of all kinds are equally probable.
    """

    def __init__(
        self, store: Store, ranges: TokenRanges, seed: int, part: str, count: int, shortest: int, longest: int,
        kinds: ndarray | None = None, balance: float = 1.0,
    ) -> None:  # fmt: skip
        kinds = np.zeros(len(ranges.lengths), np.int64) if kinds is None or balance == 1 else kinds
        order = np.lexsort((-ranges.lengths, kinds))
        super().__init__(store, TokenRanges(*(column[order] for column in ranges)), seed, part)
        lengths = log_uniform(draws.key(self.key, "lengths"), count, shortest, longest)
        self.ends = torch.from_numpy(np.concatenate([[0], np.cumsum(self.ranges.lengths)]))
        """Number of tokens before each range."""
        starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        """The index of the first, longest range of each kind."""
        firsts = torch.from_numpy(starts)[:, None]
        by_kind = np.split(-self.ranges.lengths, starts[1:])  # negative, longest first
        fitting = torch.stack([torch.from_numpy(np.searchsorted(k, -lengths.numpy(), "right")) for k in by_kind])
        places = self.ends[firsts + fitting] - self.ends[firsts] - (lengths - 1) * fitting
        kind = self._draw_kinds(places, balance)[None]
        self.firsts, self.fitting = firsts[kind[0], 0], fitting.gather(0, kind)[0]
        """For each segment, the first range of its kind, and how many ranges from there on are long enough."""
        self._set_lengths(lengths.tolist(), places.gather(0, kind)[0])

    def name(self, index: int) -> str:
        """A number for segments of training, which differ in each epoch."""
        return f"{self.part}-{index}" if self.part == "training" else super().name(index)

    def _draw_kinds(self, places: Int[Tensor, "kinds n"], balance: float) -> Int[Tensor, "n"]:
        """Draw the kind of each segment, once for all epochs, among those in which it fits."""
        shares = torch.where(places > 0, places.double() ** balance, 0.0).cumsum(0)
        drawn = draws.uniform(draws.key(self.key, "kinds"), torch.arange(places.shape[1])).double().add_(1).div_(2)
        return (shares <= drawn * shares[-1]).sum(0)

    def _locate(self, index: int, drawn: Draws) -> tuple[int, int]:
        position, lost, first = int(drawn[1][index]), self.lengths[index] - 1, int(self.firsts[index])

        def before(number: int) -> int:
            """Number of positions in earlier ranges of the kind; the last `lost` tokens of each are no positions."""
            return int(self.ends[number] - self.ends[first]) - lost * (number - first)

        fitting = range(first, first + int(self.fitting[index]))
        number = fitting[bisect_right(fitting, position, key=before) - 1]
        return number, int(self.ranges.starts[number]) + position - before(number)


def log_uniform(key: int, count: int, shortest: int, longest: int) -> Int[Tensor, "n"]:
    """Random log-uniform lengths: each doubling within the range is equally probable.

    >>> log_uniform(draws.key(1), 5, 64, 1024).tolist()
    [77, 84, 467, 630, 368]
    """
    share = draws.uniform(key, torch.arange(count)).double().add_(1).div_(2)
    return (shortest * ((longest + 1) / shortest) ** share).long().clamp_(shortest, longest)


def mean_length(shortest: int, longest: int) -> float:
    """The mean of log-uniform lengths."""
    return float(shortest) if longest == shortest else (longest - shortest) / math.log(longest / shortest)


REPORTED_LETTERS = 32
"""Number of the most common letters of training for which metrics are reported."""
MAX_HELD_OUT = 2_000
"""Maximum number of segments of validation, and of test."""
MIN_TOKENS = 2
"""Minimum tokens of a record: one to mask, one to predict it from."""


@dataclass(frozen=True)
class MaskingConfig(StoreConfig):
    """Settings of pre-training: files, segments and masks. One or two records are cut into the three parts."""

    share: float = 0.3
    """Share of the tokens that are masked. Default 0.3, as in the paper."""
    span: float | None = None
    """Mean length of a run of masked tokens, at least 1 / (1 - share). Default None: each is masked independently."""
    pieces: Literal["auto", "segments", "whole"] = "auto"
    """Train on segments or whole records. `auto`: segments if most tokens are in records longer than `longest`."""
    shortest: int = 64
    """Minimum length of a segment in tokens; lengths are log-uniform."""
    longest: int = 16_384
    """Maximum length of a segment in tokens; at most the length of the longest record."""
    segments: int = 0
    """Number of segments per epoch. Default 0: as many as have the tokens of the training part. Validation and test
    have as many as have the tokens of their part, at most 2,000."""
    balance: float = 1.0
    """Weight of a file's size: a segment that fits at n positions of a file is drawn from it in proportion to
    n ** balance; 0: equally often from each file. Validation and test always use 1."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share={self.share} is not a part of the tokens: give more than 0 and less than 1")
        if self.span is not None and not self.span * (1 - self.share) >= 1:
            raise ValueError(
                f"span={self.span} is shorter than runs that come about by chance, of {1 / (1 - self.share):.2f} "
                f"tokens at share={self.share}: give more, or leave it out"
            )
        if not MIN_TOKENS <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest={self.shortest} and longest={self.longest} are not in this order, or below {MIN_TOKENS}: "
                "correct them"
            )
        if not 0 <= self.balance <= 1:
            raise ValueError(
                f"balance={self.balance:g} is not between 0, where all files count alike, and 1, where they count by "
                "size: give such a number"
            )
        check_numbers(self, longest=(MIN_TOKENS, LONGEST), segments=(0, MANY), span=(1, LONGEST))


class Masking:
    """The task: predict the masked tokens of each sequence."""

    Config = MaskingConfig
    embedding = "tokens"
    complement = None
    keeps_validation = False

    def __init__(self, config: MaskingConfig) -> None:
        reading = config.reading if config.balance == 1 else replace(config.reading, labels=FILES)
        self.store, key = config.open_store(reading)
        self.config = replace(config, key=key)
        _check_tokenizer(self.store.tokenizer)
        self.ranges, self.method = _split_spans(self.store, config.split)
        lengths = np.concatenate([part.lengths for part in self.ranges.values()])
        mostly_long = 2 * lengths[lengths > config.longest].sum() > lengths.sum()
        self.segmented = config.pieces == "segments" or (config.pieces == "auto" and bool(mostly_long))
        if config.balance != 1 and not self.segmented:
            raise ValueError(
                f"balance={config.balance:g} is of segments, and here whole records are read, each once: set "
                "data.pieces=segments, or leave it out"
            )
        self._records = {part: self._pieces(part) for part in PARTS}
        self.max_length = max(max(records.lengths) for records in self._records.values())
        self.inputs = self.store.tokenizer.size + 1

    @cached_property
    def target(self) -> MaskedTokens:
        tokenizer, counts = self.store.tokenizer, np.zeros(self.store.tokenizer.size, np.int64)
        for tokens in self.tokens("training"):
            counts += np.bincount(tokens, minlength=len(counts))
        counts[tokenizer.certain :] = 0  # unknown letters are never predicted
        common = np.sort(np.argsort(-counts, kind="stable")[:REPORTED_LETTERS])
        letters = {_letter_name(tokenizer, int(id)): int(id) for id in common if counts[id]}
        frequencies = (counts / max(counts.sum(), 1)).tolist()
        config = self.config
        return MaskedTokens(tokenizer.size, tokenizer.certain, tuple(frequencies), letters, config.share, config.span)

    def records(self, split: str) -> WholeRecords:
        """The records of `training`, `validation` or `test`."""
        return self._records[split]

    def tokens(self, part: str) -> Iterator[ndarray]:
        """The token ids of each range of a part."""
        ranges = self.ranges[part]
        return (self.store.values[a : a + n] for a, n in zip(ranges.starts, ranges.lengths, strict=True))

    def baselines(self) -> list[Markov]:
        """Markov chains fitted on the training part."""
        return baselines(self.tokens("training"), self.store.tokenizer.size)

    @property
    def account(self) -> Account:
        """The account of reading: records of one token are rejected, those too short for a segment are noted."""
        short = [self.store.id(int(i)) for i in np.flatnonzero(self.store.lengths < MIN_TOKENS)]
        account = self.store.account.without(short, "of a single token")
        shorter = self.store.lengths[self.store.lengths >= MIN_TOKENS] < self.config.shortest
        if self.segmented and shorter.any():
            note = f"records below {self.config.shortest:,} tokens, of which no segment is drawn"
            account.notes[note] = int(shorter.sum())
        return account

    def documents(self) -> dict[str, dict[str, Any]]:
        """The contents of tokenizer.json and data.json."""
        sizes = {part: len(ranges.starts) for part, ranges in self.ranges.items()}
        pieces = {part: len(records.lengths) for part, records in self._records.items()}
        about = {
            "format": 1,
            "sources": self.store.sources,
            "account": vars(self.account),
            "target_type": "masked tokens",
            "split": self.config.split.describe(self.method, sizes),
            "segments" if self.segmented else "whole": pieces,
        }
        return {"tokenizer.json": self.store.tokenizer.to_json(), "data.json": about}

    def _pieces(self, part: str) -> WholeRecords:
        ranges, config = self.ranges[part], self.config
        if not self.segmented:
            return WholeRecords(self.store, ranges, config.seed, part)
        longest = min(config.longest, int(ranges.lengths.max()))
        if longest < config.shortest:
            raise ValueError(
                f"the longest record of the {part} part has {longest:,} tokens, below shortest={config.shortest:,}: "
                f"give longer records, set data.shortest={longest} or less, or data.pieces=whole"
            )
        count = round(int(ranges.lengths.sum()) / mean_length(config.shortest, longest)) or 1
        count = (config.segments or count) if part == "training" else min(count, MAX_HELD_OUT)
        kinds = None
        if part == "training" and config.balance != 1:
            kinds = np.unique(self.store.column("label")[ranges.records], return_inverse=True)[1]
        bounds = (count, config.shortest, longest)
        return SegmentRecords(self.store, ranges, config.seed, part, *bounds, kinds, config.balance)


def _split_spans(store: Store, config: SplitConfig) -> tuple[dict[str, TokenRanges], str]:
    """The token ranges of each part and the method: whole records, or parts of them if there are too few records."""
    numbers = np.flatnonzero(store.lengths >= MIN_TOKENS)
    if not len(numbers):
        raise ValueError("no record has two tokens or more: one is masked and one needed to infer it; give others")
    starts, lengths = store.offsets[:-1], store.lengths
    if len(numbers) < len(PARTS) and config.method in ("auto", "random"):
        edges = np.rint(np.cumsum([0.0, *config.fractions]) * lengths[numbers, None]).astype(np.int64)
        thirds = {
            part: TokenRanges(numbers, starts[numbers] + edges[:, k], edges[:, k + 1] - edges[:, k])
            for k, part in enumerate(PARTS)
        }
        if min(int(ranges.lengths.min()) for ranges in thirds.values()) < MIN_TOKENS:
            raise ValueError(f"{len(numbers)} records are too few and too short to cut in three: give more records")
        return thirds, "stretches"
    parts = split_store(store, numbers, [""] * len(numbers), config)
    records = {part: numbers[indices] for part, indices in parts.parts.items()}
    return {
        part: TokenRanges(chosen, starts[chosen], lengths[chosen]) for part, chosen in records.items()
    }, parts.method


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    if tokenizer.name not in KINDS:
        raise ValueError(
            f"{tokenizer.name} have no vocabulary to choose a masked token from: pre-training takes letters and "
            "text; train on series directly"
        )
    if getattr(tokenizer, "k", 1) > getattr(tokenizer, "stride", 1):
        raise ValueError("kmers overlap, so that a masked word can be read off its neighbours: give --tokenizer dna")


def _letter_name(tokenizer: Tokenizer, id: int) -> str:
    """A readable name of a letter; non-printable ones by their code."""
    text = chr(id) if tokenizer.name == "bytes" and id < 128 else tokenizer.decode(np.array([id]))
    if tokenizer.name == "bytes" and id >= 128:
        return f"\\x{id:02x}"
    return text if text.isprintable() and not text.isspace() else "space" if text == " " else ascii(text)[1:-1]
