"""The exchange between ranks, compared with whole sequences; every rank is a thread here."""

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


class FakeAllToAll:
    """`all_to_all_single` between threads; the group is the thread's rank."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.sent = Barrier(ranks), [[torch.empty(0)]] * ranks

    def __call__(
        self, output: Tensor, sent: Tensor, out_sizes: list[int], in_sizes: list[int], group: Any, async_op: bool
    ) -> Any:
        self.sent[group] = list(sent.split(in_sizes))
        self.barrier.wait(timeout=10)
        parts = [parts[group] for parts in self.sent]
        assert [len(part) for part in parts] == out_sizes
        self.barrier.wait(timeout=10)
        torch.cat(parts, out=output)
        return SimpleNamespace(wait=lambda: None)


def run_on_ranks(
    make: Callable[[Sharding], Exchange], lengths: list[int], ranks: int, inputs: list[Tensor]
) -> list[Tensor]:
    """The output of each rank."""
    all_to_all = FakeAllToAll(ranks)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(ranks) as threads:
        patch.setattr(exchange.dist, "all_to_all_single", all_to_all)

        def run(rank: int) -> Tensor:
            return make(Sharding(lengths, rank, ranks)).run(inputs[rank], rank)  # type: ignore[arg-type]

        return list(threads.map(run, range(ranks)))


def shares(x: Packed, ranks: int) -> list[Tensor]:
    """The tokens of each rank."""
    return [torch.cat([s[slice(*bounds(len(s), rank, ranks))] for s in x]) for rank in range(ranks)]


def numbered(lengths: list[int], width: int) -> Packed:
    """Tokens in which all numbers are different."""
    return Packed.from_lengths(torch.arange(sum(lengths) * width).double().view(-1, width), lengths)


@pytest.mark.parametrize("cutoff", [1, 1 << 14], ids=["range by range", "by index"])
@given(lengths=LENGTHS, ranks=RANKS, tracks=st.integers(1, 8))
def test_rotations_are_those_of_whole_sequences(cutoff: int, lengths: list[int], ranks: int, tracks: int) -> None:
    """The rotation, and its reverse back to the input."""
    x = numbered(lengths, 2 * tracks)
    rotated = x.with_values(reference.rotate(x.values, x.offsets, track_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "SLICE_LENGTH", cutoff)
        actual = run_on_ranks(lambda s: s.rotation(tracks), lengths, ranks, shares(x, ranks))
        restored = run_on_ranks(lambda s: s.rotation(tracks).reverse(), lengths, ranks, actual)
    torch.testing.assert_close(actual, shares(rotated, ranks), atol=0, rtol=0)
    torch.testing.assert_close(restored, shares(x, ranks), atol=0, rtol=0)


@pytest.mark.parametrize("cutoff", [1, 1 << 14], ids=["range by range", "by index"])
@given(lengths=LENGTHS, ranks=RANKS, before=st.integers(0, 9), after=st.integers(0, 9))
def test_neighbours_stand_around_each_share(
    cutoff: int, lengths: list[int], ranks: int, before: int, after: int
) -> None:
    """In reverse, every token gets the sum of its copies."""
    x = numbered(lengths, 3)
    expected, copies = [], torch.zeros_like(x.values)
    positions = Packed.from_lengths(torch.arange(x.tokens), lengths)
    for rank in range(ranks):
        spans = [(s, *bounds(len(s), rank, ranks)) for s in positions]
        halo = torch.cat([s[max(0, low - before) : high + after] if low < high else s[:0] for s, low, high in spans])
        expected.append(x.values[halo])
        copies[halo] += x.values[halo]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "SLICE_LENGTH", cutoff)
        halo = run_on_ranks(lambda s: s.halo(before, after).exchange, lengths, ranks, shares(x, ranks))
        restored = run_on_ranks(lambda s: s.halo(before, after).exchange.reverse(), lengths, ranks, halo)
    torch.testing.assert_close(halo, expected, atol=0, rtol=0)
    torch.testing.assert_close(restored, shares(x.with_values(copies), ranks), atol=0, rtol=0)


@given(length=st.integers(1, 10**10), ranks=st.integers(1, 600), tracks=st.integers(2, 34))
def test_a_track_comes_from_two_ranks_at_most(length: int, ranks: int, tracks: int) -> None:
    """Shares differ by one token at most."""
    sharding = Sharding([length], ranks // 2, ranks)
    assert sharding.tokens in (length // ranks, -(-length // ranks))
    for pieces in (sharding.rotation(tracks).send, sharding.rotation(tracks).receive):
        rows = [*zip(pieces.local.track, pieces.local.counts, strict=True)]
        rows += zip(pieces.remote.track, pieces.remote.counts, strict=True)
        for track in range(tracks):
            counts = [count for index, count in rows if index == track]
            assert len(counts) <= 2 and sum(counts) == sharding.tokens


def test_bytes_are_those_of_the_formula() -> None:
    """docs/scaling.md: min(s, N - s, N / R) rows of a track; for powers of two (N / R) (1 + log2 R) - 1 in all."""
    for length, ranks, tracks in ((1 << 10, 2, 11), (1 << 27, 512, 28), (10**8, 64, 28), (3 * 10**9, 8, 40)):
        share, shifts = length // ranks, [(1 << track) % length for track in range(tracks - 1)]
        rotation = Sharding([length], 1, ranks).rotation(tracks)
        rows = sum(min(shift, length - shift, share) for shift in shifts)
        assert rotation.send.remote.count == rotation.receive.remote.count == rows
        if length == 1 << (tracks - 1):
            assert rows == share * ranks.bit_length() - 1
