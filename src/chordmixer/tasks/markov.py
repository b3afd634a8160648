"""Markov baselines of masked tokens: what the k letters beside one tell of it, counted in the training data.

Of K letters, P_0(x) = (n(x) + 1) / (n + K), and with a context of j letters, which leans on its j - 1 nearest,
P_j(x | context) = (n(context, x) + K * P_j-1(x | nearest)) / (n(context) + K). An order k takes the known letters
directly beside a masked one, k at most: where one of them is masked, or the sequence ends, the context is shorter.
`both sides` is P(x | left) * P(x | right) / P_0(x), scaled to add up to one: exact for a chain of order 1, while
above it what both sides have in common counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.packed import Packed

ORDERS = 5
"""The highest order, where its table fits."""
ENTRIES = 1 << 24
"""Of a table: order 5 for up to 16 letters, 4 for amino acids, 2 for bytes."""
CHUNK = 1 << 22
"""Tokens that are counted at a time."""

Tables = list[Float[Tensor, "contexts K"]]
"""By order j: log P_j of every letter after every context, whose nearest letter counts 1, the next K, then K * K."""


class Markov(nn.Module):
    """Answers as a model does: masked ids in, log-probabilities of letters out; zeros where nothing is masked.

    >>> left, right = tables(count([np.array([0, 1, 0, 1, 0])], letters=2))
    >>> Markov(left[:2])(Packed.from_list([torch.tensor([0, 2, 0])])).values[1].exp().mul(7).tolist()
    [2.0, 5.0]
    """

    def __init__(self, left: Tables, right: Tables | None = None) -> None:
        super().__init__()
        self.left, self.right = left, right
        self.letters = left[0].shape[1]

    @property
    def order(self) -> int:
        return len(self.left) - 1

    @property
    def name(self) -> str:
        return f"Markov order {self.order}" + (", both sides" if self.right else "")

    @property
    def sentence(self) -> str:
        """What it does, for people."""
        if not self.order:
            return "the letters' frequencies in the training data"
        beside = "before it, and by those behind it" if self.right else "before it"
        return f"each masked letter by up to {self.order} known letters {beside}, counted in the training data"

    def forward(self, x: Packed) -> Packed:
        ids, lengths = x.values.long(), list(x.lengths)
        outputs = _one_side(ids, lengths, self.left)
        if self.right:
            outputs = outputs + _one_side(ids.flip(0), lengths[::-1], self.right).flip(0) - self.left[0]
            outputs = outputs.log_softmax(dim=1)
        return x.with_values(torch.where((ids == self.letters)[:, None], outputs, 0.0))


def baselines(sequences: Iterable[ndarray], letters: int) -> list[Markov]:
    """All orders, of one side and of both, counted in these sequences of ids."""
    left, right = tables(count(sequences, letters))
    orders = range(len(left))
    return [Markov(left[: k + 1]) for k in orders] + [Markov(left[: k + 1], right[: k + 1]) for k in orders[1:]]


def count(sequences: Iterable[ndarray], letters: int, orders: int = ORDERS) -> list[Int[Tensor, "contexts K"]]:
    """How often each letter follows each context, by the context's length; no context crosses a sequence's start.

    >>> [table.tolist() for table in count([np.array([0, 1, 1])], letters=2, orders=1)]
    [[[1, 2]], [[0, 1], [0, 1]]]
    """
    orders = max(j for j in range(orders + 1) if j == 0 or letters ** (j + 1) <= ENTRIES)
    sums = [np.zeros(letters ** (j + 1), np.int64) for j in range(orders + 1)]
    for tokens, places in _chunks(sequences):
        words = tokens.copy()
        for j, total in enumerate(sums):
            if j:  # the letter j places before, in front of those that are there
                words[j:] += letters**j * tokens[:-j]
            total += np.bincount(words[places >= j], minlength=len(total))
    return [torch.from_numpy(total.reshape(-1, letters)) for total in sums]


def tables(counts: Sequence[Int[Tensor, "contexts K"]]) -> tuple[Tables, Tables]:
    """The probabilities of a letter by those before it, and by those behind it: of the same words, read backwards."""
    letters = counts[0].shape[1]
    backwards = [
        own.view([letters] * (j + 1)).permute(*range(j, -1, -1)).reshape(-1, letters) for j, own in enumerate(counts)
    ]
    return _smoothed(counts), _smoothed(backwards)


def _smoothed(counts: Sequence[Int[Tensor, "contexts K"]]) -> Tables:
    """Each order leans on the one below it, as much as on one sight of every letter."""
    letters = counts[0].shape[1]
    found: Tables = []
    lower = torch.full((1, letters), 1 / letters, dtype=torch.float64)
    for j, own in enumerate(counts):
        prior = lower.repeat(
            letters if j else 1, 1
        )  # the farthest letter counts most, so it is the one to repeat over
        lower = (own + letters * prior) / (own.sum(dim=1, keepdim=True) + letters)
        found.append(lower.log().float())
    return found


def _one_side(ids: Int[Tensor, "T"], lengths: Sequence[int], tables: Tables) -> Float[Tensor, "T K"]:
    """The answers at masked places by what stands before them."""
    order, letters = len(tables) - 1, tables[0].shape[1]
    at = (ids == letters).nonzero().squeeze(1)
    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0).repeat_interleave(torch.tensor(lengths))[at]
    previous = torch.cat([torch.full((1,), -1), at[:-1]])
    known = torch.minimum(at - starts, at - previous - 1).clamp(max=order)
    outputs = torch.zeros(len(ids), letters)
    context = torch.zeros_like(at)
    for j, table in enumerate(tables):
        if j:
            context = context + ids[(at - j).clamp(min=0)] * letters ** (j - 1)
        here = known == j
        outputs[at[here]] = table[context[here]]
    return outputs


def _chunks(sequences: Iterable[ndarray]) -> Iterator[tuple[ndarray, ndarray]]:
    """The ids of several sequences end to end, and the place of each in its own."""
    batch: list[ndarray] = []
    size = 0
    for sequence in sequences:
        batch.append(sequence)
        size += len(sequence)
        if size >= CHUNK:
            yield _joined(batch)
            batch, size = [], 0
    if batch:
        yield _joined(batch)


def _joined(batch: Sequence[ndarray]) -> tuple[ndarray, ndarray]:
    return np.concatenate(batch).astype(np.int64), np.concatenate([np.arange(len(own)) for own in batch])
