"""The count of a frozen encoder's memory, against what torch's allocator is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.packed import Packed
from chordmixer.training import memory
from chordmixer.training.memory import Place

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


def steps(config: ModelConfig, lengths: list[int], half: bool = False) -> None:
    """Two of them: the moments of AdamW come with the first."""
    learner = Model(config)
    learner.freeze()
    adam = torch.optim.AdamW([p for p in learner.parameters() if p.requires_grad], fused=True)
    inputs = Packed.from_lengths(torch.randint(6, (sum(lengths),), dtype=torch.uint8), lengths)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            answers = learner(inputs)
        outputs = answers.values if isinstance(answers, Packed) else answers
        outputs.float().square().sum().backward()
        adam.step()
        adam.zero_grad(set_to_none=True)


def counted(config: ModelConfig, lengths: list[int], place: Place) -> int:
    return sum(memory.peak(config, lengths, place, freeze=True).values())


@each_network
@each_precision
def test_the_count_is_what_a_step_takes(peak_bytes: Callable[..., int], network: dict[str, Any], half: bool) -> None:
    config = model(network, final_norm="layer" if "prenorm" in network else None)
    measured = peak_bytes(lambda: steps(config, LENGTHS, half))
    assert counted(config, LENGTHS, Place(half=half)) == pytest.approx(measured, rel=0.1)


def test_tiles_of_long_records(peak_bytes: Callable[..., int]) -> None:
    config = model({"prenorm": "layer", "max_length": 20_000}, final_norm="layer")
    measured = peak_bytes(lambda: steps(config, [20_000]))
    assert counted(config, [20_000], Place()) == pytest.approx(measured, rel=0.05)


def test_a_decoder_that_learns_behind_it(peak_bytes: Callable[..., int]) -> None:
    config = model({"prenorm": "layer"}, final_norm="layer", head="tokens", decoder="network")
    measured = peak_bytes(lambda: steps(config, LENGTHS))
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
