"""What a run takes, before it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from chordmixer import files
from chordmixer.paper import reproduction
from chordmixer.paper.reproduction import costs
from chordmixer.paper.reproduction import costs as module
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.costs import (
    Cost,
    PartLengths,
    StepTime,
    all_costs,
    cost,
    describe,
    equal_time,
    generated_parts,
    listing,
    plan_runs,
    sample_lengths,
)
from chordmixer.paper.reproduction.experiments import build, expand, with_encoder
from chordmixer.training import Experiment, loop, speed

PARTS = {
    "training": PartLengths([40, 60], 200),
    "validation": PartLengths([40, 60], 20),
    "test": PartLengths([40, 60], 40),
}
BY_RULE = ("adding-200", "listops", "pathfinder")


def test_lengths_that_stand_for_all() -> None:
    adding, listops = (sample_lengths(build(ENTRIES[name])) for name in ("adding-200", "listops"))  # type: ignore[arg-type]
    assert len(adding) == len(listops) == module.SAMPLE
    assert 250 < sum(adding) / len(adding) < 600 and 500 < min(listops) <= max(listops) < 2_000
    assert len(set(listops)) <= module.GENERATED < len(set(adding))


def test_few_records_are_not_made_more(tiny: Experiment) -> None:
    assert len(sample_lengths(tiny)) == 64


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
    found = plan_runs(expand(tiny, ["chordmixer", "lstm-average"], 3, versions), generated_parts(tiny))
    assert [(own.model, own.runs) for own in found] == [("chordmixer", 3), ("lstm-average", 3)]
    assert found[0].cost.seconds != found[1].cost.seconds, "each is measured"
    parts = generated_parts(tiny)
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


COST = Cost("cpu", 50_000, 21_400_000, 10, 1_200_000_000, 16_000_000_000, 7_300.0)


def shown(width: int) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(listing(ENTRIES, {"adding-200": COST}, width))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 130, 200])
def test_every_entry_whole_at_any_width(width: int) -> None:
    text = shown(width)
    assert all(any(line.strip().startswith(name) for line in text.splitlines()) for name in ENTRIES)
    assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_narrow_lines() -> None:
    text = shown(100)
    assert (
        "adding-200  Adding problem, base length 200 (section 4.1, figure 3)\n"
        "    paper: All models that were tested worked perfectly."
    ) in text
    assert "    data: generated" in text and "    paper: accuracy 60.12 %" in text
    assert "takes: 2.0 hours, 1.2 GB of 16.0 GB on cpu; 10 epochs of 50k records, 21M tokens" in text
    assert "takes: depends on the data (60,000 pictures of 1,024 pixels)" in text
    assert "data: generated, or --data FOLDER of the release" in text


def test_a_table_where_there_is_room() -> None:
    header = shown(150).splitlines()[1]
    assert [header.find(title) for title in ("name", "what", "the paper", "data", "a run here")] == sorted(
        header.find(title) for title in ("name", "what", "the paper", "data", "a run here")
    )
    assert "a run here takes about" in header


def test_memory_that_is_not_there() -> None:
    assert "20.0 GB of 16.0 GB on cpu, too much" in describe(
        Cost("cpu", 10, 100, 1, 20_000_000_000, 16_000_000_000)
    ) and "; 1 epoch of 10 records" in describe(Cost("cpu", 10, 100, 1, 1, 2))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The encoders that were measured: ChordMixer takes 10 ms a step, others 40."""
    found: list[str] = []

    def step_time(experiment: Experiment) -> StepTime:
        found.append(experiment.model.encoder)
        return StepTime(10.0 if found[-1] == "chordmixer" else 40.0, an_epoch=3)

    monkeypatch.setattr(costs, "step_time", step_time)
    return found


def test_each_has_its_steps_and_epochs_enough(
    tiny: Experiment, tmp_path: Path, measured: list[str], log: pytest.LogCaptureFixture
) -> None:
    runs = equal_time(expand(tiny, ["chordmixer", "pointwise"], seeds=2), 0.01, tmp_path)
    assert measured == ["chordmixer", "pointwise"], "once for both seeds"
    assert {name: (own.training.steps, own.training.epochs) for name, own in runs.items()} == {
        "chordmixer-seed0": (60, 21),
        "chordmixer-seed1": (60, 21),
        "pointwise-seed0": (15, 6),
        "pointwise-seed1": (15, 6),
    }
    assert log.messages[0] == "chordmixer: 10 ms a step alone, 60 in 0.01 min"


def test_a_long_run_keeps_its_epochs(tiny: Experiment, tmp_path: Path, measured: list[str]) -> None:
    long = replace(tiny, training=replace(tiny.training, epochs=500))
    (run,) = equal_time(expand(long, ["pointwise"], 1), 0.01, tmp_path).values()
    assert (run.training.steps, run.training.epochs) == (15, 500)


def test_what_was_measured_is_not_measured_again(tiny: Experiment, tmp_path: Path, measured: list[str]) -> None:
    first = equal_time(expand(tiny, ["chordmixer"], 1), 1, tmp_path)
    assert equal_time(expand(tiny, ["chordmixer"], 1), 1, tmp_path) == first and len(measured) == 1
    (longer,) = equal_time(expand(tiny, ["chordmixer"], 1), 2, tmp_path).values()
    assert (longer.training.steps, len(measured)) == (12_000, 1), "another time, the same pace"
    equal_time(expand(tiny, ["pointwise"], 1), 1, tmp_path)
    assert {*files.read_json(tmp_path / costs.PACE_FILE)["models"]} == {"chordmixer", "pointwise"}
    other = replace(tiny, training=replace(tiny.training, batch_sequences=3))
    equal_time(expand(other, ["chordmixer"], 1), 1, tmp_path)
    assert measured == ["chordmixer", "pointwise", "chordmixer"], "a step of other settings takes another time"


@pytest.mark.parametrize(
    "content", ["{}", '{"models": 3}', '{"models": {"chordmixer": {}}}', '{"models": {"chordmixer": 1}}']
)
def test_a_damaged_file_is_one_line(tiny: Experiment, tmp_path: Path, measured: list[str], content: str) -> None:
    (tmp_path / costs.PACE_FILE).write_text(content)
    with pytest.raises(
        ValueError, match=r"pace.json holds no paces of models: remove it, and they are measured again"
    ):
        equal_time(expand(tiny, ["chordmixer"], 1), 1, tmp_path)
    assert not measured


def test_who_cannot_be_measured_is_named(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those before it need not be measured again."""

    def step_time(experiment: Experiment) -> StepTime:
        if experiment.model.encoder == "pointwise":
            raise ValueError("out of memory at record r1: use a smaller batch")
        return StepTime(10.0, 3)

    monkeypatch.setattr(costs, "step_time", step_time)
    with pytest.raises(ValueError, match=r"^pointwise cannot be measured: out of memory at record r1: use a smaller"):
        equal_time(expand(tiny, ["chordmixer", "pointwise"], 1), 1, tmp_path)
    assert [*files.read_json(tmp_path / costs.PACE_FILE)["models"]] == ["chordmixer"]


def test_from_a_measurement_to_a_page(changes: dict[str, Any], tmp_path: Path, measured: list[str]) -> None:
    """What `measure` leaves is found by runs, one command each, and by the one that writes the page of all."""
    given: dict[str, Any] = {"models": ["chordmixer", "pointwise-average"], "changes": changes, "minutes": 0.0002}
    request = reproduction.Request("adding-200", **given)
    steps = reproduction.measure(request, tmp_path / "r")
    assert steps == {"chordmixer-seed0": 1, "pointwise-average-seed0": 1}
    for model in request.models:
        reproduction.reproduce(replace(request, models=[model]), tmp_path / "r", resume=True, baselines=False)
    (page,), scores = reproduction.reproduce(request, tmp_path / "r", resume=True, at_once=2)
    assert len(measured) == 2 and len(scores) == 3
    lines = page.read_text().splitlines()
    assert lines[2].startswith("**Each model trained for the steps that it makes in 0.0002 min alone on this device")
    assert lines[6] == "**Up to 2 runs at once shared the device: each takes less time alone.**"
    rows = [line.split(" | ") for line in lines if line.startswith(("| chordmixer | ", "| pointwise-average | "))]
    assert [row[3] for row in rows[:2]] == ["1", "1"]
    assert any(line.startswith("| epochs | 2 at most, or 1 steps |") for line in lines)


def test_refusals(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = expand(tiny, ["chordmixer"], 1)
    with pytest.raises(ValueError, match=r"--minutes 0 is not a time to train for: give a number above 0, such as 1"):
        equal_time(runs, 0, tmp_path)
    limited = {"run": replace(tiny, training=replace(tiny.training, minutes=2.0))}
    with pytest.raises(ValueError, match=r"--minutes 1 and training.minutes=2 are both the end of a run: leave one"):
        equal_time(limited, 1, tmp_path)
    with pytest.raises(ValueError, match=r"--scale 0.5 and --minutes 1 are both the length of a run: leave one of"):
        reproduction.reproduce(reproduction.Request("adding-200", scale=0.5, minutes=1), tmp_path / "r")
    for call in (reproduction.measure, reproduction.reproduce):
        with pytest.raises(
            ValueError, match=r"reach is drawn, not trained: leave (--minutes out|out --set, --scale, )"
        ):
            call(reproduction.Request("reach", minutes=1), tmp_path / "r")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"--minutes 1 on 2 processes is not possible: use one"):
        equal_time(runs, 1, tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time by this clock passes only in steps: two seconds for each of the first three, then a quarter."""
    now, taken = [0.0], [0]

    def advance(run: loop.TrainingRun, batches: Iterator[object]) -> None:
        whole(run, batches)
        taken[0] += 1
        now[0] += 2.0 if taken[0] <= 3 else 0.25

    whole = loop.TrainingRun.advance
    monkeypatch.setattr(loop.TrainingRun, "advance", advance)
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_the_first_steps_are_not_counted(tiny: Experiment, clock: list[float]) -> None:
    """One to load, five to warm up, twelve in three seconds: of data that have a few steps an epoch."""
    few = replace(tiny, training=replace(tiny.training, epochs=1))
    pace = costs.step_time(few)
    assert pace.milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 3 * 0.25 + 3.0)
    assert 0 < pace.an_epoch < 18, "so that it went on with a second one"
    assert pace.steps(minutes=1) == 240


def test_a_slow_model_takes_five_steps_all_the_same(
    tiny: Experiment, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(costs, "TIMED_SECONDS", 0.0)
    assert costs.step_time(tiny).milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 8 * 0.25)


def test_batches_of_a_step_are_counted_as_one(tiny: Experiment, clock: list[float]) -> None:
    alone = costs.step_time(tiny)
    summed = costs.step_time(replace(tiny, training=replace(tiny.training, accumulate=2)))
    assert summed.an_epoch == -(-alone.an_epoch // 2)
