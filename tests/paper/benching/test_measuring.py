from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.forked import Forked

from chordmixer.config import to_dict
from chordmixer.models.encoders import ENCODERS, layers
from chordmixer.paper import subprocesses
from chordmixer.paper.benching import measuring
from chordmixer.paper.benching.cases import BenchConfig, Case, Setting, fixed
from chordmixer.paper.benching.measuring import (
    BenchModel,
    Meter,
    VerificationError,
    find_longest,
    measure_phase,
    seconds,
    time_case,
)
from chordmixer.training.devices import release_freed_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CONFIG = BenchConfig(device="cpu", precision="fp32", batch=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ROUNDS", 2)
    monkeypatch.setattr(measuring, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(measuring.gc, "collect", lambda: None)  # of all that other tests have left


def case(encoder: str, setting: Setting | None = None) -> Case:
    return Case(encoder, ENCODERS[encoder], CONFIG, setting)


def measured(own: Case) -> dict[str, object]:
    assert own.setting is not None
    return {key: value for event in time_case(own, own.setting) for key, value in event.items()}


@pytest.mark.parametrize("encoder", ["chordmixer", "cnn", "transformer"])
def test_numbers_of_an_encoder(encoder: str) -> None:
    setting = Setting("two", ((30, 9), (12, 25)), longest=60)
    found = measured(case(encoder, setting))
    assert found["stage"] == "training of 60 tokens" and 0 <= found["difference"] < 1e-5  # type: ignore[operator]
    assert found["receptive_field"] == {"cnn": 33}.get(encoder)
    for name in ("inference", "training", "longest_inference", "longest_training"):
        own = found[name]
        sequences, tokens = (1, 60) if name.startswith("longest") else (4, 76)
        assert own["rounds"] == 2 and own["milliseconds"] > 0 <= own["spread"]  # type: ignore[index]
        speed = 1e3 * tokens / sequences / own["milliseconds"]  # type: ignore[index]
        assert own["tokens_per_second"] == pytest.approx(speed)  # type: ignore[index]


def test_a_length_that_a_batch_has_is_not_measured_again() -> None:
    assert "longest_training" not in measured(case("pointwise", fixed(20, 2)))


def test_training_moves_the_weights() -> None:
    subject = BenchModel(case("chordmixer"), 20)
    before = [p.clone() for p in subject.model.parameters()]
    subject.infer(subject.batch([20, 7]))
    assert all(torch.equal(a, b) for a, b in zip(before, subject.model.parameters(), strict=True))
    subject.learn(subject.batch([20, 7]))
    assert not all(torch.equal(a, b) for a, b in zip(before, subject.model.parameters(), strict=True))


def test_longer_sequences_take_more_memory() -> None:
    """In a fresh process, as in use: what this one has freed, and keeps, would be taken first and not be seen."""
    code = """
import json, sys
from chordmixer.paper.benching import measuring
from chordmixer.paper.benching.cases import Case
from chordmixer.config import from_dict
measuring.ROUNDS, measuring.MIN_SECONDS = 2, 0.0
case = from_dict(Case, json.loads(sys.argv[1]), "case")
(peak,) = (event["training"]["peak"] for event in measuring.time_case(case, case.setting) if "training" in event)
print(json.dumps(peak))
"""
    own = json.dumps(to_dict(case("cnn", fixed(4_000, batch=2))))
    said, errors = Forked([sys.executable, "-c", code, own]).communicate(timeout=120)
    assert errors == ""
    if (peak := json.loads(said)) is None:
        pytest.skip("this system does not tell its memory")
    assert 8_000 * 64 * 4 * 4 < peak < 5e8  # at least the inputs of its four layers


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        ("Dependent", r"outputs alone and in a batch differ by .*, above 0.0001: its times mean nothing"),
        ("Endless", "some outputs are not finite: its times mean nothing; mend the encoder"),
    ],
)
def test_no_time_without_a_promise_kept(troubled: Callable[..., Case], cls: str, message: str) -> None:
    seen = []
    with pytest.raises(VerificationError, match=message):
        for event in time_case(own := troubled(cls), own.setting):  # type: ignore[arg-type]
            seen += list(event)
    assert "inference" not in seen


def test_padding_is_counted() -> None:
    """Linformer pads 14 to 16, and 6 to 8 alone: 4 of 40 places are empty. ChordMixer has no padding."""
    setting = Setting("three", ((16, 14, 6),), longest=40)
    assert measured(case("linformer", setting))["padded"] == pytest.approx(4 / 40)
    assert measured(case("chordmixer", setting))["padded"] == 0
    assert layers.padded.__name__ == "padded"


def test_twice_the_length_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MIN_LENGTH", 8)
    monkeypatch.setattr(measuring, "MAX_LENGTH", 32)
    for name in ("inference", "training"):
        events = [*find_longest(replace(case("cnn"), phase=name))]  # type: ignore[arg-type]
        assert [event["length"] for event in events if "length" in event] == [8, 16, 32]
        assert events[-2] == {"stage": f"{name} of 32 tokens"}


def test_more_rounds_where_they_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MIN_SECONDS", 0.1)
    subject = BenchModel(case("pointwise"), 9)
    own = measure_phase(subject, lambda x: time.sleep(0.004), [[9]], Meter(subject.device))
    assert own["rounds"] > 5
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "MIN_SECONDS", 0.0)
    assert measure_phase(subject, lambda x: None, [[9]], Meter(subject.device))["rounds"] == 1


def test_seconds_of_a_clock() -> None:
    assert 0.02 <= seconds(lambda: time.sleep(0.02), CPU) < 1


def test_peak_of_what_is_resident() -> None:
    release_freed_memory()  # which an earlier test may have kept
    meter = Meter(CPU)
    if meter.before is None:
        pytest.skip("this system has no /proc/self/status")
    meter.start()
    torch.ones(50_000_000)  # and gone again
    first = meter.peak()
    release_freed_memory()  # the tensor may have been in a hole of the heap that an earlier test left
    meter.start()
    assert first is not None and 190e6 < first < 260e6
    assert (meter.peak() or 0) < 60e6


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "proc_status", lambda name: None)
    meter = Meter(CPU)
    meter.start()
    assert meter.peak() is None


def test_a_gpu_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, by what is called."""
    called: list[str] = []

    def event(enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        return SimpleNamespace(
            record=lambda: called.append("record"),
            synchronize=lambda: called.append("synchronize"),
            elapsed_time=lambda end: 2_500.0,
        )

    monkeypatch.setattr(torch.cuda, "Event", event)
    assert seconds(lambda: called.append("work"), CUDA) == 2.5
    assert called == ["record", "work", "record", "synchronize"]
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: called.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    monkeypatch.setattr(measuring, "load_libraries", lambda device: None)
    meter = Meter(CUDA)
    meter.start()
    assert (meter.peak(), called[-1]) == (77, "reset")


@pytest.mark.parametrize(
    ("error", "failed", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "out of memory", "CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", "DefaultCPUAllocator"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), "out of memory", "CUBLAS"),
        (MemoryError(), "out of memory", "MemoryError"),
        (VerificationError("not finite"), "wrong", "not finite"),
        (ValueError("too long"), "refused", "too long"),
        (KeyError("x"), "error", "KeyError: 'x'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reasons(error: BaseException, failed: str, message: str) -> None:
    found = measuring.failure(error)
    assert found["failed"] == failed and found["message"].startswith(message)


def test_limits_are_of_this_process(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.append(both))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(measuring, "proc_status", lambda name: 100)
    monkeypatch.setitem(sys.modules, "triton", sys)
    case = troubled("Harmless")
    monkeypatch.delitem(ENCODERS, "harmless")
    try:
        measuring.apply_limits(replace(case, config=replace(case.config, memory_limit=2.0, backend="torch")))
        assert limits == [(2_000_000_100,) * 2] and ENCODERS["harmless"] == "troubled_encoders:Harmless"
        assert sys.modules["triton"] is None
    finally:
        ENCODERS.pop("harmless", None)


def test_a_limit_of_a_gpu(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    about = type("About", (), {"total_memory": 8_000_000_000})
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    case = troubled("Harmless")
    for limit in (0.0, 2.0, 99.0):
        measuring.apply_limits(replace(case, config=replace(case.config, device="cuda", memory_limit=limit)))
    assert shares == [0.25, 1.0]


def test_a_crash_is_a_result(troubled: Callable[..., Case]) -> None:
    found = measuring.in_subprocess(troubled("Crashing"))
    assert found["failed"] == "crashed" and "SIGSEGV" in found["message"]
    assert found["stage"] == "training" and found["inference"]["milliseconds"] > 0
    assert "training" not in found and "done" not in found


def test_a_process_without_a_case_leaves() -> None:
    process = Forked([*subprocesses.COMMAND, measuring.PROCESS])  # which has nothing on its standard input
    assert process.communicate(timeout=60) == ("", "") and process.returncode == 0
