"""How long an epoch takes: measured on little, said of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chordmixer.data import TokenSampler
from chordmixer.models import Model, ModelConfig
from chordmixer.training import Experiment, pace
from chordmixer.training.memory import Place

CPU = torch.device("cpu")


def test_time_grows_with_tokens_and_depth(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of a known speed: as many seconds as it is told, however little of a batch is measured."""
    taken: list[int] = []

    def stepper(*_: object) -> object:
        def take(lengths: list[int]) -> float:
            taken.append(sum(lengths))
            return 1e-5 * sum(n * max(1, (n - 1).bit_length()) for n in lengths)

        return take

    monkeypatch.setattr(pace, "_stepper", stepper)
    sampler = TokenSampler([1 << 16] * 20, tokens=1 << 17, sequences=2)
    exact = 1e-5 * 20 * (1 << 16) * 16
    assert pace.seconds(tiny, sampler, CPU, Place(), free=1 << 40) == pytest.approx(exact)
    assert taken[0] == 2 * 2_000 and 5_000 < taken[-1] < 20_000, "a second's worth"
    assert pace.seconds(tiny, sampler, CPU, Place(), free=1 << 20) == pytest.approx(exact)
    assert taken[-1] == 4_000, "memory for no more"


def test_a_real_step_leaves_the_random_state(tiny: Experiment) -> None:
    before = torch.get_rng_state()
    sampler = TokenSampler([40, 64, 12], tokens=100, sequences=2)
    for precision in ("fp32", "bf16"):
        experiment = replace(tiny, training=replace(tiny.training, precision=precision))
        assert 0 < pace.seconds(experiment, sampler, CPU, Place(), free=1 << 30) < 5
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
    assert 0 < pace.seconds(replace(tiny, model=model), sampler, CPU, Place(), free=1 << 30) < 5


def test_made_up_records(tiny: Experiment) -> None:
    tokens = replace(tiny.model, embedding="tokens", inputs=5)
    assert pace._made_up(tokens, 300).unique().tolist() == [0, 1, 2, 3, 4]
    assert pace._made_up(tiny.model, 7).shape == (7, 2)
