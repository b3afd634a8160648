"""The same minutes for every model, as steps: measured once, kept with their settings, and given to the runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chordmixer import files
from chordmixer.paper import reproduction
from chordmixer.paper.reproduction import pacing
from chordmixer.paper.reproduction.entry_experiments import each
from chordmixer.paper.reproduction.pacing import StepPace, paced
from chordmixer.training import Experiment, loop


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The encoders that were measured: ChordMixer takes 10 ms a step, others 40."""
    found: list[str] = []

    def pace(experiment: Experiment) -> StepPace:
        found.append(experiment.model.encoder)
        return StepPace(10.0 if found[-1] == "chordmixer" else 40.0, an_epoch=3)

    monkeypatch.setattr(pacing, "pace", pace)
    return found


def test_each_has_its_steps_and_epochs_enough(tiny: Experiment, tmp_path: Path, measured: list[str]) -> None:
    said: list[str] = []
    runs = paced(each(tiny, ["chordmixer", "pointwise"], seeds=2), 0.01, tmp_path, said.append)
    assert measured == ["chordmixer", "pointwise"], "once for both seeds"
    assert {name: (own.training.steps, own.training.epochs) for name, own in runs.items()} == {
        "chordmixer-seed0": (60, 21),
        "chordmixer-seed1": (60, 21),
        "pointwise-seed0": (15, 6),
        "pointwise-seed1": (15, 6),
    }
    assert said[0] == "chordmixer: 10 ms a step alone, 60 in 0.01 min"


def test_a_long_run_keeps_its_epochs(tiny: Experiment, tmp_path: Path, measured: list[str]) -> None:
    long = replace(tiny, training=replace(tiny.training, epochs=500))
    (run,) = paced(each(long, ["pointwise"], 1), 0.01, tmp_path, print).values()
    assert (run.training.steps, run.training.epochs) == (15, 500)


def test_what_was_measured_is_not_measured_again(tiny: Experiment, tmp_path: Path, measured: list[str]) -> None:
    first = paced(each(tiny, ["chordmixer"], 1), 1, tmp_path, print)
    assert paced(each(tiny, ["chordmixer"], 1), 1, tmp_path, print) == first and len(measured) == 1
    (longer,) = paced(each(tiny, ["chordmixer"], 1), 2, tmp_path, print).values()
    assert (longer.training.steps, len(measured)) == (12_000, 1), "another time, the same pace"
    paced(each(tiny, ["pointwise"], 1), 1, tmp_path, print)
    assert {*files.read_json(tmp_path / pacing.FILE)["models"]} == {"chordmixer", "pointwise"}
    other = replace(tiny, training=replace(tiny.training, batch_sequences=3))
    paced(each(other, ["chordmixer"], 1), 1, tmp_path, print)
    assert measured == ["chordmixer", "pointwise", "chordmixer"], "a step of other settings takes another time"


@pytest.mark.parametrize(
    "content", ["{}", '{"models": 3}', '{"models": {"chordmixer": {}}}', '{"models": {"chordmixer": 1}}']
)
def test_a_damaged_file_is_one_line(tiny: Experiment, tmp_path: Path, measured: list[str], content: str) -> None:
    (tmp_path / pacing.FILE).write_text(content)
    with pytest.raises(
        ValueError, match=r"pace.json holds no paces of models: remove it, and they are measured again"
    ):
        paced(each(tiny, ["chordmixer"], 1), 1, tmp_path, print)
    assert not measured


def test_who_cannot_be_measured_is_named(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those before it need not be measured again."""

    def pace(experiment: Experiment) -> StepPace:
        if experiment.model.encoder == "pointwise":
            raise ValueError("out of memory at record r1: use a smaller batch")
        return StepPace(10.0, 3)

    monkeypatch.setattr(pacing, "pace", pace)
    with pytest.raises(ValueError, match=r"^pointwise cannot be measured: out of memory at record r1: use a smaller"):
        paced(each(tiny, ["chordmixer", "pointwise"], 1), 1, tmp_path, print)
    assert [*files.read_json(tmp_path / pacing.FILE)["models"]] == ["chordmixer"]


@pytest.mark.usefixtures("forked_runs")
def test_from_a_measurement_to_a_page(changes: dict[str, Any], tmp_path: Path, measured: list[str]) -> None:
    """What `measure` leaves is found by runs, one command each, and by the one that writes the page of all."""
    given: dict[str, Any] = {"models": ["chordmixer", "pointwise-average"], "changes": changes, "minutes": 0.0002}
    steps = reproduction.measure("adding-200", tmp_path / "r", **given, say=lambda _: None)
    assert steps == {"chordmixer-seed0": 1, "pointwise-average-seed0": 1}
    alone = {**given, "models": ["pointwise-average"]}
    reproduction.reproduce("adding-200", tmp_path / "r", **alone, say=lambda _: None)
    together = {"resume": True, "at_once": 2, "say": lambda _: None}
    (page,), scores = reproduction.reproduce("adding-200", tmp_path / "r", **given, **together)
    assert len(measured) == 2 and len(scores) == 3
    lines = page.read_text().splitlines()
    assert lines[2].startswith("**Each model trained for the steps that it makes in 0.0002 min alone on this device")
    assert lines[6] == "**Up to 2 runs at once shared the device: each takes less time alone.**"
    rows = [line.split(" | ") for line in lines if line.startswith(("| chordmixer | ", "| pointwise-average | "))]
    assert [row[3] for row in rows[:2]] == ["1", "1"]
    assert any(line.startswith("| epochs | 2 at most, or 1 steps |") for line in lines)


def test_refusals(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = each(tiny, ["chordmixer"], 1)
    with pytest.raises(ValueError, match=r"--minutes 0 is not a time to train for: give a number above 0, such as 1"):
        paced(runs, 0, tmp_path, print)
    limited = {"run": replace(tiny, training=replace(tiny.training, minutes=2.0))}
    with pytest.raises(ValueError, match=r"--minutes 1 and training.minutes=2 are both the end of a run: leave one"):
        paced(limited, 1, tmp_path, print)
    with pytest.raises(ValueError, match=r"--scale 0.5 and --minutes 1 are both the length of a run: leave one of"):
        reproduction.reproduce("adding-200", tmp_path / "r", scale=0.5, minutes=1)
    for call in (reproduction.measure, reproduction.reproduce):
        with pytest.raises(
            ValueError, match=r"reach is drawn, not trained: leave (--minutes out|out --set, --scale, )"
        ):
            call("reach", tmp_path / "r", minutes=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"--minutes 1 on 2 processes is not possible: use one"):
        paced(runs, 1, tmp_path, print)


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
    monkeypatch.setattr(pacing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_the_first_steps_are_not_counted(tiny: Experiment, clock: list[float]) -> None:
    """One to load, five to warm up, twelve in three seconds: of data that have a few steps an epoch."""
    few = replace(tiny, training=replace(tiny.training, epochs=1))
    pace = pacing.pace(few)
    assert pace.milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 3 * 0.25 + 3.0)
    assert 0 < pace.an_epoch < 18, "so that it went on with a second one"
    assert pace.steps(minutes=1) == 240


def test_a_slow_model_takes_five_steps_all_the_same(
    tiny: Experiment, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "WARM", 0.0)
    monkeypatch.setattr(pacing, "TIMED", 0.0)
    assert pacing.pace(tiny).milliseconds == pytest.approx(250)
    assert clock[0] == pytest.approx(3 * 2.0 + 8 * 0.25)


def test_batches_of_a_step_are_counted_as_one(tiny: Experiment, clock: list[float]) -> None:
    alone = pacing.pace(tiny)
    summed = pacing.pace(replace(tiny, training=replace(tiny.training, accumulate=2)))
    assert summed.an_epoch == -(-alone.an_epoch // 2)
