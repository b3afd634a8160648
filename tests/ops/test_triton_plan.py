"""The kernels of a block, the number of programs, and the memory layout of its gradients."""

from __future__ import annotations

import pytest
import torch

triton_plan = pytest.importorskip("chordmixer.ops.triton_plan", reason="Triton is not installed")


def plan(hidden: int, dtype: torch.dtype = torch.bfloat16, **settings: object) -> object:
    options = {"track_size": 4, "hidden": hidden, "order": "paper", "norm": False, "dropout": 0.0, **settings}
    return triton_plan.plan_for(torch.empty(3, 12, dtype=dtype), **options)


@pytest.mark.parametrize("kernel", ["forward", "backward", "weights"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("hidden", [16, 88, 128, 196, 256])
def test_tiles_are_powers_of_two_that_hold_the_hidden_layer(hidden: int, dtype: torch.dtype, kernel: str) -> None:
    switches = triton_plan.switches_of(kernel, plan(hidden, dtype))
    sizes = [switches[name] for name in ("BK", "BN", "BT", "BH", "BC") if name in switches]
    assert all(size >= 16 and size & (size - 1) == 0 for size in sizes)
    assert kernel == "weights" or switches["BH"] >= hidden


def test_programs_for_long_and_short_sequences() -> None:
    assert triton_plan.programs_for(1000, 2, 64) == (1000 // 64 + 2, True)
    assert triton_plan.programs_for(1000, 100, 64) == (16, False)


def test_gradients_of_all_weights_share_a_row() -> None:
    block_plan = plan(20)
    sums = triton_plan.rows_of_sums(block_plan, 2, torch.device("cpu"))
    sums.copy_(torch.arange(sums.numel()).view_as(sums))
    parts = triton_plan.split_sums(block_plan, sums)
    assert [tuple(part.shape) for part in parts] == [(2, 20, 12), (2, 20), (2, 12, 20), (2, 12)]
    assert sorted(torch.cat([part.flatten() for part in parts]).tolist()) == sums.flatten().tolist()
