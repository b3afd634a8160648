"""The target of pre-training, masked tokens, and its baselines, Markov chains.

A mask is a function of a sequence's key and of a token's position in the sequence. It is drawn on the batch's device,
for all sequences at once, and is the same in any batch and on any device.
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
"""Number of sums over masked tokens: their count, their losses, and the count of correct predictions."""


@dataclass(frozen=True)
class MaskedTokens:
    """The target of pre-training: predict masked tokens from the others, by cross-entropy.

    Targets are the masks' keys. A model's predictions for the tokens of a sequence are summed into a row: the `SUMS`
    of masked tokens for each letter in `letters`, and for all others together. The loss of a sequence is the mean
    over its own masked tokens; accuracy and perplexity are over the masked tokens of all sequences.

    >>> target = MaskedTokens(outputs=5, certain=4, frequencies=(0.3, 0.2, 0.2, 0.3, 0.0), letters={"A": 0, "C": 1})
    >>> x, keys = Packed.from_list([torch.tensor([0, 1, 2, 3])]), torch.tensor([8])
    >>> shown, masked = target.hide(x, keys)
    >>> shown.values.tolist(), masked.tolist()
    ([5, 1, 2, 3], [True, False, False, False])
    >>> target.rows(lambda seen: seen.with_values(torch.zeros(4, 5)), x, keys).shape
    torch.Size([1, 9])
    """

    outputs: int
    """Size of the vocabulary; the next id stands for a masked token."""
    certain: int
    """Ids from this one on are unknown letters: never masked, unless a sequence has no others."""
    frequencies: Sequence[float]
    """Frequencies of all letters in training: the best constant prediction."""
    letters: Mapping[str, int]
    """Ids, by name, of the letters with metrics of their own."""
    share: float = 0.3
    """Expected share of the tokens that are masked."""
    span: float | None = None
    """Mean length of a run of masked tokens; None: tokens are masked independently, in runs of 1 / (1 - share)."""

    headline = "accuracy"

    def hide(self, x: Packed, keys: Int[Tensor, "B"]) -> tuple[Packed, Bool[Tensor, "T"]]:
        """The masked input of the model, and the mask."""
        masked = draw_masks(x, keys, self.share, self.span, self.certain)
        ids = x.values.int()
        return x.with_values(ids.masked_fill(masked, self.outputs)), masked

    def rows(
        self, model: Callable[[Packed], Packed], x: Packed, keys: Int[Tensor, "B"]
    ) -> Float[Tensor, "B columns"]:
        """The sums of a model's predictions for the tokens masked by these keys, by sequence and letter."""
        shown, masked = self.hide(x, keys)
        return self.tally(model(shown).values, x, masked)

    def tally(
        self, outputs: Float[Tensor, "T K"], x: Packed, masked: Bool[Tensor, "T"]
    ) -> Float[Tensor, "B columns"]:
        """The sums over the masked tokens of each sequence."""
        truth = x.values.long()
        losses = F.cross_entropy(outputs.float(), truth, reduction="none")
        correct = outputs.argmax(dim=1) == truth
        summands = torch.stack([torch.ones_like(losses), losses, correct.float()], dim=1).double()
        summands = torch.where(masked[:, None], summands, 0.0)
        slots = len(self.letters) + 1
        slots_of_tokens = x.owners() * slots + self._slot_of.to(x.device)[truth]
        # In float64 the order of summation does not affect a float32 result; the gradient only copies values.
        sums = summands.new_zeros(len(x) * slots, SUMS).index_add(0, slots_of_tokens, summands)
        return sums.view(len(x), slots * SUMS)

    def losses(self, outputs: Float[Tensor, "B columns"], targets: Tensor) -> Float[Tensor, "B"]:
        """The mean loss over the masked tokens of each sequence."""
        count, loss, _ = outputs.view(len(outputs), -1, SUMS).sum(dim=1).unbind(1)
        return (loss / count).float()

    def constant(self, targets: ndarray) -> ndarray:
        """The expected sums of predicting the training frequencies, on letters of the same frequencies."""
        shares = np.asarray(self.frequencies, dtype=np.float64)
        losses = -shares * np.log(np.clip(shares, 1e-12, None))
        correct = np.where(np.arange(self.outputs) == shares.argmax(), shares, 0)
        row = np.zeros((len(self.letters) + 1, SUMS))
        np.add.at(row, self._slot_of.numpy(), np.stack([shares, losses, correct], axis=1))
        return row.ravel().astype(np.float32)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        """Accuracy and perplexity of all masked tokens, and of each letter; NaN for letters that were not masked."""
        sums = outputs.sum(axis=0, dtype=np.float64).reshape(-1, SUMS)
        metrics = _accuracy_and_perplexity(sums.sum(axis=0), "")
        for letter, letter_sums in zip(self.letters, sums, strict=False):
            metrics |= _accuracy_and_perplexity(letter_sums, f"_{letter}")
        return metrics

    def to_dict(self) -> dict[str, Any]:
        """A description for users; it is not read back, since such a model makes no predictions for records."""
        return {"kind": "masked", **asdict(self)}

    @cached_property
    def _slot_of(self) -> Int[Tensor, "K"]:
        """The slot of each id's sums; ids that are not in `letters` share the last."""
        slots = torch.full((self.outputs,), len(self.letters))
        slots[list(self.letters.values())] = torch.arange(len(self.letters))
        return slots


def draw_masks(
    x: Packed, keys: Int[Tensor, "B"], share: float, span: float | None = None, certain: int = 1 << 30
) -> Bool[Tensor, "T"]:
    """Draw a mask. At least one token of a sequence is masked and, from two tokens on, at least one is not.

    With `span`, a token's state is drawn anew with probability r, and otherwise copied from the token before it. A
    run of masked tokens then ends with probability r * (1 - share), the inverse of its mean length, and each token is
    still masked with probability `share`.

    >>> x = Packed.from_list([torch.zeros(9, dtype=torch.long), torch.zeros(2, dtype=torch.long)])
    >>> draw_masks(x, torch.tensor([4, 5]), 0.3).int().tolist()
    [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    """
    owner, indices = x.owners(), torch.arange(x.tokens, device=x.device)
    counters, key = 3 * x.places(), keys[owner]
    masked = _bernoulli(key, counters, share)
    if span is not None:
        redrawn = _bernoulli(key, counters + 1, 1 / (span * (1 - share))) | (counters == 0)
        masked = masked[torch.where(redrawn, indices, 0).cummax(dim=0).values]
    unknown = x.values.int() >= certain
    masked = masked & ~unknown
    count = torch.zeros_like(keys).index_add(0, owner, masked.long())
    order = (draws.bits(key, counters + 2) >> 2) + (unknown.long() << 62)  # unknown letters after all others
    lengths = x.offsets.diff()
    empty = order.new_zeros(len(x))
    first, last = (empty.scatter_reduce(0, owner, order, how, include_self=False) for how in ("amin", "amax"))
    masked = masked | ((count == 0)[owner] & (order == first[owner]))
    return masked & ~(((count == lengths) & (lengths > 1))[owner] & (order == last[owner]))


def _bernoulli(key: Int[Tensor, "T"], counters: Int[Tensor, "T"], share: float) -> Bool[Tensor, "T"]:
    return draws.uniform(key, counters) < 2 * share - 1


def _accuracy_and_perplexity(sums: ndarray, suffix: str) -> dict[str, float]:
    count, loss, correct = sums.tolist()
    known = count > 0
    return {
        f"accuracy{suffix}": correct / count if known else float("nan"),
        f"perplexity{suffix}": float(np.exp(loss / count)) if known else float("nan"),
    }


ORDERS = 5
"""The highest order, if its table is not too large."""
ENTRIES = 1 << 24
"""Maximum entries of a table: order 5 for up to 16 letters, 4 for amino acids, 2 for bytes."""
CHUNK = 1 << 22
"""Tokens that are counted at a time."""

Tables = list[Float[Tensor, "contexts K"]]
"""For each order j, log P_j of every letter (column) after every context (row), a number in base K whose lowest digit
is the nearest letter."""


class Markov(nn.Module):
    """A Markov-chain baseline: predicts log-probabilities of masked tokens; outputs at other tokens are zero.

    For K letters, P_0(x) = (n(x) + 1) / (n + K), and with a context of j letters, smoothed by its j - 1 nearest,
    P_j(x | context) = (n(context, x) + K * P_j-1(x | nearest)) / (n(context) + K). Order k uses up to k known letters
    next to a masked one; if one of them is masked or the sequence ends, the context is shorter. With both sides, the
    prediction is P(x | left) * P(x | right) / P_0(x), normalised. This is exact for a chain of order 1; for higher
    orders, information common to both sides counts twice.

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
        where = "before it, and by those behind it" if self.right else "before it"
        return f"each masked letter by up to {self.order} known letters {where}, counted in the training data"

    def forward(self, x: Packed) -> Packed:
        ids, lengths = x.values.long(), list(x.lengths)
        outputs = _predict_one_side(ids, lengths, self.left)
        if self.right:
            outputs = outputs + _predict_one_side(ids.flip(0), lengths[::-1], self.right).flip(0) - self.left[0]
            outputs = outputs.log_softmax(dim=1)
        return x.with_values(torch.where((ids == self.letters)[:, None], outputs, 0.0))


def baselines(sequences: Iterable[ndarray], letters: int) -> list[Markov]:
    """Markov chains of all orders, with one side and with both, fitted on sequences of ids."""
    left, right = tables(count(sequences, letters))
    orders = range(len(left))
    return [Markov(left[: k + 1]) for k in orders] + [Markov(left[: k + 1], right[: k + 1]) for k in orders[1:]]


def count(sequences: Iterable[ndarray], letters: int, orders: int = ORDERS) -> list[Int[Tensor, "contexts K"]]:
    """Count how often each letter follows each context, for each order; contexts do not cross a sequence's start.

    >>> [table.tolist() for table in count([np.array([0, 1, 1])], letters=2, orders=1)]
    [[[1, 2]], [[0, 1], [0, 1]]]
    """
    orders = max(j for j in range(orders + 1) if j == 0 or letters ** (j + 1) <= ENTRIES)
    sums = [np.zeros(letters ** (j + 1), np.int64) for j in range(orders + 1)]
    for chunk in chunks(sequences, CHUNK, records=CHUNK):
        tokens = np.concatenate(chunk).astype(np.int64)
        positions = np.concatenate([np.arange(len(sequence)) for sequence in chunk])
        words = tokens.copy()
        for j, total in enumerate(sums):
            if j:  # prepend the letter j positions before
                words[j:] += letters**j * tokens[:-j]
            total += np.bincount(words[positions >= j], minlength=len(total))
    return [torch.from_numpy(total.reshape(-1, letters)) for total in sums]


def tables(counts: Sequence[Int[Tensor, "contexts K"]]) -> tuple[Tables, Tables]:
    """Log-probabilities of a letter after those before it, and before those after it (the same words reversed)."""
    letters = counts[0].shape[1]
    backwards = [
        table.view([letters] * (j + 1)).permute(*range(j, -1, -1)).reshape(-1, letters)
        for j, table in enumerate(counts)
    ]
    return _smoothed(counts), _smoothed(backwards)


def _smoothed(counts: Sequence[Int[Tensor, "contexts K"]]) -> Tables:
    """Log-probabilities by order; each order is smoothed by the one below it with a weight of K counts."""
    letters = counts[0].shape[1]
    smoothed: Tables = []
    lower = torch.full((1, letters), 1 / letters, dtype=torch.float64)
    for j, table in enumerate(counts):
        prior = lower.repeat(letters if j else 1, 1)  # for each value of the farthest letter, the highest digit
        lower = (table + letters * prior) / (table.sum(dim=1, keepdim=True) + letters)
        smoothed.append(lower.log().float())
    return smoothed


def _predict_one_side(ids: Int[Tensor, "T"], lengths: Sequence[int], tables: Tables) -> Float[Tensor, "T K"]:
    """Log-probabilities at masked positions from the letters before them."""
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
        of_order = known == j
        outputs[at[of_order]] = table[context[of_order]]
    return outputs
