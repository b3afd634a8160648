"""What a run takes, before it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chordmixer.paper.reproduction import costs as module
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.costs import PartLengths, all_costs, cost, made_parts, planned, sampled
from chordmixer.paper.reproduction.entry_experiments import build, each, with_encoder
from chordmixer.training import Experiment, speed

PARTS = {
    "training": PartLengths([40, 60], 200),
    "validation": PartLengths([40, 60], 20),
    "test": PartLengths([40, 60], 40),
}
BY_RULE = ("adding-200", "listops", "pathfinder")


def test_lengths_that_stand_for_all() -> None:
    adding, listops = (sampled(build(ENTRIES[name])) for name in ("adding-200", "listops"))  # type: ignore[arg-type]
    assert len(adding) == len(listops) == module.SAMPLE
    assert 250 < sum(adding) / len(adding) < 600 and 500 < min(listops) <= max(listops) < 2_000
    assert len(set(listops)) <= module.MADE < len(set(adding))


def test_few_records_are_not_made_more(tiny: Experiment) -> None:
    assert len(sampled(tiny)) == 64


def test_a_cost_of_all_records(tiny: Experiment) -> None:
    own = cost(tiny, PARTS, timed=False)
    assert (own.records, own.tokens, own.epochs, own.seconds) == (200, 10_000, 2, None)
    assert own.memory > 0 and own.device == "cpu"
    assert cost(with_encoder(tiny, "lstm"), PARTS, timed=False).memory == 0, "not counted"
    short = replace(tiny, training=replace(tiny.training, steps=3, epochs=1_000))
    assert cost(short, PARTS, timed=False).epochs == 1, "seven steps an epoch, of which two records have one"


def test_time_of_all_records_parts_and_epochs(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second a token in training, a quarter of that to answer: validation after each epoch, then both parts."""
    work = {"chordmixer": 40 * 6 + 60 * 6, "lstm": 100}
    monkeypatch.setattr(speed, "measure", lambda *own: speed.Speed(1.0, 0.25))
    for encoder, of_two in work.items():
        found = cost(with_encoder(tiny, encoder), PARTS, timed=True).seconds
        assert found == of_two * (2 * 100 + 0.25 * (3 * 10 + 20))


def test_every_model_seed_and_part_is_planned(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        speed, "measure", lambda own, *_: speed.Speed(*([2.0, 1.0] if own.model.encoder == "lstm" else [1, 1]))
    )
    versions = "chordmixer.paper.reproduction.ablations:READING"
    found = planned(each(tiny, ["chordmixer", "lstm-average"], 3, versions), made_parts(tiny))
    assert [(own.model, own.runs) for own in found] == [("chordmixer", 3), ("lstm-average", 3)]
    assert found[0].cost.seconds != found[1].cost.seconds, "each is measured"
    parts = made_parts(tiny)
    assert {name: part.records for name, part in parts.items()} == {"training": 64, "validation": 16, "test": 32}


def test_one_measurement_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def pretend(experiment: Experiment, parts: dict[str, PartLengths], timed: bool) -> module.Cost:
        own = real(experiment, parts, timed=False)
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
