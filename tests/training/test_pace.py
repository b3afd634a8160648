"""How long an epoch takes: measured on little, said of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chordmixer.data import TokenSampler
from chordmixer.models import Model, ModelConfig
from chordmixer.training import Experiment, pace
from chordmixer.training.memory import Hardware

CPU = torch.device("cpu")


def test_time_grows_with_tokens_and_depth(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of a known speed: as many seconds as it is told, however little of a batch is measured."""
    taken: list[int] = []

    def stepper(*_: object) -> object:
        def take(lengths: list[int], answering: bool = False) -> float:
            taken.append(sum(lengths))
            return (2e-6 if answering else 1e-5) * sum(n * max(1, (n - 1).bit_length()) for n in lengths)

        return take

    monkeypatch.setattr(pace, "_stepper", stepper)
    sampler = TokenSampler([1 << 16] * 20, tokens=1 << 17, sequences=2)
    exact = pytest.approx((1e-5, 2e-6))
    assert pace.speed(tiny, sampler, CPU, Hardware(), free=1 << 40) == exact
    assert taken[0] == 2 * 2_000 and 5_000 < taken[-1] < 20_000, "a second's worth"
    assert pace.speed(tiny, sampler, CPU, Hardware(), free=1 << 20) == exact
    assert taken[-1] == 4_000, "memory for no more"


def test_a_real_step_leaves_the_random_state(tiny: Experiment) -> None:
    before = torch.get_rng_state()
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    for precision in ("fp32", "bf16"):
        experiment = replace(tiny, training=replace(tiny.training, precision=precision))
        found = pace.speed(experiment, sampler, CPU, Hardware(), free=1 << 30)
        assert found.answering > 0 and 0 < found.training < 0.1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_frozen_encoder_is_measured_frozen(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Model] = []

    def build(config: ModelConfig) -> Model:
        built.append(Model(config))
        return built[-1]

    monkeypatch.setattr(pace, "Model", build)
    probing = replace(tiny, training=replace(tiny.training, freeze=True))
    for experiment in (tiny, probing):
        assert pace._stepper(experiment, CPU)([40, 12]) > 0
    assert [model.frozen for model in built] == [False, True]


def test_answers_for_every_token(tiny: Experiment) -> None:
    model = replace(tiny.model, embedding="tokens", inputs=5, outputs=4, head="tokens", decoder="network")
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    assert 0 < pace.speed(replace(tiny, model=model), sampler, CPU, Hardware(), free=1 << 30).training < 0.1


def test_other_encoders_are_measured_on_whole_records(tiny: Experiment) -> None:
    """Their time may grow with the square of a length, so that fewer records are taken, and not shorter ones."""
    other = tiny.model.with_encoder("lstm")
    lengths = [60, 50, 40, 30, 20, 10]
    assert pace._less(other, lengths, 0.5) == [50, 30, 10] and pace._less(other, lengths, 2) == lengths
    assert pace._less(other, lengths, 0.01) == [2] and pace._less(other, [900], 0.1) == [90]
    assert pace._less(tiny.model, lengths, 0.5) == [30, 25, 20, 15, 10, 5]
    assert (pace.work(other, [8, 8]), pace.work(tiny.model, [8, 8])) == (16, 48)
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    assert pace.speed(replace(tiny, model=other), sampler, CPU, Hardware(), free=1 << 30).training > 0
