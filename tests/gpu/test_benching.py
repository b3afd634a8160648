"""A benchmark on a GPU: events, the allocator's peak, and memory that runs out. Run with `make test-gpu`."""

from __future__ import annotations

from pathlib import Path

import pytest

from chordmixer.paper.benching import BenchConfig, bench, fixed

pytestmark = pytest.mark.gpu


def test_time_and_memory(tmp_path: Path) -> None:
    setting = fixed(5_000, batch=2)
    report = bench(["chordmixer", "cnn"], [setting], tmp_path / "r.json", BenchConfig(device="cuda"))
    for result in report.results:
        assert result.failed == "" and result.difference is not None and result.difference < 1e-4
        assert result.training and result.inference and result.training.milliseconds > result.inference.milliseconds
        assert (result.peak("training") or 0) > (result.peak("inference") or 0) > 10_000 * 64 * 2


def test_memory_that_runs_out(tmp_path: Path) -> None:
    config = BenchConfig(device="cuda", memory_limit=0.2)
    report = bench(["cnn"], [fixed(1_000_000, batch=1)], tmp_path / "r.json", config)
    assert report.results[0].failed == "out of memory"
