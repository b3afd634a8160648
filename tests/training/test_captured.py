"""Steps in static form: the same as usual ones. CUDA graphs of them are tested in tests/gpu."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from chordmixer import ChordMixerConfig, Model, Packed, ops
from chordmixer.data import Batch
from chordmixer.models import ModelConfig
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig
from chordmixer.packed import LengthsUnknownError, StaticPacked
from chordmixer.paper.adding import AddingConfig
from chordmixer.paper.recipes import adding
from chordmixer.tasks.targets import Classification, Regression, Target
from chordmixer.training import TrainingConfig, captured, speed
from chordmixer.training.captured import CapturedSteps
from chordmixer.training.optimiser import Ema, Optimiser

pytest.importorskip("chordmixer.ops.triton_plan", reason="Triton is not installed")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU tests/gpu runs the compiled kernels"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),  # the interpreter's random numbers
]
NETWORK = ChordMixerConfig(max_length=64, track_size=2, hidden=16, prenorm="layer", dropout=0.3)
LETTERS = ModelConfig(
    inputs=5,
    outputs=3,
    head="mean_maximum_attention",
    final_norm="layer",
    mark_start=True,
    positions=3,
    length=True,
    stem=StemConfig(layers=2, taps=5, width=4),
    words=WordsConfig(lengths=(2, 3), bits=5, width=4, dropout=0.0),
    network=NETWORK,
)
SERIES = replace(LETTERS, inputs=2, embedding="real", within_record=True, words=WordsConfig(), mark_start=False)
PAPER = ModelConfig(inputs=2, outputs=1, embedding="real", network=ChordMixerConfig(64, track_size=2, hidden=16))
RELEASED = replace(LETTERS, head="standard", network=replace(NETWORK, order="released"))
REGRESSION, CLASSES = Regression(), Classification(["a", "b", "c"], [0, 1, 2])
CONFIG = TrainingConfig(weight_decay=0.1, words_decay=1.0)


def batch_of(model: ModelConfig, lengths: Sequence[int], seed: int) -> Batch:
    generator, tokens = torch.Generator().manual_seed(seed), sum(lengths)
    values = torch.randn(tokens, model.inputs, generator=generator)
    if model.embedding == "tokens":
        values = torch.randint(model.inputs, (tokens,), generator=generator)
    targets = torch.rand(len(lengths), generator=generator)
    targets = targets if model.outputs == 1 else (3 * targets).long()
    return Batch(Packed.from_lengths(values, lengths), targets, [*range(len(lengths))])


def steps(model: Model, target: Target, batches: Sequence[Batch], static: bool) -> tuple[list[Tensor], Ema]:
    """The results of a step on each batch."""
    optimiser, ema, results = Optimiser(model, CONFIG, 64), Ema(model, horizon=100), []
    stepper = CapturedSteps(model, model, target, optimiser, ema)
    for number, batch in enumerate(batches, 1):
        torch.manual_seed(number)
        if static:
            result = stepper.step(batch, 1e-2, number)
            assert result is not None
        else:
            losses = target.losses(model(batch.inputs), batch.targets)
            losses.mean().backward()
            result = optimiser.step(losses.detach().sum(), 1e-2)
            ema.update(ema.weight(number))
        results.append(result)
    return results, ema


@pytest.mark.parametrize(
    ("config", "target"),
    [(LETTERS, CLASSES), (SERIES, CLASSES), (PAPER, REGRESSION), (RELEASED, CLASSES)],
    ids=["letters", "series", "paper", "released"],
)
def test_static_steps_equal_usual_ones(config: ModelConfig, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, norms, weights, running statistics and EMA, with dropout; padding changes nothing."""
    monkeypatch.setattr(ops, "_fits", lambda _: True)
    torch.manual_seed(0)
    model = Model(config).train()
    batches = [batch_of(config, lengths, seed) for seed, lengths in enumerate([(60, 33, 5, 1), (40, 30, 17, 2)])]
    reference = deepcopy(model)
    actual, ema = steps(model, target, batches, static=True)
    expected, expected_ema = steps(reference, target, batches, static=False)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    for values, expected_values in ((model.state_dict(), reference.state_dict()), (ema.values, expected_ema.values)):
        for name in values.keys() - {"final_norm.bias", "head.score.bias"}:  # whose gradients are but rounding errors
            torch.testing.assert_close(values[name], expected_values[name], rtol=1e-3, atol=1e-4, msg=name)


def test_what_waits_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that must not wait comes before a graph; an error before the optimiser means usual steps."""
    modes = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    monkeypatch.setattr(ops, "_fits", lambda _: True)
    model = Model(PAPER)
    stepper = CapturedSteps(model, model, REGRESSION, Optimiser(model, CONFIG, 64), None)
    batch = batch_of(PAPER, (9, 2), 0)
    buffers = captured.Buffers.like(batch, captured.StepSize(64, 2, 4))
    buffers.fill(batch, captured._host_values((9, 2), captured.StepSize(64, 2, 4), False, 1e-2, 0.0))
    monkeypatch.setattr(CapturedSteps, "_take", Mock(side_effect=RuntimeError("called a synchronizing operation")))
    with pytest.raises(RuntimeError, match="synchronizing"):
        stepper._prove(buffers)
    assert modes == ["error", 0] and not stepper.proven
    assert stepper.step(batch, 1e-2, 1) is None and "synchronizing" in stepper.reason
    stepper.reason, stepper.stepped = "", True
    monkeypatch.setattr(CapturedSteps, "_take", _fails_after_the_optimiser)
    with pytest.raises(RuntimeError, match="too late"):
        stepper.step(batch, 1e-2, 1)


def _fails_after_the_optimiser(steps: CapturedSteps, _: captured.Buffers) -> None:
    steps.stepped = True
    raise RuntimeError("too late")


def test_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are timed as graphs where possible; forward passes and other steps are timed as usual."""
    monkeypatch.setattr(ops, "_fits", lambda _: True)
    fallback = Mock(return_value=7.0)
    step = speed._captured_stepper(PAPER, TrainingConfig(precision="fp32"), torch.device("cpu"), fallback)
    assert 0 < step([3, 9]) != 7 and fallback.call_count == 0
    assert step([3, 9], True) == 7 and fallback.call_count == 1
    monkeypatch.setattr(captured, "LARGE_BATCH", 8)
    assert step([3, 9]) == 7


def test_batches_are_timed() -> None:
    experiment = adding(AddingConfig(base_length=30, max_length=60, training=64, validation=9, test=9))
    records = experiment.build_task().records("training")
    assert 0 < speed.loading_seconds(records, experiment.training.sampler(records.lengths), torch.device("cpu")) < 10


def test_sizes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of similar numbers of tokens have one size; unsorted lengths and very many tokens have none."""
    model = Model(PAPER)
    stepper = CapturedSteps(model, model, REGRESSION, Optimiser(model, CONFIG, 64), None)
    sizes = [stepper._size(batch_of(PAPER, lengths, 0)) for lengths in ((60, 33), (59, 40), (60, 3, 1), (3, 60))]
    assert sizes[0] == sizes[1] == (128, 2, 6) and sizes[2] == (128, 3, 6) and sizes[3] is None
    monkeypatch.setattr(captured, "LARGE_BATCH", 64 * PAPER.network.width)
    assert stepper._size(batch_of(PAPER, (60, 33), 0)) is None and stepper._size(batch_of(PAPER, (60, 3), 0))
    assert all(
        tokens < captured.buffer_tokens(tokens) <= max(tokens + 64, 1.125 * tokens) for tokens in range(1, 5000)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"head": "last"},
        {"strategy": "truncate"},
        {"network": replace(NETWORK, hidden=300)},
        {"network": replace(NETWORK, reversible=True)},
        {"network": replace(NETWORK, prenorm="batch")},
    ],
    ids=str,
)
def test_models_without_a_static_form_take_usual_steps(changes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are known beforehand, the others when they ask for lengths."""
    monkeypatch.setattr(ops, "_fits", lambda _: True)
    model = Model(replace(PAPER, **changes))
    stepper = CapturedSteps(model, model, REGRESSION, Optimiser(model, CONFIG, 64), None)
    assert stepper.step(batch_of(PAPER, (9, 2), 0), 1e-2, 1) is None and stepper.reason
    if "network" in changes:
        with pytest.raises(LengthsUnknownError):
            model(
                StaticPacked(torch.zeros(8, 2), torch.tensor([0, 3, 8]), counts=torch.zeros(1, 4, dtype=torch.int32))
            )


def test_an_unknown_length_is_an_error_and_then_a_usual_step() -> None:
    """Kernels are off on a CPU, where the encoder needs lengths: nothing is learned from the attempt."""
    x = StaticPacked(torch.zeros(8, 2), torch.tensor([0, 3, 8]), counts=torch.zeros(1, 4, dtype=torch.int32))
    with pytest.raises(LengthsUnknownError, match="on the device alone"):
        _ = x.lengths
    assert len(x) == 1 and x.owners().tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    model = Model(PAPER)
    before = deepcopy(model.state_dict())
    stepper = CapturedSteps(model, model, REGRESSION, Optimiser(model, CONFIG, 64), None)
    assert stepper.step(batch_of(PAPER, (9, 2), 0), 1e-2, 1) is None and "fused kernels" in stepper.reason
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
