"""What a run will take: its largest batch, memory, what does not fit, time."""

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
    """Memory that a test sets."""
    left = SimpleNamespace(bytes=1 << 40)
    monkeypatch.setattr(module, "free_bytes", lambda device: left.bytes)
    return left


def test_a_forecast(experiment: Experiment, free: SimpleNamespace) -> None:
    made = forecast(experiment, LENGTHS, CPU, "r{}".format)
    sampler = TokenSampler(LENGTHS, 71_000, 8)
    assert made.weights == made.trainable == sum(p.numel() for p in Model(experiment.model).parameters())
    assert not made.started
    assert (made.batches, made.steps, made.budget) == (len(sampler), -(-len(sampler) // 2) * 3, 71_000)
    assert made.longest == "r2" and made.records[0] == 2 and made.lengths[0] == 70_000
    assert made.memory == memory.peak(experiment.model, made.lengths, Hardware.of(CPU, "fp32"), accumulate=2)
    assert made.peak == sum(made.memory.values()) and made.fits and made.too_long == () and made.seconds is None
    assert made.room > 10_000_000 and replace(made, room=0) == forecast(
        experiment, LENGTHS, CPU, "r{}".format, limits=False
    )
    check_fits(made)


def test_ranks_share_memory_and_time(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measure", lambda *_: speed.Speed(1.0, 0.5))
    lengths, scored = [64] * 8, {"validation": [64], "test": [64]}
    alone = forecast(tiny, lengths, CPU, timed=True, scored=scored)
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = forecast(tiny, lengths, CPU, timed=True, scored=scored)
    assert (len(alone.records), len(shared.records), shared.steps) == (8, 2, alone.steps)
    assert (
        shared.peak < alone.peak
        and alone.total_seconds is not None
        and shared.total_seconds == alone.total_seconds / 4
    )


@pytest.mark.parametrize(("steps", "expected"), [(0, (3, 12)), (5, (2, 5)), (4, (1, 4)), (100, (3, 12))])
def test_a_limit_on_steps(
    experiment: Experiment, free: SimpleNamespace, steps: int, expected: tuple[int, int]
) -> None:
    """Epochs of four steps, three of them unless the steps end before."""
    limited = replace(experiment, training=replace(experiment.training, steps=steps))
    made = forecast(limited, LENGTHS, CPU)
    assert made.batches in (7, 8), "two to a step"
    assert (made.epochs, made.steps) == expected


def test_it_can_be_timed(tiny: Experiment) -> None:
    made = forecast(tiny, [30, 64, 12] * 4, CPU, timed=True)
    assert made.seconds is not None and 0 < made.seconds < 5


def test_the_whole_run_has_validation_and_test(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs of training, validation after each and once more with the best weights, the test once."""
    monkeypatch.setattr(speed, "measure", lambda *_: speed.Speed(1.0, 0.5))
    scored = {"validation": [64], "test": [64, 64]}
    made = forecast(tiny, [64] * 4, CPU, timed=True, scored=scored)
    one = 64 * 6
    assert (made.seconds, made.validation, made.test) == (4 * one, 3 * 0.5 * one, 2 * 0.5 * one)
    assert made.total_seconds == 2 * 4 * one + 2.5 * one
    often = replace(tiny, training=replace(tiny.training, evaluate_every=1, minutes=one / 60))
    made = forecast(often, [64] * 4, CPU, timed=True, scored=scored)
    assert (made.seconds, made.validation) == (one / 2, (3 + made.steps) * 0.5 * one), "ended by the clock"
    assert forecast(tiny, [64] * 4, CPU).total_seconds is None


def test_both_strands_are_two_passes(tiny: Experiment) -> None:
    task = tiny.build_task()
    found = scored_lengths(task)
    assert {part: len(own) for part, own in found.items()} == {"validation": 24, "test": 24}
    task.complement = torch.arange(4).numpy()
    assert scored_lengths(task)["test"] == 2 * found["test"]


def test_the_whole_process(experiment: Experiment, free: SimpleNamespace) -> None:
    """What it has, a step, and as much again that the heap keeps of batches of other sizes."""
    made = forecast(experiment, LENGTHS, CPU)
    hardware = Hardware.of(CPU, "fp32")
    assert made.retained == memory.retained(experiment.model, made.lengths, hardware, made.memory) > made.peak / 2
    assert made.resident > module.LIBRARY_BYTES + 100e6 and made.process == made.peak + made.retained + made.resident
    assert forecast(experiment, [500], CPU).retained == 0, "a single batch"
    free.bytes = made.peak + made.retained - 1
    assert not forecast(experiment, LENGTHS, CPU).fits
    check_fits(forecast(experiment, LENGTHS, CPU))


def test_records_that_do_not_fit(experiment: Experiment, free: SimpleNamespace) -> None:
    free.bytes = 80_000_000
    made = forecast(experiment, LENGTHS, CPU, "r{}".format)
    assert made.too_long == ("r2",) and 3_000 < made.room < 70_000 and not made.fits
    of = [
        sum(memory.peak(experiment.model, [n], Hardware.of(CPU, "fp32")).values())
        for n in (made.room, made.room + 400)
    ]
    assert of[0] <= free.bytes < of[1]


def test_nothing_fits(experiment: Experiment, free: SimpleNamespace) -> None:
    free.bytes = 1_000
    assert forecast(experiment, [5, 6], CPU).room == 0


def test_far_too_much_is_refused(experiment: Experiment, free: SimpleNamespace) -> None:
    needed = forecast(experiment, LENGTHS, CPU).peak
    free.bytes = int(needed / 0.89)
    check_fits(forecast(experiment, LENGTHS, CPU))
    free.bytes = needed
    rule = (
        r"needs about \d+ MB of memory, and cpu has \d+ MB free: its longest record r2 has 70,000 tokens; set a "
        r"smaller training.batch_tokens, model.network.reversible=true or a smaller model.network.track_size$"
    )
    with pytest.raises(ValueError, match=rule) as refused:
        check_fits(forecast(experiment, LENGTHS, CPU, "r{}".format))
    assert "\n" not in str(refused.value)


def test_memory_is_kept_where_there_is_enough(experiment: Experiment, free: SimpleNamespace) -> None:
    needed = peak_bytes(experiment, LENGTHS, CPU)
    assert needed >= forecast(experiment, LENGTHS, CPU).peak
    for free.bytes, keeps in ((2 * needed, True), (2 * needed - 1, False)):
        assert may_keep_memory(experiment, LENGTHS, CPU) == keeps
    other = replace(experiment, model=experiment.model.with_encoder("lstm"))
    free.bytes = 1 << 60
    assert not may_keep_memory(other, LENGTHS, CPU), "its memory is not counted"


def test_a_frozen_encoder(experiment: Experiment, free: SimpleNamespace) -> None:
    probing = replace(experiment, training=replace(experiment.training, start="PRE", freeze=True))
    whole, made = (forecast(own, LENGTHS, CPU) for own in (experiment, probing))
    assert made.started and (made.weights, made.trainable) == (whole.weights, experiment.model.network.width + 1)
    assert made.memory == memory.peak(
        probing.model, made.lengths, Hardware.of(CPU, "fp32"), accumulate=2, freeze=True
    )
    assert made.peak < whole.peak / 3 and made.room > 3 * whole.room


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


def test_a_lone_record_is_no_matter_of_batches(experiment: Experiment, free: SimpleNamespace) -> None:
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

    several, first = largest_batch(sampler, 6), largest_batch(sampler, 1)
    assert work(several) > work(first), "another epoch has a larger one"
    assert [lengths[i] for i in several] == sorted((lengths[i] for i in several), reverse=True)
    assert (sampler.epoch, sampler.start, sampler.batches) == (2, 3, plan), "the sampler is where it was"
    monkeypatch.setattr(module, "MAX_PLANNED", 10)
    assert largest_batch(sampler, 6) == first


def test_cures(experiment: Experiment, free: SimpleNamespace) -> None:
    lengths = [500] * 60
    many = replace(experiment, training=replace(experiment.training, batch_sequences=60, batch_tokens=30_000))
    whole = forecast(many, lengths, CPU).peak
    free.bytes = 2 * whole // 3  # of several batches the heap keeps as much again
    found = cures(many, lengths, CPU)
    assert [*found] == [
        "training.batch_tokens=7500",
        "model.network.reversible=true",
        "model.network.track_size=2",
    ]
    assert all(made.peak < whole for made in found.values()) and found["training.batch_tokens=7500"].fits
    free.bytes = 1_000
    assert next(iter(cures(many, lengths, CPU, longest=20_000))) == "training.batch_tokens=20000"
    assert next(iter(cures(many, [500], CPU, longest=30_000))) == "model.network.reversible=true"
    network = replace(many.model.network, norm="layer", track_size=1)
    assert [*cures(replace(many, model=replace(many.model, network=network)), [500], CPU, longest=30_000)] == []


def test_cures_of_other_runs(experiment: Experiment, free: SimpleNamespace) -> None:
    """A decoder can be left out, and an encoder that was trained before can be frozen, but not be made smaller."""
    free.bytes = 1_000
    model = replace(experiment.model, head="tokens", decoder="network")
    found = cures(replace(experiment, model=model), [500], CPU, longest=71_000)
    assert [*found] == ["model.network.reversible=true", "model.network.track_size=2", "model.decoder=none"]
    assert found["model.decoder=none"].weights < memory.weights(model)
    for freeze, settings in ((False, ["training.freeze=true"]), (True, [])):
        begun = replace(experiment, training=replace(experiment.training, start="PRE", freeze=freeze))
        assert [*cures(begun, [500], CPU, longest=71_000)] == settings
    through = replace(experiment, model=replace(experiment.model, head="class_token"))  # a head that cannot be frozen
    through = replace(through, training=replace(experiment.training, start="PRE"))
    assert [*cures(through, [500], CPU, longest=71_000)] == []


@pytest.mark.parametrize("encoder", ["chordmixer", "linformer"])
def test_memory_is_checked_before_any_is_taken(
    tiny: Experiment, free: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoder: str
) -> None:
    """No weight of a model that does not fit is ever made."""
    model = tiny.model.with_encoder(encoder)
    wide = {"hidden": 1 << 20} if encoder == "chordmixer" else {"rank": 1 << 20}
    given = replace(tiny, model=replace(model, network=replace(model.network, **wide)))
    free.bytes = 10_000_000
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda own: pytest.fail() if own.weight.is_cpu else None)
    with pytest.raises(ValueError, match=r"needs? about [\d.]+ [GM]B of memory.* and cpu has 10 MB free"):
        train(given, tmp_path / "run")
    free.bytes = 1 << 40
    check_memory(given, [60], CPU, str)


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
    batch, random = batch_of([60, 12]), torch.get_rng_state()
    seen: list[bool] = []
    model.encoder.register_forward_hook(lambda module, *_: seen.append(module.training))
    dry_run(model, batch, Regression())
    assert seen == [True] and not model.training, "as in training, and back"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
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
