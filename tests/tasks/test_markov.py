"""Markov chains, against a literal count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from chordmixer.packed import Packed
from chordmixer.tasks import markov
from chordmixer.tasks.markov import Markov, baselines, count, tables

K = 3
MASK = K


def texts(seed: int = 0, lengths: tuple[int, ...] = (40, 1, 7, 200)) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.choice(K, size=n, p=[0.6, 0.3, 0.1]).astype(np.uint8) for n in lengths]


def words(sequences: list[np.ndarray], length: int) -> Counter[tuple[int, ...]]:
    """Every word of this length, as it is read."""
    return Counter(tuple(own[i : i + length].tolist()) for own in sequences for i in range(len(own) - length + 1))


def probability(sequences: list[np.ndarray], context: tuple[int, ...], letter: int, before: bool = True) -> float:
    """Of a letter by the `context` before it, or behind it, by the formula and nothing else."""
    seen = words(sequences, len(context) + 1)

    def times(x: int) -> int:
        return seen[(*context, x) if before else (x, *context)]

    total = sum(times(x) for x in range(K))
    if not context:
        return (times(letter) + 1) / (total + K)
    nearest = context[1:] if before else context[:-1]
    return (times(letter) + K * probability(sequences, nearest, letter, before)) / (total + K)


@pytest.mark.parametrize("chunk", [1 << 22, 10])
def test_counts_are_literal(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markov, "CHUNK", chunk)
    sequences = texts()
    for j, table in enumerate(count(iter(sequences), K, orders=3)):
        found = {}
        for code in table.flatten().nonzero().squeeze(1).tolist():
            digits = [code // K**m % K for m in range(j + 1)]  # the letter itself, then its nearest neighbour
            found[tuple(reversed(digits))] = int(table.flatten()[code])
        assert found == words(sequences, j + 1)


def test_probabilities_are_those_of_the_formula() -> None:
    sequences = texts()
    left, right = tables(count(sequences, K, orders=2))
    for context in [(0, 1), (2, 2), (1, 0)]:
        code_before = context[1] + K * context[0]
        code_behind = context[0] + K * context[1]
        for x in range(K):
            assert left[2][code_before, x].exp().item() == pytest.approx(probability(sequences, context, x), rel=1e-5)
            behind = probability(sequences, context, x, before=False)
            assert right[2][code_behind, x].exp().item() == pytest.approx(behind, rel=1e-5)
    for table in left + right:
        assert table.exp().sum(dim=1).numpy() == pytest.approx(np.ones(len(table)), rel=1e-5)


def test_the_context_ends_where_a_letter_is_masked_or_the_sequence_ends() -> None:
    sequences = texts()
    left, right = tables(count(sequences, K, orders=2))
    shown = Packed.from_list([torch.tensor([MASK, 0, MASK, 1, 2, MASK]), torch.tensor([1, MASK])])
    found = Markov(left).forward(shown).values.exp()
    for place, context in {0: (), 2: (0,), 5: (1, 2), 7: (1,)}.items():
        expected = [probability(sequences, context, x) for x in range(K)]
        assert found[place].numpy() == pytest.approx(expected, rel=1e-5), place
    both = Markov(left, right).forward(shown).values.exp()
    for place, (before, behind) in {0: ((), (0,)), 2: ((0,), (1, 2)), 5: ((1, 2), ()), 7: ((1,), ())}.items():
        product = np.array(
            [
                probability(sequences, before, x)
                * probability(sequences, behind, x, before=False)
                / probability(sequences, (), x)
                for x in range(K)
            ]
        )
        assert both[place].numpy() == pytest.approx(product / product.sum(), rel=1e-4), place


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
