"""What ranks give and take, against whole sequences; here every rank is a thread, and messages stay in memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chordmixer import Packed
from chordmixer.models import exchange
from chordmixer.models.exchange import Exchange, Sharding, bounds
from chordmixer.ops import reference

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
RANKS = st.integers(1, 6)


class Mail:
    """`all_to_all_single` between threads; the group is the thread's rank."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.sent = Barrier(ranks), [[torch.empty(0)]] * ranks

    def __call__(
        self, found: Tensor, sent: Tensor, takes: list[int], gives: list[int], group: Any, async_op: bool
    ) -> Any:
        self.sent[group] = list(sent.split(gives))
        self.barrier.wait(timeout=10)
        parts = [parts[group] for parts in self.sent]
        assert [len(part) for part in parts] == takes
        self.barrier.wait(timeout=10)
        torch.cat(parts, out=found)
        return SimpleNamespace(wait=lambda: None)


def together(
    make: Callable[[Sharding], Exchange], lengths: list[int], ranks: int, inputs: list[Tensor]
) -> list[Tensor]:
    """What comes out on each rank."""
    mail = Mail(ranks)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(ranks) as threads:
        patch.setattr(exchange.dist, "all_to_all_single", mail)

        def run(rank: int) -> Tensor:
            return make(Sharding(lengths, rank, ranks)).run(inputs[rank], rank)  # type: ignore[arg-type]

        return list(threads.map(run, range(ranks)))


def shares(x: Packed, ranks: int) -> list[Tensor]:
    """By rank."""
    return [torch.cat([s[slice(*bounds(len(s), rank, ranks))] for s in x]) for rank in range(ranks)]


def numbered(lengths: list[int], width: int) -> Packed:
    """Every number once."""
    return Packed.from_lengths(torch.arange(sum(lengths) * width).double().view(-1, width), lengths)


@pytest.mark.parametrize("long", [1, 1 << 14], ids=["range by range", "by index"])
@given(lengths=LENGTHS, ranks=RANKS, tracks=st.integers(1, 8))
def test_rotations_are_those_of_whole_sequences(long: int, lengths: list[int], ranks: int, tracks: int) -> None:
    """Forwards, and back to where all came from."""
    x = numbered(lengths, 2 * tracks)
    whole = x.with_values(reference.rotate(x.values, x.offsets, track_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "SLICE_LENGTH", long)
        turned = together(lambda cut: cut.rotation(tracks), lengths, ranks, shares(x, ranks))
        back = together(lambda cut: cut.rotation(tracks).reverse(), lengths, ranks, turned)
    torch.testing.assert_close(turned, shares(whole, ranks), atol=0, rtol=0)
    torch.testing.assert_close(back, shares(x, ranks), atol=0, rtol=0)


@pytest.mark.parametrize("long", [1, 1 << 14], ids=["range by range", "by index"])
@given(lengths=LENGTHS, ranks=RANKS, before=st.integers(0, 9), after=st.integers(0, 9))
def test_neighbours_stand_around_each_share(
    long: int, lengths: list[int], ranks: int, before: int, after: int
) -> None:
    """On the way back every token gets as much as it was given away."""
    x = numbered(lengths, 3)
    expected, copies = [], torch.zeros_like(x.values)
    places = Packed.from_lengths(torch.arange(x.tokens), lengths)
    for rank in range(ranks):
        cut = [(s, *bounds(len(s), rank, ranks)) for s in places]
        wide = torch.cat([s[max(0, low - before) : high + after] if low < high else s[:0] for s, low, high in cut])
        expected.append(x.values[wide])
        copies[wide] += x.values[wide]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "SLICE_LENGTH", long)
        wide = together(lambda cut: cut.halo(before, after).exchange, lengths, ranks, shares(x, ranks))
        back = together(lambda cut: cut.halo(before, after).exchange.reverse(), lengths, ranks, wide)
    torch.testing.assert_close(wide, expected, atol=0, rtol=0)
    torch.testing.assert_close(back, shares(x.with_values(copies), ranks), atol=0, rtol=0)


@given(length=st.integers(1, 10**10), ranks=st.integers(1, 600), tracks=st.integers(2, 34))
def test_a_track_comes_from_two_ranks_at_most(length: int, ranks: int, tracks: int) -> None:
    """And shares differ by one token at most."""
    cut = Sharding([length], ranks // 2, ranks)
    assert cut.tokens in (length // ranks, -(-length // ranks))
    for pieces in (cut.rotation(tracks).send, cut.rotation(tracks).receive):
        rows = [*zip(pieces.local.track, pieces.local.counts, strict=True)]
        rows += zip(pieces.remote.track, pieces.remote.counts, strict=True)
        for track in range(tracks):
            own = [count for which, count in rows if which == track]
            assert len(own) <= 2 and sum(own) == cut.tokens


def test_bytes_are_those_of_the_formula() -> None:
    """docs/scaling.md: min(s, N - s, N / R) rows of a track; with powers of two (N / R) (1 + log2 R) - 1 in all."""
    for length, ranks, tracks in ((1 << 10, 2, 11), (1 << 27, 512, 28), (10**8, 64, 28), (3 * 10**9, 8, 40)):
        own, shifts = length // ranks, [(1 << track) % length for track in range(tracks - 1)]
        rotation = Sharding([length], 1, ranks).rotation(tracks)
        rows = sum(min(shift, length - shift, own) for shift in shifts)
        assert rotation.send.remote.count == rotation.receive.remote.count == rows
        if length == 1 << (tracks - 1):
            assert rows == own * ranks.bit_length() - 1
