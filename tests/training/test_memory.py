"""The counted memory of a training step, compared with what torch's allocator is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import ops
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.models.stem import StemConfig
from chordmixer.models.words import WordsConfig
from chordmixer.packed import Packed
from chordmixer.tasks.masks import MaskedTokens
from chordmixer.tasks.targets import target_outputs
from chordmixer.training import memory
from chordmixer.training.memory import Hardware

Peak, Steps = Callable[..., int], Callable[..., None]
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


def model_config(network: dict[str, Any], max_length: int, **settings: Any) -> ModelConfig:
    network_config = ChordMixerConfig(max_length=max_length, track_size=8, hidden=32, **network)
    return ModelConfig(6, 2, network=network_config, **settings)


@each_network
@pytest.mark.parametrize(("half", "lengths"), [(True, MIXED), (False, ONE_LONG)], ids=["bfloat16", "float32"])
def test_the_count_is_what_a_step_takes(
    peak_bytes: Callable[..., int],
    steps: Callable[..., None],
    network: dict[str, Any],
    half: bool,
    lengths: list[int],
) -> None:
    config = model_config(network, max(lengths), final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, lengths, half))
    assert sum(memory.peak(config, lengths, Hardware(half=half)).values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("lengths", [EQUAL, MIXED], ids=["equal", "mixed"])
@pytest.mark.parametrize(
    "parts",
    [
        {"stem": StemConfig(2, 7)},
        {"words": WordsConfig((3, 5), bits=8)},
        {"positions": 64},
        {"stem": StemConfig(1, 9, 16), "head": "mean_maximum"},
    ],
    ids=["stem", "words", "positions", "maximum"],
)
def test_the_count_of_local_parts(peak_bytes: Peak, steps: Steps, lengths: list[int], parts: dict[str, Any]) -> None:
    config = model_config({"prenorm": "layer"}, max(lengths), final_norm="layer", **parts)
    measured = peak_bytes(lambda: steps(config, lengths, half=False))
    assert sum(memory.peak(config, lengths, Hardware()).values()) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("pairs", "tolerance"), [([400, 400, 90, 90], 0.05), ([700, 20, 300, 2], 0.2)], ids=["equal", "one-long"]
)
def test_the_count_of_pairs(peak_bytes: Peak, steps: Steps, pairs: list[int], tolerance: float) -> None:
    """A forecast knows only the tokens of both sequences together, so unequal pairs are counted less exactly."""
    config = model_config({}, max(pairs), head="pair")
    measured = peak_bytes(lambda: steps(config, pairs, half=False))
    records = [sum(pairs[:2]), sum(pairs[2:])]
    assert sum(memory.peak(config, records, Hardware()).values()) == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize(
    ("decoder", "letters", "reversible"),
    [("network", 4, False), ("network", 256, False), ("network", 4, True), (None, 4, False)],
    ids=["decoder", "text", "reversible", "light"],
)
def test_the_count_of_masked_tokens(
    peak_bytes: Callable[..., int], decoder: Any, letters: int, reversible: bool
) -> None:
    """As in pre-training, masked tokens are predicted by a decoder or by the head alone."""
    network = ChordMixerConfig(max_length=max(MIXED), track_size=8, hidden=32, prenorm="layer", reversible=reversible)
    config = ModelConfig(letters + 1, letters, head="tokens", final_norm="layer", decoder=decoder, network=network)
    target = MaskedTokens(letters, letters, (1 / letters,) * letters, {"A": 0})
    inputs = Packed.from_lengths(torch.randint(letters, (sum(MIXED),), dtype=torch.uint8), MIXED)

    def train() -> None:
        model, keys = Model(config), torch.arange(len(MIXED))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            target.losses(target_outputs(target, model, inputs, keys), keys).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    counted = memory.peak(config, MIXED, Hardware())
    assert sum(counted.values()) == pytest.approx(peak_bytes(train), rel=0.1)


def test_weights_are_counted_without_building_them() -> None:
    config = model_config({"prenorm": "layer"}, 700, head="class_token", final_norm="layer")
    assert memory.weights(config) == sum(p.numel() for p in Model(config).parameters())


def test_small_batches_leave_the_optimiser_the_fullest_moment() -> None:
    config = model_config({}, 100)
    counted = memory.peak(config, [1], Hardware())
    assert counted == {
        "weights": 4 * memory.weights(config),
        "moments of AdamW": 8 * memory.weights(config),
        "workspace of cuBLAS": 0,
        "gradients of the weights": 4 * memory.weights(config),
    }


def test_gradients_that_are_added_up_stay() -> None:
    config = model_config({}, 512)
    single, accumulated = (memory.peak(config, EQUAL, Hardware(), accumulate) for accumulate in (1, 2))
    assert sum(accumulated.values()) - sum(single.values()) == 4 * memory.weights(config)


def test_holes_in_the_heap() -> None:
    """They come from tensors below 32 MiB on a heap, and only where tensors are kept for gradients."""
    config = model_config({}, 100_000)
    assert config.network.width == 144
    for tokens, holes in ((10_000, 4 * 10_000 * 4 * (144 + 32)), (80_000, 4 * 80_000 * 4 * 32)):
        counted = memory.peak(config, [tokens], Hardware.of(torch.device("cpu"), "fp32"))
        assert counted["holes in the heap"] == holes
        frozen = memory.peak(config, [tokens], Hardware.of(torch.device("cpu"), "fp32"), freeze=True)
        assert frozen["holes in the heap"] == 0
        assert "holes in the heap" not in memory.peak(config, [tokens], Hardware(kernels=True))


def test_what_the_heap_retains() -> None:
    """As much as a step allocates in tensors that are not memory-mapped; nothing on a GPU."""
    config = model_config({}, 2000)
    terms, heap = memory.peak(config, MIXED, Hardware(heap=True)), Hardware(heap=True)
    persistent = terms["weights"] + terms["moments of AdamW"] + terms["inputs"]
    assert memory.retained(config, MIXED, heap, terms) == memory.RETAINED_SHARE * (sum(terms.values()) - persistent)
    assert memory.retained(config, MIXED, Hardware(), terms) == 0
    tokens = memory.MMAP_BYTES // (4 * config.network.width)
    lengths = [tokens // 2] * 3
    retained = memory.retained(config, lengths, heap, memory.peak(config, lengths, heap))
    assert retained == memory.RETAINED_SHARE * memory.peak(config, lengths, heap)["hidden layers"], (
        "only hidden layers are not mapped"
    )


def test_other_encoders_are_not_counted() -> None:
    with pytest.raises(ValueError, match=r"encoder 'pointwise' has no count of its memory: only chordmixer has one"):
        memory.peak(model_config({}, 100, encoder="pointwise"), [10], Hardware())


# --- Kernels: memory is requested, and nothing is computed ---

# The autocast of a CPU gives a layer norm after the sum another type than a GPU's.
KERNEL_CASES = [
    (n, half)
    for n in [*NETWORKS, {"norm": "batch"}, {"prenorm": "batch", "norm": "batch", "order": "released"}]
    for half in (False, True)
    if n != {"prenorm": "batch"} and not (half and n.get("norm") == "layer")
]


class Idle:
    """Stands in for a kernel: memory is allocated, and nothing is computed."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **switches: None


@pytest.fixture
def idle_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launch Triton kernels on a CPU as stand-ins that compute nothing."""
    compiled = pytest.importorskip("triton", reason="Triton is not installed").JITFunction
    interpreted = importlib.import_module("triton.runtime.interpreter").InterpretedFunction
    for part in pkgutil.iter_modules(ops.__path__, "chordmixer.ops."):
        module = importlib.import_module(part.name)
        for name in [name for name, value in vars(module).items() if isinstance(value, compiled | interpreted)]:
            monkeypatch.setattr(module, name, Idle())
    monkeypatch.setattr(ops, "_fits", lambda values: True)


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), KERNEL_CASES, ids=str)
@pytest.mark.parametrize("lengths", [EQUAL, MIXED], ids=["equal", "mixed"])
def test_the_count_of_the_kernels(
    peak_bytes: Callable[..., int],
    steps: Callable[..., None],
    network: dict[str, Any],
    half: bool,
    lengths: list[int],
) -> None:
    config = model_config(network, max(lengths), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, lengths, half))
    counted = memory.peak(config, lengths, Hardware(kernels=True, half=half))
    assert sum(counted.values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), [case for case in KERNEL_CASES if "norm" not in case[0]], ids=str)
def test_the_count_of_the_kernels_of_a_frozen_encoder(
    peak_bytes: Peak, steps: Steps, network: dict[str, Any], half: bool
) -> None:
    config = model_config(network, max(MIXED), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    counted = memory.peak(config, MIXED, Hardware(kernels=True, half=half), freeze=True)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)


WIDE_NETWORKS = [{}, {"prenorm": "layer"}, {"order": "released"}, {"reversible": True}]


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("half", "freeze"), [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("network", WIDE_NETWORKS, ids=str)
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
    monkeypatch.setattr(ops, "FUSED_HIDDEN", 0)
    config = model_config(network, max(MIXED), final_norm="layer" if network else None)
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=freeze))
    counted = memory.peak(config, MIXED, Hardware(kernels=True, half=half), freeze=freeze)
    assert sum(counted.values()) == pytest.approx(measured, rel=0.1)


# --- A frozen encoder ---

each_precision = pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])


def frozen_bytes(config: ModelConfig, lengths: list[int], hardware: Hardware) -> int:
    return sum(memory.peak(config, lengths, hardware, freeze=True).values())


@each_network
@each_precision
def test_the_count_of_a_frozen_encoder(peak_bytes: Peak, steps: Steps, network: dict[str, Any], half: bool) -> None:
    config = model_config(network, 900, final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    assert frozen_bytes(config, MIXED, Hardware(half=half)) == pytest.approx(measured, rel=0.1)


def test_tiles_of_long_records(peak_bytes: Peak, steps: Steps) -> None:
    config = model_config({"prenorm": "layer"}, 20_000, final_norm="layer")
    measured = peak_bytes(lambda: steps(config, [20_000], freeze=True))
    assert frozen_bytes(config, [20_000], Hardware()) == pytest.approx(measured, rel=0.05)


def test_a_decoder_that_learns_behind_a_frozen_encoder(peak_bytes: Peak, steps: Steps) -> None:
    config = model_config({"prenorm": "layer"}, 900, final_norm="layer", head="tokens", decoder="network")
    measured = peak_bytes(lambda: steps(config, MIXED, freeze=True))
    assert frozen_bytes(config, MIXED, Hardware()) == pytest.approx(measured, rel=0.05)


def test_a_frozen_encoder_needs_far_less() -> None:
    config = model_config({"prenorm": "layer"}, 900, final_norm="layer")
    for hardware in (Hardware(), Hardware(kernels=True, half=True)):
        trainable = sum(memory.peak(config, MIXED, hardware).values())
        assert frozen_bytes(config, MIXED, hardware) < 0.4 * trainable


def test_only_the_head_has_gradients_and_moments() -> None:
    config = model_config({}, 900)
    head = config.network.width * 2 + 2
    assert memory.weights(config, freeze=True) == head
    update, *_ = memory.moments(config, [5], Hardware(), freeze=True)
    assert update == {
        "weights": 4 * memory.weights(config),
        "moments of AdamW": 8 * head,
        "workspace of cuBLAS": 0,
        "gradients of the weights": 4 * head,
    }


def test_a_head_that_learns_through_the_encoder() -> None:
    with pytest.raises(ValueError, match=r"model.head='class_token' learns through the encoder, which is frozen"):
        memory.peak(model_config({}, 900, head="class_token"), [5], Hardware(), freeze=True)
