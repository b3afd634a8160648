"""Settings of a benchmark (lengths, device, precision, limits) and its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from chordmixer import ops
from chordmixer.paper.adding import AddingConfig, AddingRecords
from chordmixer.training.devices import choose_device
from chordmixer.training.experiment import TrainingConfig

SEQUENCES, DRAWS = 20, 2_000  # timed sequences at a base length (about), and draws for quantiles of their lengths
PhaseName = Literal["inference", "training"]


@dataclass(frozen=True)
class BenchConfig:
    """How encoders are measured."""

    batch: int = 5
    """Sequences per batch; the paper trains with 2, 5 and 10."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto`: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products; `auto`: bf16 on a GPU, fp32 on a CPU."""
    backend: Literal["auto", "torch", "triton"] = "auto"
    """Backend of ChordMixer's operations; `auto`: Triton on a GPU if it is installed."""
    time_limit: float = 300.0
    """Seconds per encoder and setting; reaching the limit is recorded as the result."""
    memory_limit: float = 0.0
    """Memory limit of an encoder in gigabytes; 0: all free memory."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch={self.batch} is too small: give 1 or more")
        if not self.time_limit > 0:
            raise ValueError(f"time_limit={self.time_limit:g} is not above zero: give seconds")
        if not self.memory_limit >= 0:
            raise ValueError(f"memory_limit={self.memory_limit:g} is below zero: give gigabytes, or 0 for all free")

    def here(self) -> BenchConfig:
        """Replace `auto` by the values for this machine; refuse settings that it does not support."""
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
    batches: tuple[tuple[int, ...], ...]  # sequence lengths of each timed batch
    longest: int  # maximum length of the networks; measured alone, for its memory, if no batch has it
    base_length: int | None = None  # the Adding problem's lambda; None: a fixed length

    @property
    def has_longest(self) -> bool:
        """Whether a batch holds a sequence of the longest length."""
        return any(self.longest in batch for batch in self.batches)


@dataclass(frozen=True)
class Case:
    """One encoder, measured in one process: its times at a setting, or the longest sequence that it can process."""

    encoder: str
    home: str  # `module:Class`, so that user-defined encoders are found in the other process
    config: BenchConfig
    setting: Setting | None = None  # None: search for the longest sequence
    phase: PhaseName = "training"  # phase of that search
    threads: int = 1  # on a CPU

    @property
    def key(self) -> tuple[str, str]:
        """Key of its result."""
        return self.encoder, self.setting.name if self.setting else self.phase


def adding(base_length: int, batch: int) -> Setting:
    """Lengths at quantiles of the Adding problem's distribution, short and long ones in every batch.

    >>> adding(200, batch=5).batches[0], adding(200, batch=5).longest
    ((90, 197, 291, 411, 616), 6700)
    """
    config = AddingConfig(base_length, training=DRAWS)
    draws = sorted(AddingRecords(config, "training").lengths)
    batches = max(1, round(SEQUENCES / batch))
    step = DRAWS / (batches * batch)
    lengths = [draws[int((i + 0.5) * step)] for i in range(batches * batch)]
    batched = tuple(tuple(lengths[i::batches]) for i in range(batches))
    return Setting(f"base length {base_length:,}", batched, config.longest, base_length)


def fixed(length: int, batch: int) -> Setting:
    """A batch of sequences of equal length."""
    if length < 1:
        raise ValueError(f"length {length} is too small: give 1 or more")
    return Setting(f"length {length:,}", ((length,) * batch,), length)


def settings(base_lengths: Iterable[int], lengths: Iterable[int], batch: int) -> list[Setting]:
    """One setting per base length, then one per fixed length."""
    return [*(adding(base, batch) for base in base_lengths), *(fixed(length, batch) for length in lengths)]


REFERENCE = "chordmixer"  # the encoder that the others are compared with


@dataclass(frozen=True)
class Phase:
    """Time and memory of inference, or of training (forward, backward, AdamW)."""

    milliseconds: float  # per sequence
    tokens_per_second: float  # without padding
    peak: int | None  # bytes; None if the system does not report it
    rounds: int  # passes over all batches; the time is their median
    spread: float = 0.0  # interquartile range of the rounds, divided by the median


@dataclass(frozen=True)
class Result:
    """Measurements of an encoder at a setting, incomplete if something ended them early."""

    encoder: str
    setting: str
    parameters: int | None = None  # of the whole model with embedding and head
    receptive_field: int | None = None  # tokens that can change one token's output; None: all
    difference: float | None = None  # between outputs alone and in a batch, relative
    padded: float | None = None  # share of padding in padded rows
    inference: Phase | None = None
    training: Phase | None = None
    longest_inference: Phase | None = None  # of the longest sequence alone, if no batch has it
    longest_training: Phase | None = None
    failed: str = ""  # out of memory, time limit, crashed, wrong, refused or error; empty: complete
    stage: str = ""  # the last stage that was started
    message: str = ""  # error message
    limit: float | None = None  # seconds after which it was stopped; None: not stopped
    seconds: float = 0.0  # total duration

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
        """Milliseconds per sequence."""
        measured: Phase | None = getattr(self, phase)
        return measured.milliseconds if measured else None

    def peak(self, phase: str) -> int | None:
        """Peak memory in bytes, including the longest sequence."""
        both = (getattr(self, phase), getattr(self, f"longest_{phase}"))
        return max((p.peak for p in both if p and p.peak is not None), default=None)


@dataclass(frozen=True)
class Reach:
    """The longest sequence that an encoder can process, found by doubling the length."""

    encoder: str
    phase: str  # inference or training
    length: int = 0  # 0: the first length failed
    seconds: float | None = None  # for that sequence, without warm-up
    peak: int | None = None
    failed: str = ""  # what ended the search; empty: the longest length tried succeeded
    stage: str = ""
    message: str = ""
    limit: float | None = None  # seconds after which it was stopped; None: not stopped

    @property
    def key(self) -> tuple[str, str]:
        return self.encoder, self.phase


def ratio(value: float | None, reference: float | None) -> float | None:
    """Ratio of a number to ChordMixer's; None if one is missing."""
    return None if value is None or not reference else value / reference


def chordmixer_result(results: Iterable[Result], setting: str) -> Result | None:
    """ChordMixer's result at a setting, if it was measured."""
    return next((r for r in results if r.key == (REFERENCE, setting)), None)
