"""Meters of time and of peak memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import torch


def seconds(work: Callable[[], None], device: torch.device) -> float:
    """By the device's own events on a GPU, else by the clock on the wall."""
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Meter:
    """Peak memory: of a GPU as torch's allocator counts it, of a CPU what is resident beyond Python and torch."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        load_libraries(device)
        self.before = status("VmRSS")

    def start(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif self.before is not None:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now

    def peak(self) -> int | None:
        """Since the start; None where the system does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        highest = status("VmHWM")
        return None if highest is None or self.before is None else max(0, highest - self.before)


def load_libraries(device: torch.device) -> None:
    """A step of the smallest network: what torch loads on first use is no encoder's memory."""
    tiny = torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.GELU(), torch.nn.Linear(8, 8)).to(device)
    adam = torch.optim.AdamW(tiny.parameters(), fused=True)
    tiny(torch.rand(1, 8, 10, device=device)).sum().backward()
    adam.step()


def status(name: str) -> int | None:
    """Bytes of a line of /proc/self/status, which Linux has."""
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), flags=re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
