"""The target of pre-training, masked tokens, and its baselines, Markov chains.

A mask is a function of a key, one a sequence, and of a token's place in it. So it is drawn where the batch is, for
all sequences at once, and is the same in any batch and on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from chordmixer.data import draws
from chordmixer.data.features import chunks
from chordmixer.packed import Packed

SUMS = 3
"""Sums over masked tokens: their number, their losses, and how many were predicted."""


@dataclass(frozen=True)
class MaskedTokens:
    """The target of pre-training: tokens that were hidden, by cross-entropy, from all that was not.

    Targets are the masks' keys. A model's answers to the tokens of a sequence are counted at once and become a row:
    of each letter in `letters`, and of all others together, the `SUMS` of its masked tokens. The loss of a sequence
    is the mean over its own masked tokens; accuracy and perplexity are over the masked tokens of all sequences.

    >>> target = MaskedTokens(outputs=5, certain=4, frequencies=(0.3, 0.2, 0.2, 0.3, 0.0), letters={"A": 0, "C": 1})
    >>> x, keys = Packed.from_list([torch.tensor([0, 1, 2, 3])]), torch.tensor([8])
    >>> shown, masked = target.hide(x, keys)
    >>> shown.values.tolist(), masked.tolist()
    ([5, 1, 2, 3], [True, False, False, False])
    >>> target.rows(lambda seen: seen.with_values(torch.zeros(4, 5)), x, keys).shape
    torch.Size([1, 9])
    """

    outputs: int
    """Letters of the vocabulary; the id behind them stands for a masked one."""
    certain: int
    """Ids from this one on are unknown letters: never masked, unless a sequence has no others."""
    frequencies: Sequence[float]
    """Frequencies of all letters in training: the best constant prediction."""
    letters: Mapping[str, int]
    """Ids of the letters with scores of their own, by name."""
    share: float = 0.3
    """Expected share of the tokens that are masked."""
    span: float | None = None
    """Mean length of a run of masked tokens; None: each is masked on its own, which gives runs of 1 / (1 - share)."""

    headline = "accuracy"

    def hide(self, x: Packed, keys: Int[Tensor, "B"]) -> tuple[Packed, Bool[Tensor, "T"]]:
        """The masked input of the model, and which tokens are masked."""
        masked = draw_masks(x, keys, self.share, self.span, self.certain)
        ids = x.values.int()
        return x.with_values(ids.masked_fill(masked, self.outputs)), masked

    def rows(
        self, model: Callable[[Packed], Packed], x: Packed, keys: Int[Tensor, "B"]
    ) -> Float[Tensor, "B columns"]:
        """A model's answers to what is hidden by these keys, counted by sequence and letter."""
        shown, masked = self.hide(x, keys)
        return self.tally(model(shown).values, x, masked)

    def tally(
        self, outputs: Float[Tensor, "T K"], x: Packed, masked: Bool[Tensor, "T"]
    ) -> Float[Tensor, "B columns"]:
        """The sums of each sequence; a token that is not masked counts for nothing."""
        truth = x.values.long()
        losses = F.cross_entropy(outputs.float(), truth, reduction="none")
        found = outputs.argmax(dim=1) == truth
        counted = torch.stack([torch.ones_like(losses), losses, found.float()], dim=1).double()
        counted = torch.where(masked[:, None], counted, 0.0)
        slots = len(self.letters) + 1
        places = x.owners() * slots + self._slot_of.to(x.device)[truth]
        # In float64 the order of the sum does not matter to a float32; the gradient is a look-up in any case.
        sums = counted.new_zeros(len(x) * slots, SUMS).index_add(0, places, counted)
        return sums.view(len(x), slots * SUMS)

    def losses(self, outputs: Float[Tensor, "B columns"], targets: Tensor) -> Float[Tensor, "B"]:
        """The mean over the masked tokens of each sequence."""
        count, loss, _ = outputs.view(len(outputs), -1, SUMS).sum(dim=1).unbind(1)
        return (loss / count).float()

    def constant(self, targets: ndarray) -> ndarray:
        """The sums of predicting the training frequencies, on letters of the same frequencies."""
        shares = np.asarray(self.frequencies, dtype=np.float64)
        losses = -shares * np.log(np.clip(shares, 1e-12, None))
        found = np.where(np.arange(self.outputs) == shares.argmax(), shares, 0)
        row = np.zeros((len(self.letters) + 1, SUMS))
        np.add.at(row, self._slot_of.numpy(), np.stack([shares, losses, found], axis=1))
        return row.ravel().astype(np.float32)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        """Accuracy and perplexity of all masked tokens, and of each letter; NaN where it was never masked."""
        sums = outputs.sum(axis=0, dtype=np.float64).reshape(-1, SUMS)
        found = _accuracy_and_perplexity(sums.sum(axis=0), "")
        for letter, own in zip(self.letters, sums, strict=False):
            found |= _accuracy_and_perplexity(own, f"_{letter}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """For people: a model that finds tokens has no answers about records, and is asked only by its own task."""
        return {"kind": "masked", **asdict(self)}

    @cached_property
    def _slot_of(self) -> Int[Tensor, "K"]:
        """The column of each id's sums; ids without one share the last."""
        slots = torch.full((self.outputs,), len(self.letters))
        slots[list(self.letters.values())] = torch.arange(len(self.letters))
        return slots


def draw_masks(
    x: Packed, keys: Int[Tensor, "B"], share: float, span: float | None = None, certain: int = 1 << 30
) -> Bool[Tensor, "T"]:
    """Which tokens are masked. A sequence has at least one that is, and from two tokens on at least one that is not.

    With `span`, a token takes over the state of the one before it, or with a chance of r draws it anew. A run of
    masked ones then ends with a chance of r * (1 - share), the inverse of its mean length, and each token is masked
    with a chance of `share` all the same.

    >>> x = Packed.from_list([torch.zeros(9, dtype=torch.long), torch.zeros(2, dtype=torch.long)])
    >>> draw_masks(x, torch.tensor([4, 5]), 0.3).int().tolist()
    [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    """
    owner, places = x.owners(), torch.arange(x.tokens, device=x.device)
    within, key = 3 * x.places(), keys[owner]
    hidden = _chance(key, within, share)
    if span is not None:
        anew = _chance(key, within + 1, 1 / (span * (1 - share))) | (within == 0)
        hidden = hidden[torch.where(anew, places, 0).cummax(dim=0).values]
    unknown = x.values.int() >= certain
    hidden = hidden & ~unknown
    count = torch.zeros_like(keys).index_add(0, owner, hidden.long())
    order = (draws.bits(key, within + 2) >> 2) + (unknown.long() << 62)  # unknown letters behind all others
    lengths = x.offsets.diff()
    empty = order.new_zeros(len(x))
    first, last = (empty.scatter_reduce(0, owner, order, how, include_self=False) for how in ("amin", "amax"))
    hidden = hidden | ((count == 0)[owner] & (order == first[owner]))
    return hidden & ~(((count == lengths) & (lengths > 1))[owner] & (order == last[owner]))


def _chance(key: Int[Tensor, "T"], counters: Int[Tensor, "T"], share: float) -> Bool[Tensor, "T"]:
    return draws.uniform(key, counters) < 2 * share - 1


def _accuracy_and_perplexity(sums: ndarray, suffix: str) -> dict[str, float]:
    count, loss, found = sums.tolist()
    known = count > 0
    return {
        f"accuracy{suffix}": found / count if known else float("nan"),
        f"perplexity{suffix}": float(np.exp(loss / count)) if known else float("nan"),
    }


ORDERS = 5
"""The highest order, where its table fits."""
ENTRIES = 1 << 24
"""Entries of a table at most: order 5 for up to 16 letters, 4 for amino acids, 2 for bytes."""
CHUNK = 1 << 22
"""Tokens that are counted at a time."""

Tables = list[Float[Tensor, "contexts K"]]
"""By order j: log P_j of every letter after every context, whose nearest letter counts 1, the next K, then K * K."""


class Markov(nn.Module):
    """A Markov baseline of masked tokens: masked ids in, log-probabilities of letters out; zeros elsewhere.

    For K letters, P_0(x) = (n(x) + 1) / (n + K), and with a context of j letters, smoothed by its j - 1 nearest,
    P_j(x | context) = (n(context, x) + K * P_j-1(x | nearest)) / (n(context) + K). Order k uses the known letters
    directly beside a masked one, k at most; where one of them is masked or the sequence ends, the context is shorter.
    Both sides: P(x | left) * P(x | right) / P_0(x), normalised. This is exact for a chain of order 1; above it, what
    both sides share counts twice.

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
        """A description for reports."""
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
    for chunk in chunks(sequences, CHUNK, records=CHUNK):
        tokens = np.concatenate(chunk).astype(np.int64)
        places = np.concatenate([np.arange(len(own)) for own in chunk])
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
        prior = lower.repeat(letters if j else 1, 1)  # over the farthest letter, which counts most
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
