"""How long a training step takes, to compare models by: the loop itself, on the data themselves, and nothing else.

Runs that share a device slow each other down, each by another factor. What a model does in a minute is therefore
counted while it is alone, and given to the run as a number of steps: then it may train in any company.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from chordmixer import terminal
from chordmixer.training.experiment import Experiment
from chordmixer.training.loop import Run

WARM, TIMED, LEAST = 1.0, 3.0, 5
"""Seconds before anything is counted, seconds that are, and the fewest steps of either."""


class Pace(NamedTuple):
    """Of a run that has the device for itself."""

    milliseconds: float
    """Of a step, its batch included."""
    an_epoch: int
    """Steps of the first one; others may have a few more or less."""

    def steps(self, minutes: float) -> int:
        """Within so many minutes, at least one.

        >>> Pace(30.0, 781).steps(0.5), Pace(1e6, 781).steps(0.5)
        (1000, 1)
        """
        return max(1, round(60_000 * minutes / self.milliseconds))


def pace(experiment: Experiment) -> Pace:
    """Measured on a device that should do nothing else; kernels are loaded or compiled before it begins."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(experiment, Path(folder) / "run", resume=False, console=terminal.console(quiet=True))
        an_epoch = -(-len(run.loader.sampler.steps) // experiment.training.accumulate)
        steps = _steps(run)
        with run.display:
            _take(run, steps, 0.0, 1)
            _take(run, steps, WARM, LEAST)
            measured = Pace(1e3 * _take(run, steps, TIMED, LEAST), an_epoch)
        run.folder.close()
        del run, steps
        gc.collect()  # its memory is not the next one's
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return measured


def _steps(run: Run) -> Iterator[None]:
    """One after the other, over the epochs."""
    run.wrapped.train()
    while True:
        batches = run.loader.epoch(run.state.epoch)
        while run.state.batch < len(run.loader.sampler.steps):
            run.advance(batches)
            yield
        run.state.epoch, run.state.batch = run.state.epoch + 1, 0


def _take(run: Run, steps: Iterator[None], seconds: float, least: int) -> float:
    """Steps for so many seconds; the seconds of each."""
    start, first = time.perf_counter(), run.state.step
    while run.state.step < first + least or time.perf_counter() < start + seconds:
        next(steps)
    run.settle()  # waits for the device
    return (time.perf_counter() - start) / (run.state.step - first)
