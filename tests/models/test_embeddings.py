from __future__ import annotations

from math import sqrt

import pytest
import torch

from chordmixer import ChordMixerConfig, Model, ModelConfig, Packed
from chordmixer.models.embeddings import EMBEDDINGS, RealEmbedding, StartMark, TokenEmbedding, add_standardised
from chordmixer.models.stem import StemConfig


def test_tokens_look_up_their_row() -> None:
    embedding = TokenEmbedding(size=5, width=3)
    x = Packed.from_list([torch.tensor([4, 0]), torch.tensor([2])])
    y = embedding(x)
    assert y.lengths == x.lengths
    assert torch.equal(y.values, embedding.table.weight[[4, 0, 2]])


def test_tokens_start_normal() -> None:
    weight = TokenEmbedding(size=1000, width=100).table.weight.detach()
    assert abs(weight.mean().item()) < 0.02
    assert weight.std().item() == pytest.approx(1, abs=0.02)
    assert weight.pow(4).mean().item() == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_ids_are_whole_numbers_of_any_type(dtype: torch.dtype) -> None:
    embedding = TokenEmbedding(size=5, width=3)
    y = embedding(Packed.from_list([torch.tensor([4, 0]).to(dtype)]))
    assert torch.equal(y.values, embedding.table.weight[[4, 0]])


def test_real_channels_pass_a_linear_map() -> None:
    embedding = RealEmbedding(size=2, width=3)
    values = torch.randn(5, 2)
    y = embedding(Packed.from_lengths(values, [2, 3]))
    assert y.lengths == (2, 3)
    torch.testing.assert_close(y.values, values @ embedding.linear.weight.T + embedding.linear.bias)


def test_real_starts_as_xavier() -> None:
    linear = RealEmbedding(size=2, width=400).linear
    bound = sqrt(6 / 402)
    assert 0.95 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()


@pytest.mark.parametrize("size", [3e38, -3e38])
def test_large_numbers_are_finite(size: float) -> None:
    """They pass although their sum overflows."""
    x = Packed.from_list([torch.full((4, 1), size)])
    embedding = RealEmbedding(size=1, width=2)
    torch.nn.init.constant_(embedding.linear.weight, 0.1)
    assert torch.isfinite(embedding(x).values).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_names_its_sequence(bad: float) -> None:
    values = torch.randn(9, 2)
    values[5, 1] = bad
    x = Packed.from_lengths(values, [5, 1, 3])
    with pytest.raises(ValueError, match="sequence 1 holds a NaN or infinite number: every input must be finite"):
        RealEmbedding(size=2, width=3)(x)


@pytest.mark.parametrize(("bad", "where"), [(-1, 0), (5, 1), (1 << 40, 2)])
def test_an_id_outside_the_vocabulary_names_its_sequence(bad: int, where: int) -> None:
    sequences = [torch.tensor([0, 1, 4]) for _ in range(3)]
    sequences[where][2] = bad
    message = f"token id {bad} in sequence {where} is outside this model's vocabulary of 5: ids run from 0 to 4"
    with pytest.raises(ValueError, match=message):
        TokenEmbedding(size=5, width=3)(Packed.from_list(sequences))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokens", torch.zeros(3), r"type torch.float32 and shape \(3,\) are not token ids: give whole numbers"),
        ("tokens", torch.zeros(3, 2, dtype=torch.int64), r"shape \(3, 2\) are not token ids"),
        ("real", torch.zeros(3, 2, dtype=torch.int64), "it takes 4 real channels a token; give a float tensor"),
        ("real", torch.zeros(3, 2), r"shape \(3, 2\) do not fit this model: it takes 4 real channels"),
        ("real", torch.zeros(3), r"shape \(3,\) do not fit this model"),
    ],
    ids=["real-ids", "two-ids", "whole-channels", "two-channels", "no-channels"],
)
def test_wrong_kinds(name: str, values: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EMBEDDINGS[name](4, 8)(Packed.from_list([values]))


def test_tokens_are_hidden_in_training_alone() -> None:
    embedding, x = (
        TokenEmbedding(256, 8, drop=0.25),
        Packed.from_list([torch.randint(256, (4000,), dtype=torch.uint8)]),
    )
    full = embedding.eval()(x).values
    dropped = embedding.train()(x).values
    hidden = (dropped == 0).all(dim=1)
    assert 0.2 < float(hidden.float().mean()) < 0.3
    assert torch.equal(dropped[~hidden], full[~hidden]) and not (full == 0).all(dim=1).any()
    torch.manual_seed(1)
    first = embedding(x).values
    torch.manual_seed(1)
    assert torch.equal(embedding(x).values, first)
    first.sum().backward()
    assert embedding.table.weight.grad is not None and embedding.table.weight.grad.shape == (256, 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mark_stands_on_first_tokens_alone(dtype: torch.dtype) -> None:
    mark, values = StartMark(4), torch.randn(6, 4).to(dtype)
    original = values.clone()
    y = mark(Packed.from_lengths(values, [3, 1, 2]))
    assert y.values.dtype == dtype and torch.equal(values, original)
    difference = y.values - values
    assert not difference[[1, 2, 5]].any()
    torch.testing.assert_close(y.values[[0, 3, 4]], values[[0, 3, 4]] + mark.vector.to(dtype))


def test_a_mark_learns_from_every_sequence() -> None:
    mark = StartMark(4)
    mark(Packed.from_lengths(torch.zeros(6, 4), [3, 1, 2])).values.sum().backward()
    assert mark.vector.grad is not None and mark.vector.grad.tolist() == [3.0] * 4


def test_standardised_channels_stand_beside_the_numbers_as_they_are() -> None:
    """Scale and offset change only the first half; constants and single samples are zero in the second."""
    x = Packed.from_list([torch.randn(50, 2), torch.full((9, 2), 0.1), torch.randn(1, 2)])
    original, rescaled = add_standardised(x).values, add_standardised(x.with_values(1000 * x.values + 5)).values
    assert torch.equal(original[:, :2], x.values) and original.shape == (60, 4)
    torch.testing.assert_close(original[:50, 2:], rescaled[:50, 2:], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(original[:50, 2:].std(0, correction=0), torch.ones(2))
    assert not original[50:, 2:].any() and not rescaled[50:, 2:].any()


def test_both_scales_reach_the_answer() -> None:
    network = ChordMixerConfig(max_length=64, track_size=2, hidden=8)
    model = Model(ModelConfig(2, 1, "real", within_record=True, stem=StemConfig(1, 3), network=network)).eval()
    x = [torch.randn(20, 2), torch.full((5, 2), 3.0)]
    batched = model(Packed.from_list(x))
    torch.testing.assert_close(batched, torch.cat([model(Packed.from_list([sequence])) for sequence in x]))
    assert not torch.allclose(model(Packed.from_list([2 * x[0]])), batched[:1])
    with pytest.raises(ValueError, match=r"^within_record=true with embedding='tokens' is not possible"):
        ModelConfig(2, 1, within_record=True)
