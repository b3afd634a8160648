"""Optimiser steps, learning rates, budgets, averaged weights and statistics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from chordmixer import Model, Packed, files
from chordmixer.config import override
from chordmixer.data import Loader, TokenSampler
from chordmixer.models import ModelConfig
from chordmixer.models.words import WordsConfig
from chordmixer.ops import segment_mean
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.training import Experiment, TrainingConfig, optimiser
from chordmixer.training.checkpoints import State
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.optimiser import (
    Budget,
    Ema,
    Optimiser,
    PendingStep,
    parameter_groups,
    schedule,
    update_statistics,
)


def quiet() -> Console:
    return Console(file=StringIO())


@pytest.fixture
def model(tiny: Experiment) -> Model:
    torch.manual_seed(0)
    return Model(tiny.model)


def take_step(model: Model, adamw: Optimiser, gradient: float, loss: float = 1.0) -> tuple[float, list[float]]:
    """Take one step; return the largest change of a weight, and the result of the step."""
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.full_like(p, gradient)
    result = adamw.step(torch.tensor(loss), 1e-3)
    after = [p.detach() for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    return max(float((a - b).abs().max()) for a, b in zip(after, before, strict=True)), result.tolist()


def test_gradients_are_clipped_and_their_norm_is_told(tiny: Experiment, model: Model) -> None:
    count = sum(p.numel() for p in model.parameters())
    adamw = Optimiser(model, tiny.training, longest=64)
    _, (loss, norm) = take_step(model, adamw, 100.0)
    assert loss == 1.0 and norm == pytest.approx(100 * count**0.5, rel=1e-5)
    first = adamw.adam.state[next(model.parameters())]["exp_avg"]
    torch.testing.assert_close(first, torch.full_like(first, 0.1 / count**0.5))  # a tenth of a gradient of norm one


@pytest.mark.parametrize(("gradient", "loss"), [(float("nan"), 1.0), (1.0, float("inf"))])
def test_weights_stay_from_the_first_step_on_that_is_not_finite(
    tiny: Experiment, model: Model, gradient: float, loss: float
) -> None:
    adamw = Optimiser(model, tiny.training, longest=64)
    assert take_step(model, adamw, 1.0)[0] > 0
    assert take_step(model, adamw, gradient, loss)[0] == 0
    assert take_step(model, adamw, 1.0)[0] == 0


def test_scales_of_the_learning_rate(tiny: Experiment, model: Model) -> None:
    adamw = Optimiser(model, override(tiny, {"training": {"layer_decay": 0.5}}).training, longest=64)
    take_step(model, adamw, 1.0)
    assert [group["lr"] for group in adamw.adam.param_groups][:3] == pytest.approx([1e-3, 5e-4, 2.5e-4])


@pytest.mark.parametrize(
    ("step", "precision", "cure"),
    [
        (0, "fp32", "or at their targets"),
        (0, "bf16", "or try training.precision=fp32"),
        (6, "fp32", "or lower the learning rate of 0.001"),
        (6, "bf16", "or lower the learning rate of 0.001"),
    ],
)
def test_the_cure_depends_on_the_step(step: int, precision: str, cure: str) -> None:
    pending = PendingStep(step, 0, 0.1, 1e-3, [4, 2], 90, torch.zeros(2))
    message = pending.not_finite(float("inf"), ["r4", "r2"], precision)
    assert message.startswith(
        f"loss inf or its gradient is not finite at step {step + 1}, records r4, r2: weights stay "
    )
    assert message.endswith(f"as after step {step}; look at these records {cure}")


def test_many_records_are_not_all_named() -> None:
    names = [f"r{i}" for i in range(11)]
    message = PendingStep(0, 0, 0.0, 1.0, list(range(11)), 9, torch.zeros(2)).not_finite(11.0, names, "fp32")
    assert message.startswith("loss 1.0 or ") and "r6, r7 and 3 more: weights" in message


# --- Parameter groups ---


def rate_scales(experiment: Experiment, longest: int) -> dict[str, float]:
    """The scale of the learning rate for each part of the model."""
    model = Model(experiment.model)
    names = {id(p): ".".join(name.split(".")[:3]) for name, p in model.named_parameters()}
    groups = parameter_groups(model, experiment.training, longest)
    assert sum(len(group["params"]) for group in groups) == len(names)
    return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}


def test_rates_fall_from_the_head_to_the_embedding(tiny: Experiment) -> None:
    experiment = override(tiny, {"training": {"layer_decay": 0.5}, "model": {"final_norm": "layer"}})
    scales = rate_scales(experiment, longest=64)
    assert [scales[f"encoder.blocks.{i}"] for i in range(6)] == [0.5**k for k in (6, 5, 4, 3, 2, 1)]
    assert scales["head.linear.weight"] == scales["final_norm.weight"] == 1
    assert scales["embedding.linear.weight"] == 0.5**7


def test_blocks_that_no_record_reaches_do_not_count(tiny: Experiment) -> None:
    scales = rate_scales(override(tiny, {"training": {"layer_decay": 0.5}}), longest=7)
    assert [scales[f"encoder.blocks.{i}"] for i in range(6)] == [0.125, 0.25, 0.5, 0.5, 0.5, 0.5]
    assert scales["embedding.linear.weight"] == 0.0625


def test_one_rate_is_one_group(tiny: Experiment) -> None:
    model = Model(tiny.model)
    (group,) = parameter_groups(model, tiny.training, 64)
    assert group["lr_scale"] == 1 and all(a is b for a, b in zip(group["params"], model.parameters(), strict=True))


def test_the_optimiser_has_these_rates(tiny: Experiment, tmp_path: Path) -> None:
    experiment = override(tiny, {"training": {"layer_decay": 0.5, "epochs": 1, "warmup": 0.0}})
    run = TrainingRun(experiment, tmp_path / "run", False, quiet())
    run.train()
    rates = [group["lr"] for group in run.optimiser.adam.param_groups]
    assert rates == pytest.approx([rates[0] * 0.5**k for k in range(len(rates))]) and len(rates) > 5


def test_layers_of_other_encoders_are_not_known(tiny: Experiment) -> None:
    experiment = override(tiny, {"model": {"encoder": "lstm"}})
    with pytest.raises(
        ValueError, match=r"layer_decay=0\.5 counts the blocks of a chordmixer, and this encoder is lstm"
    ):
        parameter_groups(Model(experiment.model), TrainingConfig(layer_decay=0.5), 64)


@pytest.mark.parametrize("decay", [0.0, 1.1, -1.0])
def test_a_decay_is_a_share(decay: float) -> None:
    with pytest.raises(ValueError, match=f"layer_decay={decay} is not a share: give more than 0, and 1 or less"):
        TrainingConfig(layer_decay=decay)


def test_tables_of_words_have_a_weight_decay_of_their_own(tiny: Experiment) -> None:
    network = tiny.model.network
    model = Model(ModelConfig(5, 2, network=network, words=WordsConfig(lengths=(2,), bits=4)))
    for layer_decay in (1.0, 0.5):
        config = TrainingConfig(weight_decay=0.1, words_decay=2.0, layer_decay=layer_decay)
        groups = parameter_groups(model, config, longest=32)
        decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        assert model.words is not None and decays.pop(id(model.words.table)) == 2.0
        assert {*decays.values()} == {0.1} and len(decays) + 1 == len(list(model.parameters()))


# --- Budget ---


@pytest.fixture
def tick(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that moves only when told to, and by a tenth of a second at each reading."""
    now = [0.0]

    def look() -> float:
        now[0] += 0.1
        return now[0]

    monkeypatch.setattr(optimiser, "time", SimpleNamespace(monotonic=look))
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_what_is_spent_is_kept_with_the_state(tick: Callable[[float], None]) -> None:
    state = State()
    limit = Budget(TrainingConfig(minutes=1.0), state)
    with limit.counting():
        tick(29.9)
    tick(500)  # a validation
    assert state.seconds == pytest.approx(30) and limit.spent == pytest.approx(0.5)
    assert [*Budget(TrainingConfig(minutes=1.0), state).messages()] == ["training for at most 1 min, 0.5 done"]
    with limit.counting():
        tick(100)
    assert limit.spent == 1


def test_without_a_limit_nothing_is_measured(tick: Callable[[float], None]) -> None:
    state = State()
    limit = Budget(TrainingConfig(), state)
    with limit.counting():
        tick(100)
    assert (state.seconds, limit.spent, [*limit.messages()]) == (0.0, 0.0, [])


def small(**training: float) -> Experiment:
    experiment = adding(AddingConfig(20, training=40, validation=8, test=8))
    settings = TrainingConfig(epochs=50, batch_sequences=4, device="cpu", **training)  # type: ignore[arg-type]
    return replace(experiment, training=settings)


def test_the_run_ends_and_the_rate_falls_with_the_budget(tmp_path: Path, tick: Callable[[float], None]) -> None:
    """A step takes a tenth of a second by this clock, so that 2.5 seconds are two and a half epochs of ten steps."""
    train(small(minutes=2.5 / 60), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(line["step"] for line in lines) in range(24, 28)
    assert [line["step"] for line in lines if line["split"] == "validation"][:2] == [10, 20]
    rates = [line["learning_rate"] for line in lines if line["split"] == "training"]
    assert rates[-1] < 0.3 * rates[0]
    assert (tmp_path / "run" / "evaluation-test.json").exists()


def test_steps_end_a_run_with_a_whole_schedule(tmp_path: Path) -> None:
    """25 steps are two and a half epochs of ten; averaged weights count them too, since their number is known."""
    state = State(step=5)
    limit = Budget(TrainingConfig(steps=20), state)
    assert limit.spent == 0.25 and limit.after(10) == 0.5 and limit.after(30) == 1
    assert [*limit.messages()] == ["training for at most 20 steps, 5 done"]
    train(small(steps=25, ema=0.2), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "validation"] == [10, 20, 25]
    rates = [line["learning_rate"] for line in lines if line["split"] == "training"]
    assert rates[-1] == pytest.approx(1e-3 * schedule(19 / 25, 0.05)), "after 19 of 25 steps"


def test_more_steps_than_the_epochs_have_change_nothing(tmp_path: Path) -> None:
    one_epoch = replace(small(), training=replace(small().training, epochs=1))
    limited = replace(one_epoch, training=replace(one_epoch.training, steps=1_000))
    assert train(one_epoch, tmp_path / "a").loss == train(limited, tmp_path / "b").loss


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"steps=-1 is too small: give 0 or more"):
        TrainingConfig(steps=-1)
    with pytest.raises(ValueError, match=r"steps=3,000 and minutes=2 are both the end of a run: set one of them"):
        TrainingConfig(steps=3_000, minutes=2)
    with pytest.raises(ValueError, match=r"minutes=-1 is too small: give 0 or more"):
        TrainingConfig(minutes=-1)
    with pytest.raises(ValueError, match=r"ema=0.1 is a share of the steps, whose number minutes=2 leaves open"):
        TrainingConfig(minutes=2, ema=0.1)


# --- EMA ---


class Counted(nn.Module):
    """A weight, a running statistic and an integer."""

    weight: torch.Tensor
    running: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def walk(model: Counted, average: Ema, steps: range) -> None:
    for step in steps:
        model.weight.data.fill_(step)
        model.running.fill_(-step)
        average.update(average.weight(step))


def test_a_plain_mean_then_a_fading_one() -> None:
    model = Counted()
    average = Ema(model, horizon=4)
    walk(model, average, range(1, 5))
    assert average.values["weight"].tolist() == [2.5] * 3
    assert average.values["running"].tolist() == [-2.5] * 2
    walk(model, average, range(5, 6))
    assert average.values["weight"].tolist() == pytest.approx([2.5 + 2.5 / 4] * 3)
    assert set(average.values) == {"weight", "running"}


def test_the_average_replaces_the_weights_for_a_while_and_every_bit_comes_back() -> None:
    model = Counted()
    average = Ema(model, horizon=100)
    walk(model, average, range(1, 4))
    with pytest.raises(RuntimeError), average.in_place():
        assert model.weight.tolist() == [2.0] * 3 and model.running.tolist() == [-2.0] * 2
        raise RuntimeError
    assert model.weight.tolist() == [3.0] * 3 and model.running.tolist() == [-3.0] * 2


def test_an_average_goes_on_from_stored_values() -> None:
    model, resumed_model = Counted(), Counted()
    uninterrupted = Ema(model, horizon=3)
    walk(model, uninterrupted, range(1, 4))
    resumed = Ema(resumed_model, horizon=3, values=uninterrupted.values)
    walk(model, uninterrupted, range(4, 8))
    walk(resumed_model, resumed, range(4, 8))
    assert all(torch.equal(uninterrupted.values[name], resumed.values[name]) for name in uninterrupted.values)


# --- Statistics ---


@pytest.fixture
def standard(tiny: Experiment) -> Experiment:
    return override(tiny, {"model": {"head": "standard"}})


def loader(experiment: Experiment, **settings: Any) -> Loader:
    records = experiment.build_task().records("training")
    return Loader(records, TokenSampler(records.lengths, tokens=2_000, sequences=5, **settings), drawing=True)


def pooled(model: Model, data_loader: Loader, indices: list[int]) -> torch.Tensor:
    """The pooled encodings of records, one at a time."""
    rows = []
    with torch.inference_mode():
        for index in indices:
            x: Packed = model.eval().encode(data_loader.batch([index]).inputs)
            rows.append(segment_mean(x.values, x.offsets))
    return torch.cat(rows)


def test_mean_and_spread_over_records(standard: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    data_loader, model = loader(standard), Model(standard.model)
    expected = pooled(model, data_loader, list(range(len(data_loader.records.lengths))))
    update_statistics(model, data_loader, 0, half=False)
    head: Any = model.head
    torch.testing.assert_close(head.standard.mean, expected.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.standard.variance, expected.var(0, correction=0), rtol=1e-3, atol=1e-7)
    monkeypatch.setattr(optimiser, "STATISTICS_RECORDS", 7)
    update_statistics(model, data_loader, 0, half=False)
    assert not torch.allclose(head.standard.mean, expected.mean(0), rtol=1e-4, atol=1e-5)


def test_the_same_on_every_rank(standard: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimiser, "STATISTICS_RECORDS", 9)
    model, means = Model(standard.model), []
    head: Any = model.head
    for rank in (0, 1):
        update_statistics(model, loader(standard, rank=rank), 0, half=False)
        means.append(head.standard.mean.clone())
    assert torch.equal(*means)


def test_other_heads_are_left_alone(tiny: Experiment) -> None:
    model = Model(tiny.model).train()
    update_statistics(model, loader(tiny), 0, half=False)
    assert model.training


def test_going_on_gives_the_same_weights(standard: Experiment, crash: Any, tmp_path: Path) -> None:
    experiment = override(standard, {"training": {"ema": 0.2, "evaluate_every": 5}})
    train(experiment, tmp_path / "whole")
    crash(experiment, tmp_path / "run", 13)
    train(experiment, tmp_path / "run", resume=True)
    expected, resumed = (files.read_tensors(tmp_path / run / "model.safetensors") for run in ("whole", "run"))
    assert "head.standard.mean" in expected and all(torch.equal(expected[name], resumed[name]) for name in expected)
