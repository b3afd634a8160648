from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching import worker
from chordmixer.paper.benching.cases import Case
from chordmixer.paper.benching.measuring import Wrong


@pytest.mark.parametrize(
    ("error", "failed", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"), "out of memory", "CUDA out of memory. Tried"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", "DefaultCPUAllocator"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), "out of memory", "CUBLAS"),
        (MemoryError(), "out of memory", "MemoryError"),
        (Wrong("not finite"), "wrong", "not finite"),
        (ValueError("too long"), "refused", "too long"),
        (KeyError("x"), "error", "KeyError: 'x'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_reasons(error: BaseException, failed: str, message: str) -> None:
    found = worker.reason(error)
    assert found["failed"] == failed and found["message"].startswith(message)


def test_limits_are_of_this_process(troubled: Callable[..., Case], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, both: limits.append(both))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(worker, "status", lambda name: 100)
    monkeypatch.setitem(sys.modules, "triton", sys)
    case = troubled("Harmless")
    monkeypatch.delitem(ENCODERS, "harmless")
    try:
        worker.prepare(replace(case, config=replace(case.config, memory_limit=2.0, backend="torch")))
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
        worker.prepare(replace(case, config=replace(case.config, device="cuda", memory_limit=limit)))
    assert shares == [0.25, 1.0]
