"""Sequences split over one rank, which holds all tokens; several ranks are in test_context_parallel.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from chordmixer import ChordMixer, Packed, ops
from chordmixer.models import shards
from chordmixer.models.context_parallel import ContextParallel
from chordmixer.models.shards import Shard, shard

Batch = Callable[..., Packed]


@pytest.mark.usefixtures("process_group")
def test_one_rank_holds_all(random_batch: Batch) -> None:
    x = random_batch([5, 1, 9], 6)
    share = shard(x)
    assert share.lengths == x.lengths and share.offsets.tolist() == x.offsets.tolist()
    torch.testing.assert_close(share.values, x.values)
    torch.testing.assert_close(share.select([2, 0, 1]).values, x.select([2, 0, 1]).values)
    torch.testing.assert_close(shards.rotate(share, 2), ops.rotate(x.values, x.offsets, 2))
    for pool in (shards.mean, shards.maximum):
        torch.testing.assert_close(pool(share), pool(x))
    wide, inner = shards.with_neighbours(share, 3, 4)
    assert wide.lengths == x.lengths
    torch.testing.assert_close(inner(wide.values), x.values)


@pytest.mark.usefixtures("process_group")
def test_tokens_that_are_not_the_share_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"7 tokens are not the 9 that rank 0 of 1 holds of 2 sequences: .* cut them"
    ):
        Shard.from_lengths(torch.zeros(7), [5, 4])


def test_a_process_group_is_needed(random_batch: Batch) -> None:
    for call in (lambda: shard(random_batch([5], 6)), lambda: ContextParallel(ChordMixer(max_length=5))):
        with pytest.raises(ValueError, match=r"has no process group, .*: call torch.distributed.init_process_group"):
            call()
