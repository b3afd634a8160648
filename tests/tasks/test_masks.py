from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import draws
from chordmixer.packed import Packed
from chordmixer.tasks import masks
from chordmixer.tasks.masks import SUMS, Markov, MaskedTokens, baselines, count, draw_masks, tables
from chordmixer.tasks.targets import Regression, TokenTarget

LETTERS = {"A": 0, "C": 1, "G": 2}


def target(**settings: Any) -> MaskedTokens:
    return MaskedTokens(5, 4, (0.4, 0.3, 0.2, 0.1, 0.0), LETTERS, **settings)


def batch(lengths: list[int], seed: int = 0) -> tuple[Packed, torch.Tensor]:
    tokens = draws.below(draws.key(seed), torch.arange(sum(lengths)), torch.full((sum(lengths),), 4))
    return Packed.from_lengths(tokens.byte(), lengths), draws.bits(
        draws.key(seed, "keys"), torch.arange(len(lengths))
    )


def runs(masked: torch.Tensor) -> list[int]:
    """Lengths of the runs of masked tokens."""
    return [len(run) for run in "".join("x" if m else " " for m in masked.tolist()).split()]


# --- Masks ---


@pytest.mark.parametrize(("share", "span"), [(0.3, None), (0.15, None), (0.3, 6.0), (0.5, 20.0)])
def test_the_share_is_exact_and_runs_are_as_long_as_asked(share: float, span: float | None) -> None:
    x, keys = batch([1000] * 400)
    masked = draw_masks(x, keys, share, span)
    mean = span or 1 / (1 - share)
    error = math.sqrt(share * (1 - share) * 2 * mean / x.tokens)  # neighbours share their states
    assert masked.float().mean().item() == pytest.approx(share, abs=4 * error)
    inner = [n for row in masked.split(1000) for n in runs(row)[1:-1]]  # the first and last may go on beyond the ends
    assert np.mean(inner) == pytest.approx(mean, rel=0.05)
    by_position = masked.view(400, 1000).float().mean(dim=0)
    assert abs(by_position[:20].mean().item() - share) < 0.08 and abs(by_position[-20:].mean().item() - share) < 0.08


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    share=st.floats(0.01, 0.99),
    longer=st.one_of(st.none(), st.floats(1, 50)),
    seed=st.integers(0, 99),
)
def test_never_none_and_never_all(lengths: list[int], share: float, longer: float | None, seed: int) -> None:
    x, keys = batch(lengths, seed)
    for mask in draw_masks(x, keys, share, longer and longer / (1 - share)).split(lengths):
        assert mask.any() and (len(mask) == 1 or not mask.all())


@pytest.mark.parametrize("span", [None, 5.0])
def test_a_mask_does_not_depend_on_its_batch(span: float | None) -> None:
    x, keys = batch([40, 3, 200, 1, 17])
    batched = draw_masks(x, keys, 0.3, span).split(x.lengths)
    for i, mask in enumerate(batched):
        assert torch.equal(draw_masks(x.select([i]), keys[[i]], 0.3, span), mask)
    reordered = draw_masks(x.select([4, 2, 0, 1, 3]), keys[[4, 2, 0, 1, 3]], 0.3, span)
    assert torch.equal(reordered[:17], batched[4])
    assert not torch.equal(draw_masks(x, keys + 1, 0.3, span), torch.cat(batched))


def test_unknown_letters_stay() -> None:
    x, keys = batch([500, 60])
    values = x.values.clone()
    values[100:400], values[500:559] = 4, 4
    masked = draw_masks(x.with_values(values), keys, 0.3, None, certain=4)
    assert not masked[100:400].any() and masked[:100].any()
    assert masked[500:].nonzero().tolist() == [[59]]  # the one letter that is known
    nothing_known = draw_masks(x.with_values(torch.full_like(values, 4)), keys, 0.3, None, certain=4)
    assert [int(mask.sum()) for mask in nothing_known.split(x.lengths)] == [1, 1]


# --- What is counted ---


def test_hidden_tokens_are_not_shown() -> None:
    x, keys = batch([300])
    shown, masked = target().hide(x, keys)
    assert set(shown.values[masked].tolist()) == {5}
    assert torch.equal(shown.values[~masked], x.values[~masked].int())


def test_rows_against_a_loop() -> None:
    x, keys = batch([30, 9])
    outputs = torch.from_numpy(np.random.default_rng(0).normal(size=(39, 5)).astype(np.float32))
    token_target = target()
    rows = token_target.rows(lambda shown: shown.with_values(outputs), x, keys).view(2, 4, SUMS)
    masked = draw_masks(x, keys, 0.3, None, 4)
    expected = np.zeros((2, 4, SUMS))
    for t in range(39):
        if masked[t]:
            truth = int(x.values[t])
            loss = -float(outputs[t].log_softmax(0)[truth])
            slot = truth if truth < 3 else 3
            expected[0 if t < 30 else 1, slot] += [1, loss, int(outputs[t].argmax()) == truth]
    assert rows.numpy() == pytest.approx(expected, rel=1e-5)
    sums = expected.sum(axis=1)
    losses = token_target.losses(rows.view(2, -1), keys)
    assert losses.numpy() == pytest.approx(sums[:, 1] / sums[:, 0], rel=1e-5)
    metrics = token_target.metrics(rows.view(2, -1).float().numpy(), keys.numpy())
    count, loss, correct = sums.sum(axis=0)
    assert metrics["accuracy"] == pytest.approx(correct / count)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss / count), rel=1e-5)
    letter = expected.sum(axis=0)[1]
    assert metrics["accuracy_C"] == pytest.approx(letter[2] / letter[0])
    assert metrics["perplexity_C"] == pytest.approx(math.exp(letter[1] / letter[0]), rel=1e-5)
    assert list(metrics)[2:] == [f"{name}_{k}" for k in "ACG" for name in ("accuracy", "perplexity")]


def test_the_loss_is_of_masked_tokens_only() -> None:
    """Answers at other tokens get no gradient, and other true tokens there change nothing."""
    x, keys = batch([50, 20])
    outputs = torch.zeros(70, 5, requires_grad=True)
    token_target = target()
    rows = token_target.rows(lambda shown: shown.with_values(outputs), x, keys)
    token_target.losses(rows, keys).sum().backward()
    masked = draw_masks(x, keys, 0.3, None, 4)
    assert outputs.grad is not None
    assert not outputs.grad[~masked].any() and outputs.grad[masked].any(dim=1).all()
    changed = x.with_values(torch.where(masked, x.values, (x.values + 1) % 4))
    assert torch.equal(token_target.tally(outputs, changed, masked), rows)
    wrong = x.with_values(torch.where(masked, (x.values + 1) % 4, x.values))
    assert not torch.equal(token_target.tally(outputs, wrong, masked), rows)


def test_the_best_constant_answer() -> None:
    token_target = target()
    row = token_target.constant(np.zeros(3))
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    entropy = -(shares * np.log(shares)).sum()
    assert token_target.losses(torch.from_numpy(row)[None], torch.zeros(1)).item() == pytest.approx(entropy, rel=1e-5)
    metrics = token_target.metrics(np.tile(row, (3, 1)), np.zeros(3))
    assert metrics["accuracy"] == pytest.approx(0.4) and metrics["perplexity"] == pytest.approx(math.exp(entropy))
    assert metrics["accuracy_A"] == pytest.approx(1) and metrics["accuracy_C"] == 0


def test_a_letter_that_was_never_masked_has_no_score() -> None:
    row = np.zeros((1, 4 * SUMS), np.float32)
    row[0, :SUMS] = [2, 1.0, 1]
    metrics = target().metrics(row, np.zeros(1))
    assert metrics["accuracy_A"] == 0.5 and math.isnan(metrics["accuracy_C"]) and math.isnan(metrics["perplexity_C"])


def test_masked_tokens_are_a_token_target() -> None:
    assert isinstance(target(), TokenTarget) and not isinstance(Regression(), TokenTarget)
    assert target(span=4.0).to_dict() | {"letters": 0} == {
        "kind": "masked",
        "outputs": 5,
        "certain": 4,
        "frequencies": (0.4, 0.3, 0.2, 0.1, 0.0),
        "letters": 0,
        "share": 0.3,
        "span": 4.0,
    }


K = 3
MASK = K


def texts(seed: int = 0, lengths: tuple[int, ...] = (40, 1, 7, 200)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.choice(K, size=n, p=[0.6, 0.3, 0.1]).astype(np.uint8) for n in lengths]


def words(sequences: list[np.ndarray], length: int) -> Counter[tuple[int, ...]]:
    """The counts of all words of this length."""
    return Counter(tuple(s[i : i + length].tolist()) for s in sequences for i in range(len(s) - length + 1))


def probability(sequences: list[np.ndarray], context: tuple[int, ...], letter: int, before: bool = True) -> float:
    """The probability of a letter given the `context` before or after it, by the formula."""
    counts = words(sequences, len(context) + 1)

    def times(x: int) -> int:
        return counts[(*context, x) if before else (x, *context)]

    total = sum(times(x) for x in range(K))
    if not context:
        return (times(letter) + 1) / (total + K)
    nearest = context[1:] if before else context[:-1]
    return (times(letter) + K * probability(sequences, nearest, letter, before)) / (total + K)


@pytest.mark.parametrize("chunk", [1 << 22, 10])
def test_counts_are_those_of_all_words(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "CHUNK", chunk)
    sequences = texts()
    for j, table in enumerate(count(iter(sequences), K, orders=3)):
        counted = {}
        for code in table.flatten().nonzero().squeeze(1).tolist():
            digits = [code // K**m % K for m in range(j + 1)]  # the letter itself, then its nearest neighbour
            counted[tuple(reversed(digits))] = int(table.flatten()[code])
        assert counted == words(sequences, j + 1)


def test_probabilities_are_those_of_the_formula() -> None:
    sequences = texts()
    left, right = tables(count(sequences, K, orders=2))
    for context in [(0, 1), (2, 2), (1, 0)]:
        code_before = context[1] + K * context[0]
        code_after = context[0] + K * context[1]
        for x in range(K):
            assert left[2][code_before, x].exp().item() == pytest.approx(probability(sequences, context, x), rel=1e-5)
            expected = probability(sequences, context, x, before=False)
            assert right[2][code_after, x].exp().item() == pytest.approx(expected, rel=1e-5)
    for table in left + right:
        assert table.exp().sum(dim=1).numpy() == pytest.approx(np.ones(len(table)), rel=1e-5)


def test_the_context_ends_where_a_letter_is_masked_or_the_sequence_ends() -> None:
    sequences = texts()
    left, right = tables(count(sequences, K, orders=2))
    shown = Packed.from_list([torch.tensor([MASK, 0, MASK, 1, 2, MASK]), torch.tensor([1, MASK])])
    one_sided = Markov(left).forward(shown).values.exp()
    for position, context in {0: (), 2: (0,), 5: (1, 2), 7: (1,)}.items():
        expected = [probability(sequences, context, x) for x in range(K)]
        assert one_sided[position].numpy() == pytest.approx(expected, rel=1e-5), position
    two_sided = Markov(left, right).forward(shown).values.exp()
    for position, (before, after) in {0: ((), (0,)), 2: ((0,), (1, 2)), 5: ((1, 2), ()), 7: ((1,), ())}.items():
        product = np.array(
            [
                probability(sequences, before, x)
                * probability(sequences, after, x, before=False)
                / probability(sequences, (), x)
                for x in range(K)
            ]
        )
        assert two_sided[position].numpy() == pytest.approx(product / product.sum(), rel=1e-4), position


def test_all_orders() -> None:
    chains = baselines(iter(texts()), K)
    assert [chain.name for chain in chains] == [
        *(f"Markov order {k}" for k in range(6)),
        *(f"Markov order {k}, both sides" for k in range(1, 6)),
    ]
    assert chains[0].sentence == "the letters' frequencies in the training data"
    assert chains[3].sentence == "each masked letter by up to 3 known letters before it, counted in the training data"
    assert "before it, and by those behind it" in chains[-1].sentence
    assert not [*chains[0].parameters()]


def test_orders_end_where_a_table_would_be_too_large() -> None:
    assert len(count([np.arange(256)], 256)) == 3
    assert len(count([np.arange(5)], 5)) == 6
    assert len(count([np.arange(5000)], 5000)) == 1
