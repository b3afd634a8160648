"""A limit on the minutes that a run trains for: the same for a fast and a slow encoder, to compare them fairly."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from chordmixer.training.checkpoints import State


class Budget:
    """What is spent of it. Validation, checkpoints and the test set are free, and time before a kill counts."""

    def __init__(self, minutes: float, state: State, ranks: int) -> None:
        """No limit with 0 minutes."""
        if minutes and ranks > 1:
            raise ValueError(
                f"minutes={minutes:g} on {ranks} processes is not possible, since their clocks differ: set "
                "training.minutes=0, or use one process"
            )
        self.seconds, self.state = 60 * minutes, state

    @contextmanager
    def counting(self) -> Iterator[None]:
        """What is done here counts; without a limit nothing is measured, so that runs stay the same to the byte."""
        start = time.monotonic()
        yield
        if self.seconds:
            self.state.seconds += time.monotonic() - start

    @property
    def spent(self) -> float:
        """The share of the budget, 1 at most."""
        return min(self.state.seconds / self.seconds, 1.0) if self.seconds else 0.0

    def said(self) -> Iterator[str]:
        """What a user should know at the start."""
        if self.seconds:
            yield f"it trains for {self.seconds / 60:g} min at most, {self.state.seconds / 60:.1f} of them spent"
