"""The number of threads: measured, kept with a run, and never against the user's word."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.training import Experiment, checkpoints, pace, threads, train
from chordmixer.training.forecast import forecast
from chordmixer.training.loop import TrainingRun

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Eight cores of nobody's choice; the numbers of threads that were set on them."""
    now, asked = [8], list[int]()

    def set_threads(number: int) -> None:
        now[0] = number
        asked.append(number)

    for name in (*threads.VARIABLES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_chosen", None)
    monkeypatch.setattr(threads, "_cores", lambda: {8})
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", set_threads)
    yield asked


def clock(seconds: dict[int, float]) -> Callable[[], float]:
    """A step that takes so long with each number of threads; the very first takes far longer."""
    first = {1: 100.0}

    def take() -> float:
        return first.pop(1, None) or seconds[torch.get_num_threads()]

    return take


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ({1: 0.01, 4: 0.02, 8: 0.09}, "threads: 1 of 8, measured 9.0 times as fast as 8"),
        ({1: 0.08, 4: 0.02, 8: 0.01}, "threads: 8 of 8, measured 8.0 times as fast as 1"),
        ({1: 0.08, 4: 0.01, 8: 0.03}, "threads: 4 of 8, measured 3.0 times as fast as 8"),
        ({1: 0.104, 4: 0.102, 8: 0.1}, "threads: 1 of 8, measured as fast as 8"),
    ],
    ids=["busy", "idle", "half", "no gain"],
)
def test_the_fewest_that_are_fast(machine: list[int], seconds: dict[int, float], line: str) -> None:
    found = threads.choose(clock(seconds))
    assert found.line == threads.line() == line and torch.get_num_threads() == found.threads
    assert machine == [1, 4, 8] * 4 + [found.threads], "taking turns, the first round not counted"
    machine.clear()
    assert threads.choose(clock(dict.fromkeys((1, 4, 8), 1.0))).most == 8, "our own choice does not bind the next run"
    assert machine == [1, 4, 8] * 2 + [1], "slow ones are measured once"


def test_a_run_keeps_its_number(machine: list[int]) -> None:
    def take() -> float:
        raise AssertionError("nothing is measured")

    assert threads.choose(take, kept=4).line == "threads: 4 of 8, as this run began"
    assert torch.get_num_threads() == 4
    threads.keep(8)
    assert torch.get_num_threads() == 8
    threads.keep(64)
    assert torch.get_num_threads() == 8, "of another machine"


@pytest.mark.parametrize("how", [*threads.VARIABLES, "WORLD_SIZE", "torch"])
def test_the_users_own_number_stays(machine: list[int], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "torch":
        torch.set_num_threads(3)
        machine.clear()
    else:
        monkeypatch.setenv(how, "8")
    before = torch.get_num_threads()
    assert threads.choose(clock({})).line == "" and torch.get_num_threads() == before and machine == []
    said = threads.choose(clock({}), kept=2)
    assert said.line.endswith("as set; the run had 2 so far, so that its last digits may differ")
    assert said.threads == before and machine == []


def test_plan_train_and_prediction_choose_alike(
    machine: list[int], monkeypatch: pytest.MonkeyPatch, tiny: Experiment, tmp_path: Path
) -> None:
    """All of them through `choose`; what a run has begun with is in its checkpoints, and is not measured again."""
    given: list[int] = []

    def choose(take: Callable[[], float], kept: int = 0) -> threads.ThreadChoice:
        given.append(kept)
        assert take() > 0, "a real step, or answer"
        return threads._adopt(threads.ThreadChoice(4, 8, "measured 3.0 times as fast as 8"))

    monkeypatch.setattr(threads, "choose", choose)
    made = forecast(tiny, [30, 64, 12] * 4, CPU, timed=True)
    assert made.threads == "threads: 4 of 8, measured 3.0 times as fast as 8"
    random = torch.get_rng_state()
    threads.choose_for_answers(Model(tiny.model))
    train(replace(tiny, training=replace(tiny.training, epochs=1)), tmp_path / "run")
    assert given == [0, 0, 0] and random is not None
    assert json.loads((checkpoints.found(tmp_path / "run")[0] / "state.json").read_text())["threads"] == 4
    monkeypatch.setattr(pace, "choose_threads", lambda *own: given.append(own[-1]) or threads.ThreadChoice(4, 8))
    train(replace(tiny, training=replace(tiny.training, epochs=1)), tmp_path / "run", resume=True)
    assert given[-1] == 4


def test_a_measurement_changes_no_run(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same first weights, with and without it."""
    from rich.console import Console

    runs = []
    for name in ("plain", "measured"):
        if name == "measured":
            monkeypatch.setattr(threads, "choose", lambda take, kept: threads.ThreadChoice(1, 2, f"{take():.0f}"))
        run = TrainingRun(tiny, tmp_path / name, False, Console(quiet=True))
        runs.append((torch.get_rng_state(), [*run.model.state_dict().values()]))
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_made_up_records() -> None:
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    tokens = threads.made_up(ModelConfig(5, 2, network=network), [100, 200])
    assert tokens.values.unique().tolist() == [0, 1, 2, 3, 4] and list(tokens.lengths) == [100, 200]
    assert threads.made_up(ModelConfig(2, 1, embedding="real", network=network), [7]).values.shape == (7, 2)


def test_torchs_own_numbers() -> None:
    assert (os.cpu_count() or 1) in threads._cores()
