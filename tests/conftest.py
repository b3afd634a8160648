"""What the tests share: one hypothesis profile, and an exact meter of the memory that torch allocates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

torch.set_num_threads(1)  # small tensors wait for a second thread longer than they need it
hypothesis.settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("house")


@pytest.fixture
def peak_bytes() -> Callable[[Callable[[], Any]], int]:
    """The most bytes that a call holds at one time, beside what was there before it; custom ops are seen too."""

    def measure(call: Callable[[], Any]) -> int:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            kept = call()
        live = peak = 0
        events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        del kept
        return peak

    return measure
