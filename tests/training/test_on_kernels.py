"""The count of a step's memory on a GPU, against what torch's allocator is asked for where no kernel runs."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import ops
from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.training import memory
from chordmixer.training.memory import Place

Peak, Steps = Callable[..., int], Callable[..., None]
EQUAL, MIXED = [512] * 4, [900, 300, 300, 100, 20, 5]
NETWORKS: list[dict[str, Any]] = [
    {},
    {"prenorm": "layer"},
    {"order": "released", "prenorm": "layer", "dropout": 0.1},
    {"order": "released"},
    {"dropout": 0.1},
    {"prenorm": "group"},
    {"norm": "layer"},
    {"norm": "batch"},
    {"prenorm": "batch", "norm": "batch", "order": "released"},
    {"reversible": True},
    {"reversible": True, "prenorm": "layer", "dropout": 0.1},
]
# The autocast of a CPU gives a layer norm after the sum another type than a GPU's.
OF_KERNELS = [(n, half) for n in NETWORKS for half in (False, True) if not (half and n.get("norm") == "layer")]


def model(network: dict[str, Any], longest: int, **settings: Any) -> ModelConfig:
    inner = ChordMixerConfig(max_length=longest, track_size=8, hidden=32, **network)
    return ModelConfig(6, 2, network=inner, **settings)


class Idle:
    """In place of a kernel: memory is asked for all the same."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **switches: None


@pytest.fixture
def idle_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of the Triton kernels, on a CPU and without the kernels."""
    compiled = pytest.importorskip("triton", reason="Triton is not installed").JITFunction
    interpreted = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    for part in pkgutil.iter_modules(ops.__path__, "chordmixer.ops."):
        module = importlib.import_module(part.name)
        for name in [name for name, own in vars(module).items() if isinstance(own, compiled | interpreted)]:
            monkeypatch.setattr(module, name, Idle())
    triton = {part: importlib.import_module(f"chordmixer.ops.triton_{part}") for part in ("block", "rows")}
    monkeypatch.setattr(ops, "_module", lambda part, values, backend: triton[part])


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), OF_KERNELS, ids=str)
@pytest.mark.parametrize("lengths", [EQUAL, MIXED], ids=["equal", "mixed"])
def test_the_count_of_the_kernels(
    peak_bytes: Callable[..., int],
    steps: Callable[..., None],
    network: dict[str, Any],
    half: bool,
    lengths: list[int],
) -> None:
    config = model(network, max(lengths), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, lengths, half))
    counted = memory.peak(config, lengths, Place(kernels=True, half=half))
    assert sum(counted.values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), [case for case in OF_KERNELS if "norm" not in case[0]], ids=str)
def test_the_count_of_the_kernels_of_a_frozen_encoder(
    peak_bytes: Peak, steps: Steps, network: dict[str, Any], half: bool
) -> None:
    config = model(network, max(MIXED), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    counted = memory.peak(config, MIXED, Place(kernels=True, half=half), freeze=True)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)


WIDE_ONES = [{}, {"prenorm": "layer"}, {"order": "released"}, {"reversible": True}]


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("half", "freeze"), [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("network", WIDE_ONES, ids=str)
def test_the_count_of_wide_blocks(
    peak_bytes: Callable[..., int],
    steps: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    network: dict[str, Any],
    half: bool,
    freeze: bool,
) -> None:
    """A CPU without bfloat16 arithmetic copies the factors of a product to float32, and a GPU does not."""
    factor = torch.ones(256, 256, dtype=torch.bfloat16)
    if half and peak_bytes(lambda: factor @ factor) > 1.5 * factor.nbytes:
        pytest.skip("this CPU has no bfloat16 arithmetic")
    monkeypatch.setattr(ops, "WIDE", 0)
    config = model(network, max(MIXED), final_norm="layer" if network else None)
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=freeze))
    counted = memory.peak(config, MIXED, Place(kernels=True, half=half), freeze=freeze)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)
