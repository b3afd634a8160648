from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import TokenSampler

LOG_NORMAL = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.7 + 5.5).exp().round().int().tolist()


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 50), min_size=1, max_size=60))
    return {
        "lengths": lengths,
        "tokens": draw(st.integers(max(lengths), 200)),
        "sequences": draw(st.integers(1, 8)),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 3)),
    }


@given(plans(), st.integers(0, 3))
def test_one_rank_sees_every_record_once_within_budget(plan: dict[str, Any], epoch: int) -> None:
    sampler = TokenSampler(**plan)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(plan["lengths"])))
    assert all(1 <= len(batch) <= plan["sequences"] for batch in batches)
    assert all(sum(plan["lengths"][i] for i in batch) <= plan["tokens"] for batch in batches)
    assert len(sampler) == len(batches) and sampler.left_out == []


@given(plans(), st.integers(1, 4), st.integers(0, 3))
def test_ranks_share_the_records(plan: dict[str, Any], ranks: int, epoch: int) -> None:
    plan["lengths"] += [1] * ranks
    samplers = [TokenSampler(**plan, rank=rank, ranks=ranks) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    batches = [list(sampler) for sampler in samplers]
    assert len({len(b) for b in batches}) == 1 and len(samplers[0]) == len(batches[0])
    assert all(batch for rank in batches for batch in rank)
    assert all(len(batch) <= plan["sequences"] for rank in batches for batch in rank)
    assert all(sum(plan["lengths"][i] for i in batch) <= plan["tokens"] for rank in batches for batch in rank)
    seen = [i for rank in batches for batch in rank for i in batch]
    left_out = samplers[0].left_out
    assert len(left_out) < ranks
    assert sorted(seen + left_out) == list(range(len(plan["lengths"])))


@given(plans(), st.integers(0, 2), st.data())
def test_start_gives_the_tail(plan: dict[str, Any], epoch: int, data: st.DataObject) -> None:
    sampler = TokenSampler(**plan)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    start = data.draw(st.integers(0, len(batches)))
    sampler.set_epoch(epoch, start)
    assert list(sampler) == batches[start:] and len(sampler) == len(batches) - start


def test_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, *epochs: int) -> list[list[int]]:
        sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=16, seed=seed)
        for epoch in epochs:
            sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 2) == order(0, 0, 1, 2) == order(0, 5, 2)
    assert order(0, 2) != order(0, 3) and order(0, 2) != order(1, 2)


def test_without_shuffle_every_epoch_is_in_order() -> None:
    sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=16, shuffle=False)
    sampler.set_epoch(3)
    assert [i for batch in sampler for i in batch] == list(range(len(LOG_NORMAL)))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tokens_are_balanced(ranks: int) -> None:
    loads = [0] * ranks
    for rank in range(ranks):
        sampler = TokenSampler(LOG_NORMAL, tokens=20_000, sequences=32, rank=rank, ranks=ranks)
        loads[rank] = sum(LOG_NORMAL[i] for batch in sampler for i in batch)
    assert max(loads) < 1.3 * min(loads)


def test_lengths_are_mixed_and_batches_full() -> None:
    sampler = TokenSampler(LOG_NORMAL, tokens=10_000, sequences=1000)
    *full, _ = [[LOG_NORMAL[i] for i in batch] for batch in sampler]
    assert all(max(batch) > 2 * min(batch) for batch in full)
    assert sum(map(sum, full)) / len(full) > 9_000


def test_a_sequence_over_the_budget_is_named() -> None:
    message = "budget of 1,000 tokens a batch cannot hold record 2 of 1,234 tokens: .* set training.batch_tokens=1234"
    with pytest.raises(ValueError, match=message):
        TokenSampler([5, 1000, 1234, 1001], tokens=1000, sequences=2)


def test_fewer_records_than_ranks() -> None:
    with pytest.raises(ValueError, match="2 records cannot be shared by 3 ranks: use fewer ranks"):
        TokenSampler([5, 5], tokens=10, sequences=2, ranks=3)
