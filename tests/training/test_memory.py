"""The count of a step's memory, against what torch's allocator is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import ops
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import memory
from chordmixer.training.memory import Place

EQUAL, MIXED, ONE_LONG = [512] * 4, [900, 300, 300, 100, 20, 5], [2000] + [30] * 40
NETWORKS: list[dict[str, Any]] = [
    {},
    {"prenorm": "layer"},
    {"order": "released", "prenorm": "layer", "dropout": 0.1},
    {"order": "released"},
    {"dropout": 0.1},
    {"prenorm": "batch"},
    {"prenorm": "group"},
    {"norm": "layer"},
    {"reversible": True},
    {"reversible": True, "prenorm": "layer", "dropout": 0.1},
]
each_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda settings: " ".join(settings) or "paper")
each_precision = pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])


def model(network: dict[str, Any], longest: int, **settings: Any) -> ModelConfig:
    inner = ChordMixerConfig(max_length=longest, track_size=8, hidden=32, **network)
    return ModelConfig(6, 2, network=inner, **settings)


def steps(config: ModelConfig, lengths: list[int], half: bool) -> None:
    """Two of them: the moments of AdamW come with the first."""
    learner = Model(config)
    adam = torch.optim.AdamW(learner.parameters(), fused=True)
    inputs = Packed.from_lengths(torch.randint(6, (sum(lengths),), dtype=torch.uint8), lengths)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = learner(inputs)
        outputs.float().sum().backward()
        adam.step()
        adam.zero_grad(set_to_none=True)


@each_network
@each_precision
@pytest.mark.parametrize("lengths", [MIXED, ONE_LONG], ids=["mixed", "one-long"])
def test_the_count_is_what_a_step_takes(
    peak_bytes: Callable[..., int], network: dict[str, Any], half: bool, lengths: list[int]
) -> None:
    config = model(network, max(lengths), final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, lengths, half))
    assert sum(memory.peak(config, lengths, Place(half=half)).values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("pairs", "off"), [([400, 400, 90, 90], 0.05), ([700, 20, 300, 2], 0.12)], ids=["equal", "one-long"]
)
def test_the_count_of_pairs(peak_bytes: Callable[..., int], pairs: list[int], off: float) -> None:
    """Told by the tokens of both: a forecast knows no more, and may be a block off."""
    config = model({}, max(pairs), head="pair")
    measured = peak_bytes(lambda: steps(config, pairs, half=False))
    records = [sum(pairs[:2]), sum(pairs[2:])]
    assert sum(memory.peak(config, records, Place()).values()) == pytest.approx(measured, rel=off)


class Idle:
    """In place of a kernel: memory is asked for all the same."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **switches: None


@pytest.fixture
def idle_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of the Triton kernels, on a CPU and without the kernels."""
    pytest.importorskip("triton", reason="Triton is not installed")
    for part, names in {
        "block": ("forward_kernel", "backward_kernel", "weights_kernel"),
        "rows": ("_rotate_kernel", "_sum_rows_kernel", "_row_statistics_kernel", "_layer_norm_backward_kernel"),
    }.items():
        module = importlib.import_module(f"chordmixer.ops.triton_{part}")
        for name in names:
            monkeypatch.setattr(module, name, Idle())
    triton = {part: importlib.import_module(f"chordmixer.ops.triton_{part}") for part in ("block", "rows")}
    monkeypatch.setattr(ops, "_module", lambda part, values, backend: triton[part])


# A CPU cannot stand in for batch norms, and its autocast gives a norm after the sum another type than a GPU's.
OF_KERNELS = [(n, half) for n in NETWORKS for half in (False, True) if n.get("prenorm") != "batch"]
OF_KERNELS = [(n, half) for n, half in OF_KERNELS if not (half and "norm" in n)]


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), OF_KERNELS, ids=str)
@pytest.mark.parametrize("lengths", [EQUAL, MIXED], ids=["equal", "mixed"])
def test_the_count_of_the_kernels(
    peak_bytes: Callable[..., int], network: dict[str, Any], half: bool, lengths: list[int]
) -> None:
    config = model(network, max(lengths), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, lengths, half))
    counted = memory.peak(config, lengths, Place(kernels=True, half=half))
    assert sum(counted.values()) == pytest.approx(measured, rel=0.05)


def test_weights_are_counted_without_building_them() -> None:
    config = model({"prenorm": "layer"}, 700, head="class_token", final_norm="layer")
    assert memory.weights(config) == sum(p.numel() for p in Model(config).parameters())


def test_small_batches_leave_the_optimiser_the_fullest_moment() -> None:
    config = model({}, 100)
    counted = memory.peak(config, [1], Place())
    assert counted == {
        "weights": 4 * memory.weights(config),
        "moments of AdamW": 8 * memory.weights(config),
        "workspace of cuBLAS": 0,
        "gradients of the weights": 4 * memory.weights(config),
    }


def test_gradients_that_are_added_up_stay() -> None:
    config = model({}, 512)
    once, added = (memory.peak(config, EQUAL, Place(), accumulate) for accumulate in (1, 2))
    assert sum(added.values()) - sum(once.values()) == 4 * memory.weights(config)


def test_holes_in_the_heap() -> None:
    """Only of tensors below 32 MiB, and only where there is a heap."""
    config = model({}, 100_000)
    assert config.network.width == 144
    for tokens, holes in ((10_000, 4 * 10_000 * 4 * (144 + 32)), (80_000, 4 * 80_000 * 4 * 32)):
        counted = memory.peak(config, [tokens], Place.of(torch.device("cpu"), "fp32"))
        assert counted["holes in the heap"] == holes
        assert "holes in the heap" not in memory.peak(config, [tokens], Place(kernels=True))


def test_other_encoders_are_not_counted() -> None:
    with pytest.raises(ValueError, match=r"encoder 'pointwise' has no count of its memory: only chordmixer has one"):
        memory.peak(model({}, 100, encoder="pointwise"), [10], Place())
