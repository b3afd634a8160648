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


def model(network: dict[str, Any], longest: int, **settings: Any) -> ModelConfig:
    inner = ChordMixerConfig(max_length=longest, track_size=8, hidden=32, **network)
    return ModelConfig(6, 2, network=inner, **settings)


@each_network
@pytest.mark.parametrize(("half", "lengths"), [(True, MIXED), (False, ONE_LONG)], ids=["bfloat16", "float32"])
def test_the_count_is_what_a_step_takes(
    peak_bytes: Callable[..., int],
    steps: Callable[..., None],
    network: dict[str, Any],
    half: bool,
    lengths: list[int],
) -> None:
    config = model(network, max(lengths), final_norm="layer" if "prenorm" in network else None)
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
    config = model({"prenorm": "layer"}, max(lengths), final_norm="layer", **parts)
    measured = peak_bytes(lambda: steps(config, lengths, half=False))
    assert sum(memory.peak(config, lengths, Hardware()).values()) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("pairs", "off"), [([400, 400, 90, 90], 0.05), ([700, 20, 300, 2], 0.2)], ids=["equal", "one-long"]
)
def test_the_count_of_pairs(peak_bytes: Peak, steps: Steps, pairs: list[int], off: float) -> None:
    """Told by the tokens of both: a forecast knows no more, nor who waits for whom once a short one has left."""
    config = model({}, max(pairs), head="pair")
    measured = peak_bytes(lambda: steps(config, pairs, half=False))
    records = [sum(pairs[:2]), sum(pairs[2:])]
    assert sum(memory.peak(config, records, Hardware()).values()) == pytest.approx(measured, rel=off)


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
            target.losses(target_outputs(target, learner, inputs, keys), keys).sum().backward()
            adam.step()
            adam.zero_grad(set_to_none=True)

    counted = memory.peak(config, MIXED, Hardware())
    assert sum(counted.values()) == pytest.approx(peak_bytes(masked), rel=0.1)


def test_weights_are_counted_without_building_them() -> None:
    config = model({"prenorm": "layer"}, 700, head="class_token", final_norm="layer")
    assert memory.weights(config) == sum(p.numel() for p in Model(config).parameters())


def test_small_batches_leave_the_optimiser_the_fullest_moment() -> None:
    config = model({}, 100)
    counted = memory.peak(config, [1], Hardware())
    assert counted == {
        "weights": 4 * memory.weights(config),
        "moments of AdamW": 8 * memory.weights(config),
        "workspace of cuBLAS": 0,
        "gradients of the weights": 4 * memory.weights(config),
    }


def test_gradients_that_are_added_up_stay() -> None:
    config = model({}, 512)
    once, added = (memory.peak(config, EQUAL, Hardware(), accumulate) for accumulate in (1, 2))
    assert sum(added.values()) - sum(once.values()) == 4 * memory.weights(config)


def test_holes_in_the_heap() -> None:
    """Only of tensors below 32 MiB, and only where there is a heap; not where nothing is kept for gradients."""
    config = model({}, 100_000)
    assert config.network.width == 144
    for tokens, holes in ((10_000, 4 * 10_000 * 4 * (144 + 32)), (80_000, 4 * 80_000 * 4 * 32)):
        counted = memory.peak(config, [tokens], Hardware.of(torch.device("cpu"), "fp32"))
        assert counted["holes in the heap"] == holes
        frozen = memory.peak(config, [tokens], Hardware.of(torch.device("cpu"), "fp32"), freeze=True)
        assert frozen["holes in the heap"] == 0
        assert "holes in the heap" not in memory.peak(config, [tokens], Hardware(kernels=True))


def test_what_the_heap_retains() -> None:
    """As much as a step takes, of tensors that are not mapped; nothing on a GPU."""
    config = model({}, 2000)
    terms, heap = memory.peak(config, MIXED, Hardware(heap=True)), Hardware(heap=True)
    stay = terms["weights"] + terms["moments of AdamW"] + terms["inputs"]
    assert memory.retained(config, MIXED, heap, terms) == memory.RETAINED_SHARE * (sum(terms.values()) - stay)
    assert memory.retained(config, MIXED, Hardware(), terms) == 0
    tokens = memory.MMAP_BYTES // (4 * config.network.width)
    long = [tokens // 2] * 3
    wide = memory.retained(config, long, heap, memory.peak(config, long, heap))
    assert wide == memory.RETAINED_SHARE * memory.peak(config, long, heap)["hidden layers"], "rows of fewer numbers"


def test_other_encoders_are_not_counted() -> None:
    with pytest.raises(ValueError, match=r"encoder 'pointwise' has no count of its memory: only chordmixer has one"):
        memory.peak(model({}, 100, encoder="pointwise"), [10], Hardware())


# --- Kernels: memory is requested, and nothing is computed ---

# The autocast of a CPU gives a layer norm after the sum another type than a GPU's.
OF_KERNELS = [
    (n, half)
    for n in [*NETWORKS, {"norm": "batch"}, {"prenorm": "batch", "norm": "batch", "order": "released"}]
    for half in (False, True)
    if n != {"prenorm": "batch"} and not (half and n.get("norm") == "layer")
]


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
    monkeypatch.setattr(ops, "_fits", lambda values: True)


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
    counted = memory.peak(config, lengths, Hardware(kernels=True, half=half))
    assert sum(counted.values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.usefixtures("idle_kernels")
@pytest.mark.parametrize(("network", "half"), [case for case in OF_KERNELS if "norm" not in case[0]], ids=str)
def test_the_count_of_the_kernels_of_a_frozen_encoder(
    peak_bytes: Peak, steps: Steps, network: dict[str, Any], half: bool
) -> None:
    config = model(network, max(MIXED), final_norm=None if half else "layer")
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    counted = memory.peak(config, MIXED, Hardware(kernels=True, half=half), freeze=True)
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
    monkeypatch.setattr(ops, "FUSED_HIDDEN", 0)
    config = model(network, max(MIXED), final_norm="layer" if network else None)
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
    config = model(network, 900, final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, MIXED, half, freeze=True))
    assert frozen_bytes(config, MIXED, Hardware(half=half)) == pytest.approx(measured, rel=0.1)


def test_tiles_of_long_records(peak_bytes: Peak, steps: Steps) -> None:
    config = model({"prenorm": "layer"}, 20_000, final_norm="layer")
    measured = peak_bytes(lambda: steps(config, [20_000], freeze=True))
    assert frozen_bytes(config, [20_000], Hardware()) == pytest.approx(measured, rel=0.05)


def test_a_decoder_that_learns_behind_it(peak_bytes: Peak, steps: Steps) -> None:
    config = model({"prenorm": "layer"}, 900, final_norm="layer", head="tokens", decoder="network")
    measured = peak_bytes(lambda: steps(config, MIXED, freeze=True))
    assert frozen_bytes(config, MIXED, Hardware()) == pytest.approx(measured, rel=0.05)


def test_a_frozen_encoder_needs_far_less() -> None:
    config = model({"prenorm": "layer"}, 900, final_norm="layer")
    for hardware in (Hardware(), Hardware(kernels=True, half=True)):
        whole = sum(memory.peak(config, MIXED, hardware).values())
        assert frozen_bytes(config, MIXED, hardware) < 0.4 * whole


def test_only_the_head_has_gradients_and_moments() -> None:
    config = model({}, 900)
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
        memory.peak(model({}, 900, head="class_token"), [5], Hardware(), freeze=True)
