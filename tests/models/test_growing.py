"""A model takes over the weights of a smaller one: on old lengths it is the same function to the last digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chordmixer import Packed
from chordmixer.models import ChordMixerConfig, Model, ModelConfig
from chordmixer.models.growing import take_over

Scramble = Callable[[nn.Module], nn.Module]
GROWING: list[dict[str, Any]] = [
    {"order": order, "prenorm": prenorm, "norm": norm, "final_norm": None}
    for order in ("paper", "released")
    for prenorm in (None, "batch")
    for norm in (None, "batch")
] + [
    {"order": "paper", "prenorm": "layer", "norm": None, "final_norm": "layer"},
    {"order": "paper", "prenorm": "layer", "norm": None, "final_norm": None},
    {"order": "paper", "prenorm": None, "norm": None, "final_norm": "layer"},
    {"order": "paper", "prenorm": "layer", "norm": None, "final_norm": "layer", "mark_start": True},
    {"order": "paper", "prenorm": "layer", "norm": None, "final_norm": "layer", "positions": 3},
]
REFUSED: list[dict[str, Any]] = [
    {"order": "released", "prenorm": "layer"},
    {"order": "released", "final_norm": "layer"},
    {"norm": "layer"},
    {"prenorm": "layer", "norm": "batch"},
    {"prenorm": "batch", "final_norm": "layer"},
    {"prenorm": "group"},
    {"norm": "group"},
]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def build(max_length: int, embedding: str = "tokens", head: str = "average", **settings: Any) -> Model:
    extra = {name: settings.pop(name) for name in ("final_norm", "mark_start", "positions") if name in settings}
    network = ChordMixerConfig(max_length, track_size=3, hidden=7, **settings)
    return Model(ModelConfig(5, 2, embedding, head, network=network, **extra))  # type: ignore[arg-type]


def batch(lengths: list[int], embedding: str = "tokens") -> Packed:
    tokens = sum(lengths)
    values = torch.randint(5, (tokens,)) if embedding == "tokens" else torch.randn(tokens, 5)
    return Packed.from_lengths(values, lengths)


def features(model: Model, x: Packed) -> torch.Tensor:
    with torch.no_grad():
        return model.encode(x).values


def name(settings: Any) -> str:
    return (
        "-".join(f"{key}={value}" for key, value in settings.items()) if isinstance(settings, dict) else str(settings)
    )


# --- The same function ---


@pytest.mark.parametrize("settings", GROWING, ids=name)
@pytest.mark.parametrize("init", ["xavier", "identity"])
@pytest.mark.parametrize("embedding", ["tokens", "real"])
def test_old_lengths_stay_what_they_were(scrambled: Scramble, settings: Any, init: str, embedding: str) -> None:
    small = build(16, embedding, init=init, **settings)
    for block in small.encoder.blocks:  # as after training
        nn.init.normal_(block.fc2.weight, std=0.3)
    scrambled(small)
    large = build(1000, embedding, init=init, **settings).eval()
    take_over(large, small)
    x = batch([1, 2, 3, 5, 8, 9, 15, 16], embedding)
    needs_scale = settings["prenorm"] == "layer" and settings["final_norm"] is None
    scale = sqrt(large.encoder.width / small.encoder.width) if needs_scale else 1.0
    grown, original = features(large, x), features(small, x)
    torch.testing.assert_close(grown[:, : small.encoder.width] / scale, original, rtol=1e-12, atol=1e-12)
    assert float(original.std()) > 0.1


@pytest.mark.parametrize("settings", GROWING[:1] + GROWING[-3:], ids=name)
def test_gradients_reach_what_is_new(settings: Any) -> None:
    """A network that could never use its new tracks would not be worth growing."""
    large = build(64, **settings)
    take_over(large, build(16, **settings))
    adam = torch.optim.AdamW(large.parameters())
    for _ in range(2):  # what reads new channels has to wait until there is something in them
        adam.zero_grad()
        large(batch([40, 64])).square().sum().backward()
        adam.step()
    first, last = large.encoder.blocks[0], large.encoder.blocks[-1]
    for weight in (first.fc1.weight[:, 15:], first.fc2.weight[15:], last.fc2.weight, last.fc1.weight):
        assert float(weight.detach().abs().min()) > 0
    assert float(first.fc1.weight.grad[:, 15:].abs().max()) > 0


@given(
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 300)).map(sorted),
    settings=st.sampled_from(GROWING),
    seed=st.integers(0, 100),
)
def test_any_growth(lengths: list[int], settings: Any, seed: int) -> None:
    torch.manual_seed(seed)
    old, new = lengths
    small, large = build(old, **settings).eval(), build(new, **settings).eval()
    take_over(large, small)
    x = batch([1, old, (old + 1) // 2])
    needs_scale = settings["prenorm"] == "layer" and settings["final_norm"] is None
    scale = sqrt(large.encoder.width / small.encoder.width) if needs_scale else 1.0
    grown, original = features(large, x), features(small, x)
    torch.testing.assert_close(grown[:, : small.encoder.width] / scale, original, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("settings", GROWING, ids=name)
def test_in_training_too(settings: Any) -> None:
    """Batch norm has the same tokens, and old weights the same gradients for a loss of the old channels."""
    small, large = build(16, **settings).train(), build(64, **settings).train()
    take_over(large, small)
    x = batch([16, 9, 4])
    grown, original = large.encode(x).values[:, : small.encoder.width], small.encode(x).values
    needs_scale = settings["prenorm"] == "layer" and settings["final_norm"] is None
    scale = sqrt(large.encoder.width / small.encoder.width) if needs_scale else 1.0
    torch.testing.assert_close(grown / scale, original, rtol=1e-11, atol=1e-11)
    original.square().sum().backward()
    (grown / scale).square().sum().backward()
    for before, after in zip(small.encoder.blocks, large.encoder.blocks, strict=False):
        torch.testing.assert_close(after.fc1.bias.grad, before.fc1.bias.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prenorm", [None, "layer"])
def test_a_reversible_network_grows(scrambled: Scramble, prenorm: str | None) -> None:
    settings: Any = {"reversible": True, "prenorm": prenorm, "final_norm": prenorm}
    small, large = scrambled(build(16, **settings)), build(200, **settings).eval()
    take_over(large, small)  # type: ignore[arg-type]
    x = batch([16, 7, 1])
    grown, original = features(large, x), features(small, x)  # type: ignore[arg-type]
    torch.testing.assert_close(grown[:, : original.shape[1]], original, rtol=1e-12, atol=1e-12)


def test_added_blocks_start_as_their_residual() -> None:
    """A new length has the output of the last old block, which is close to that of shorter lengths."""
    small, large = build(16, prenorm="layer"), build(64, prenorm="layer").eval()
    take_over(large, small)
    x = large.embedding(batch([64]))
    with torch.no_grad():
        after, offsets = x.values, x.offsets
        for block in large.encoder.blocks[:4]:
            after = block(after, offsets)
        torch.testing.assert_close(large.encoder(x).values, after, rtol=1e-12, atol=1e-12)


# --- The same width ---


def test_without_growth_every_weight_is_taken_over(scrambled: Scramble) -> None:
    settings: Any = {"norm": "layer", "prenorm": "group", "final_norm": "layer"}
    small, same = scrambled(build(60, **settings)), build(64, dropout=0.1, **settings)
    head = {name: value.clone() for name, value in same.head.state_dict().items()}
    take_over(same, small)  # type: ignore[arg-type]
    for part in ("embedding", "start", "encoder", "final_norm"):
        for key, value in getattr(small, part).state_dict().items():
            assert torch.equal(getattr(same, part).state_dict()[key], value)
    assert all(torch.equal(same.head.state_dict()[key], value) for key, value in head.items())


@pytest.mark.parametrize("max_length", [16, 64])
def test_the_id_of_a_mask_is_left_out(max_length: int) -> None:
    settings: Any = {"prenorm": "layer", "final_norm": "layer"}
    masked = build(16, **settings)
    masked = Model(replace(masked.config, inputs=6, head="tokens")).eval()
    model = build(max_length, **settings).eval()
    take_over(model, masked)
    x = batch([16, 3])
    width = masked.encoder.width
    torch.testing.assert_close(features(model, x)[:, :width], features(masked, x), rtol=1e-12, atol=1e-12)
    assert model.embedding.table.weight.shape[0] == 5


def test_another_encoder_is_copied() -> None:
    model, old = (Model(ModelConfig(5, 2).with_encoder("lstm")) for _ in range(2))
    take_over(model, old)
    assert all(torch.equal(a, b) for a, b in zip(model.encoder.parameters(), old.encoder.parameters(), strict=True))


# --- Refusals ---


@pytest.mark.parametrize("settings", REFUSED, ids=name)
def test_norms_over_all_channels_are_not_grown(settings: Any) -> None:
    with pytest.raises(ValueError, match="cannot grow from max_length=16 to 17 and stay the same on old lengths"):
        take_over(build(17, **settings), build(16, **settings))
    take_over(build(16, **settings), build(9, **settings))


def test_a_network_does_not_shrink() -> None:
    with pytest.raises(
        ValueError, match=r"max_length=16 is below the 17 of the weights .* set model.network.max_length=17"
    ):
        take_over(build(16), build(17))
    with pytest.raises(ValueError, match="max_length=16 is below the 17 of the weights"):
        take_over(build(16), build(16, head="class_token"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"order": "released"},
            "model.network.order='paper' .* which have 'released': set model.network.order=released",
        ),
        ({"prenorm": "layer"}, "model.network.prenorm=None does not fit the weights to start from"),
        ({"mark_start": True}, "model.mark_start=False does not fit the weights to start from, which have True"),
        ({"final_norm": "layer"}, "model.final_norm=None does not fit the weights to start from, which have 'layer'"),
        ({"embedding": "real"}, "model.embedding='tokens' does not fit"),
    ],
)
def test_other_networks_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        take_over(build(16), build(16, **settings))


@pytest.mark.parametrize("inputs", [4, 7])
def test_other_vocabularies_are_refused(inputs: int) -> None:
    old = Model(replace(build(16).config, inputs=inputs))
    with pytest.raises(ValueError, match=f"model.inputs=5 .* which take {inputs}: start from a run with the same"):
        take_over(build(16), old)


def test_other_encoders_do_not_grow() -> None:
    small = Model(ModelConfig(5, 2, encoder="pointwise", network=ChordMixerConfig(16, track_size=2, hidden=4)))
    large = Model(replace(small.config, network=replace(small.config.network, max_length=64)))
    with pytest.raises(
        ValueError, match=r"another shape .* only chordmixer networks grow; set model.network.max_length=16"
    ):
        take_over(large, small)
