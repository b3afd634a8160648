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
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from chordmixer.moving import Layout


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
    lengths: tuple[int, ...] = ()
    """The lengths again, on the host, so that planning never waits for a device."""

    def __post_init__(self) -> None:
        if not self.lengths:
            object.__setattr__(self, "lengths", tuple(self.offsets.diff().tolist()))
        _check(self.values, self.offsets, self.lengths)

    @staticmethod
    def from_lengths(values: Tensor, lengths: Iterable[int]) -> Packed:
        """From tokens that are already end to end.

        >>> Packed.from_lengths(torch.arange(5), [2, 3]).to_list()
        [tensor([0, 1]), tensor([2, 3, 4])]
        """
        lengths = tuple(int(n) for n in lengths)
        offsets = torch.tensor([0, *accumulate(lengths)])
        return Packed(values, offsets.to(values.device, non_blocking=True), lengths)

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
        return list(self.values.split(self.lengths))

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
        return Packed(values, self.offsets.to(values.device, non_blocking=True), self.lengths)

    def pin_memory(self) -> Packed:
        return Packed(self.values.pin_memory(), self.offsets.pin_memory(), self.lengths)

    def with_values(self, values: Tensor) -> Packed:
        """The same sequences with other values, one per token."""
        return Packed(values, self.offsets, self.lengths)

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
        numbers = torch.arange(len(self), device=self.device)
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
        return len(self.values)

    def __len__(self) -> int:
        return len(self.lengths)

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


def check_packed(x: object) -> None:
    """Refuse a tensor, or anything else, where a `Packed` is needed."""
    if not isinstance(x, Packed):
        raise ValueError(
            f"a {type(x).__name__} is not a Packed, which encoders and models take: "
            "write `from chordmixer import Packed` and `x = Packed.from_list([a, b])` for tensors of shape (N,) or "
            "(N, C), or `x = Packed.from_padded(x, lengths)` for a padded batch"
        )


_NO_SEQUENCE = "a batch of 0 sequences cannot be packed: it needs at least one; skip empty batches"


def _check(values: Tensor, offsets: Tensor, lengths: tuple[int, ...]) -> None:
    if not lengths:
        raise ValueError(_NO_SEQUENCE)
    if min(lengths) < 1:
        where = next(b for b, n in enumerate(lengths) if n < 1)
        raise ValueError(
            f"sequence {where} of the batch has length {lengths[where]}: every sequence needs at least one token; "
            "leave empty records out"
        )
    if len(offsets) != len(lengths) + 1 or sum(lengths) != len(values):
        raise ValueError(
            f"{len(lengths)} lengths that add up to {sum(lengths)} do not fit {len(values)} tokens and "
            f"{len(offsets)} offsets: lengths must add up to the tokens, with one offset more than sequences; "
            "build with Packed.from_list or Packed.from_lengths"
        )
