"""The Adding problem with variable lengths (paper, section 4.1): find two marked numbers and predict their sum.

Sequences are generated on access, as a function of (seed, index), so that a base length of 128,000 needs no 100 GB
file and gives the same data on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from chordmixer.config import MANY, check_numbers
from chordmixer.data import draws
from chordmixer.data.loading import Record
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Regression

LONGEST = {200: 6_700, 1_000: 31_800, 16_000: 242_400, 128_000: 1_500_000}  # in the paper, by base length


@dataclass(frozen=True)
class AddingConfig:
    """Settings of the Adding problem. A size of 0 stands for the paper's size at that base length."""

    base_length: int = 200
    """Lambda: lengths are lambda times a log-normal number; their median is 1.65 lambda."""
    min_length: int = 32
    """Shortest sequence; shorter lengths are drawn again."""
    max_length: int = 0
    """Longest sequence; longer lengths are drawn again. 0: the paper's, or 32 lambda for other base lengths."""
    training: int = 0
    """Number of training sequences; 0: 50,000, or 10,000 from base length 100,000 on."""
    validation: int = 0
    """Number of validation sequences; 0: a tenth of the paper's training size."""
    test: int = 0
    """Number of test sequences; 0: a tenth of the paper's training size."""
    seed: int = 0
    """Seed of the data."""

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("training", "validation", "test", "max_length"), (0, MANY))
        check_numbers(self, **sizes, base_length=(1, MANY))
        if not 2 <= self.min_length <= self.longest:
            raise ValueError(
                f"lengths from {self.min_length} to {self.longest} are not a range of at least 2 tokens: "
                "give min_length of 2 or more, and max_length above it"
            )
        typical = 1.65 * self.base_length
        if not self.min_length / 8 < typical < self.longest * 8:
            raise ValueError(
                f"base_length={self.base_length} puts the median length at {typical:.0f}, far from the range "
                f"{self.min_length} to {self.longest}: draws would never end; move the base length or the range"
            )

    @property
    def longest(self) -> int:
        return self.max_length or LONGEST.get(self.base_length, 32 * self.base_length)

    @property
    def sizes(self) -> dict[str, int]:
        paper = 50_000 if self.base_length < 100_000 else 10_000
        part = paper // 10
        return {"training": self.training or paper, "validation": self.validation or part, "test": self.test or part}


class Adding:
    """The task: two real channels in, one number out, counted as correct within 0.04."""

    Config = AddingConfig
    embedding = "real"
    inputs = 2
    target = Regression(tolerance=0.04)
    complement = None
    keeps_validation = False

    def __init__(self, config: AddingConfig) -> None:
        self.config = config
        self.max_length = config.longest

    def records(self, split: str) -> AddingRecords:
        return AddingRecords(self.config, split)

    def documents(self) -> dict[str, dict[str, Any]]:
        return {}


class AddingRecords:
    """The sequences of one split."""

    def __init__(self, config: AddingConfig, split: str) -> None:
        self.split = split
        key = draws.key(config.seed, "adding", split)
        lengths = _lengths(config, config.sizes[split], key)
        index = torch.arange(len(lengths)) * 4
        first = draws.below(key, index, lengths)
        second = draws.below(key, index + 1, lengths - 1)
        self.lengths: list[int] = lengths.tolist()
        self.marks = torch.stack([first, second + (second >= first)], dim=1)
        self.keys = draws.bits(key, index + 2)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        inputs, targets = self.batch([index], torch.device("cpu"))
        return Record(inputs.values, targets[0])

    def batch(self, indices: Sequence[int], device: torch.device) -> tuple[Packed, Float[Tensor, "B"]]:
        """Generate sequences: a ~ U(-1, 1) in channel 0, marks in channel 1; the target is 0.5 + (a1 + a2) / 4."""
        lengths = [self.lengths[i] for i in indices]
        chosen = torch.tensor(indices)
        token = Packed.from_lengths(torch.arange(sum(lengths), device=device), lengths)
        starts, marks = token.offsets[:-1], self.marks[chosen].to(device, non_blocking=True)
        key_and_start = torch.stack([self.keys[chosen].to(device, non_blocking=True), starts], dim=1)
        key_and_start = key_and_start.repeat_interleave(token.offsets.diff(), 0, output_size=token.tokens)
        numbers = draws.uniform(key_and_start[:, 0], token.values - key_and_start[:, 1])
        marked = marks + starts[:, None]
        values = torch.stack([numbers, torch.zeros_like(numbers).index_fill_(0, marked.flatten(), 1.0)], dim=1)
        return token.with_values(values), 0.5 + numbers[marked].sum(1) / 4

    def name(self, index: int) -> str:
        return f"{self.split}-{index}"


def _lengths(config: AddingConfig, count: int, key: int) -> Int[Tensor, "n"]:
    """Draw lengths N = round(lambda * LogNormal(0.5, 0.7)); lengths outside the range are drawn again."""
    lengths = torch.zeros(count, dtype=torch.int64)
    attempt = 0
    while len(missing := (lengths == 0).nonzero().squeeze(1)):
        counter = -(missing * 1_000 + attempt) - 2  # negative, so that no other draw has the same counter
        stretch = draws.normal(key, counter).mul_(0.7).add_(0.5).exp_()
        drawn = (config.base_length * stretch).round_().long()
        inside = (drawn >= config.min_length) & (drawn <= config.longest)
        lengths[missing] = torch.where(inside, drawn, 0)
        attempt += 1
    return lengths
