from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from chordmixer.paper.benching import meters
from chordmixer.paper.benching.meters import Meter, seconds

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_seconds_of_a_clock() -> None:
    assert 0.02 <= seconds(lambda: time.sleep(0.02), CPU) < 1


def test_peak_of_what_is_resident() -> None:
    meter = Meter(CPU)
    if meter.before is None:
        pytest.skip("this system has no /proc/self/status")
    meter.start()
    torch.ones(50_000_000)  # and gone again
    first = meter.peak()
    meter.start()
    assert first is not None and 190e6 < first < 260e6
    assert (meter.peak() or 0) < 60e6


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "status", lambda name: None)
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
    monkeypatch.setattr(meters, "load_libraries", lambda device: None)
    meter = Meter(CUDA)
    meter.start()
    assert (meter.peak(), called[-1]) == (77, "reset")
