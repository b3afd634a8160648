"""The pace of a model: steps of the loop itself, counted once they are warm, over as many epochs as it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from chordmixer.paper.reproduction import stopwatch
from chordmixer.training import Experiment, loop


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time by this clock passes only in steps: two seconds for each of the first three, then a quarter."""
    now, taken = [0.0], [0]

    def advance(run: loop.Run, batches: Iterator[object]) -> None:
        whole(run, batches)
        taken[0] += 1
        now[0] += 2.0 if taken[0] <= 3 else 0.25

    whole = loop.Run.advance
    monkeypatch.setattr(loop.Run, "advance", advance)
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_the_first_steps_are_not_counted(tiny: Experiment, clock: list[float]) -> None:
    """One to load, five to warm up, twelve in three seconds: of data that have a few steps an epoch."""
    few = replace(tiny, training=replace(tiny.training, epochs=1))
    pace = stopwatch.pace(few)
    assert pace.milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 3 * 0.25 + 3.0)
    assert 0 < pace.an_epoch < 18, "so that it went on with a second one"
    assert pace.steps(minutes=1) == 240


def test_a_slow_model_takes_five_steps_all_the_same(
    tiny: Experiment, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopwatch, "WARM", 0.0)
    monkeypatch.setattr(stopwatch, "TIMED", 0.0)
    assert stopwatch.pace(tiny).milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 8 * 0.25)


def test_batches_of_a_step_are_counted_as_one(tiny: Experiment, clock: list[float]) -> None:
    alone = stopwatch.pace(tiny)
    summed = stopwatch.pace(replace(tiny, training=replace(tiny.training, accumulate=2)))
    assert summed.an_epoch == -(-alone.an_epoch // 2)
