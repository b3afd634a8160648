"""A limit on the steps of a run, or on the minutes that it trains for, beside the number of its epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from chordmixer.training.checkpoints import State
from chordmixer.training.experiment import TrainingConfig


class Budget:
    """What is spent of it. Validation, checkpoints and the test set are free, and time before a kill counts."""

    def __init__(self, config: TrainingConfig, state: State, ranks: int) -> None:
        """No limit where the config has neither `steps` nor `minutes`."""
        if config.minutes and ranks > 1:
            raise ValueError(
                f"minutes={config.minutes:g} on {ranks} processes is not possible, since their clocks differ: set "
                "training.minutes=0, or use one process"
            )
        self.steps, self.seconds, self.state = config.steps, 60 * config.minutes, state

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
        if self.steps:
            return min(self.state.step / self.steps, 1.0)
        return min(self.state.seconds / self.seconds, 1.0) if self.seconds else 0.0

    def said(self) -> Iterator[str]:
        """What a user should know at the start."""
        if self.steps:
            yield f"it trains for {self.steps:,} steps at most, {self.state.step:,} of them taken"
        if self.seconds:
            yield f"it trains for {self.seconds / 60:g} min at most, {self.state.seconds / 60:.1f} of them spent"
