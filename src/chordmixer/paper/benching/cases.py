"""What is measured and how (lengths, device, precision, limits), and the results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from chordmixer import ops
from chordmixer.paper.adding import AddingConfig, AddingRecords
from chordmixer.training.devices import choose_device
from chordmixer.training.experiment import TrainingConfig

SEQUENCES, DRAWN = 20, 2_000  # measured at a base length, about, and draws whose quantiles their lengths are
PhaseName = Literal["inference", "training"]


@dataclass(frozen=True)
class BenchConfig:
    """How encoders are measured."""

    batch: int = 5
    """Sequences of a batch; the paper trains with 2, 5 and 10."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; `auto`: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the matrix products; `auto`: bf16 on a GPU, fp32 on a CPU."""
    backend: Literal["auto", "torch", "triton"] = "auto"
    """Of ChordMixer's operations; `auto`: Triton on a GPU where it is installed."""
    time_limit: float = 300.0
    """Seconds after which an encoder at one setting is stopped, and that is its result."""
    memory_limit: float = 0.0
    """Gigabytes that an encoder may take; 0: all that is free."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is too small: give 1 or more")
        if not self.time_limit > 0:
            raise ValueError(f"time_limit={self.time_limit:g} is not above zero: give seconds")
        if not self.memory_limit >= 0:
            raise ValueError(f"memory_limit={self.memory_limit:g} is below zero: give gigabytes, or 0 for all free")

    def here(self) -> BenchConfig:
        """With this machine's choices in place of `auto`; refused where it cannot do what is asked."""
        device = choose_device(TrainingConfig(device=self.device))
        if self.backend == "triton" and not ops.on_kernels(torch.empty(0, device=device)):
            raise ValueError(
                f"backend='triton' but its kernels do not run on this {device.type}: use backend='auto' or 'torch'"
            )
        cuda = device.type == "cuda"
        half = cuda if self.precision == "auto" else self.precision == "bf16"
        return replace(self, device="cuda" if cuda else "cpu", precision="bf16" if half else "fp32")


@dataclass(frozen=True)
class Setting:
    """The lengths that encoders are measured at."""

    name: str
    batches: tuple[tuple[int, ...], ...]  # lengths of the sequences of each batch that is timed
    longest: int  # what networks are built for; measured alone, for its memory, where no batch has it
    base_length: int | None = None  # the Adding problem's lambda; None: a fixed length

    @property
    def has_longest(self) -> bool:
        """Whether a batch holds a sequence of the longest length."""
        return any(self.longest in batch for batch in self.batches)


@dataclass(frozen=True)
class Case:
    """One encoder in one process: its times at a setting, or how long a sequence it can take."""

    encoder: str
    home: str  # `module:Class`, so that encoders that were added to ENCODERS are found too
    config: BenchConfig
    setting: Setting | None = None  # None: the longest sequence is searched for
    phase: PhaseName = "training"  # in which it is searched for
    threads: int = 1  # of a CPU

    @property
    def key(self) -> tuple[str, str]:
        """That of its result."""
        return self.encoder, self.setting.name if self.setting else self.phase


def adding(base_length: int, batch: int) -> Setting:
    """Quantiles of the Adding problem's lengths, short and long ones in every batch.

    >>> adding(200, batch=5).batches[0], adding(200, batch=5).longest
    ((90, 197, 291, 411, 616), 6700)
    """
    config = AddingConfig(base_length, training=DRAWN)
    drawn = sorted(AddingRecords(config, "training").lengths)
    batches = max(1, round(SEQUENCES / batch))
    step = DRAWN / (batches * batch)
    lengths = [drawn[int((i + 0.5) * step)] for i in range(batches * batch)]
    shared = tuple(tuple(lengths[i::batches]) for i in range(batches))
    return Setting(f"base length {base_length:,}", shared, config.longest, base_length)


def fixed(length: int, batch: int) -> Setting:
    """A batch of sequences that are all of one length."""
    if length < 1:
        raise ValueError(f"length {length} is too small: give 1 or more")
    return Setting(f"length {length:,}", ((length,) * batch,), length)


def settings(base_lengths: Iterable[int], lengths: Iterable[int], batch: int) -> list[Setting]:
    """One for each base length, then one for each fixed length."""
    return [*(adding(base, batch) for base in base_lengths), *(fixed(length, batch) for length in lengths)]


OURS = "chordmixer"  # the encoder that the others are compared with


@dataclass(frozen=True)
class Phase:
    """Inference, or training: forward, backward, AdamW."""

    milliseconds: float  # a sequence
    tokens_per_second: float  # useful ones: padding is not counted
    peak: int | None  # bytes; None where the system does not tell
    rounds: int  # over all batches; the time is their median
    spread: float = 0.0  # of the middle half of the rounds, as a share of the median


@dataclass(frozen=True)
class Result:
    """An encoder at a setting: as many of its numbers as there are, and what ended it early."""

    encoder: str
    setting: str
    parameters: int | None = None  # weights of the whole model, embedding and head with it
    receptive_field: int | None = None  # tokens that can change one token's output; None: all
    difference: float | None = None  # between outputs alone and in a batch
    padded: float | None = None  # share of the places of padded rows that hold no token
    inference: Phase | None = None
    training: Phase | None = None
    longest_inference: Phase | None = None  # of the longest sequence alone, where no batch holds it
    longest_training: Phase | None = None
    failed: str = ""  # what ended it: out of memory, time limit, crashed, wrong, refused, error; empty: nothing did
    stage: str = ""  # the last that was begun
    message: str = ""  # what was said at the end
    limit: float | None = None  # seconds after which it was stopped; None: it was not
    seconds: float = 0.0  # that all of it took

    @property
    def key(self) -> tuple[str, str]:
        return self.encoder, self.setting

    @property
    def verdict(self) -> str:
        """
        >>> Result("lstm", "base length 200", failed="out of memory", stage="training").verdict
        'out of memory in training'
        """
        return f"{self.failed} in {self.stage}" if self.failed and self.stage else self.failed

    def time(self, phase: str) -> float | None:
        """Milliseconds a sequence."""
        own: Phase | None = getattr(self, phase)
        return own.milliseconds if own else None

    def peak(self, phase: str) -> int | None:
        """Bytes, the longest sequence included."""
        both = (getattr(self, phase), getattr(self, f"longest_{phase}"))
        return max((own.peak for own in both if own and own.peak is not None), default=None)


@dataclass(frozen=True)
class Reach:
    """The longest sequence that an encoder can take, found by doubling."""

    encoder: str
    phase: str  # inference or training
    length: int = 0  # 0: not even the first was possible
    seconds: float | None = None  # of that sequence, not warmed up
    peak: int | None = None
    failed: str = ""  # what ended the search; empty: nothing did, and no longer one was tried
    stage: str = ""
    message: str = ""
    limit: float | None = None  # seconds after which it was stopped; None: it was not

    @property
    def key(self) -> tuple[str, str]:
        return self.encoder, self.phase


def ratio(value: float | None, ours: float | None) -> float | None:
    """Of a number to ChordMixer's; None where one is missing."""
    return None if value is None or not ours else value / ours


def ours(results: Iterable[Result], setting: str) -> Result | None:
    """ChordMixer's own result at a setting."""
    return next((r for r in results if r.key == (OURS, setting)), None)
