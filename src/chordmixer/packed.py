"""`Packed`: sequences of any lengths, end to end in one tensor. Every encoder and model takes and returns it.

The one legend of shape letters, used in every signature of the package:

    T  tokens of a batch, all sequences together
    B  sequences of a batch
    N  length of one sequence
    C  channels of a token, C = M * S
    M  tracks: groups of channels that are rotated together
    S  track size: channels of one track
    H  hidden width of the Mix step's MLP
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

LONG = 1 << 14
"""Mean length from which `Layout` copies sequences one by one: an index is faster for short ones only."""


@dataclass(frozen=True, eq=False)
class Packed:
    """The tokens of B sequences end to end, and where each sequence starts.

    >>> x = Packed.from_list([torch.zeros(3, 8), torch.ones(5, 8)])
    >>> x.values.shape, x.offsets.tolist(), x.lengths
    (torch.Size([8, 8]), [0, 3, 8], (3, 5))
    """

    values: Shaped[Tensor, "T"] | Shaped[Tensor, "T C"]
    """All tokens: ids or numbers of shape (T,), or channels of shape (T, C)."""
    offsets: Int[Tensor, "B+1"]
    """Sequence b is `values[offsets[b]:offsets[b + 1]]`; on the device of `values`."""
    host: Int[Tensor, "B+1"] = field(default=None, kw_only=True, repr=False)  # type: ignore[assignment]  # set below
    """The offsets again, on the host, so that planning never waits for a device. A tensor: `torch.compile` would make
    a new graph for each batch of Python's numbers."""

    def __post_init__(self) -> None:
        compiling = torch.compiler.is_compiling()
        if self.host is None:
            object.__setattr__(self, "host", self.offsets if compiling else self.offsets.cpu())
        if not compiling:
            _check(self.values, self.lengths)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence, on the host."""
        return tuple(self.host.diff().tolist())

    @staticmethod
    def from_lengths(values: Tensor, lengths: Iterable[int]) -> Packed:
        """From tokens that are already end to end.

        >>> Packed.from_lengths(torch.arange(5), [2, 3]).to_list()
        [tensor([0, 1]), tensor([2, 3, 4])]
        """
        lengths = tuple(int(n) for n in lengths)
        offsets = torch.tensor([0, *accumulate(lengths)])
        return _packed(values, offsets.to(values.device, non_blocking=True), offsets, lengths)

    @staticmethod
    def from_list(sequences: Sequence[Tensor]) -> Packed:
        """From one tensor per sequence, each of shape (N,) or (N, C).

        >>> Packed.from_list([torch.tensor([7]), torch.tensor([8, 9])]).values
        tensor([7, 8, 9])
        """
        if not sequences:
            raise ValueError(_NO_SEQUENCE)
        return Packed.from_lengths(torch.cat(list(sequences)), [len(s) for s in sequences])

    @staticmethod
    def from_padded(padded: Shaped[Tensor, "B N *C"], lengths: Iterable[int] | Tensor) -> Packed:
        """From the first `lengths[b]` tokens of each row; padding is not read.

        >>> Packed.from_padded(torch.tensor([[1, 2, 0], [3, 0, 0]]), [2, 1]).values
        tensor([1, 2, 3])
        """
        lengths = tuple(int(n) for n in lengths)
        if not lengths:
            raise ValueError(_NO_SEQUENCE)
        if len(lengths) != len(padded) or max(lengths) > padded.shape[1]:
            raise ValueError(
                f"padded tensor of shape {tuple(padded.shape)} does not hold {len(lengths)} sequences of up to "
                f"{max(lengths)} tokens: give one length a row, none above the number of columns"
            )
        real = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None]
        return Packed.from_lengths(padded[real.to(padded.device)], lengths)

    @staticmethod
    def from_nested(nested: Tensor) -> Packed:
        """From a `torch.nested` tensor of jagged layout; no copy.

        >>> nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        >>> Packed.from_nested(nested).lengths
        (2, 3)
        """
        if nested.layout != torch.jagged:
            raise ValueError(
                f"nested tensor of layout {nested.layout} cannot be packed: the layout must be torch.jagged; "
                "make it with torch.nested.nested_tensor(..., layout=torch.jagged)"
            )
        return Packed(nested.values(), nested.offsets())  # type: ignore[attr-defined]

    def to_list(self) -> list[Tensor]:
        """One tensor per sequence: views, no copy."""
        return list(torch.split(self.values, list(self.lengths)))

    def to_padded(self, fill: float = 0) -> Shaped[Tensor, "B N *C"]:
        """One row per sequence, as long as the longest, padded with `fill`.

        >>> Packed.from_list([torch.tensor([1, 2]), torch.tensor([3])]).to_padded()
        tensor([[1, 2],
                [3, 0]])
        """
        return torch.nn.utils.rnn.pad_sequence(self.to_list(), batch_first=True, padding_value=fill)

    def to_nested(self) -> Tensor:
        """A `torch.nested` tensor of jagged layout; no copy."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Packed:
        """On another device, or with another dtype; copies from pinned memory do not block."""
        values = self.values.to(device=device, dtype=dtype, non_blocking=True)
        return self._like(values, self.offsets.to(values.device, non_blocking=True))

    def pin_memory(self) -> Packed:
        return self._like(self.values.pin_memory(), self.offsets.pin_memory())

    def with_values(self, values: Tensor) -> Packed:
        """The same sequences with other values, one per token."""
        return self._like(values, self.offsets)

    def _like(self, values: Tensor, offsets: Tensor) -> Packed:
        if torch.compiler.is_compiling():  # to hand on `lengths` would guard their number
            return Packed(values, offsets, host=self.host)
        return _packed(values, offsets, self.host, self.lengths)

    def select(self, indices: Sequence[int]) -> Packed:
        """The sequences at `indices`, in that order.

        >>> Packed.from_list([torch.tensor([1, 2]), torch.tensor([3])]).select([1, 0]).values
        tensor([3, 1, 2])
        """
        indices = [range(len(self))[i] for i in indices]
        if not indices:
            raise ValueError(_NO_SEQUENCE)
        if indices == list(range(len(self))):
            return self
        first = [0, *accumulate(self.lengths)]
        lengths, starts = [self.lengths[i] for i in indices], [first[i] for i in indices]
        layout = Layout(lengths, starts, self.tokens, self.device)
        if len(set(indices)) < len(indices):  # a sequence that is there twice has two gradients
            return Packed.from_lengths(self.values.index_select(0, layout.place), lengths)
        return Packed.from_lengths(layout.take(self.values), lengths)

    def owners(self) -> Int[Tensor, "T"]:
        """The index of the sequence of each token.

        >>> Packed.from_lengths(torch.zeros(5), [2, 3]).owners().tolist()
        [0, 0, 1, 1, 1]
        """
        numbers = torch.arange(len(self.offsets) - 1, device=self.device)
        return numbers.repeat_interleave(self.offsets.diff(), output_size=self.tokens)

    def places(self) -> Int[Tensor, "T"]:
        """The position of each token in its own sequence, from 0.

        >>> Packed.from_lengths(torch.zeros(5), [2, 3]).places().tolist()
        [0, 1, 0, 1, 2]
        """
        return torch.arange(self.tokens, device=self.device) - self.offsets[:-1].index_select(0, self.owners())

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def tokens(self) -> int:
        return self.values.shape[0]  # `len` of a tensor is a constant to `torch.export`

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Tensor:
        """The tokens of one sequence: a view, no copy.

        >>> Packed.from_lengths(torch.arange(5), [2, 3])[-1]
        tensor([2, 3, 4])
        """
        number = range(len(self))[index]
        start = sum(self.lengths[:number])
        return self.values[start : start + self.lengths[number]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.to_list())


class LengthsUnknownError(RuntimeError):
    """Something asked for the lengths of sequences that the host does not know."""


@dataclass(frozen=True, eq=False)
class StaticPacked(Packed):
    """A batch in tensors of a fixed size, so that one CUDA graph serves many batches.

    Behind its sequences, which come longest first, a filler takes the room that is left; `len` does not count it.
    What depends on lengths is on the device alone: asking for `lengths` is an error.
    """

    counts: Int[Tensor, "D 4"] = field(kw_only=True)
    """Of each block: its tokens and sequences, a prefix of the batch, and the seed of its dropout; int32, in rows of
    16 bytes. The filler passes the first block, as every sequence does, and no other."""

    def __post_init__(self) -> None:
        pass

    @property
    def lengths(self) -> tuple[int, ...]:
        raise LengthsUnknownError("the lengths of this batch are on the device alone: take a Packed")

    def _like(self, values: Tensor, offsets: Tensor) -> StaticPacked:
        return StaticPacked(values, offsets, counts=self.counts)

    def __len__(self) -> int:
        return len(self.offsets) - 2


def check_packed(x: object) -> None:
    """Refuse a tensor, or anything else, where a `Packed` is needed."""
    if not isinstance(x, Packed):
        raise ValueError(
            f"a {type(x).__name__} is not a Packed, which encoders and models take: "
            "write `from chordmixer import Packed` and `x = Packed.from_list([a, b])` for tensors of shape (N,) or "
            "(N, C), or `x = Packed.from_padded(x, lengths)` for a padded batch"
        )


def _packed(values: Tensor, offsets: Tensor, host: Tensor, lengths: tuple[int, ...]) -> Packed:
    """A `Packed` whose lengths are known, and not read off its offsets again."""
    if torch.compiler.is_compiling():
        return Packed(values, offsets, host=host)
    _check(values, lengths)
    packed = object.__new__(Packed)
    packed.__dict__.update(values=values, offsets=offsets, host=host, lengths=lengths)
    return packed


_NO_SEQUENCE = "a batch of 0 sequences cannot be packed: it needs at least one; skip empty batches"


def _check(values: Tensor, lengths: tuple[int, ...]) -> None:
    if not lengths:
        raise ValueError(_NO_SEQUENCE)
    if min(lengths) < 1:
        where = next(b for b, n in enumerate(lengths) if n < 1)
        raise ValueError(
            f"sequence {where} of the batch has length {lengths[where]}: every sequence needs at least one token; "
            "leave empty records out"
        )
    if sum(lengths) != len(values):
        raise ValueError(
            f"{len(lengths)} lengths that add up to {sum(lengths)} do not fit {len(values)} tokens: lengths must add "
            "up to the tokens; build with Packed.from_list or Packed.from_lengths"
        )


class Layout:
    """Positions of sequences in a row of `size` tokens, with gaps between them; no two sequences overlap.

    `put` and `take` are each other's gradient, which is therefore copied and never summed.

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
        self.apart = self.tokens >= LONG * len(lengths)
        """Whether sequences are copied one by one."""
        self._place: Tensor | None = None

    @staticmethod
    def of_places(place: Int[Tensor, "T"], size: int) -> Layout:
        """From the position of each token in the row."""
        layout = Layout([len(place)], [0], size, place.device)
        layout.apart, layout._place = False, place
        return layout

    def put(self, values: Shaped[Tensor, "T *C"]) -> Shaped[Tensor, "L *C"]:
        """The row, with zeros in the gaps."""
        if torch.compiler.is_compiling():  # one graph for all lengths
            return values.new_zeros(self.size, *values.shape[1:]).index_copy(0, self.place, values)
        row: Tensor = _Put.apply(values, self)
        return row

    def take(self, row: Shaped[Tensor, "L *C"]) -> Shaped[Tensor, "T *C"]:
        """The tokens of the sequences, end to end."""
        if torch.compiler.is_compiling():
            return row.index_select(0, self.place)
        values: Tensor = _Take.apply(row, self)
        return values

    def within(self, before: int, after: int) -> Layout:
        """The same sequences in a row that is longer by so many tokens at its ends."""
        starts = [before + start for start in self.starts]
        other = Layout(self.lengths, starts, before + self.size + after, self.device)
        if not self.apart:
            other._place = self.place + before
        return other

    @property
    def place(self) -> Int[Tensor, "T"]:
        """The position of each token in the row."""
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


def gathered(values: Shaped[Tensor, "L *C"], place: Int[Tensor, "T"]) -> Shaped[Tensor, "T *C"]:
    """`values.index_select(0, place)` for places that all differ: the gradient is copied, not summed.

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
