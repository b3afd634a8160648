from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chordmixer import ChordMixer, ChordMixerConfig, Packed
from chordmixer.models.chordmixer import depth

LENGTHS = [1, 2, 3, 16, 17, 127, 128, 129, 300]
LONG = [1, 5000, 17, 1023, 1024, 1025]
"""Sequences of more tokens than a tile holds."""
KINDS = (None, "layer", "batch", "group")
SMALL = ChordMixerConfig(max_length=100, track_size=2, hidden=8)

Make = Callable[..., Any]


def configs(max_length: int) -> list[Any]:
    """Every order, prenorm and norm, plain and reversible."""
    choices = [
        *product(("paper", "released"), KINDS, KINDS, (False,)),
        *product(("paper", "released"), KINDS, (None,), (True,)),
    ]
    return [
        pytest.param(
            ChordMixerConfig(max_length, 2, 12, order=order, prenorm=prenorm, norm=norm, reversible=reversible),
            id=f"{order}-{prenorm}-{norm}{'-reversible' * reversible}".lower(),
        )
        for order, prenorm, norm, reversible in choices
    ]


def invariant(encoder: Any, x: Packed) -> None:
    """Each sequence has the same output alone, in this batch, and in another order."""
    order = torch.randperm(len(x.lengths)).tolist()
    with torch.no_grad():
        unbatched = [encoder(Packed.from_list([s])).values for s in x.to_list()]
        batched, permuted = encoder(x), encoder(x.select(order))
    assert batched.lengths == x.lengths and permuted.lengths == tuple(x.lengths[i] for i in order)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(batched.to_list(), unbatched, **tolerance)
    torch.testing.assert_close(permuted.to_list(), [unbatched[i] for i in order], **tolerance)


class TestInvariance:
    @pytest.mark.parametrize("config", configs(max_length=300))
    def test_alone_in_any_batch_in_any_order(
        self, config: ChordMixerConfig, scrambled: Make, random_batch: Make
    ) -> None:
        encoder = scrambled(ChordMixer(config))
        invariant(encoder, random_batch(LENGTHS, encoder.width))

    @pytest.mark.parametrize(
        "kinds",
        [
            {},
            {"order": "released", "prenorm": "layer", "norm": "group"},
            {"prenorm": "batch", "norm": "layer"},
            {"order": "released", "prenorm": "group", "norm": "batch"},
            {"prenorm": "layer", "reversible": True},
        ],
        ids=str,
    )
    def test_long_beside_short(self, kinds: dict[str, Any], scrambled: Make, random_batch: Make) -> None:
        """Each kind of norm once before and once after the block; `test_torch_block` has all pairs in tiles."""
        encoder = scrambled(ChordMixer(ChordMixerConfig(5000, 2, 12, **kinds)))
        invariant(encoder, random_batch(LONG, encoder.width))

    @pytest.mark.parametrize("config", configs(max_length=600))
    def test_with_and_without_gradients(self, config: ChordMixerConfig, scrambled: Make, random_batch: Make) -> None:
        """The depth is even, while that of the invariance test is odd: the two buffers end swapped."""
        encoder = scrambled(ChordMixer(config))
        x = random_batch([3, 600, 1, 40], encoder.width)
        with torch.no_grad():
            inference = encoder(x).values
        torch.testing.assert_close(inference, encoder(x).values, rtol=1e-5, atol=3e-5)

    @pytest.mark.parametrize("order", ["paper", "released"])
    def test_any_memory_layout(self, order: Any) -> None:
        encoder = ChordMixer(replace(SMALL, order=order)).eval()
        values = torch.randn(encoder.width, 30).T
        with torch.no_grad():
            actual = encoder(Packed.from_lengths(values, [20, 10])).values
            expected = encoder(Packed.from_lengths(values.contiguous(), [20, 10])).values
        torch.testing.assert_close(actual, expected)

    def test_input_is_left_alone(self, random_batch: Make) -> None:
        encoder = ChordMixer(SMALL).eval()
        x = random_batch([5, 100, 1], encoder.width)
        before = x.values.clone()
        with torch.no_grad():
            encoder(x)
        assert torch.equal(x.values, before)

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 64, 65, 100])
    def test_passes_the_first_blocks_only(self, length: int, random_batch: Make) -> None:
        """Its depth does not depend on a longer sequence; the authors' code used the first one's depth for all."""
        encoder = ChordMixer(SMALL).eval()
        x = random_batch([100, length], encoder.width)
        values, offsets = x.to_list()[1], torch.tensor([0, length])
        for block in encoder.blocks[: depth(length)]:
            values = block(values, offsets)
        torch.testing.assert_close(encoder(x).to_list()[1], values)


class TestDepth:
    @pytest.mark.parametrize("power", range(61))
    def test_is_the_integer_logarithm(self, power: int) -> None:
        for length in range(max(1, 2**power - 2), 2**power + 3):
            blocks = depth(length)
            assert 2**blocks >= length
            assert blocks == 1 or 2 ** (blocks - 1) < length

    @pytest.mark.parametrize(
        ("max_length", "tracks"), [(1, 1), (2, 2), (3, 3), (1024, 11), (1025, 12), (1_500_000, 22)]
    )
    def test_of_the_network(self, max_length: int, tracks: int) -> None:
        config = ChordMixerConfig(max_length, track_size=3)
        assert config.tracks == tracks and config.width == 3 * tracks
        assert config.depth == max(1, tracks - 1)

    def test_blocks_have_weights_of_their_own(self) -> None:
        encoder = ChordMixer(SMALL)
        assert len(encoder.blocks) == 7
        assert len({p.data_ptr() for p in encoder.parameters()}) == 7 * 4


class TestStart:
    def test_xavier(self) -> None:
        encoder = ChordMixer(ChordMixerConfig(max_length=1000, track_size=16, hidden=128))
        bound = sqrt(6 / (encoder.width + 128))
        for block in encoder.blocks:
            for linear in (block.fc1, block.fc2):
                assert linear.weight.abs().max() <= bound
                assert linear.weight.detach().std().item() == pytest.approx(bound / sqrt(3), rel=0.02)
                assert not linear.bias.any()

    @pytest.mark.parametrize("prenorm", KINDS)
    @pytest.mark.parametrize("reversible", [False, True])
    @pytest.mark.parametrize("order", ["paper", "released"])
    def test_identity(self, prenorm: Any, order: Any, reversible: bool, random_batch: Make) -> None:
        config = replace(SMALL, init="identity", prenorm=prenorm, order=order, reversible=reversible)
        encoder = ChordMixer(config)
        x = random_batch([100, 7], encoder.width)
        assert torch.equal(encoder(x).values, x.values)
        encoder(x).values.square().sum().backward()
        assert all(block.fc2.weight.grad.any() for block in encoder.blocks)

    def test_defaults_are_the_papers(self) -> None:
        config = ChordMixerConfig()
        assert (config.order, config.prenorm, config.norm, config.init) == ("paper", None, None, "xavier")
        assert (config.track_size, config.hidden, config.dropout) == (16, 128, 0.0)


class TestTraining:
    @pytest.mark.parametrize("reversible", [False, True])
    @pytest.mark.parametrize("order", ["paper", "released"])
    def test_dropout_only_in_training(self, order: Any, reversible: bool, random_batch: Make) -> None:
        encoder = ChordMixer(replace(SMALL, dropout=0.5, order=order, reversible=reversible))
        x = random_batch([100, 7], encoder.width)
        assert not torch.allclose(encoder(x).values, encoder(x).values)
        encoder.eval()
        assert torch.equal(encoder(x).values, encoder(x).values)

    @pytest.mark.parametrize("gradients", [False, True])
    def test_batch_norm_learns_from_the_tokens_that_pass(self, gradients: bool, random_batch: Make) -> None:
        """Block 0 sees every token of the batch, the last one only those of the longest sequence."""
        encoder = ChordMixer(replace(SMALL, prenorm="batch"))
        x = random_batch([7, 100, 1], encoder.width)
        tokens_by_block: dict[int, Tensor] = {}
        for i in (0, 6):
            encoder.blocks[i].register_forward_pre_hook(
                lambda _, inputs, i=i: tokens_by_block.update({i: inputs[0].detach()})
            )
        with torch.set_grad_enabled(gradients):
            encoder(x)
        assert len(tokens_by_block[0]) == 108 and len(tokens_by_block[6]) == 100
        for i, tokens in tokens_by_block.items():
            torch_norm = nn.BatchNorm1d(encoder.width)
            torch_norm(tokens)
            torch.testing.assert_close(encoder.blocks[i].prenorm.mean, torch_norm.running_mean)
            torch.testing.assert_close(encoder.blocks[i].prenorm.variance, torch_norm.running_var)
        saved = encoder.blocks[0].prenorm.mean.clone()
        encoder.eval()(x)
        assert torch.equal(encoder.blocks[0].prenorm.mean, saved)

    def test_gradients_reach_every_weight_that_was_passed(self, random_batch: Make) -> None:
        encoder = ChordMixer(SMALL)
        encoder(random_batch([16, 3], encoder.width)).values.sum().backward()
        assert [block.fc1.weight.grad is not None for block in encoder.blocks] == [True] * 4 + [False] * 3


class TestErrors:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"max_length": 0}, "max_length=0 is too small: give 1 or more"),
            ({"track_size": 0}, "track_size=0 is too small"),
            ({"hidden": -1}, "hidden=-1 is too small"),
            ({"dropout": 1.0}, r"dropout=1\.0 is not a share: give 0 or more, and less than 1"),
            ({"dropout": -0.1}, r"dropout=-0\.1 is not a share"),
            ({"dropout": float("nan")}, "dropout=nan is not finite"),
            ({"norm": "layer", "reversible": True}, "norm='layer' after the residual cannot be undone"),
        ],
        ids=str,
    )
    def test_config(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ChordMixerConfig(**settings)

    def test_a_sequence_that_is_too_long_is_named(self, random_batch: Make) -> None:
        encoder = ChordMixer(replace(SMALL, max_length=1000))
        x = random_batch([5, 1000, 2345, 1001], encoder.width)
        message = r"sequence 2 of the batch has 2,345 tokens, above this network's max_length=1,000: build it with"
        with pytest.raises(ValueError, match=message):
            encoder(x)

    @pytest.mark.parametrize("shape", [(5, 15), (5,), (5, 16, 1)], ids=str)
    def test_tokens_of_another_width(self, shape: tuple[int, ...]) -> None:
        x = Packed.from_list([torch.randn(shape)])
        with pytest.raises(
            ValueError, match=r"do not fit an encoder of width 16: embed them to 8 tracks x 2 channels"
        ):
            ChordMixer(SMALL)(x)
