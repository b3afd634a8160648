"""What a run takes, before it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordmixer.reproduction import costs as module
from chordmixer.reproduction.building import build, with_encoder
from chordmixer.reproduction.catalogue import ENTRIES
from chordmixer.reproduction.costs import all_costs, cost, sampled
from chordmixer.training import Experiment

BY_RULE = ("adding-200", "listops", "pathfinder")


def test_lengths_that_stand_for_all() -> None:
    adding, listops = (sampled(build(ENTRIES[name])) for name in ("adding-200", "listops"))  # type: ignore[arg-type]
    assert len(adding) == len(listops) == module.SAMPLE
    assert 250 < sum(adding) / len(adding) < 600 and 500 < min(listops) <= max(listops) < 2_000
    assert len(set(listops)) <= module.MADE < len(set(adding))


def test_few_records_are_not_made_more(tiny: Experiment) -> None:
    assert len(sampled(tiny)) == 64


def test_a_cost_of_all_records(tiny: Experiment) -> None:
    own = cost(tiny, [40, 60], 200, timed=False)
    assert (own.records, own.tokens, own.epochs, own.seconds) == (200, 10_000, 2, None)
    assert own.memory > 0 and own.device == "cpu"
    assert cost(with_encoder(tiny, "pointwise"), [40, 60], 200, timed=False).memory == own.memory


def test_time_of_all_records_and_epochs(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.forecast
    monkeypatch.setattr(module, "forecast", lambda *own, timed: replace(real(*own), seconds=3.0 if timed else None))
    assert cost(tiny, [40, 60], 200, timed=True).seconds == 3.0 * 100 * 2


def test_one_measurement_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def pretend(experiment: Experiment, lengths: list[int], records: int, timed: bool) -> module.Cost:
        own = real(experiment, lengths, records, timed=False)
        measured.append(timed)
        return replace(own, seconds=100.0 if timed else None)

    real = module.cost
    monkeypatch.setattr(module, "cost", pretend)
    chosen = {name: ENTRIES[name] for name in (*BY_RULE, "image", "reach")}
    found = all_costs(chosen, timed=True)
    assert [*found] == [*BY_RULE] and measured == [True, False, False]
    assert found["adding-200"].seconds == 100.0
    listops, pathfinder = found["listops"].seconds, found["pathfinder"].seconds
    assert listops is not None and pathfinder is not None and 100 < listops < pathfinder


def test_without_a_measurement() -> None:
    assert all_costs({"adding-200": ENTRIES["adding-200"]}, timed=False)["adding-200"].seconds is None
