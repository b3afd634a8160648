"""The count of a step's memory, against what torch's allocator is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import ops
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.tasks.masks import MaskedTokens
from chordmixer.training import memory
from chordmixer.training.asking import ask
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


def steps(config: ModelConfig, lengths: list[int], half: bool, freeze: bool = False) -> None:
    """Two of them: the moments of AdamW come with the first."""
    learner = Model(config)
    if freeze:
        learner.freeze()
    adam = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], fused=True)
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
    compiled = pytest.importorskip("triton", reason="Triton is not installed").JITFunction
    interpreted = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    for part in pkgutil.iter_modules(ops.__path__, "chordmixer.ops."):
        module = importlib.import_module(part.name)
        for name in [name for name, own in vars(module).items() if isinstance(own, compiled | interpreted)]:
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


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), [case for case in OF_KERNELS if "norm" not in case[0]], ids=str)
def test_the_count_of_the_kernels_of_a_frozen_encoder(
    peak_bytes: Callable[..., int], network: dict[str, Any], half: bool
) -> None:
    config = model(network, max(MIXED), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    counted = memory.peak(config, MIXED, Place(kernels=True, half=half), freeze=True)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)


WIDE_ONES = [{}, {"prenorm": "layer"}, {"order": "released"}, {"reversible": True}]


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("half", "freeze"), [(False, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("network", WIDE_ONES, ids=str)
def test_the_count_of_wide_blocks(
    peak_bytes: Callable[..., int], monkeypatch: pytest.MonkeyPatch, network: dict[str, Any], half: bool, freeze: bool
) -> None:
    """Learning in float32 alone: a CPU copies bfloat16 before it adds it up, and a GPU does not."""
    monkeypatch.setattr(ops, "WIDE", 0)
    config = model(network, max(MIXED), final_norm="layer" if network else None)
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=freeze))
    counted = memory.peak(config, MIXED, Place(kernels=True, half=half), freeze=freeze)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("decoder", "letters", "reversible"),
    [("network", 4, False), ("network", 256, False), ("network", 4, True), (None, 4, False)],
    ids=["decoder", "text", "reversible", "light"],
)
def test_the_count_of_masked_tokens(
    peak_bytes: Callable[..., int], decoder: Any, letters: int, reversible: bool
) -> None:
    """As in pre-training: the tokens are masked, and answered by a decoder or by the head alone."""
    network = ChordMixerConfig(max_length=max(MIXED), track_size=8, hidden=32, prenorm="layer", reversible=reversible)
    config = ModelConfig(letters + 1, letters, head="tokens", final_norm="layer", decoder=decoder, network=network)
    target = MaskedTokens(letters, letters, (1 / letters,) * letters, {"A": 0})
    inputs = Packed.from_lengths(torch.randint(letters, (sum(MIXED),), dtype=torch.uint8), MIXED)

    def masked() -> None:
        learner, keys = Model(config), torch.arange(len(MIXED))
        adam = torch.optim.AdamW(learner.parameters(), fused=True)
        for _ in range(2):
            target.losses(ask(target, learner, inputs, keys), keys).sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)

    counted = memory.peak(config, MIXED, Place())
    assert sum(counted.values()) == pytest.approx(peak_bytes(masked), rel=0.1)


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
    """Only of tensors below 32 MiB, and only where there is a heap; not where nothing is kept for gradients."""
    config = model({}, 100_000)
    assert config.network.width == 144
    for tokens, holes in ((10_000, 4 * 10_000 * 4 * (144 + 32)), (80_000, 4 * 80_000 * 4 * 32)):
        counted = memory.peak(config, [tokens], Place.of(torch.device("cpu"), "fp32"))
        assert counted["holes in the heap"] == holes
        frozen = memory.peak(config, [tokens], Place.of(torch.device("cpu"), "fp32"), freeze=True)
        assert frozen["holes in the heap"] == 0
        assert "holes in the heap" not in memory.peak(config, [tokens], Place(kernels=True))


def test_other_encoders_are_not_counted() -> None:
    with pytest.raises(ValueError, match=r"encoder 'pointwise' has no count of its memory: only chordmixer has one"):
        memory.peak(model({}, 100, encoder="pointwise"), [10], Place())
