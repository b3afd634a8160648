"""A limit on the minutes or steps of training: spent, counted over starts, and the schedule that ends with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.training import Experiment, TrainingConfig, budget, train
from chordmixer.training.budget import Budget
from chordmixer.training.checkpoints import State
from chordmixer.training.optimiser import schedule


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time that passes only when told, and a tenth of a second at each look at the clock."""
    now = [0.0]

    def look() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=look))
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_what_is_spent_is_kept_with_the_state(tick: Callable[[float], None]) -> None:
    state = State()
    limit = Budget(TrainingConfig(minutes=1.0), state, ranks=1)
    with limit.counting():
        tick(29.9)
    tick(500)  # a validation
    assert state.seconds == pytest.approx(30) and limit.spent == pytest.approx(0.5)
    assert [*Budget(TrainingConfig(minutes=1.0), state, ranks=1).said()] == [
        "it trains for 1 min at most, 0.5 of them spent"
    ]
    with limit.counting():
        tick(100)
    assert limit.spent == 1


def test_without_a_limit_nothing_is_measured(tick: Callable[[float], None]) -> None:
    state = State()
    limit = Budget(TrainingConfig(), state, ranks=2)
    with limit.counting():
        tick(100)
    assert (state.seconds, limit.spent, [*limit.said()]) == (0.0, 0.0, [])


def small(**training: float) -> Experiment:
    made = adding(AddingConfig(20, training=40, validation=8, test=8))
    settings = TrainingConfig(epochs=50, batch_sequences=4, device="cpu", **training)  # type: ignore[arg-type]
    return replace(made, training=settings)


def test_the_run_ends_and_the_rate_falls_with_the_budget(tmp_path: Path, tick: Callable[[float], None]) -> None:
    """A step takes a tenth of a second by this clock, so that 2.5 seconds are two and a half epochs of ten steps."""
    train(small(minutes=2.5 / 60), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) in range(24, 28)
    assert [line["step"] for line in lines if line["split"] == "validation"][:2] == [10, 20]
    rates = [line["learning_rate"] for line in lines if line["split"] == "training"]
    assert rates[-1] < 0.3 * rates[0]
    assert (tmp_path / "run" / "evaluation-test.json").exists()


def test_steps_end_a_run_with_a_whole_schedule_on_any_number_of_ranks(tmp_path: Path) -> None:
    """25 steps are two and a half epochs of ten; averaged weights count them too, since their number is known."""
    state = State(step=5)
    limit = Budget(TrainingConfig(steps=20), state, ranks=3)
    assert limit.spent == 0.25
    assert [*limit.said()] == ["it trains for 20 steps at most, 5 of them taken"]
    train(small(steps=25, ema=0.2), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "validation"] == [10, 20, 25]
    rates = [line["learning_rate"] for line in lines if line["split"] == "training"]
    assert rates[-1] == pytest.approx(1e-3 * schedule(19 / 25, 0.05)), "after 19 of 25 steps"


def test_more_steps_than_the_epochs_have_change_nothing(tmp_path: Path) -> None:
    once = replace(small(), training=replace(small().training, epochs=1))
    more = replace(once, training=replace(once.training, steps=1_000))
    assert train(once, tmp_path / "a").loss == train(more, tmp_path / "b").loss


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"steps=-1 is too small: give 0 or more"):
        TrainingConfig(steps=-1)
    with pytest.raises(ValueError, match=r"steps=3,000 and minutes=2 are both the end of a run: set one of them"):
        TrainingConfig(steps=3_000, minutes=2)
    with pytest.raises(ValueError, match=r"minutes=-1 is too small: give 0 or more"):
        TrainingConfig(minutes=-1)
    with pytest.raises(ValueError, match=r"ema=0.1 is a share of the steps, whose number minutes=2 leaves open"):
        TrainingConfig(minutes=2, ema=0.1)
    with pytest.raises(ValueError, match=r"minutes=2 on 3 processes is not possible, since their clocks differ"):
        Budget(TrainingConfig(minutes=2), State(), ranks=3)
