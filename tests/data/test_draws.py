from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import draws

MANY = torch.arange(100_000)


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as published, in Python's unbounded integers."""
    numbers, mask = [], (1 << 64) - 1
    for n in range(1, count + 1):
        z = (seed + n * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    return numbers


def unsigned(bits: torch.Tensor) -> list[int]:
    return [b % (1 << 64) for b in bits.tolist()]


def test_bits_are_the_published_ones() -> None:
    """The first outputs of SplitMix64 for the seed 1234567, as its ports print them."""
    assert unsigned(draws.bits(1234567, torch.arange(3))) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_bits_for_any_key(key: int) -> None:
    assert unsigned(draws.bits(key, torch.arange(20))) == splitmix64(key, 20)


def test_counters_are_left_alone() -> None:
    counters = torch.arange(5)
    for draw in (draws.bits, draws.uniform, draws.normal):
        draw(3, counters)
    draws.below(3, counters, torch.full((5,), 7))
    assert counters.tolist() == [0, 1, 2, 3, 4]


def test_the_same_on_every_machine() -> None:
    key = draws.key(7, "lengths")
    assert key == -8156243197738795347
    assert draws.bits(key, torch.arange(2)).tolist() == [8900544935267840996, -3851865529430638462]
    assert draws.uniform(key, torch.arange(2)).tolist() == [-0.03500103950500488, 0.5823798179626465]
    assert draws.below(key, torch.arange(6), torch.full((6,), 10)).tolist() == [8, 7, 2, 7, 0, 3]
    assert draws.permutation(key, 8).tolist() == [2, 5, 1, 4, 3, 7, 6, 0]
    assert draws.normal(key, torch.arange(2)).tolist() == pytest.approx([0.3089754526551813, 1.1116841596453633])


def test_keys_differ_by_every_part() -> None:
    parts = [(0,), (1,), ("0", "1"), (0, 1), (1, 0), ("01",), (0, 1, ""), ("a", "bc"), ("ab", "c")]
    keys = [draws.key(*p) for p in parts]
    assert len(set(keys)) == len(parts) - 1  # 0 and "0" are the same word
    assert all(-(1 << 63) <= k < 1 << 63 for k in keys)


def test_uniform() -> None:
    samples = draws.uniform(draws.key(0), MANY)
    assert samples.dtype == torch.float32 and samples.min() >= -1 and samples.max() < 1
    assert samples.mean().item() == pytest.approx(0, abs=0.01)
    assert samples.square().mean().item() == pytest.approx(1 / 3, abs=0.01)
    assert torch.equal(samples * 2**23, (samples * 2**23).round())
    assert torch.histc(samples, 10, -1, 1).min() > 9_500


def test_uniform_reaches_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "bits", lambda *_: torch.tensor([0, -1]))
    assert draws.uniform(0, MANY[:2]).tolist() == [-1.0, 1 - 2**-23]


def test_normal() -> None:
    samples = draws.normal(draws.key(0), MANY)
    assert samples.dtype == torch.float64 and torch.isfinite(samples).all()
    moments = [samples.pow(k).mean().item() for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.06)


def test_below_is_even() -> None:
    samples = draws.below(draws.key(0), MANY, torch.full_like(MANY, 7))
    counts = samples.bincount()
    assert len(counts) == 7 and counts.min() > 100_000 / 7 * 0.97
    limits = MANY[:1000] + 1
    assert (draws.below(draws.key(0), MANY[:1000], limits) < limits).all()


@given(st.integers(0, 200), st.integers(0, 5))
def test_permutation(n: int, seed: int) -> None:
    assert sorted(draws.permutation(draws.key(seed), n).tolist()) == list(range(n))


def test_permutations_are_even() -> None:
    """Each of the six orders of three items is about equally frequent."""
    orders = [tuple(draws.permutation(draws.key(seed), 3).tolist()) for seed in range(600)]
    assert len(set(orders)) == 6 and min(orders.count(o) for o in set(orders)) > 70
