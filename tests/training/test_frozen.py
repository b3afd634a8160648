"""The count of a frozen encoder's memory, against what torch's allocator is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chordmixer.models import ChordMixerConfig, ModelConfig
from chordmixer.training import memory
from chordmixer.training.memory import Place

Peak, Steps = Callable[..., int], Callable[..., None]
LENGTHS = [900, 300, 300, 100, 20, 5]
NETWORKS: list[dict[str, Any]] = [
    {},
    {"prenorm": "layer"},
    {"order": "released", "prenorm": "layer", "dropout": 0.1},
    {"prenorm": "batch"},
    {"prenorm": "group"},
    {"norm": "layer"},
    {"reversible": True},
    {"reversible": True, "prenorm": "layer"},
]
each_network = pytest.mark.parametrize("network", NETWORKS, ids=lambda settings: " ".join(settings) or "paper")
each_precision = pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])


def model(network: dict[str, Any], **settings: Any) -> ModelConfig:
    inner = ChordMixerConfig(**{"max_length": 900, "track_size": 8, "hidden": 32, **network})
    return ModelConfig(6, 2, network=inner, **settings)


def counted(config: ModelConfig, lengths: list[int], place: Place) -> int:
    return sum(memory.peak(config, lengths, place, freeze=True).values())


@each_network
@each_precision
def test_the_count_is_what_a_step_takes(peak_bytes: Peak, steps: Steps, network: dict[str, Any], half: bool) -> None:
    config = model(network, final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, LENGTHS, half, freeze=True))
    assert counted(config, LENGTHS, Place(half=half)) == pytest.approx(measured, rel=0.1)


def test_tiles_of_long_records(peak_bytes: Peak, steps: Steps) -> None:
    config = model({"prenorm": "layer", "max_length": 20_000}, final_norm="layer")
    measured = peak_bytes(lambda: steps(config, [20_000], freeze=True))
    assert counted(config, [20_000], Place()) == pytest.approx(measured, rel=0.05)


def test_a_decoder_that_learns_behind_it(peak_bytes: Peak, steps: Steps) -> None:
    config = model({"prenorm": "layer"}, final_norm="layer", head="tokens", decoder="network")
    measured = peak_bytes(lambda: steps(config, LENGTHS, freeze=True))
    assert counted(config, LENGTHS, Place()) == pytest.approx(measured, rel=0.05)


def test_it_is_far_less_than_learning() -> None:
    config = model({"prenorm": "layer"}, final_norm="layer")
    for place in (Place(), Place(kernels=True, half=True)):
        whole = sum(memory.peak(config, LENGTHS, place).values())
        assert counted(config, LENGTHS, place) < whole / 3


def test_only_the_head_has_gradients_and_moments() -> None:
    config = model({})
    head = config.network.width * 2 + 2
    assert memory.weights(config, freeze=True) == head
    turn, *_ = memory.step(config, [5], Place(), freeze=True)
    assert turn == {
        "weights": 4 * memory.weights(config),
        "moments of AdamW": 8 * head,
        "workspace of cuBLAS": 0,
        "gradients of the weights": 4 * head,
    }


def test_a_head_that_learns_through_the_encoder() -> None:
    with pytest.raises(ValueError, match=r"model.head='class_token' learns through the encoder, which is frozen"):
        memory.peak(model({}, head="class_token"), [5], Place(), freeze=True)
