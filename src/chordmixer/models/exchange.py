"""Exchange of tokens between ranks that share sequences: for a rotation, and for the neighbours of each share.

Rank r of R holds tokens r * N // R up to (r + 1) * N // R of every sequence of N tokens: shares differ by at most
one token, and of a sequence shorter than R some ranks hold none. A rotated track of a share comes from at most two
ranks. Each rank computes what it sends and receives from the lengths alone, so that only tokens are transferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Int, Shaped
from torch import Tensor

from chordmixer.packed import SLICE_LENGTH


def bounds(length: int, rank: int, ranks: int) -> tuple[int, int]:
    """Start and stop of the range of a sequence's tokens that a rank holds.

    >>> [bounds(10, rank, 4) for rank in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return rank * length // ranks, (rank + 1) * length // ranks


class Sharding:
    """The ranges of tokens of each sequence that one rank holds, and its exchanges with other ranks.

    >>> Sharding([10, 3, 1], rank=0, ranks=2).counts
    [5, 1, 0]
    """

    def __init__(self, lengths: Sequence[int], rank: int, ranks: int) -> None:
        self.lengths, self.rank, self.ranks = tuple(lengths), rank, ranks
        self.bounds = [bounds(length, rank, ranks) for length in lengths]
        self.counts = [stop - start for start, stop in self.bounds]
        """Tokens of each sequence that this rank holds."""
        self.offsets = [0, *accumulate(self.counts)]
        self.tokens = self.offsets[-1]
        self._firsts: dict[int, Sharding] = {}
        self._rotations: dict[int, Exchange] = {}

    def first(self, sequences: int) -> Sharding:
        """The sharding of the first `sequences` sequences."""
        if sequences == len(self.lengths):
            return self
        if sequences not in self._firsts:
            self._firsts[sequences] = Sharding(self.lengths[:sequences], self.rank, self.ranks)
        return self._firsts[sequences]

    def rotation(self, tracks: int) -> Exchange:
        """The exchange for Rotate. Position j of track t >= 1 takes position (j + 2^(t-1)) mod N: a share receives
        tokens from that many positions ahead, and its own tokens move as many positions back."""
        if tracks not in self._rotations:
            length, start = torch.tensor(self.lengths)[:, None], torch.tensor(self.bounds)[:, :1]
            shift = torch.tensor([0] + [1 << t for t in range(tracks - 1)]) % length
            receive = self._counterparts((start + shift) % length)
            send = self._counterparts((start - shift) % length, flip=(-1,))  # a single rank reads from its end first
            self._rotations[tracks] = Exchange(send, receive, tracks, self.tokens, self.tokens)
        return self._rotations[tracks]

    def _counterparts(self, first: Int[Tensor, "B M"], flip: tuple[int, ...] = ()) -> _Pieces:
        """This rank's tokens by the ranks that hold the positions from `first` on: two ranks at most."""
        length, held = torch.tensor(self.lengths)[:, None], torch.tensor(self.counts)[:, None]
        rank = _holder(first, length, self.ranks)
        count = torch.minimum(held, (rank + 1) * length // self.ranks - first)
        next_rank = _holder((first + count) % length, length, self.ranks)
        start = torch.tensor(self.offsets[:-1])[:, None].expand_as(first)
        pairs = [(rank, next_rank), (start, start + count), (count, held - count)]
        peer, start, count = (torch.stack(pair, -1).flip(flip) for pair in pairs)
        return _Pieces(self, first.shape[1], peer, torch.arange(first.shape[1])[:, None], start, count)

    def halo(self, before: int, after: int) -> Halo:
        """The exchange that adds up to `before` and `after` neighbouring tokens to each share, from any ranks."""
        length = torch.tensor(self.lengths)[:, None]
        edges = torch.arange(self.ranks + 1) * length // self.ranks
        low, high = edges[:, :-1], edges[:, 1:]
        first = (low - before).clamp(min=0)
        last = torch.where(low < high, torch.minimum(high + after, length), first)  # an empty share has no neighbours
        own_low, own_high, own_first, own_last = (edge[:, [self.rank]] for edge in (low, high, first, last))
        extended = own_last - own_first
        offset = extended.cumsum(0) - extended
        shift = torch.tensor(self.offsets[:-1])[:, None] - own_low
        send = self._overlaps((first, last), (own_low, own_high), shift)
        receive = self._overlaps((own_first, own_last), (low, high), offset - own_first)
        sequences = [b for b, count in enumerate(self.counts) if count]
        return Halo(
            Exchange(send, receive, 1, self.tokens, int(extended.sum()), add_back=True),
            lengths=extended[sequences, 0].tolist(),
            counts=[self.counts[b] for b in sequences],
            starts=(offset + own_low - own_first)[sequences, 0].tolist(),
        )

    def _overlaps(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], start: Int[Tensor, "B 1"]) -> _Pieces:
        """The intersection of two ranges of each sequence; position 0 of a sequence is token `start`."""
        begin, end = torch.maximum(a[0], b[0]), torch.minimum(a[1], b[1])
        peer, track = torch.arange(self.ranks), torch.tensor(0)
        return _Pieces(self, 1, peer, track, start + begin, (end - begin).clamp(min=0))


def _holder(position: Int[Tensor, "B M"], length: Int[Tensor, "B 1"], ranks: int) -> Int[Tensor, "B M"]:
    """The rank that holds a position: the inverse of `bounds`."""
    return ((position + 1) * ranks - 1) // length


class Exchange(NamedTuple):
    """The rows that a rank sends, and where the rows go that it receives; a row is one track of a token."""

    send: _Pieces
    receive: _Pieces
    tracks: int
    tokens: int
    """Number of input tokens."""
    size: int
    """Number of output tokens."""
    add: bool = False
    """Add received rows to those that are already in the output, instead of replacing them."""
    add_back: bool = False
    """`add` of the reverse exchange, for tokens that are sent to several ranks."""

    def reverse(self) -> Exchange:
        return Exchange(self.receive, self.send, self.tracks, self.size, self.tokens, self.add_back, self.add)

    def run(self, values: Shaped[Tensor, "T *C"], group: dist.ProcessGroup | None) -> Shaped[Tensor, "size *C"]:
        """Exchange tokens with the other ranks. Local rows are copied while the others are being transferred."""
        channels = values.shape[1:].numel() // self.tracks
        tokens = values.reshape(self.tokens, self.tracks, channels)
        out = values.new_empty(self.size, self.tracks, channels)
        sent = self.send.remote.take(tokens)
        received = sent.new_empty(self.receive.remote.count, channels)
        work = dist.all_to_all_single(received, sent, self.receive.splits, self.send.splits, group, async_op=True)
        self.send.local.copy(tokens, self.receive.local, out)
        assert work is not None, "this rank is of the group"
        work.wait()
        self.receive.remote.put(received, out, self.add)
        return out.view(self.size, *values.shape[1:])


class Halo(NamedTuple):
    """Shares with their neighbours, without the sequences of which the rank holds no token."""

    exchange: Exchange
    lengths: list[int]
    counts: list[int]
    """Number of tokens of each share, without neighbours."""
    starts: list[int]
    """Index of each share's first token among all tokens."""


def exchanged(values: Tensor, exchange: Exchange, group: dist.ProcessGroup | None) -> Tensor:
    """Run an exchange; the backward pass runs its reverse on the gradients."""
    result: Tensor = _Exchanged.apply(values, exchange, group)
    return result


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, exchange: Exchange, group: dist.ProcessGroup | None) -> Tensor:
        ctx.exchange, ctx.group = exchange, group
        return exchange.run(values.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.reverse().run(gradient.contiguous(), ctx.group), None, None


class _Pieces:
    """The rows that one rank sends to each other rank or receives from it (remote), and those that it keeps (local).

    Both sides sort them by sequence, then track. A pair of ranks has at most one range of each sequence and track, so
    the two orders agree.
    """

    def __init__(self, cut: Sharding, tracks: int, peer: Tensor, track: Tensor, start: Tensor, count: Tensor) -> None:
        columns = [column.flatten() for column in torch.broadcast_tensors(peer, track, start, count)]
        peer, *ranges = (column[columns[-1] > 0] for column in columns)
        remote, local = peer != cut.rank, peer == cut.rank
        order = peer[remote].argsort(stable=True)
        self.local = _Rows(tracks, *(column[local].tolist() for column in ranges))
        self.remote = _Rows(tracks, *(column[remote][order].tolist() for column in ranges))
        rows = torch.zeros(cut.ranks, dtype=torch.int64)
        self.splits: list[int] = rows.index_add_(0, peer[remote], ranges[-1][remote]).tolist()
        """Number of remote rows of each rank."""


class _Rows:
    """Ranges of tokens, each of one track: copied as slices if they are long, by an index if they are short."""

    def __init__(self, tracks: int, track: list[int], start: list[int], count: list[int]) -> None:
        self.tracks, self.track, self.start, self.counts = tracks, track, start, count
        self.count = sum(count)
        self._index: Int[Tensor, "rows"] | None = None

    @property
    def by_slice(self) -> bool:
        return self.count >= SLICE_LENGTH * max(1, len(self.counts))

    def views(self, tokens: Shaped[Tensor, "T M S"]) -> list[Shaped[Tensor, "n S"]]:
        ranges = zip(self.track, self.start, self.counts, strict=True)
        return [tokens[start : start + count, track] for track, start, count in ranges]

    def index(self, device: torch.device) -> Int[Tensor, "rows"]:
        """Row numbers in the (T * M, S) view of the tokens."""
        if self._index is None:
            track, start, count = (torch.tensor(n, dtype=torch.int64) for n in (self.track, self.start, self.counts))
            first = (start - count.cumsum(0) + count) * self.tracks + track
            index = first.repeat_interleave(count).add_(torch.arange(self.count), alpha=self.tracks)
            self._index = index.to(device, non_blocking=True)
        return self._index

    def take(self, tokens: Shaped[Tensor, "T M S"]) -> Shaped[Tensor, "rows S"]:
        if self.by_slice:
            return torch.cat(self.views(tokens))
        return tokens.flatten(0, 1).index_select(0, self.index(tokens.device))

    def put(self, rows: Shaped[Tensor, "rows S"], tokens: Shaped[Tensor, "T M S"], add: bool) -> None:
        if self.by_slice:
            for view, part in zip(self.views(tokens), rows.split(self.counts), strict=True):
                view.copy_(view + part if add else part)
            return
        flat, index = tokens.flatten(0, 1), self.index(tokens.device)
        _ = flat.index_add_(0, index, rows) if add else flat.index_copy_(0, index, rows)

    def copy(self, tokens: Shaped[Tensor, "T M S"], target_rows: _Rows, out: Shaped[Tensor, "T M S"]) -> None:
        """Copy these rows of `tokens` to `target_rows` of `out`."""
        if not self.by_slice:
            target_rows.put(self.take(tokens), out, add=False)
            return
        for source, target in zip(self.views(tokens), target_rows.views(out), strict=True):
            target.copy_(source)
