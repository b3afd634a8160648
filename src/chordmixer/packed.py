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

SLICE_LENGTH = 1 << 14
"""Mean length from which `Layout` copies sequences as slices, one by one; an index is faster for shorter ones."""


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
    """A copy of the offsets on the host, so that planning never waits for a device. It is a tensor because
    `torch.compile` would build a new graph for the Python numbers of each batch."""

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
        """Pack tokens that are already end to end.

        >>> Packed.from_lengths(torch.arange(5), [2, 3]).to_list()
        [tensor([0, 1]), tensor([2, 3, 4])]
        """
        lengths = tuple(int(n) for n in lengths)
        offsets = torch.tensor([0, *accumulate(lengths)])
        return _packed(values, offsets.to(values.device, non_blocking=True), offsets, lengths)

    @staticmethod
    def from_list(sequences: Sequence[Tensor]) -> Packed:
        """Pack one tensor per sequence, each of shape (N,) or (N, C).

        >>> Packed.from_list([torch.tensor([7]), torch.tensor([8, 9])]).values
        tensor([7, 8, 9])
        """
        if not sequences:
            raise ValueError(_NO_SEQUENCE)
        return Packed.from_lengths(torch.cat(list(sequences)), [len(s) for s in sequences])

    @staticmethod
    def from_padded(padded: Shaped[Tensor, "B N *C"], lengths: Iterable[int] | Tensor) -> Packed:
        """Pack the first `lengths[b]` tokens of each row; padding is not read.

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
        """Pack a `torch.nested` tensor of jagged layout; no copy.

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
        """Move to a device or convert to a dtype; copies from pinned memory do not block."""
        values = self.values.to(device=device, dtype=dtype, non_blocking=True)
        return self._like(values, self.offsets.to(values.device, non_blocking=True))

    def pin_memory(self) -> Packed:
        return self._like(self.values.pin_memory(), self.offsets.pin_memory())

    def with_values(self, values: Tensor) -> Packed:
        """The same sequences with other values, one per token."""
        return self._like(values, self.offsets)

    def _like(self, values: Tensor, offsets: Tensor) -> Packed:
        if torch.compiler.is_compiling():  # passing on `lengths` would make the graph specific to their number
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
        offsets = [0, *accumulate(self.lengths)]
        lengths, starts = [self.lengths[i] for i in indices], [offsets[i] for i in indices]
        layout = Layout(lengths, starts, self.tokens, self.device)
        if len(set(indices)) < len(indices):  # the gradients of a repeated sequence are summed
            return Packed.from_lengths(self.values.index_select(0, layout.index), lengths)
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
    """The lengths of a batch were read on the host, but only the device knows them."""


@dataclass(frozen=True, eq=False)
class StaticPacked(Packed):
    """A batch in tensors of a fixed size, so that one CUDA graph serves many batches.

    Sequences are sorted from longest to shortest. A filler sequence at the end takes up the remaining tokens; `len`
    does not count it. Only the device knows the lengths: reading `lengths` is an error.
    """

    counts: Int[Tensor, "D 4"] = field(kw_only=True)
    """For each block: the number of tokens and of sequences, both a prefix of the batch, and the dropout seed; int32,
    in rows of 16 bytes. The filler passes the first block, as every sequence does, and no other."""

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
    """Raise a ValueError unless `x` is a `Packed`."""
    if not isinstance(x, Packed):
        raise ValueError(
            f"a {type(x).__name__} is not a Packed, which encoders and models take: "
            "write `from chordmixer import Packed` and `x = Packed.from_list([a, b])` for tensors of shape (N,) or "
            "(N, C), or `x = Packed.from_padded(x, lengths)` for a padded batch"
        )


def _packed(values: Tensor, offsets: Tensor, host: Tensor, lengths: tuple[int, ...]) -> Packed:
    """Build a `Packed` with known lengths, which are then not read from its offsets."""
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
        self.by_slice = self.tokens >= SLICE_LENGTH * len(lengths)
        """Whether sequences are copied as slices, one by one, instead of by an index."""
        self._index: Tensor | None = None

    @staticmethod
    def from_index(index: Int[Tensor, "T"], size: int) -> Layout:
        """Build a layout from the position of each token in the row."""
        layout = Layout([len(index)], [0], size, index.device)
        layout.by_slice, layout._index = False, index
        return layout

    def put(self, values: Shaped[Tensor, "T *C"]) -> Shaped[Tensor, "L *C"]:
        """Copy tokens into a row, with zeros in the gaps."""
        if torch.compiler.is_compiling():  # one graph for all lengths
            return values.new_zeros(self.size, *values.shape[1:]).index_copy(0, self.index, values)
        row: Tensor = _Put.apply(values, self)
        return row

    def take(self, row: Shaped[Tensor, "L *C"]) -> Shaped[Tensor, "T *C"]:
        """Copy the tokens of the sequences out of a row, end to end."""
        if torch.compiler.is_compiling():
            return row.index_select(0, self.index)
        values: Tensor = _Take.apply(row, self)
        return values

    def within(self, before: int, after: int) -> Layout:
        """The same sequences in a row with `before` more tokens at its start and `after` more at its end."""
        starts = [before + start for start in self.starts]
        layout = Layout(self.lengths, starts, before + self.size + after, self.device)
        if not self.by_slice:
            layout._index = self.index + before
        return layout

    @property
    def index(self) -> Int[Tensor, "T"]:
        """The position of each token in the row."""
        if self._index is None:
            self._index = self._build_index()
        return self._index

    def _build_index(self) -> Int[Tensor, "T"]:
        ends = torch.tensor(self.lengths).cumsum(0)
        shift = torch.tensor(self.starts) - ends + torch.tensor(self.lengths)
        shift, lengths = (t.to(self.device, non_blocking=True) for t in (shift, torch.tensor(self.lengths)))
        return shift.repeat_interleave(lengths, output_size=self.tokens).add_(
            torch.arange(self.tokens, device=self.device)
        )


def gathered(values: Shaped[Tensor, "L *C"], index: Int[Tensor, "T"]) -> Shaped[Tensor, "T *C"]:
    """`values.index_select(0, index)` for an index without duplicates: the gradient is copied, not summed.

    >>> gathered(torch.tensor([5, 6, 7]), torch.tensor([2, 0])).tolist()
    [7, 5]
    """
    if torch.compiler.is_compiling():
        return values.index_select(0, index)
    rows: Tensor = _Gather.apply(values, index)
    return rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(values)
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.size, *gradient.shape[1:]).index_copy(0, index, gradient), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        row = values.new_zeros(layout.size, *values.shape[1:])
        if not layout.by_slice:
            return row.index_copy_(0, layout.index, values)
        for start, sequence in zip(layout.starts, values.split(layout.lengths), strict=True):
            row[start : start + len(sequence)] = sequence
        return row

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.take(gradient), None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, row: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        if not layout.by_slice:
            return row.index_select(0, layout.index)
        pairs = zip(layout.starts, layout.lengths, strict=True)
        return torch.cat([row[start : start + length] for start, length in pairs])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.put(gradient), None
