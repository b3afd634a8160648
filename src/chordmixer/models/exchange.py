"""How ranks that share sequences exchange tokens: for a rotation, and for the neighbours of each share.

Rank r of R holds tokens r * N // R up to (r + 1) * N // R of every sequence of N tokens: shares differ by at most
one token, and of a sequence shorter than R some ranks hold none. A rotated track of a share comes from at most two
ranks. Each rank computes from the lengths alone what it gives and takes, so that only tokens travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Int, Shaped
from torch import Tensor

from chordmixer.packed import LONG


def bounds(length: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first token of a sequence that a rank holds, and the one behind its last.

    >>> [bounds(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return rank * length // ranks, (rank + 1) * length // ranks


class Sharding:
    """How sequences are cut, as one of the ranks sees it.

    >>> Sharding([10, 3, 1], rank=0, ranks=2).own
    [5, 1, 0]
    """

    def __init__(self, lengths: Sequence[int], rank: int, ranks: int) -> None:
        self.lengths, self.rank, self.ranks = tuple(lengths), rank, ranks
        self.bounds = [bounds(length, rank, ranks) for length in lengths]
        self.own = [stop - start for start, stop in self.bounds]
        """Tokens of each sequence that this rank holds."""
        self.offsets = [0, *accumulate(self.own)]
        self.tokens = self.offsets[-1]
        self._firsts: dict[int, Sharding] = {}
        self._rotations: dict[int, Exchange] = {}

    def first(self, sequences: int) -> Sharding:
        """Of the first sequences alone."""
        if sequences == len(self.lengths):
            return self
        if sequences not in self._firsts:
            self._firsts[sequences] = Sharding(self.lengths[:sequences], self.rank, self.ranks)
        return self._firsts[sequences]

    def rotation(self, tracks: int) -> Exchange:
        """Position j of track t >= 1 takes position (j + 2^(t-1)) mod N: a share takes tokens that many positions
        on, and its own tokens go as many positions back."""
        if tracks not in self._rotations:
            length, start = torch.tensor(self.lengths)[:, None], torch.tensor(self.bounds)[:, :1]
            shift = torch.tensor([0] + [1 << t for t in range(tracks - 1)]) % length
            take = self._counterparts((start + shift) % length)
            give = self._counterparts((start - shift) % length, flip=(-1,))  # a single rank takes from its end first
            self._rotations[tracks] = Exchange(give, take, tracks, self.tokens, self.tokens)
        return self._rotations[tracks]

    def _counterparts(self, first: Int[Tensor, "B M"], flip: tuple[int, ...] = ()) -> _Pieces:
        """Each share's tokens by the ranks that hold as many tokens from position `first` on: two at most."""
        length, own = torch.tensor(self.lengths)[:, None], torch.tensor(self.own)[:, None]
        rank = _holder(first, length, self.ranks)
        count = torch.minimum(own, (rank + 1) * length // self.ranks - first)
        next_rank = _holder((first + count) % length, length, self.ranks)
        start = torch.tensor(self.offsets[:-1])[:, None].expand_as(first)
        pairs = [(rank, next_rank), (start, start + count), (count, own - count)]
        peer, start, count = (torch.stack(pair, -1).flip(flip) for pair in pairs)
        return _Pieces(self, first.shape[1], peer, torch.arange(first.shape[1])[:, None], start, count)

    def halo(self, before: int, after: int) -> Halo:
        """Each share with up to so many tokens of its sequence on either side, whichever ranks hold them."""
        length = torch.tensor(self.lengths)[:, None]
        edges = torch.arange(self.ranks + 1) * length // self.ranks
        low, high = edges[:, :-1], edges[:, 1:]
        first = (low - before).clamp(min=0)
        last = torch.where(low < high, torch.minimum(high + after, length), first)  # no share, no neighbours
        my_low, my_high, my_first, my_last = (edge[:, [self.rank]] for edge in (low, high, first, last))
        wide = my_last - my_first
        offset = wide.cumsum(0) - wide
        given = torch.tensor(self.offsets[:-1])[:, None] - my_low
        give = self._overlaps((first, last), (my_low, my_high), given)
        take = self._overlaps((my_first, my_last), (low, high), offset - my_first)
        held = [b for b, own in enumerate(self.own) if own]
        return Halo(
            Exchange(give, take, 1, self.tokens, int(wide.sum()), add_back=True),
            lengths=wide[held, 0].tolist(),
            own=[self.own[b] for b in held],
            starts=(offset + my_low - my_first)[held, 0].tolist(),
        )

    def _overlaps(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], start: Int[Tensor, "B 1"]) -> _Pieces:
        """What two ranges of each sequence have in common; position 0 of a sequence is token `start`."""
        begin, end = torch.maximum(a[0], b[0]), torch.minimum(a[1], b[1])
        peer, track = torch.arange(self.ranks), torch.tensor(0)
        return _Pieces(self, 1, peer, track, start + begin, (end - begin).clamp(min=0))


def _holder(position: Int[Tensor, "B M"], length: Int[Tensor, "B 1"], ranks: int) -> Int[Tensor, "B M"]:
    """The rank that holds a position: the inverse of `bounds`."""
    return ((position + 1) * ranks - 1) // length


class Exchange(NamedTuple):
    """What a rank gives, and where in its new tokens the rows go that it takes; a row is one track of a token."""

    give: _Pieces
    take: _Pieces
    tracks: int
    tokens: int
    """That go in."""
    size: int
    """Tokens that come out."""
    add: bool = False
    """Add the rows that come to those that stayed, and do not replace them."""
    add_back: bool = False
    """The same in reverse, where a token was given to several ranks."""

    def reverse(self) -> Exchange:
        return Exchange(self.take, self.give, self.tracks, self.size, self.tokens, self.add_back, self.add)

    def carry_out(self, values: Shaped[Tensor, "T *C"], group: dist.ProcessGroup | None) -> Shaped[Tensor, "size *C"]:
        """The new tokens. Rows that stay are copied while the others travel."""
        channels = values.shape[1:].numel() // self.tracks
        tokens = values.reshape(self.tokens, self.tracks, channels)
        out = values.new_empty(self.size, self.tracks, channels)
        sent = self.give.away.take(tokens)
        found = sent.new_empty(self.take.away.count, channels)
        work = dist.all_to_all_single(found, sent, self.take.splits, self.give.splits, group, async_op=True)
        self.give.own.copy(tokens, self.take.own, out)
        assert work is not None, "this rank is of the group"
        work.wait()
        self.take.away.put(found, out, self.add)
        return out.view(self.size, *values.shape[1:])


class Halo(NamedTuple):
    """Shares with their neighbours; sequences of which the rank holds nothing are left out."""

    exchange: Exchange
    lengths: list[int]
    own: list[int]
    """Tokens of each share alone."""
    starts: list[int]
    """Where each share starts among all tokens."""


def exchanged(values: Tensor, exchange: Exchange, group: dist.ProcessGroup | None) -> Tensor:
    """The new tokens; gradients take the way back."""
    made: Tensor = _Exchanged.apply(values, exchange, group)
    return made


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, exchange: Exchange, group: dist.ProcessGroup | None) -> Tensor:
        ctx.exchange, ctx.group = exchange, group
        return exchange.carry_out(values.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.reverse().carry_out(gradient.contiguous(), ctx.group), None, None


class _Pieces:
    """Rows that a rank gives to each rank or takes from it, and those that it keeps.

    Both sides list them by sequence, then track. Of one sequence and track there is one range at most for a pair of
    ranks, so that their orders agree.
    """

    def __init__(self, cut: Sharding, tracks: int, peer: Tensor, track: Tensor, start: Tensor, count: Tensor) -> None:
        columns = [column.flatten() for column in torch.broadcast_tensors(peer, track, start, count)]
        peer, *ranges = (column[columns[-1] > 0] for column in columns)
        away, own = peer != cut.rank, peer == cut.rank
        order = peer[away].argsort(stable=True)
        self.own = _Rows(tracks, *(column[own].tolist() for column in ranges))
        self.away = _Rows(tracks, *(column[away][order].tolist() for column in ranges))
        rows = torch.zeros(cut.ranks, dtype=torch.int64)
        self.splits: list[int] = rows.index_add_(0, peer[away], ranges[-1][away]).tolist()
        """Rows that travel, by rank."""


class _Rows:
    """Ranges of tokens of one track each: copied one by one if they are long, by an index if they are short."""

    def __init__(self, tracks: int, track: list[int], start: list[int], count: list[int]) -> None:
        self.tracks, self.track, self.start, self.counts = tracks, track, start, count
        self.count = sum(count)
        self._index: Int[Tensor, "rows"] | None = None

    @property
    def apart(self) -> bool:
        return self.count >= LONG * max(1, len(self.counts))

    def views(self, tokens: Shaped[Tensor, "T M S"]) -> list[Shaped[Tensor, "n S"]]:
        ranges = zip(self.track, self.start, self.counts, strict=True)
        return [tokens[start : start + count, track] for track, start, count in ranges]

    def index(self, device: torch.device) -> Int[Tensor, "rows"]:
        """Of the rows of the (T * M, S) view."""
        if self._index is None:
            track, start, count = (torch.tensor(n, dtype=torch.int64) for n in (self.track, self.start, self.counts))
            first = (start - count.cumsum(0) + count) * self.tracks + track
            index = first.repeat_interleave(count).add_(torch.arange(self.count), alpha=self.tracks)
            self._index = index.to(device, non_blocking=True)
        return self._index

    def take(self, tokens: Shaped[Tensor, "T M S"]) -> Shaped[Tensor, "rows S"]:
        if self.apart:
            return torch.cat(self.views(tokens))
        return tokens.flatten(0, 1).index_select(0, self.index(tokens.device))

    def put(self, rows: Shaped[Tensor, "rows S"], tokens: Shaped[Tensor, "T M S"], add: bool) -> None:
        if self.apart:
            for view, part in zip(self.views(tokens), rows.split(self.counts), strict=True):
                view.copy_(view + part if add else part)
            return
        flat, index = tokens.flatten(0, 1), self.index(tokens.device)
        _ = flat.index_add_(0, index, rows) if add else flat.index_copy_(0, index, rows)

    def copy(self, tokens: Shaped[Tensor, "T M S"], there: _Rows, out: Shaped[Tensor, "T M S"]) -> None:
        """These rows of some tokens to as many rows of others."""
        if not self.apart:
            there.put(self.take(tokens), out, add=False)
            return
        for source, target in zip(self.views(tokens), there.views(out), strict=True):
            target.copy_(source)
