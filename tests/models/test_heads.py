from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from chordmixer import Packed
from chordmixer.models.heads import HEADS

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


@pytest.mark.parametrize("name", ["average", "last", "tokens"])
def test_adds_no_token(name: str, random_batch: Make) -> None:
    head, x = HEADS[name](8, 3), random_batch([1, 5], 8)
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
    linear = HEADS[name](100, 20).linear
    assert 0.9 * (6 / 120) ** 0.5 < linear.weight.abs().max() <= (6 / 120) ** 0.5
    assert not linear.bias.any()
