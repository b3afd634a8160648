"""Triton: compile-time settings and tile shapes of a block's kernels."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


class Weights(NamedTuple):
    """A block's linear maps, matrices in the tokens' dtype; mean and inverse standard deviation of its input rows."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    mean: Tensor | None = None
    rstd: Tensor | None = None


Chance = tuple[int, float]
"""Seed and share of dropout."""


class Plan(NamedTuple):
    """Compile-time settings of a block's kernels."""

    channels: int
    track_size: int
    hidden: int
    released: bool
    norm: bool
    drop: bool
    full: bool
    """Whether the tokens are float32."""
    ptx: bool
    """Whether the GPU is NVIDIA's, so that PTX instructions can be used."""
    precision: str


def plan_for(values: Tensor, track_size: int, hidden: int, order: str, norm: bool, dropout: float) -> Plan:
    return Plan(
        values.shape[1],
        track_size,
        hidden,
        released=order == "released",
        norm=norm,
        drop=dropout > 0,
        full=values.dtype == torch.float32,
        ptx=values.is_cuda and torch.version.hip is None,
        precision="ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
    )


@cache
def switches_of(kernel: str, plan: Plan) -> dict[str, Any]:
    """Compile-time arguments of a kernel: what it computes, and its tile shapes."""
    switches = {
        "C": plan.channels,
        "S": plan.track_size,
        "H": plan.hidden,
        "IN": 0 if plan.released else 1,
        "OUT": -1 if plan.released else 0,
        "DROP_IN": plan.drop and not plan.released,
        "DROP_OUT": plan.drop and plan.released,
        "PRECISION": plan.precision,
    }
    if kernel != "weights":
        switches |= {"NORM": plan.norm, "EXACT": plan.full, "PTX": plan.ptx}
    return switches | _shape(kernel, plan)


def _shape(kernel: str, plan: Plan) -> dict[str, int]:
    """Tile sizes, warps and stages: the fastest on an H200 in bf16 at H = 128, smaller for larger H."""
    wide = triton.next_power_of_2(max(16, plan.hidden))
    tile = max(16, (32 if plan.full else 64) * 128 // max(wide, 128))
    if plan.full:  # true float32 has no matrix units to feed
        through = {"BK": 32, "BN": 32, "BT": tile, "BH": wide, "num_warps": 4, "num_stages": 1}
        weights = {"BC": 32, "BT": 32, "BH": min(wide, 128), "num_warps": 4, "num_stages": 1}
        return weights if kernel == "weights" else through
    few = wide <= 128
    chunk = min(64, 32768 // wide)
    return {
        "forward": {"BK": min(64 if few and not plan.norm else 32, chunk), "BN": 32, "num_stages": 3},
        "backward": {"BK": min(32 if plan.norm else 64, chunk), "BN": chunk, "num_stages": 4 if few else 3},
        "weights": {"BC": 64, "num_stages": 5},
    }[kernel] | {
        "BT": 32 if kernel == "weights" else tile,
        "BH": min(wide, 128) if kernel == "weights" else wide,
        "num_warps": 4,
    }


def cdiv(total: int, part: int) -> int:
    """Division rounded up; Triton's own takes microseconds here.

    >>> cdiv(7, 3), cdiv(6, 3)
    (3, 2)
    """
    return -(-total // part)


def programs_for(tokens: int, sequences: int, tile: int) -> tuple[int, bool]:
    """Number of programs of a pass, and whether sequences are long enough to cut tiles at their borders."""
    long = 4 * sequences * tile <= tokens
    return (tokens // tile + sequences, True) if long else (cdiv(tokens, tile), False)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def rows_of_sums(plan: Plan, blocks: int, device: torch.device) -> Tensor:
    """Memory for the gradients of all weights, one row per block."""
    return torch.empty(blocks, 2 * plan.hidden * plan.channels + plan.channels + plan.hidden, device=device)


def split_sums(plan: Plan, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views of the gradients of W1, b1, W2 and b2, with a leading dimension for the blocks."""
    channels, hidden = plan.channels, plan.hidden
    dw1, dw2, db2, db1 = sums.split((hidden * channels, hidden * channels, channels, hidden), dim=1)
    return dw1.unflatten(1, (hidden, channels)), db1, dw2.unflatten(1, (channels, hidden)), db2
