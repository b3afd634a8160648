"""Devices and their free memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chordmixer.training import TrainingConfig, devices

CPU = torch.device("cpu")


def test_what_a_container_allows(tmp_path: Path) -> None:
    assert devices._container_bytes(tmp_path) == 1 << 62
    for name, text in {
        "memory.max": "max",
        "memory.current": "600",
        "memory.stat": "anon 5\ninactive_file 50",
    }.items():
        (tmp_path / name).write_text(f"{text}\n")
    assert devices._container_bytes(tmp_path) == 1 << 62
    (tmp_path / "memory.max").write_text("1000\n")
    assert devices._container_bytes(tmp_path) == 450
    assert 1 << 20 < devices.free_bytes(CPU) < 1 << 50


def test_where_a_run_computes() -> None:
    assert devices.choose_device(TrainingConfig(device="cpu")) == CPU
    if not torch.cuda.is_available():
        assert devices.choose_device(TrainingConfig()) == CPU
        with pytest.raises(ValueError, match="--device cuda, but torch sees no GPU: use --device auto or cpu"):
            devices.choose_device(TrainingConfig(device="cuda"))


def test_ranks_of_a_machine_share_its_memory_and_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    free = devices.free_bytes(CPU)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert devices.free_bytes(CPU) < free / 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ValueError, match="4 processes on a machine with 2 GPUs: start one for each GPU, or add --dev"
    ):
        devices.start_accelerator(TrainingConfig())


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "onednn", "expected"),
    [
        ("x86_64", True, False, True, True),
        ("x86_64", False, True, True, True),
        ("x86_64", False, False, True, False),
        ("x86_64", True, True, False, False),
        ("aarch64", False, False, True, True),
    ],
    ids=["AVX-512 BF16", "AMX", "AVX-512 alone", "no oneDNN", "ARM"],
)
def test_bf16_is_native_where_torch_says_so(
    monkeypatch: pytest.MonkeyPatch, machine: str, avx512: bool, amx: bool, onednn: bool, expected: bool
) -> None:
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert devices.native_bf16() is expected


def test_freed_memory_is_kept_until_it_is_released() -> None:
    """glibc would return a freed tensor of 64 MiB at once. The setting lasts, hence a separate process."""
    program = """
import psutil, torch
from chordmixer.training.devices import keep_freed_memory, release_freed_memory
def resident(): return psutil.Process().memory_info().rss >> 20
keep_freed_memory()
before = resident()
torch.zeros(1 << 24).add_(1)
kept = resident() - before
release_freed_memory()
print(kept, resident() - before)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, remaining = map(int, result.stdout.split())
    assert kept > 60 and remaining < 10
