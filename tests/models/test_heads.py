from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.heads import CONTEXTS, HEADS, MARK, FlatHead, VariantHead

Make = Callable[..., Any]


def test_average_is_mean_then_linear(random_batch: Make) -> None:
    head, x = HEADS["average"](8, 3), random_batch([1, 5, 2000], 8)
    expected = torch.stack([head.linear(s.mean(0)) for s in x.to_list()])
    torch.testing.assert_close(head(x), expected, rtol=1e-5, atol=1e-6)


def test_last_is_the_last_token(random_batch: Make) -> None:
    head, x = HEADS["last"](8, 3), random_batch([1, 5, 2], 8)
    torch.testing.assert_close(head(x), torch.stack([head.linear(s[-1]) for s in x.to_list()]))


def test_tokens_answers_each(random_batch: Make) -> None:
    head, x = HEADS["tokens"](8, 3), random_batch([1, 5, 2], 8)
    answers = head(x)
    assert isinstance(answers, Packed) and answers.lengths == x.lengths
    torch.testing.assert_close(answers.values, head.linear(x.values))


def test_pair_compares_two_means(random_batch: Make) -> None:
    head, x = HEADS["pair"](8, 3), random_batch([1, 5, 2000, 3], 8)
    means = [sequence.mean(0) for sequence in x.to_list()]
    expected = []
    for a, b in (means[:2], means[2:]):
        hidden = head.compare(torch.cat([a, b, a * b, a - b]))
        expected.append(head.linear(torch.nn.functional.gelu(hidden)))
    torch.testing.assert_close(head(x), torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_pair_depends_on_both_sequences_and_their_order(random_batch: Make) -> None:
    head, x = HEADS["pair"](8, 3), random_batch([4, 5], 8)
    swapped = head(x.select([1, 0]))
    assert head(x).shape == (1, 3) and not torch.allclose(head(x), swapped)
    x.values.requires_grad_()
    head(x).sum().backward()
    assert bool(x.values.grad.ne(0).any(dim=1).all())


def test_pair_needs_two(random_batch: Make) -> None:
    with pytest.raises(
        ValueError, match=r"^3 sequences are not pairs: .*; give each first one with its second behind"
    ):
        HEADS["pair"](8, 3)(random_batch([1, 5, 2], 8))


def test_flat_is_padded_then_linear(random_batch: Make) -> None:
    head, x = FlatHead(8, 3, longest=40).double(), random_batch([1, 33, 40, 2], 8, torch.float64)
    torch.nn.init.normal_(head.linear.bias)
    x.values.requires_grad_()
    rows = torch.nn.functional.pad(x.to_padded(), (0, 0, 0, 40 - max(x.lengths))).flatten(1)
    actual, expected = head(x), head.linear(rows * head.scale)
    torch.testing.assert_close(actual, expected)
    grad_output = torch.randn_like(actual)
    variables = [x.values, head.linear.weight, head.linear.bias]
    gradients, expected_gradients = (torch.autograd.grad(y, variables, grad_output) for y in (actual, expected))
    torch.testing.assert_close(gradients, expected_gradients)


def test_flat_sums_half_precision_exactly_enough(random_batch: Make) -> None:
    head, x = FlatHead(8, 2, longest=3_000), random_batch([3_000], 8, torch.bfloat16)
    expected = head.linear.double()(x.values.double().flatten()[None] * head.scale)
    torch.testing.assert_close(head.float()(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_steps_of_flat_grow_as_the_root_of_the_length(random_batch: Make) -> None:
    """A step of Adam changes every weight by the learning rate, each in the direction that lowers the loss."""
    changes = []
    for longest in (100, 10_000):
        torch.manual_seed(0)
        head, x = FlatHead(8, 1, longest), random_batch([longest], 8)
        assert head(x).abs() < 5
        before = head(x).item()
        step(head, x)
        changes.append(abs(head(x).item() - before))
    assert 8 < changes[1] / changes[0] < 12  # with a plain map 100


def step(head: FlatHead, x: Packed) -> None:
    adam = torch.optim.Adam(head.parameters(), lr=1e-3)
    head(x).sum().backward()
    adam.step()


def test_flat_makes_no_padding(random_batch: Make, peak_bytes: Callable[[Callable[[], Any]], int]) -> None:
    head, x = FlatHead(8, 2, longest=10_000), random_batch([10_000, *[1] * 99], 8)
    padded = 100 * 10_000 * 8 * 4
    assert peak_bytes(lambda: torch.autograd.grad(head(x).sum(), head.linear.weight)) < padded / 8


def test_flat_has_weights_for_so_many_positions(random_batch: Make) -> None:
    with pytest.raises(
        ValueError, match=r"^a sequence of 6 tokens is above the 5 that this head has weights for: .*=6"
    ):
        FlatHead(8, 3, longest=5)(random_batch([2, 6], 8))


def test_flat_refuses_more_weights_than_can_be_held() -> None:
    message = (
        r"^head='flat' over 10,000,000 tokens of 128 channels for 2 outputs has 2,560,000,000 weights: more than "
        r"2\^31 are too many; set a smaller network.max_length, strategy=truncate, or head=average$"
    )
    with pytest.raises(ValueError, match=message):
        FlatHead(128, 2, longest=10_000_000)
    with torch.device("meta"):
        assert FlatHead(128, 2, longest=10_000_000).linear.weight.numel() == 2_560_000_000


def marked(lengths: list[int], positions: list[int], contexts: list[int]) -> Packed:
    """Token ids, one of which is marked in each sequence."""
    sequences = [torch.arange(n) % 5 for n in lengths]
    for sequence, position, context in zip(sequences, positions, contexts, strict=True):
        sequence[position] += MARK * (1 + context)
    return Packed.from_list(sequences)


def test_variant_is_its_formula(random_batch: Make) -> None:
    head, lengths = VariantHead(8, 3), [4, 6, 3, 3]
    torch.nn.init.normal_(head.context.weight)
    ids = marked(lengths, [3, 3, 0, 0], [0, 0, 7, 7])
    letters, marks = head.split_marks(ids)
    assert letters.values.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0, 1, 2, 0, 1, 2]
    x = random_batch(lengths, 8)
    answers = head(x, *marks)
    for k, (position, context) in enumerate([(3, 0), (0, 7)]):
        r, a = x.to_list()[2 * k : 2 * k + 2]
        pairs = [(r.mean(0), a.mean(0)), (r[position], a[position])]
        features = torch.cat([torch.cat([r, a, a - r, a * r]) for r, a in pairs])
        hidden = torch.nn.functional.gelu(head.compare(features) + head.context.weight[context])
        assert torch.allclose(answers[k], head.linear(hidden), atol=1e-5)


def test_variant_takes_as_many_contexts_as_it_says(random_batch: Make) -> None:
    head, x = VariantHead(8, 3), random_batch([4, 4], 8)
    _, marks = head.split_marks(marked([4, 4], [1, 1], [CONTEXTS - 1] * 2))
    assert head(x, *marks).shape == (1, 3)


@pytest.mark.parametrize("lengths", [[4], [4, 4, 4]])
def test_variant_needs_pairs(lengths: list[int], random_batch: Make) -> None:
    head, x = VariantHead(8, 3), random_batch(lengths, 8)
    _, marks = head.split_marks(marked(lengths, [0] * len(lengths), [0] * len(lengths)))
    with pytest.raises(
        ValueError, match=rf"^{len(lengths)} sequences are not pairs of alleles, .* chordmixer variants"
    ):
        head(x, *marks)


def test_variant_needs_marks_of_its_own_tokens(random_batch: Make) -> None:
    head, x = VariantHead(8, 3), random_batch([4, 4], 8)
    with pytest.raises(ValueError, match=r"^0 tokens are marked in 2 sequences: each has one at its variant; use"):
        head(x, torch.zeros(8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^2 sequences are not pairs of alleles, .* and strategy=packed$"):
        head(x, torch.ones(6, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^2 sequences are not pairs of alleles"):
        head(x)


@pytest.mark.parametrize("name", HEADS)
def test_how_many_sequences_have_one_answer(name: str) -> None:
    assert HEADS[name].sequences == (2 if name in ("pair", "variant") else 1)


@pytest.mark.parametrize("name", ["average", "flat", "last", "pair", "tokens"])
def test_adds_no_token(name: str, random_batch: Make) -> None:
    head, x = HEADS[name].for_length(8, 3, longest=5), random_batch([1, 5], 8)
    assert head.prepare(x) is x and head.extra == 0


def test_class_token_goes_behind_each_sequence(random_batch: Make) -> None:
    head, x = HEADS["class_token"](8, 3), random_batch([1, 5, 2], 8)
    prepared = head.prepare(x)
    assert prepared.lengths == (2, 6, 3) and head.extra == 1
    for before, after in zip(x.to_list(), prepared.to_list(), strict=True):
        assert torch.equal(after, torch.cat([before, head.token[None]]))


def test_class_token_learns(random_batch: Make) -> None:
    head, x = HEADS["class_token"](8, 1), random_batch([1, 5, 2], 8)
    head(head.prepare(x)).sum().backward()
    torch.testing.assert_close(head.token.grad, 3 * head.linear.weight[0].detach())


@pytest.mark.parametrize("name", HEADS)
def test_starts_as_xavier(name: str) -> None:
    linear = HEADS[name].for_length(100, 20, longest=1).linear
    bound = (6 / (linear.in_features + 20)) ** 0.5
    assert 0.9 * bound < linear.weight.abs().max() <= bound
    assert not linear.bias.any()


def test_pooled_heads_against_a_loop(random_batch: Make) -> None:
    """Answers in evaluation mode and gradients, also for sequences of several chunks."""
    x, words = random_batch([1, 5, 2000], 8), torch.randn(3, 2)
    x.values.requires_grad_()
    poolings: dict[str, Make] = {
        "maximum": lambda sequence: sequence.amax(0),
        "mean_maximum": lambda sequence: torch.cat([sequence.mean(0), sequence.amax(0)]),
        "attention": lambda sequence: torch.softmax(head.score(sequence)[:, 0], dim=0) @ sequence,
    }
    for name, pool in poolings.items():
        head: Any = HEADS[name](8, 3, further=2).eval()  # type: ignore[call-arg]
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter)
        pooled = torch.stack([pool(sequence) for sequence in x.to_list()])
        expected = head.linear(torch.cat([pooled, words], dim=1))  # mean 0 and variance 1 until they are collected
        torch.testing.assert_close(head(x, words), expected, rtol=1e-4, atol=1e-4)
        grad, expected_grad = (torch.autograd.grad(y.square().sum(), x.values)[0] for y in (head.pool(x), pooled))
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)


def test_features_drop_out_in_training_alone(random_batch: Make) -> None:
    head, x = HEADS["mean_maximum"](8, 3, dropout=0.5), random_batch([5, 9, 4], 8)  # type: ignore[call-arg]
    assert not torch.equal(head(x), head(x))
    head.eval()
    assert torch.equal(head(x), head(x))
