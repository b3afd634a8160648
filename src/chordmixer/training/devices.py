"""Devices, their free memory, and Accelerate, which runs training on them."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch import distributed

from chordmixer.terminal import rank_count
from chordmixer.training import ranks

if TYPE_CHECKING:
    from chordmixer.training.experiment import TrainingConfig


M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's `mallopt`: sizes from which memory is mapped separately, and trimmed."""
MAX_SIZE = (1 << 31) - 1
"""The largest size that `mallopt` takes."""
DEFAULT_SIZE = 32 << 20
"""The size from which glibc maps memory separately once a process has freed as much; it trims from twice as much."""


def choose_device(config: TrainingConfig) -> torch.device:
    """The device of a run with these settings."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no GPU: use --device auto or cpu")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later tensors, also large ones, instead of returning it to the system.

    The first write to fresh pages is slow (benchmarks/heap.py): training steps on records of 100,000
    tokens are 1.3 times as fast, those of reversible networks twice. The process needs 7 to 65 % more memory.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(M_MMAP_THRESHOLD, MAX_SIZE)
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # never trim


def release_freed_memory() -> None:
    """Return what was kept to the system, and large tensors from now on, as glibc does by default."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_MMAP_THRESHOLD, DEFAULT_SIZE)
        libc.mallopt(M_TRIM_THRESHOLD, 2 * DEFAULT_SIZE)
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library if it has these functions, as on Linux."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def device_name(device: torch.device) -> str:
    """The product name of a GPU, or the architecture and cores of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def native_bf16() -> bool:
    """Whether this CPU has bf16 instructions, according to torch: AVX-512 BF16 or AMX, or BF16 of ARM.

    Without them torch converts bf16 to float32 and back, which takes longer than float32 alone.
    """
    if not torch.backends.mkldnn.is_available():  # oneDNN computes the products
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # on x86 it counts AVX-512 without bf16 too
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def free_bytes(device: torch.device) -> int:
    """Free memory of a device. On a CPU it is limited by the system and the container, and divided by its ranks."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    shared = min(int(psutil.virtual_memory().available), _container_bytes(Path("/sys/fs/cgroup")))
    return shared // local_ranks()


def _container_bytes(folder: Path) -> int:
    """Free memory of a control group; without a limit (missing files, or `max`) a very large number."""
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        stale = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError, KeyError):
        return 1 << 62
    return max(0, limit - used + int(stale))


def format_bytes(number: float) -> str:
    """Bytes in a readable unit.

    >>> format_bytes(3_400_000), format_bytes(21_900_000_000)
    ('3 MB', '21.9 GB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def start_accelerator(config: TrainingConfig) -> Accelerator:
    """Set up device, precision and ranks of a run by its settings and its launcher (torchrun, accelerate)."""
    device = choose_device(config)
    if device.type == "cuda" and local_ranks() > torch.cuda.device_count():
        raise ValueError(
            f"{local_ranks()} processes on a machine with {torch.cuda.device_count()} GPUs: start one for each GPU, "
            "or add --device cpu"
        )
    if not distributed.is_initialized():  # an earlier run of this process may have had other settings
        AcceleratorState._reset_state(reset_partial_state=True)
        ranks.join()
    return Accelerator(  # without a GPU, Accelerate ignores other ranks by default
        cpu=config.device == "cpu" or (rank_count() > 1 and device.type == "cpu"),
        mixed_precision="bf16" if config.precision == "bf16" else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


def local_ranks() -> int:
    """Ranks of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
