"""K-mers as numbers, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.kmers import RADIX, chunks, complement, mix, whole, windows

letters = st.lists(st.integers(0, 5), max_size=12)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.integers(1, 40), st.sampled_from([4, 10, RADIX]))
def test_windows_are_numbers_in_a_radix(tokens: list[int], k: int, radix: int) -> None:
    if k > len(tokens):
        return
    by_hand = [
        sum(t * radix ** (k - 1 - i) for i, t in enumerate(tokens[start : start + k])) % (1 << 64)
        for start in range(len(tokens) - k + 1)
    ]
    assert windows(np.array(tokens, dtype=np.uint64), k, radix).tolist() == by_hand


@given(st.lists(letters, min_size=1, max_size=5), st.integers(1, 6), st.sampled_from([None, 4]))
def test_whole_runs_are_within_a_record_and_of_letters(records: list[list[int]], k: int, limit: int | None) -> None:
    tokens = np.array([t for r in records for t in r], dtype=np.uint8)
    if len(tokens) < k:
        return
    owner = [number for number, r in enumerate(records) for _ in r]
    by_hand = [
        owner[i] == owner[i + k - 1] and (limit is None or max(tokens[i : i + k]) < limit)
        for i in range(len(tokens) - k + 1)
    ]
    assert whole(tokens, np.array([len(r) for r in records]), k, limit).tolist() == by_hand


@given(st.lists(letters, max_size=9), st.integers(1, 20), st.integers(1, 4))
def test_chunks_hold_every_record_once_in_order(records: list[list[int]], tokens: int, most: int) -> None:
    found = list(chunks([np.array(r) for r in records], tokens, most))
    assert [r.tolist() for chunk in found for r in chunk] == records
    assert all(0 < len(chunk) <= most for chunk in found)
    assert all(len(chunk) == 1 or sum(map(len, chunk)) <= tokens for chunk in found)


@given(letters)
def test_the_complement_of_the_complement(tokens: list[int]) -> None:
    dna = np.array(tokens, dtype=np.uint8)
    assert complement(complement(dna)).tolist() == tokens
    assert complement(dna).dtype == np.uint8


def test_mixed_numbers_are_even_and_far_apart() -> None:
    hashes = mix(np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(hashes)) == 100_000
    shares = np.bincount((hashes >> np.uint64(60)).astype(int)) / 100_000
    assert shares == pytest.approx(1 / 16, abs=0.004)
