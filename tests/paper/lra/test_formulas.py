"""The same formulas in other orders: the same trees, whose results are the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from chordmixer.paper.lra.formulas import CLOSE, MAX, MED, MIN, SM, reordered
from chordmixer.paper.lra.listops import ListOpsConfig, made


def tree(tokens: list[int]) -> Any:
    """A digit, or an operator with its arguments as a multiset: equal for formulas that differ in order alone."""
    head = tokens.pop(0)
    if head < MAX:
        return head
    arguments = []
    while tokens[0] != CLOSE:
        arguments.append(tree(tokens))
    tokens.pop(0)
    return head, frozenset(Counter(arguments).items())


def parts(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    return [own.tolist() for own in np.split(tokens, np.cumsum(lengths)[:-1])]


def test_trees_stay_and_orders_change() -> None:
    tokens, lengths, _ = made(ListOpsConfig(), "training", np.arange(40))
    other = reordered(tokens, lengths, np.arange(40))
    for before, after in zip(parts(tokens, lengths), parts(other, lengths), strict=True):
        assert before != after and tree(before) == tree(after) and not after


def test_a_sequence_alone_and_among_others() -> None:
    tokens, lengths, _ = made(ListOpsConfig(min_length=5, max_length=60), "training", np.arange(30))
    together = parts(reordered(tokens, lengths, np.arange(30)), lengths)
    for number, own in enumerate(parts(tokens, lengths)):
        alone = reordered(np.array(own), np.array([len(own)]), np.array([number]))
        assert alone.tolist() == together[number]


def test_every_order_comes_as_often() -> None:
    formula = np.array([SM, 1, 2, 3, CLOSE])
    seen = Counter(tuple(reordered(formula, np.array([5]), np.array([key]))) for key in range(3000))
    assert len(seen) == 6 and max(seen.values()) < 1.25 * min(seen.values())


@pytest.mark.parametrize(
    "tokens", [[7], [MAX, 1, CLOSE], [MIN, CLOSE], [MED, MAX, MIN, 4, CLOSE, CLOSE, CLOSE], [MAX, 3, CLOSE]], ids=str
)
def test_nothing_to_reorder(tokens: list[int]) -> None:
    assert reordered(np.array(tokens), np.array([len(tokens)]), np.array([3])).tolist() == tokens


def test_what_was_cut_stays_and_the_others_change() -> None:
    cut, whole = [MAX, 1, MIN, 2, 3, CLOSE], [MAX, *range(10), CLOSE]
    other = reordered(np.array(cut + whole + cut), np.array([6, 12, 6]), np.array([1, 2, 3]))
    assert other[:6].tolist() == other[-6:].tolist() == cut
    assert other[6:-6].tolist() != whole and sorted(other[6:-6]) == sorted(whole)
