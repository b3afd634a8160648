"""Pre-training without labels: tokens of a user's own files are masked and inferred from the rest.

Records are read whole, or as segments of long ones. Training draws segments and masks anew in every epoch; validation
and test always have the same.
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

from chordmixer.config import LONGEST, MAX_RECORDS, check_numbers
from chordmixer.data import draws
from chordmixer.data.entries import Account
from chordmixer.data.loading import Record, as_tensor
from chordmixer.data.reading import FILES
from chordmixer.data.splits import PARTS, SplitConfig
from chordmixer.data.store import Store
from chordmixer.data.tokenizers import Tokenizer
from chordmixer.tasks.files import KINDS, StoreConfig, split_store
from chordmixer.tasks.masks import Markov, MaskedTokens, baselines


class Stretches(NamedTuple):
    """Consecutive tokens of a store, whole records as a rule."""

    records: ndarray
    """The number of the record that each is of."""
    starts: ndarray
    """Their first tokens in the store's `values`."""
    lengths: ndarray


Drawn = tuple[Int[Tensor, "n"], Int[Tensor, "n"]]
"""By index: the key of an epoch's mask, and the position of a segment among all positions for its length."""


class WholeRecords:
    """The stretches of one part as they are. The target of each is the key of its mask, drawn for each epoch.

    All that is drawn is a function of (seed, part, index, epoch), so that a run can be resumed.
    """

    def __init__(self, store: Store, own: Stretches, seed: int, part: str) -> None:
        self.store, self.own, self.part = store, own, part
        self.key = draws.key(seed, "masking", part)
        self._hold(own.lengths.tolist(), torch.ones(len(own.lengths), dtype=torch.long))

    def _hold(self, lengths: list[int], limits: Int[Tensor, "n"]) -> None:
        self.lengths, self.limits = lengths, limits
        self.first = self._draw(0)
        self.epoch, self.latest = 0, self.first

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        """The record as in the first epoch."""
        return self.drawn(index, 0)

    def drawn(self, index: int, epoch: int) -> Record:
        """The sequence of this epoch, and its mask's key."""
        if epoch != self.epoch:
            self.epoch, self.latest = epoch, self._draw(epoch)
        start = self._where(index, self.latest)[1]
        return Record(as_tensor(self.store.values[start : start + self.lengths[index]]), self.latest[0][index])

    def name(self, index: int) -> str:
        """The record's id; where it is not whole also the first and last token, from 1."""
        number, start = self._where(index, self.first)
        record, length = int(self.own.records[number]), self.lengths[index]
        if length == self.store.lengths[record]:
            return self.store.id(record)
        before = start - int(self.store.offsets[record])
        return f"{self.store.id(record)}:{before + 1}-{before + length}"

    def _draw(self, epoch: int) -> Drawn:
        index = torch.arange(len(self.lengths))
        masks = draws.bits(draws.key(self.key, "masks", epoch), index)
        return masks, draws.below(draws.key(self.key, "places", epoch), index, self.limits)

    def _where(self, index: int, drawn: Drawn) -> tuple[int, int]:
        """Which stretch, and where in the store it is read from."""
        return index, int(self.own.starts[index])


class SegmentRecords(WholeRecords):
    """Segments of the stretches. An index has a length, and a kind; its place is drawn for each epoch.

    Of all places where a segment of this length fits into a stretch of its kind, each has the same chance. A kind
    with n such places is chosen in proportion to n ** balance: with 1, all places of all kinds have the same chance.
    """

    def __init__(
        self, store: Store, own: Stretches, seed: int, part: str, count: int, shortest: int, longest: int,
        kinds: ndarray | None = None, balance: float = 1.0,
    ) -> None:  # fmt: skip
        kinds = np.zeros(len(own.lengths), np.int64) if kinds is None or balance == 1 else kinds
        order = np.lexsort((-own.lengths, kinds))
        super().__init__(store, Stretches(*(column[order] for column in own)), seed, part)
        lengths = log_uniform(draws.key(self.key, "lengths"), count, shortest, longest)
        self.ends = torch.from_numpy(np.concatenate([[0], np.cumsum(self.own.lengths)]))
        """Tokens before each stretch."""
        starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        """The longest stretch of each kind."""
        firsts = torch.from_numpy(starts)[:, None]
        of_kinds = np.split(-self.own.lengths, starts[1:])  # in each the longest first
        fitting = torch.stack([torch.from_numpy(np.searchsorted(own, -lengths.numpy(), "right")) for own in of_kinds])
        places = self.ends[firsts + fitting] - self.ends[firsts] - (lengths - 1) * fitting
        kind = self._kinds(places, balance)[None]
        self.firsts, self.fitting = firsts[kind[0], 0], fitting.gather(0, kind)[0]
        """For each segment, the first stretch of its kind and how many from there on are long enough."""
        self._hold(lengths.tolist(), places.gather(0, kind)[0])

    def name(self, index: int) -> str:
        """Segments of training differ in each epoch, so that they are numbered."""
        return f"{self.part}-{index}" if self.part == "training" else super().name(index)

    def _kinds(self, places: Int[Tensor, "kinds n"], balance: float) -> Int[Tensor, "n"]:
        """Drawn for each segment, once for all epochs; a kind in which it does not fit has no chance."""
        shares = torch.where(places > 0, places.double() ** balance, 0.0).cumsum(0)
        drawn = draws.uniform(draws.key(self.key, "kinds"), torch.arange(places.shape[1])).double().add_(1).div_(2)
        return (shares <= drawn * shares[-1]).sum(0)

    def _where(self, index: int, drawn: Drawn) -> tuple[int, int]:
        place, lost, first = int(drawn[1][index]), self.lengths[index] - 1, int(self.firsts[index])

        def before(stretch: int) -> int:
            """Places in the stretches of its kind before this one; in each the last few tokens are none."""
            return int(self.ends[stretch] - self.ends[first]) - lost * (stretch - first)

        fitting = range(first, first + int(self.fitting[index]))
        stretch = fitting[bisect_right(fitting, place, key=before) - 1]
        return stretch, int(self.own.starts[stretch]) + place - before(stretch)


def log_uniform(key: int, count: int, shortest: int, longest: int) -> Int[Tensor, "n"]:
    """Lengths of which each doubling of the range has as many.

    >>> log_uniform(draws.key(1), 5, 64, 1024).tolist()
    [77, 84, 467, 630, 368]
    """
    share = draws.uniform(key, torch.arange(count)).double().add_(1).div_(2)
    return (shortest * ((longest + 1) / shortest) ** share).long().clamp_(shortest, longest)


def mean_length(shortest: int, longest: int) -> float:
    """The mean of log-uniform lengths."""
    return float(shortest) if longest == shortest else (longest - shortest) / math.log(longest / shortest)


LETTERS = 32
"""The most common letters of training, which have scores of their own."""
HELD_OUT = 2_000
"""Segments of validation, and of test, at most."""
LEAST = 2
"""Tokens of a record: one to mask, one to infer it from."""


@dataclass(frozen=True)
class MaskingConfig(StoreConfig):
    """Which files, how they are cut, and what is masked. Fewer than three records are themselves cut in three."""

    share: float = 0.3
    """Share of the tokens that are masked: 30 % in the paper."""
    span: float | None = None
    """Mean length of a run of masked tokens, 1 / (1 - share) or more; None: each token on its own."""
    pieces: Literal["auto", "segments", "whole"] = "auto"
    """Segments of records, or whole ones; `auto`: segments where most tokens are of records above `longest`."""
    shortest: int = 64
    """Shortest length of a segment; lengths are log-uniform."""
    longest: int = 16_384
    """Longest length of a segment; less if no record is as long."""
    segments: int = 0
    """Of an epoch; 0: as many as have the tokens of the training part. Validation and test have as many as have the
    tokens of their own, and up to 2,000."""
    balance: float = 1.0
    """How much the size of a file counts: where a segment fits at n places of it, it is drawn from there in
    proportion to n ** balance; 0: as often from each file. Validation and test go by size."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share={self.share} is not a part of the tokens: give more than 0 and less than 1")
        if self.span is not None and not self.span * (1 - self.share) >= 1:
            raise ValueError(
                f"span={self.span} is shorter than runs that come about by chance, of {1 / (1 - self.share):.2f} "
                f"tokens at share={self.share}: give more, or leave it out"
            )
        if not LEAST <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest={self.shortest} and longest={self.longest} are not in this order, or below {LEAST}: "
                "correct them"
            )
        if not 0 <= self.balance <= 1:
            raise ValueError(
                f"balance={self.balance:g} is not between 0, where all files count alike, and 1, where they count by "
                "size: give such a number"
            )
        check_numbers(self, longest=(LEAST, LONGEST), segments=(0, MAX_RECORDS), span=(1, LONGEST))


class Masking:
    """The task: find the masked tokens of each sequence."""

    Config = MaskingConfig
    embedding = "tokens"
    complement = None
    keeps_validation = False

    def __init__(self, config: MaskingConfig) -> None:
        reading = config.reading if config.balance == 1 else replace(config.reading, labels=FILES)
        self.store, key = config.open_store(reading)
        self.config = replace(config, key=key)
        _check_tokenizer(self.store.tokenizer)
        self.stretches, self.method = _share_out(self.store, config.split)
        lengths = np.concatenate([own.lengths for own in self.stretches.values()])
        mostly_long = 2 * lengths[lengths > config.longest].sum() > lengths.sum()
        self.segmented = config.pieces == "segments" or (config.pieces == "auto" and bool(mostly_long))
        if config.balance != 1 and not self.segmented:
            raise ValueError(
                f"balance={config.balance:g} is of segments, and here whole records are read, each once: set "
                "data.pieces=segments, or leave it out"
            )
        self._records = {part: self._pieces(part) for part in PARTS}
        self.max_length = max(max(own.lengths) for own in self._records.values())
        self.inputs = self.store.tokenizer.size + 1

    @cached_property
    def target(self) -> MaskedTokens:
        tokenizer, counts = self.store.tokenizer, np.zeros(self.store.tokenizer.size, np.int64)
        for tokens in self.tokens("training"):
            counts += np.bincount(tokens, minlength=len(counts))
        counts[tokenizer.certain :] = 0  # never asked for
        common = np.sort(np.argsort(-counts, kind="stable")[:LETTERS])
        letters = {_name(tokenizer, int(id)): int(id) for id in common if counts[id]}
        frequencies = (counts / max(counts.sum(), 1)).tolist()
        config = self.config
        return MaskedTokens(tokenizer.size, tokenizer.certain, tuple(frequencies), letters, config.share, config.span)

    def records(self, split: str) -> WholeRecords:
        """The records of `training`, `validation` or `test`."""
        return self._records[split]

    def tokens(self, part: str) -> Iterator[ndarray]:
        """The ids of all records of a part, or of what of them belongs to it."""
        own = self.stretches[part]
        return (self.store.values[a : a + n] for a, n in zip(own.starts, own.lengths, strict=True))

    def baselines(self) -> list[Markov]:
        """Markov chains of the same training data."""
        return baselines(self.tokens("training"), self.store.tokenizer.size)

    @property
    def account(self) -> Account:
        """The account of the reading; records of a single token are rejected, those too short for a segment noted."""
        short = [self.store.id(int(i)) for i in np.flatnonzero(self.store.lengths < LEAST)]
        account = self.store.account.without(short, "of a single token")
        shorter = self.store.lengths[self.store.lengths >= LEAST] < self.config.shortest
        if self.segmented and shorter.any():
            note = f"records below {self.config.shortest:,} tokens, of which no segment is drawn"
            account.notes[note] = int(shorter.sum())
        return account

    def documents(self) -> dict[str, dict[str, Any]]:
        """The contents of tokenizer.json and data.json."""
        sizes = {part: len(own.starts) for part, own in self.stretches.items()}
        pieces = {part: len(own.lengths) for part, own in self._records.items()}
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
        own, config = self.stretches[part], self.config
        if not self.segmented:
            return WholeRecords(self.store, own, config.seed, part)
        longest = min(config.longest, int(own.lengths.max()))
        if longest < config.shortest:
            raise ValueError(
                f"the longest record of the {part} part has {longest:,} tokens, below shortest={config.shortest:,}: "
                f"give longer records, set data.shortest={longest} or less, or data.pieces=whole"
            )
        count = round(int(own.lengths.sum()) / mean_length(config.shortest, longest)) or 1
        count = (config.segments or count) if part == "training" else min(count, HELD_OUT)
        kinds = None
        if part == "training" and config.balance != 1:
            kinds = np.unique(self.store.column("label")[own.records], return_inverse=True)[1]
        bounds = (count, config.shortest, longest)
        return SegmentRecords(self.store, own, config.seed, part, *bounds, kinds, config.balance)


def _share_out(store: Store, config: SplitConfig) -> tuple[dict[str, Stretches], str]:
    """The stretches of each part, and how they came about: whole records, unless there are too few of them."""
    numbers = np.flatnonzero(store.lengths >= LEAST)
    if not len(numbers):
        raise ValueError("no record has two tokens or more: one is masked and one needed to infer it; give others")
    starts, lengths = store.offsets[:-1], store.lengths
    if len(numbers) < len(PARTS) and config.method in ("auto", "random"):
        edges = np.rint(np.cumsum([0.0, *config.fractions]) * lengths[numbers, None]).astype(np.int64)
        cut = {
            part: Stretches(numbers, starts[numbers] + edges[:, k], edges[:, k + 1] - edges[:, k])
            for k, part in enumerate(PARTS)
        }
        if min(int(own.lengths.min()) for own in cut.values()) < LEAST:
            raise ValueError(f"{len(numbers)} records are too few and too short to cut in three: give more records")
        return cut, "stretches"
    parts = split_store(store, numbers, [""] * len(numbers), config)
    own = {part: numbers[places] for part, places in parts.parts.items()}
    return {part: Stretches(found, starts[found], lengths[found]) for part, found in own.items()}, parts.method


def _check_tokenizer(tokenizer: Tokenizer) -> None:
    if tokenizer.name not in KINDS:
        raise ValueError(
            f"{tokenizer.name} have no vocabulary to choose a masked token from: pre-training takes letters and "
            "text; train on series directly"
        )
    if getattr(tokenizer, "k", 1) > getattr(tokenizer, "stride", 1):
        raise ValueError("kmers overlap, so that a masked word can be read off its neighbours: give --tokenizer dna")


def _name(tokenizer: Tokenizer, id: int) -> str:
    """How a person knows a letter; those without a shape by their code."""
    text = chr(id) if tokenizer.name == "bytes" and id < 128 else tokenizer.decode(np.array([id]))
    if tokenizer.name == "bytes" and id >= 128:
        return f"\\x{id:02x}"
    return text if text.isprintable() and not text.isspace() else "space" if text == " " else ascii(text)[1:-1]
