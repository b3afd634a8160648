"""Speed, extrapolated from a small measurement; the number of threads, measured, stored or set by the user."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from chordmixer.config import override
from chordmixer.data import TokenSampler
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.training import Experiment, checkpoints, speed
from chordmixer.training.forecast import forecast
from chordmixer.training.loop import TrainingRun, train

MEASURED = speed.bf16_speedup
"""The function itself, which the other tests replace by a constant."""
CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Eight cores without a user's number of threads; yields the numbers that are set on them."""
    threads, calls = [8], list[int]()

    def set_threads(number: int) -> None:
        threads[0] = number
        calls.append(number)

    for name in (*speed.VARIABLES, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(speed, "_chosen", None)
    monkeypatch.setattr(speed, "_cores", lambda: {8})
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", set_threads)
    yield calls


def clock(seconds: dict[int, float]) -> Callable[[], float]:
    """A step that takes these seconds with each number of threads; the very first takes far longer."""
    first = {1: 100.0}

    def step() -> float:
        return first.pop(1, None) or seconds[torch.get_num_threads()]

    return step


@pytest.mark.parametrize(
    ("seconds", "line"),
    [
        ({1: 0.01, 4: 0.02, 8: 0.09}, "threads: 1 of 8, measured 9.0 times as fast as 8"),
        ({1: 0.08, 4: 0.02, 8: 0.01}, "threads: 8 of 8, measured 8.0 times as fast as 1"),
        ({1: 0.08, 4: 0.01, 8: 0.03}, "threads: 4 of 8, measured 3.0 times as fast as 8"),
        ({1: 0.104, 4: 0.102, 8: 0.1}, "threads: 1 of 8, measured as fast as 8"),
        (
            {1: 0.013, 4: 0.010, 8: 0.03},
            "threads: 1 of 8, since 4 are only 1.3 times as fast, and slow as soon as other programs run: "
            "OMP_NUM_THREADS=4 uses them",
        ),
    ],
    ids=["busy", "idle", "half", "no gain", "little gain"],
)
def test_the_fewest_that_are_fast(machine: list[int], seconds: dict[int, float], line: str) -> None:
    choice = speed.choose_threads(clock(seconds))
    assert choice.line == speed.threads_line() == line and torch.get_num_threads() == choice.threads
    assert machine == [1, 4, 8] * 4 + [choice.threads], "the numbers take turns, and the first round is not counted"
    machine.clear()
    assert speed.choose_threads(clock(dict.fromkeys((1, 4, 8), 1.0))).default == 8, (
        "our own choice does not bind the next run"
    )
    assert machine == [1, 4, 8] * 2 + [1], "slow ones are measured once"


def test_a_run_keeps_its_number(machine: list[int]) -> None:
    def step() -> float:
        raise AssertionError("nothing is measured")

    assert speed.choose_threads(step, stored=4).line == "threads: 4 of 8, as this run began"
    assert torch.get_num_threads() == 4
    speed.restore_threads(8)
    assert torch.get_num_threads() == 8
    speed.restore_threads(64)
    assert torch.get_num_threads() == 8, "of another machine"


def test_one_thread_beside_a_gpu(machine: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with speed.single_threaded_host(torch.device("cpu")):
        assert machine == []
    with pytest.raises(RuntimeError), speed.single_threaded_host(torch.device("cuda")):
        assert machine == [1]
        raise RuntimeError
    assert machine == [1, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    with speed.single_threaded_host(torch.device("cuda")):
        assert machine == [1, 8]


@pytest.mark.parametrize("source", [*speed.VARIABLES, "WORLD_SIZE", "torch"])
def test_the_users_own_number_stays(machine: list[int], monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    if source == "torch":
        torch.set_num_threads(3)
        machine.clear()
    else:
        monkeypatch.setenv(source, "8")
    before = torch.get_num_threads()
    assert speed.choose_threads(clock({})).line == "" and torch.get_num_threads() == before and machine == []
    choice = speed.choose_threads(clock({}), stored=2)
    assert choice.line.endswith("as set; the run had 2 so far, so that its last digits may differ")
    assert choice.threads == before and machine == []


def test_plan_train_and_prediction_choose_alike(
    machine: list[int], monkeypatch: pytest.MonkeyPatch, tiny: Experiment, tmp_path: Path
) -> None:
    """All of them use `choose_threads`; the number of a run is in its checkpoints and not measured again."""
    threads: list[int] = []

    def choose(step: Callable[[], float], stored: int = 0) -> speed.ThreadChoice:
        threads.append(stored)
        assert step() > 0, "a real step, or answer"
        return speed._adopt(speed.ThreadChoice(4, 8, "measured 3.0 times as fast as 8"))

    monkeypatch.setattr(speed, "choose_threads", choose)
    estimate = forecast(tiny, [30, 64, 12] * 4, CPU, timed=True)
    assert estimate.threads == "threads: 4 of 8, measured 3.0 times as fast as 8"
    rng_state = torch.get_rng_state()
    speed.choose_inference_threads(Model(tiny.model))
    train(replace(tiny, training=replace(tiny.training, epochs=1)), tmp_path / "run")
    assert threads == [0, 0, 0] and rng_state is not None
    assert json.loads((checkpoints.newest_first(tmp_path / "run")[0] / "state.json").read_text())["threads"] == 4
    monkeypatch.setattr(
        speed, "choose_training_threads", lambda *args: threads.append(args[-1]) or speed.ThreadChoice(4, 8)
    )
    train(replace(tiny, training=replace(tiny.training, epochs=1)), tmp_path / "run", resume=True)
    assert threads[-1] == 4


def test_a_measurement_changes_no_run(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first weights are the same with and without it."""
    from rich.console import Console

    runs = []
    for name in ("plain", "measured"):
        if name == "measured":
            monkeypatch.setattr(
                speed, "choose_threads", lambda step, stored: speed.ThreadChoice(1, 2, f"{step():.0f}")
            )
        run = TrainingRun(tiny, tmp_path / name, False, Console(quiet=True))
        runs.append((torch.get_rng_state(), [*run.model.state_dict().values()]))
    assert torch.equal(runs[0][0], runs[1][0])
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_random_records() -> None:
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    tokens = speed.random_inputs(ModelConfig(5, 2, network=network), [100, 200])
    assert tokens.values.unique().tolist() == [0, 1, 2, 3, 4] and list(tokens.lengths) == [100, 200]
    assert speed.random_inputs(ModelConfig(2, 1, embedding="real", network=network), [7]).values.shape == (7, 2)


# --- Precision ---


@pytest.mark.parametrize(
    ("ratio", "native", "ranks", "stored", "chosen"),
    [
        (1.6, True, "1", None, "bf16"),
        (1.1, True, "1", None, "fp32"),
        (None, False, "1", None, "fp32"),
        (None, True, "2", None, "bf16"),
        (None, True, "1", "fp32", "fp32"),
        (None, False, "1", "bf16", "bf16"),
    ],
    ids=["faster", "hardly", "not native", "ranks", "stored", "stored elsewhere"],
)
def test_auto_is_what_was_measured_or_stored(
    tiny: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ratio: float | None,
    native: bool,
    ranks: str,
    stored: str | None,
    chosen: str,
) -> None:
    def measure(*_: object) -> float:
        assert ratio is not None, "nothing to measure"
        return ratio

    monkeypatch.setattr(speed, "bf16_speedup", measure)
    monkeypatch.setattr(speed, "native_bf16", lambda: native)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    if stored:
        override(tiny, {"training": {"precision": stored}}).save(tmp_path)
    auto = override(tiny, {"training": {"precision": "auto", "device": "cpu"}})
    assert speed.settle_precision(auto, tmp_path).training.precision == chosen
    for precision in ("fp32", "bf16"):
        fixed = override(auto, {"training": {"precision": precision}})
        assert speed.settle_precision(fixed, tmp_path) is fixed


def test_a_run_stores_what_auto_was(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run then resumes and predicts in the same precision."""
    monkeypatch.setattr(speed, "bf16_speedup", lambda *_: 2.0)
    monkeypatch.setattr(speed, "native_bf16", lambda: True)
    auto = override(tiny, {"training": {"epochs": 1, "precision": "auto", "device": "cpu"}})
    result = train(auto, tmp_path / "run")
    assert Experiment.load(tmp_path / "run").training.precision == "bf16"
    monkeypatch.setattr(speed, "bf16_speedup", lambda *_: 1.0)
    assert train(auto, tmp_path / "run", resume=True) == result


def test_the_measurement_is_real_and_leaves_the_random_state(tiny: Experiment) -> None:
    before = torch.get_rng_state()
    assert 0.01 < MEASURED(tiny.model) < 100
    assert torch.equal(torch.get_rng_state(), before)


def test_torchs_own_numbers() -> None:
    assert (os.cpu_count() or 1) in speed._cores()


# --- Seconds of a step ---


def test_time_grows_with_tokens_and_depth(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device of known speed, the result does not depend on how much of a batch is measured."""
    tokens: list[int] = []

    def stepper(*_: object) -> object:
        def step(lengths: list[int], answering: bool = False) -> float:
            tokens.append(sum(lengths))
            return (2e-6 if answering else 1e-5) * sum(n * max(1, (n - 1).bit_length()) for n in lengths)

        return step

    monkeypatch.setattr(speed, "_stepper", stepper)
    sampler = TokenSampler([1 << 16] * 20, tokens=1 << 17, sequences=2)
    expected = pytest.approx((1e-5, 2e-6))
    assert speed.measure(tiny, sampler, CPU, free=1 << 40) == expected
    assert tokens[0] == 2 * 2_000 and 5_000 < tokens[-1] < 20_000, "about a second of work"
    assert speed.measure(tiny, sampler, CPU, free=1 << 20) == expected
    assert tokens[-1] == 4_000, "memory allows no more"


def test_a_real_step_leaves_the_random_state(tiny: Experiment) -> None:
    before = torch.get_rng_state()
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    for precision in ("fp32", "bf16"):
        experiment = replace(tiny, training=replace(tiny.training, precision=precision))
        measured = speed.measure(experiment, sampler, CPU, free=1 << 30)
        assert measured.inference > 0 and 0 < measured.training < 0.1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_frozen_encoder_is_measured_frozen(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Model] = []

    def build(config: ModelConfig) -> Model:
        built.append(Model(config))
        return built[-1]

    monkeypatch.setattr(speed, "Model", build)
    probing = replace(tiny, training=replace(tiny.training, freeze=True))
    for experiment in (tiny, probing):
        assert speed._experiment_stepper(experiment, CPU)([40, 12]) > 0
    assert [model.frozen for model in built] == [False, True]


def test_answers_for_every_token(tiny: Experiment) -> None:
    model = replace(tiny.model, embedding="tokens", inputs=5, outputs=4, head="tokens", decoder="network")
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    assert 0 < speed.measure(replace(tiny, model=model), sampler, CPU, free=1 << 30).training < 0.1


def test_other_encoders_are_measured_on_whole_records(tiny: Experiment) -> None:
    """Their time may grow with the square of a length, so that fewer records are taken, and not shorter ones."""
    lstm = tiny.model.with_encoder("lstm")
    lengths = [60, 50, 40, 30, 20, 10]
    assert speed._reduced(lstm, lengths, 0.5) == [50, 30, 10] and speed._reduced(lstm, lengths, 2) == lengths
    assert speed._reduced(lstm, lengths, 0.01) == [2] and speed._reduced(lstm, [900], 0.1) == [90]
    assert speed._reduced(tiny.model, lengths, 0.5) == [30, 25, 20, 15, 10, 5]
    assert (speed.work(lstm, [8, 8]), speed.work(tiny.model, [8, 8])) == (16, 48)
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    assert speed.measure(replace(tiny, model=lstm), sampler, CPU, free=1 << 30).training > 0
