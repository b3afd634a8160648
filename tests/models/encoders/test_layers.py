from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, sin
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from chordmixer import Packed
from chordmixer.models.encoders import layers

Make = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    max_length: int = 10
    width: int = 8
    heads: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        layers.check_settings(self)


class TestChecks:
    @pytest.mark.parametrize("name", ["max_length", "width", "heads"])
    def test_whole_numbers(self, name: str) -> None:
        with pytest.raises(ValueError, match=f"^{name}=0 is too small: give 1 or more$"):
            Settings(**{name: 0})

    @pytest.mark.parametrize("dropout", [-0.1, 1.0])
    def test_dropout(self, dropout: float) -> None:
        with pytest.raises(ValueError, match=f"^dropout={dropout} is not a share: give 0 or more, and less than 1$"):
            Settings(dropout=dropout)

    def test_heads(self) -> None:
        with pytest.raises(
            ValueError, match=r"heads=3 do not divide width=8: .*; give a width that is a multiple of 3"
        ):
            Settings(heads=3)

    def test_width(self, random_batch: Make) -> None:
        with pytest.raises(ValueError, match=r"tokens of shape \(4,\) do not fit an encoder of width 8: embed them"):
            layers.check_fits(random_batch([3], 4), Settings())

    def test_length(self, random_batch: Make) -> None:
        layers.check_fits(random_batch([3, 10], 8), Settings())
        message = (
            "sequence 1 of the batch has 12 tokens, above this network's max_length=10: build it with max_length=12"
        )
        with pytest.raises(ValueError, match=message):
            layers.check_fits(random_batch([3, 12, 11], 8), Settings())


SOME_LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


class TestPadding:
    @given(SOME_LENGTHS, st.sampled_from([0.0, 0.5, 0.75, 1.0]), st.sampled_from([0, 10, 100]))
    def test_buckets_hold_everyone_once_and_little_else(self, lengths: list[int], full: float, spare: int) -> None:
        groups = layers.buckets(lengths, full, spare)
        assert sorted(b for group in groups for b in group) == list(range(len(lengths)))
        for group in groups:
            sizes = [lengths[b] for b in group]
            assert sizes[0] == max(sizes)
            assert min(sizes) >= full * max(sizes) or len(sizes) * max(sizes) - sum(sizes) <= spare

    @given(SOME_LENGTHS, st.booleans())
    def test_values_survive_padding_and_unpadding(self, lengths: list[int], mixed: bool) -> None:
        x = Packed.from_lengths(torch.randn(sum(lengths), 3), lengths)

        def negative(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            assert values.shape[:2] == mask.shape and not values[~mask].any() and values[mask].all()
            assert (mixed and mask.shape[1] % 8 == 0) or mask.all()
            return -values

        y = layers.in_buckets(x, negative, mixed)
        assert y.lengths == x.lengths and torch.equal(y.values, -x.values)

    def test_many_short_sequences_share_rows_on_a_gpu(self) -> None:
        lengths = [3_000, 900, *(400 + 5 * n for n in range(62))]
        assert len(layers.buckets(lengths)) == 4
        assert [len(group) for group in layers.buckets(lengths, spare=layers.MAX_EMPTY)] == [55, 9]

    @given(SOME_LENGTHS)
    def test_rows(self, lengths: list[int]) -> None:
        x = Packed.from_lengths(torch.randn(sum(lengths), 3), lengths)
        groups = layers.buckets(lengths, full=0.5)
        longest = [lengths[group[0]] for group in groups]
        rows, layout = layers.padded(x, groups, longest)
        index = layout.index
        assert len(rows) == sum(len(group) * length for group, length in zip(groups, longest, strict=True))
        assert torch.equal(rows[index], x.values) and rows.any(1).sum() == x.tokens
        start = 0
        for sequence in (b for group in groups for b in group):
            indices = index[x.offsets[sequence] : x.offsets[sequence + 1]]
            assert indices.tolist() == list(range(start, start + lengths[sequence]))
            start += lengths[next(group[0] for group in groups if sequence in group)]


@pytest.mark.parametrize("long", [False, True])
def test_attention_is_cudnn_s_only_where_its_plan_pays(long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = []

    def spy(*_: torch.Tensor, attn_mask: torch.Tensor | None) -> torch.Tensor:
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return torch.zeros(1)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(layers.F, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(layers, "CUDNN_PAIRS", 16 if long else 17)
    layers.softmax_attention(*torch.ones(3, 1, 1, 4, 2))
    assert enabled == [long] and torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("added", [False, True], ids=["seen", "added"])
@pytest.mark.parametrize("rows", ["all", "keys", "none"])
@pytest.mark.parametrize(("queries", "keys"), [(2, 40), (40, 2), (1, 50), (3, 40), (2, 39), (48, 1)])
def test_attention_of_few_and_many_is_by_products(
    queries: int, keys: int, rows: str, added: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers and gradients are those of torch's attention, which is called only if neither side is short."""
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (queries, keys, keys))
    mask = torch.rand(2, 1, queries if rows == "all" else 1, keys) > 0.3
    mask[..., 0] = True
    attention_mask = None if rows == "none" else torch.where(mask, 0.5, -torch.inf).double() if added else mask
    attend, calls = layers.F.scaled_dot_product_attention, []

    def spy(*inputs: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        calls.append(True)
        return attend(*inputs, **kwargs)

    expected = layers.softmax_attention(q, k, v, attention_mask)
    monkeypatch.setattr(layers.F, "scaled_dot_product_attention", spy)
    for name, number in (("MAX_FEW", 2), ("MIN_MANY", 40), ("STRETCH", 16)):
        monkeypatch.setattr(layers, name, number)
    actual = layers.softmax_attention(q, k, v, attention_mask)
    few, many = sorted((queries, keys))
    assert bool(calls) == (few > 2 or many < 40)
    torch.testing.assert_close(actual, expected)
    grad_output = torch.randn_like(actual)
    for gradient, expected_gradient in zip(
        *(torch.autograd.grad(y, (q, k, v), grad_output) for y in (actual, expected)), strict=True
    ):
        torch.testing.assert_close(gradient, expected_gradient)


def test_attention_by_products_keeps_its_inputs_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MIN_MANY", 40)
    for queries, keys in ((2, 50), (50, 2)):
        q, k, v = (torch.randn(1, 1, n, 4) for n in (queries, keys, keys))
        half = layers.softmax_attention(*(t.bfloat16() for t in (q, k, v)))
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.float(), layers.softmax_attention(q, k, v), rtol=0.05, atol=0.05)


class TestPositions:
    @pytest.mark.parametrize("width", [1, 2, 5, 8])
    def test_formula(self, width: int) -> None:
        actual = layers.positions(torch.tensor([0, 1, 700]), width)
        for row, position in enumerate((0, 1, 700)):
            for channel in range(width):
                angle = position / 10_000 ** ((channel - channel % 2) / width)
                assert actual[row, channel].item() == pytest.approx((sin, cos)[channel % 2](angle), abs=1e-4)

    def test_start_anew_in_each_sequence(self) -> None:
        x = layers.with_positions(Packed.from_lengths(torch.zeros(9, 4), [4, 5]))
        first, second = x.to_list()
        assert torch.equal(first, second[:4]) and not torch.equal(second[3], second[4])


class TestResidual:
    def test_order(self) -> None:
        block = layers.Residual(4, nn.Linear(4, 4), expansion=3)
        x = torch.randn(6, 4)
        middle = x + block.mixer(block.norm1(x))
        torch.testing.assert_close(block(x), middle + block.mlp(block.norm2(middle)))
        assert block.mlp[0].out_features == 12

    def test_drops_out_in_training_only(self) -> None:
        block = layers.Residual(4, nn.Linear(4, 4), dropout=0.5)
        x = torch.randn(30, 4)
        assert not torch.equal(block(x), block(x))
        block.eval()
        assert torch.equal(block(x), block(x))

    def test_hands_through_what_the_mixer_needs(self) -> None:
        class Add(nn.Module):
            def forward(self, values: torch.Tensor, first: int, second: int) -> torch.Tensor:
                return values * 0 + first + second

        block = layers.Residual(4, Add())
        nn.init.zeros_(block.mlp[2].weight)
        nn.init.zeros_(block.mlp[2].bias)
        torch.testing.assert_close(block(torch.zeros(2, 4), 3, 4), torch.full((2, 4), 7.0))


def test_heads_share_the_channels() -> None:
    values = torch.arange(12.0).view(1, 2, 6)
    assert layers.by_head(values, 3)[0, :, 1].tolist() == [[6, 7], [8, 9], [10, 11]]
    hidden = layers.hide(layers.by_head(values, 3), torch.tensor([[True, False]]))
    assert hidden[0, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]] and not hidden[0, :, 1].any()
