"""Forecasts of a run: its largest batch, its memory, records that do not fit, and its time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from chordmixer.config import override
from chordmixer.data import Batch, TokenSampler
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Regression
from chordmixer.training import Experiment, TrainingConfig, memory, speed
from chordmixer.training import forecast as module
from chordmixer.training.forecast import (
    check_fits,
    check_memory,
    cures,
    dry_run,
    explaining_out_of_memory,
    forecast,
    largest_batch,
    may_keep_memory,
    peak_bytes,
    scored_lengths,
)
from chordmixer.training.loop import train
from chordmixer.training.memory import Hardware

CPU = torch.device("cpu")
LENGTHS = [3_000, 40, 70_000, 500, 900] + [600] * 40


@pytest.fixture
def experiment(tiny: Experiment) -> Experiment:
    network = ChordMixerConfig(max_length=70_000, track_size=4, hidden=16)
    return replace(
        tiny,
        model=replace(tiny.model, network=network),
        training=TrainingConfig(epochs=3, batch_sequences=8, batch_tokens=71_000, accumulate=2, device="cpu"),
    )


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The free memory, which a test sets."""
    available = SimpleNamespace(bytes=1 << 40)
    monkeypatch.setattr(module, "free_bytes", lambda device: available.bytes)
    return available


def test_a_forecast(experiment: Experiment, free: SimpleNamespace) -> None:
    plan = forecast(experiment, LENGTHS, CPU, "r{}".format)
    sampler = TokenSampler(LENGTHS, 71_000, 8)
    assert plan.weights == plan.trainable == sum(p.numel() for p in Model(experiment.model).parameters())
    assert not plan.started
    assert (plan.batches, plan.steps, plan.budget) == (len(sampler), -(-len(sampler) // 2) * 3, 71_000)
    assert plan.longest == "r2" and plan.records[0] == 2 and plan.lengths[0] == 70_000
    assert plan.memory == memory.peak(experiment.model, plan.lengths, Hardware.of(CPU, "fp32"), accumulate=2)
    assert plan.peak == sum(plan.memory.values()) and plan.fits and plan.too_long == () and plan.seconds is None
    assert plan.room > 10_000_000 and replace(plan, room=0) == forecast(
        experiment, LENGTHS, CPU, "r{}".format, limits=False
    )
    check_fits(plan)


def test_ranks_share_memory_and_time(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_: speed.Speed(1.0, 0.5))
    lengths, scored = [64] * 8, {"validation": [64], "test": [64]}
    single = forecast(tiny, lengths, CPU, timed=True, scored=scored)
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = forecast(tiny, lengths, CPU, timed=True, scored=scored)
    assert (len(single.records), len(shared.records), shared.steps) == (8, 2, single.steps)
    assert (
        shared.peak < single.peak
        and single.total_seconds is not None
        and shared.total_seconds == single.total_seconds / 4
    )


@pytest.mark.parametrize(("steps", "expected"), [(0, (3, 12)), (5, (2, 5)), (4, (1, 4)), (100, (3, 12))])
def test_a_limit_on_steps(
    experiment: Experiment, free: SimpleNamespace, steps: int, expected: tuple[int, int]
) -> None:
    """Three epochs of four steps each, unless the limit on steps comes first."""
    limited = replace(experiment, training=replace(experiment.training, steps=steps))
    plan = forecast(limited, LENGTHS, CPU)
    assert plan.batches in (7, 8), "two batches make a step"
    assert (plan.epochs, plan.steps) == expected


def test_it_can_be_timed(tiny: Experiment) -> None:
    plan = forecast(tiny, [30, 64, 12] * 4, CPU, timed=True)
    assert plan.seconds is not None and 0 < plan.seconds < 5


def test_the_whole_run_has_validation_and_test(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of training, validation after each and once more with the best weights, the test once."""
    monkeypatch.setattr(speed, "measure", lambda *_: speed.Speed(1.0, 0.5))
    scored = {"validation": [64], "test": [64, 64]}
    plan = forecast(tiny, [64] * 4, CPU, timed=True, scored=scored)
    work = 64 * 6
    assert (plan.seconds, plan.validation, plan.test) == (4 * work, 3 * 0.5 * work, 2 * 0.5 * work)
    assert plan.total_seconds == 2 * 4 * work + 2.5 * work
    frequent = replace(tiny, training=replace(tiny.training, evaluate_every=1, minutes=work / 60))
    plan = forecast(frequent, [64] * 4, CPU, timed=True, scored=scored)
    assert (plan.seconds, plan.validation) == (work / 2, (3 + plan.steps) * 0.5 * work), "ended by the clock"
    assert forecast(tiny, [64] * 4, CPU).total_seconds is None


def test_both_strands_are_two_passes(tiny: Experiment) -> None:
    task = tiny.build_task()
    lengths = scored_lengths(task)
    assert {part: len(part_lengths) for part, part_lengths in lengths.items()} == {"validation": 24, "test": 24}
    task.complement = torch.arange(4).numpy()
    assert scored_lengths(task)["test"] == 2 * lengths["test"]


def test_the_whole_process(experiment: Experiment, free: SimpleNamespace) -> None:
    """The process's own memory, a step, and what the heap retains of batches of other sizes."""
    plan = forecast(experiment, LENGTHS, CPU)
    hardware = Hardware.of(CPU, "fp32")
    assert plan.retained == memory.retained(experiment.model, plan.lengths, hardware, plan.memory) > plan.peak / 2
    assert plan.resident > module.LIBRARY_BYTES + 100e6 and plan.process == plan.peak + plan.retained + plan.resident
    assert forecast(experiment, [500], CPU).retained == 0, "a single batch leaves nothing behind"
    free.bytes = plan.peak + plan.retained - 1
    assert not forecast(experiment, LENGTHS, CPU).fits
    check_fits(forecast(experiment, LENGTHS, CPU))


def test_records_that_do_not_fit(experiment: Experiment, free: SimpleNamespace) -> None:
    free.bytes = 80_000_000
    plan = forecast(experiment, LENGTHS, CPU, "r{}".format)
    assert plan.too_long == ("r2",) and 3_000 < plan.room < 70_000 and not plan.fits
    peaks = [
        sum(memory.peak(experiment.model, [n], Hardware.of(CPU, "fp32")).values())
        for n in (plan.room, plan.room + 400)
    ]
    assert peaks[0] <= free.bytes < peaks[1]


def test_nothing_fits(experiment: Experiment, free: SimpleNamespace) -> None:
    free.bytes = 1_000
    assert forecast(experiment, [5, 6], CPU).room == 0


def test_far_too_much_is_refused(experiment: Experiment, free: SimpleNamespace) -> None:
    needed = forecast(experiment, LENGTHS, CPU).peak
    free.bytes = int(needed / 0.89)
    check_fits(forecast(experiment, LENGTHS, CPU))
    free.bytes = needed
    message = (
        r"needs about \d+ MB of memory, and cpu has \d+ MB free: its longest record r2 has 70,000 tokens; set a "
        r"smaller training.batch_tokens, model.network.reversible=true or a smaller model.network.track_size$"
    )
    with pytest.raises(ValueError, match=message) as error:
        check_fits(forecast(experiment, LENGTHS, CPU, "r{}".format))
    assert "\n" not in str(error.value)


def test_memory_is_kept_where_there_is_enough(experiment: Experiment, free: SimpleNamespace) -> None:
    needed = peak_bytes(experiment, LENGTHS, CPU)
    assert needed >= forecast(experiment, LENGTHS, CPU).peak
    for free.bytes, keeps in ((2 * needed, True), (2 * needed - 1, False)):
        assert may_keep_memory(experiment, LENGTHS, CPU) == keeps
    lstm = replace(experiment, model=experiment.model.with_encoder("lstm"))
    free.bytes = 1 << 60
    assert not may_keep_memory(lstm, LENGTHS, CPU), "its memory is not counted"


def test_a_frozen_encoder(experiment: Experiment, free: SimpleNamespace) -> None:
    probing = replace(experiment, training=replace(experiment.training, start="PRE", freeze=True))
    full, frozen = (forecast(variant, LENGTHS, CPU) for variant in (experiment, probing))
    assert frozen.started and (frozen.weights, frozen.trainable) == (full.weights, experiment.model.network.width + 1)
    assert frozen.memory == memory.peak(
        probing.model, frozen.lengths, Hardware.of(CPU, "fp32"), accumulate=2, freeze=True
    )
    assert frozen.peak < full.peak / 3 and frozen.room > 3 * full.room


@pytest.mark.parametrize(
    ("freeze", "cure"), [(False, "training.freeze=true or --from a run"), (True, "--from a run")], ids=str
)
def test_the_network_of_a_run_is_not_changed(
    experiment: Experiment, free: SimpleNamespace, freeze: bool, cure: str
) -> None:
    free.bytes = 1_000
    training = replace(experiment.training, start="PRE", freeze=freeze)
    with pytest.raises(ValueError, match=rf"set a smaller training.batch_tokens, {cure} with a smaller network$"):
        check_fits(forecast(replace(experiment, training=training), LENGTHS, CPU))


def test_a_single_record_is_not_told_to_use_smaller_batches(experiment: Experiment, free: SimpleNamespace) -> None:
    free.bytes = 1_000
    with pytest.raises(ValueError, match=r"longest record 0 has 70,000 tokens; set model.network.reversible=true"):
        check_fits(forecast(experiment, [70_000], CPU))


def test_the_largest_batch_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [int(n) for n in torch.randint(1, 500, (300,), generator=torch.Generator().manual_seed(0))]
    sampler = TokenSampler(lengths, tokens=4_000, sequences=16)
    sampler.set_epoch(2, 3)
    plan = sampler.batches

    def work(batch: list[int]) -> int:
        return sum(lengths[i] * max(1, (lengths[i] - 1).bit_length()) for i in batch)

    of_six, of_one = largest_batch(sampler, 6), largest_batch(sampler, 1)
    assert work(of_six) > work(of_one), "another epoch has a larger one"
    assert [lengths[i] for i in of_six] == sorted((lengths[i] for i in of_six), reverse=True)
    assert (sampler.epoch, sampler.start, sampler.batches) == (2, 3, plan), "the sampler is unchanged"
    monkeypatch.setattr(module, "MAX_PLANNED", 10)
    assert largest_batch(sampler, 6) == of_one


def test_cures(experiment: Experiment, free: SimpleNamespace) -> None:
    lengths = [500] * 60
    batched = replace(experiment, training=replace(experiment.training, batch_sequences=60, batch_tokens=30_000))
    peak = forecast(batched, lengths, CPU).peak
    free.bytes = 2 * peak // 3  # of several batches the heap keeps as much again
    remedies = cures(batched, lengths, CPU)
    assert [*remedies] == [
        "training.batch_tokens=7500",
        "model.network.reversible=true",
        "model.network.track_size=2",
    ]
    assert all(plan.peak < peak for plan in remedies.values()) and remedies["training.batch_tokens=7500"].fits
    free.bytes = 1_000
    assert next(iter(cures(batched, lengths, CPU, longest=20_000))) == "training.batch_tokens=20000"
    assert next(iter(cures(batched, [500], CPU, longest=30_000))) == "model.network.reversible=true"
    network = replace(batched.model.network, norm="layer", track_size=1)
    assert [*cures(replace(batched, model=replace(batched.model, network=network)), [500], CPU, longest=30_000)] == []


def test_cures_of_other_runs(experiment: Experiment, free: SimpleNamespace) -> None:
    """A decoder can be left out, and a pre-trained encoder can be frozen, but not be made smaller."""
    free.bytes = 1_000
    model = replace(experiment.model, head="tokens", decoder="network")
    remedies = cures(replace(experiment, model=model), [500], CPU, longest=71_000)
    assert [*remedies] == ["model.network.reversible=true", "model.network.track_size=2", "model.decoder=none"]
    assert remedies["model.decoder=none"].weights < memory.weights(model)
    for freeze, settings in ((False, ["training.freeze=true"]), (True, [])):
        started = replace(experiment, training=replace(experiment.training, start="PRE", freeze=freeze))
        assert [*cures(started, [500], CPU, longest=71_000)] == settings
    cls_run = replace(experiment, model=replace(experiment.model, head="class_token"))  # a head that cannot be frozen
    cls_run = replace(cls_run, training=replace(experiment.training, start="PRE"))
    assert [*cures(cls_run, [500], CPU, longest=71_000)] == []


@pytest.mark.parametrize("encoder", ["chordmixer", "linformer"])
def test_memory_is_checked_before_any_is_taken(
    tiny: Experiment, free: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoder: str
) -> None:
    """The weights of a model that does not fit are never made."""
    model = tiny.model.with_encoder(encoder)
    wide = {"hidden": 1 << 20} if encoder == "chordmixer" else {"rank": 1 << 20}
    experiment = replace(tiny, model=replace(model, network=replace(model.network, **wide)))
    free.bytes = 10_000_000
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda m: pytest.fail() if m.weight.is_cpu else None)
    with pytest.raises(ValueError, match=r"needs? about [\d.]+ [GM]B of memory.* and cpu has 10 MB free"):
        train(experiment, tmp_path / "run")
    free.bytes = 1 << 40
    check_memory(experiment, [60], CPU, str)


def test_sequences_that_ranks_split_are_not_forecast(
    tiny: Experiment, free: SimpleNamespace, log: pytest.LogCaptureFixture
) -> None:
    split = override(tiny, {"training": {"context_parallel": 2}})
    free.bytes = 1_000_000
    with pytest.raises(ValueError, match=r"a training step needs about"):
        check_memory(tiny, [60_000], CPU, str)
    check_memory(split, [60_000], CPU, str)
    assert "memory: not forecast for sequences split over ranks" in log.text
    free.bytes = 1_000
    with pytest.raises(ValueError, match="the weights of this chordmixer need about"):
        check_memory(split, [60], CPU, str)


def test_more_weights_than_can_be_counted(tiny: Experiment) -> None:
    model = replace(tiny.model, head="flat", outputs=1 << 20, network=ChordMixerConfig(max_length=1 << 40))
    with pytest.raises(ValueError, match=r"has too many weights to count \(.*\): give smaller ones"):
        check_memory(replace(tiny, model=model), [60], CPU, str)


# --- Out of memory ---


def batch_of(lengths: list[int]) -> Batch:
    return Batch(
        Packed.from_lengths(torch.randn(sum(lengths), 2), lengths), torch.rand(len(lengths)), [*range(len(lengths))]
    )


@pytest.mark.parametrize("reversible", [False, True])
def test_a_dry_run_leaves_nothing(reversible: bool) -> None:
    network = ChordMixerConfig(
        max_length=64, track_size=2, hidden=4, dropout=0.3, prenorm="batch", reversible=reversible
    )
    model = Model(ModelConfig(2, 1, embedding="real", network=network)).eval()
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch, rng_state = batch_of([60, 12]), torch.get_rng_state()
    modes: list[bool] = []
    model.encoder.register_forward_hook(lambda module, *_: modes.append(module.training))
    dry_run(model, batch, Regression())
    assert modes == [True] and not model.training, "in training mode, and back afterwards"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(p.grad is None for p in [*model.parameters()][1:])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 7 bytes"),
    ],
    ids=["gpu", "cpu"],
)
def test_memory_that_runs_out_is_explained(error: RuntimeError) -> None:
    model = Model(
        ModelConfig(2, 1, embedding="real", network=ChordMixerConfig(max_length=64, track_size=2, hidden=4))
    )

    def fail(*_: object) -> None:
        raise error

    model.encoder.register_forward_hook(fail)
    with pytest.raises(
        ValueError,
        match=r"the memory of cpu ran out over a batch of 72 tokens in 2 records: its longest record x has 60 "
        r"tokens; set a smaller training.batch_tokens, model.network.reversible=true or a smaller "
        r"model.network.track_size$",
    ):
        dry_run(model, batch_of([60, 12]), Regression(), "x")


def test_a_batch_of_pairs_is_told_by_its_records() -> None:
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=4)
    model = Model(ModelConfig(2, 1, embedding="real", head="pair", network=network))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    model.encoder.register_forward_hook(fail)
    batch = replace(batch_of([60, 12, 5, 9]), targets=torch.rand(2), indices=[1, 0])
    with pytest.raises(ValueError, match="86 tokens in 2 records: its longest record x has 72 tokens"):
        dry_run(model, batch, Regression(), "x")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="a bug"), explaining_out_of_memory([5], CPU):
        raise RuntimeError("a bug")
