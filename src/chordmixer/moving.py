"""Tokens that move, no two to or from the same place, so that no gradient has to be added up.

Sequences move as wholes: laid out in a longer row with room between them, and taken from it again, each of which is
the other's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

LONG = 1 << 14
"""Mean length from which on every sequence is copied by itself. An index moves short ones in one go; of long ones it
costs several times what the copy of their bytes does, which for narrow tokens it hardly depends on."""


class Layout:
    """Where sequences of these lengths start in a row of `size` tokens.

    >>> layout = Layout([2, 1], [3, 0], size=5)
    >>> layout.put(torch.tensor([1, 2, 3])).tolist()
    [3, 0, 0, 1, 2]
    >>> layout.take(torch.tensor([3, 0, 0, 1, 2])).tolist()
    [1, 2, 3]
    """

    def __init__(
        self, lengths: Sequence[int], starts: Sequence[int], size: int, device: torch.device | str = "cpu"
    ) -> None:
        self.lengths, self.starts, self.size, self.device = [*lengths], [*starts], size, torch.device(device)
        self.tokens = sum(lengths)
        self._place: Tensor | None = None

    def put(self, values: Shaped[Tensor, "T *C"]) -> Shaped[Tensor, "L *C"]:
        """The row, zeros where no token is."""
        if torch.compiler.is_compiling():  # a graph that is the same for all lengths
            return values.new_zeros(self.size, *values.shape[1:]).index_copy(0, self.place, values)
        row: Tensor = _Put.apply(values, self)
        return row

    def take(self, row: Shaped[Tensor, "L *C"]) -> Shaped[Tensor, "T *C"]:
        """The tokens of the sequences, one sequence behind the other."""
        if torch.compiler.is_compiling():
            return row.index_select(0, self.place)
        values: Tensor = _Take.apply(row, self)
        return values

    def within(self, before: int, after: int) -> Layout:
        """In a row that has so many places more at both ends."""
        starts = [before + start for start in self.starts]
        other = Layout(self.lengths, starts, before + self.size + after, self.device)
        if not self.apart:
            other._place = self.place + before  # so that it need not be worked out again
        return other

    @property
    def place(self) -> Int[Tensor, "T"]:
        """Of each token, in the row."""
        if self._place is None:
            self._place = self._places()
        return self._place

    def _places(self) -> Int[Tensor, "T"]:
        ends = torch.tensor(self.lengths).cumsum(0)
        first = torch.tensor(self.starts) - ends + torch.tensor(self.lengths)
        first, lengths = (t.to(self.device, non_blocking=True) for t in (first, torch.tensor(self.lengths)))
        return first.repeat_interleave(lengths, output_size=self.tokens).add_(
            torch.arange(self.tokens, device=self.device)
        )

    @property
    def apart(self) -> bool:
        """Whether each sequence is copied by itself."""
        return self.tokens >= LONG * len(self.lengths)


def gathered(values: Shaped[Tensor, "L *C"], place: Int[Tensor, "T"]) -> Shaped[Tensor, "T *C"]:
    """`values.index_select(0, place)` where no two places are the same: its gradient is copied, not added up.

    >>> gathered(torch.tensor([5, 6, 7]), torch.tensor([2, 0])).tolist()
    [7, 5]
    """
    if torch.compiler.is_compiling():
        return values.index_select(0, place)
    found: Tensor = _Gather.apply(values, place)
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.size = len(values)
        return values.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.size, *gradient.shape[1:]).index_copy(0, place, gradient), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        row = values.new_zeros(layout.size, *values.shape[1:])
        if not layout.apart:
            return row.index_copy_(0, layout.place, values)
        for start, own in zip(layout.starts, values.split(layout.lengths), strict=True):
            row[start : start + len(own)] = own
        return row

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.take(gradient), None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, row: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        if not layout.apart:
            return row.index_select(0, layout.place)
        pairs = zip(layout.starts, layout.lengths, strict=True)
        return torch.cat([row[start : start + length] for start, length in pairs])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.put(gradient), None
