"""Masked tokens: which are hidden from a model, and how well it finds them.

A mask is a function of a key, one a sequence, and of a token's place in it. So it is drawn where the batch is, for
all sequences at once, and is the same in any batch and on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from chordmixer.data import draws
from chordmixer.packed import Packed

SUMS = 3
"""Of masked tokens: how many, the sum of their losses, how many were found."""


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
    """Of all letters in training: the best constant answer."""
    letters: Mapping[str, int]
    """Ids of the letters with scores of their own, by name."""
    share: float = 0.3
    """Of the tokens that are masked, in expectation."""
    span: float | None = None
    """Mean length of a run of masked tokens; None: each is masked on its own, which gives runs of 1 / (1 - share)."""

    headline = "accuracy"

    def hide(self, x: Packed, keys: Int[Tensor, "B"]) -> tuple[Packed, Bool[Tensor, "T"]]:
        """What the model is shown, and which tokens it has to find."""
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
        """Of each sequence, the mean over its masked tokens."""
        count, loss, _ = outputs.unflatten(1, (-1, SUMS)).sum(dim=1).unbind(1)
        return (loss / count).float()

    def constant(self, targets: ndarray) -> ndarray:
        """What the letters' frequencies in training would get on letters of the same frequencies."""
        shares = np.asarray(self.frequencies, dtype=np.float64)
        losses = -shares * np.log(np.clip(shares, 1e-12, None))
        found = np.where(np.arange(self.outputs) == shares.argmax(), shares, 0)
        row = np.zeros((len(self.letters) + 1, SUMS))
        np.add.at(row, self._slot_of.numpy(), np.stack([shares, losses, found], axis=1))
        return row.ravel().astype(np.float32)

    def metrics(self, outputs: ndarray, targets: ndarray) -> dict[str, float]:
        """Accuracy and perplexity of all masked tokens, and of each letter; NaN where it was never masked."""
        sums = outputs.sum(axis=0, dtype=np.float64).reshape(-1, SUMS)
        return {
            **_accuracy_and_perplexity(sums.sum(axis=0), ""),
            **{
                name: value
                for letter, own in zip(self.letters, sums, strict=False)
                for name, value in _accuracy_and_perplexity(own, f"_{letter}").items()
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """For people: a model that finds tokens has no answers about records, and is asked only by its own task."""
        return {"kind": "masked", **asdict(self)}

    @cached_property
    def _slot_of(self) -> Int[Tensor, "K"]:
        """Of each id, where its letter's sums stand: behind the others' if it has none of its own."""
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
    first, last = (_extreme(order, owner, len(x), how) for how in ("amin", "amax"))
    hidden = hidden | ((count == 0)[owner] & (order == first[owner]))
    return hidden & ~(((count == lengths) & (lengths > 1))[owner] & (order == last[owner]))


def _chance(key: Int[Tensor, "T"], counters: Int[Tensor, "T"], share: float) -> Bool[Tensor, "T"]:
    return draws.uniform(key, counters) < 2 * share - 1


def _extreme(values: Int[Tensor, "T"], owner: Int[Tensor, "T"], count: int, how: str) -> Int[Tensor, "B"]:
    return values.new_zeros(count).scatter_reduce(0, owner, values, how, include_self=False)


def _accuracy_and_perplexity(sums: ndarray, suffix: str) -> dict[str, float]:
    count, loss, found = sums.tolist()
    known = count > 0
    return {
        f"accuracy{suffix}": found / count if known else float("nan"),
        f"perplexity{suffix}": float(np.exp(loss / count)) if known else float("nan"),
    }
