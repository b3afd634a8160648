"""What was measured: the outcome of a case, also where it ran out of memory or time, or crashed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OURS = "chordmixer"
"""The encoder that the others are compared with."""


@dataclass(frozen=True)
class Phase:
    """Inference, or training: forward, backward, AdamW."""

    milliseconds: float
    """A sequence."""
    tokens_per_second: float
    """Useful ones: padding is not counted."""
    peak: int | None
    """Bytes; None where the system does not tell."""
    rounds: int
    """Over all batches; the time is their median."""
    spread: float = 0.0
    """Of the middle half of the rounds, as a share of the median."""


@dataclass(frozen=True)
class Result:
    """An encoder at a setting: as many of its numbers as there are, and what ended it early."""

    encoder: str
    setting: str
    parameters: int | None = None
    """Weights of the whole model, embedding and head with it."""
    receptive_field: int | None = None
    """Tokens that can change one token's output; None: all."""
    difference: float | None = None
    """Between outputs alone and in a batch."""
    padded: float | None = None
    """Share of the places of padded rows that hold no token."""
    inference: Phase | None = None
    training: Phase | None = None
    longest_inference: Phase | None = None
    """Of the longest sequence alone, where no batch holds it."""
    longest_training: Phase | None = None
    failed: str = ""
    """What ended it: out of memory, time limit, crashed, wrong, refused, error; empty: nothing did."""
    stage: str = ""
    """The last that was begun."""
    message: str = ""
    """What was said at the end."""
    limit: float | None = None
    """Seconds after which it was stopped; None: it was not."""
    seconds: float = 0.0
    """That all of it took."""

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
    phase: str
    """Inference or training."""
    length: int = 0
    """0: not even the first was possible."""
    seconds: float | None = None
    """Of that sequence, not warmed up."""
    peak: int | None = None
    failed: str = ""
    """What ended the search; empty: nothing did, and no longer one was tried."""
    stage: str = ""
    message: str = ""
    limit: float | None = None
    """Seconds after which it was stopped; None: it was not."""


def ratio(value: float | None, ours: float | None) -> float | None:
    """Of a number to ChordMixer's; None where one is missing."""
    return None if value is None or not ours else value / ours


def ours(results: Iterable[Result], setting: str) -> Result | None:
    """ChordMixer's own result at a setting."""
    return next((r for r in results if (r.encoder, r.setting) == (OURS, setting)), None)
