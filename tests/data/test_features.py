from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy import ndarray

from chordmixer.data.alphabets import Kmers
from chordmixer.data.features import (
    KERNELS,
    RADIX,
    SeriesFeatures,
    TextWords,
    chunks,
    complement,
    kmer_codes,
    mix,
    valid_kmers,
)
from chordmixer.data.tokenizers import Bytes, Characters

letters = st.lists(st.integers(0, 5), max_size=12)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.integers(1, 40), st.sampled_from([4, 10, RADIX]))
def test_windows_are_numbers_in_a_radix(tokens: list[int], k: int, radix: int) -> None:
    if k > len(tokens):
        return
    by_hand = [
        sum(t * radix ** (k - 1 - i) for i, t in enumerate(tokens[start : start + k])) % (1 << 64)
        for start in range(len(tokens) - k + 1)
    ]
    assert kmer_codes(np.array(tokens, dtype=np.uint64), k, radix).tolist() == by_hand


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
    assert valid_kmers(tokens, np.array([len(r) for r in records]), k, limit).tolist() == by_hand


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


LETTERS = "aBé Я1.'!日本語\n\t"


def by_hand(text: str) -> list[str]:
    return re.findall(r"[日本語.'!]|[aBéЯ1]+", text)


def encoded(texts: list[str]) -> list[np.ndarray]:
    return [Bytes().encode(text) for text in texts]


@given(st.lists(st.text(LETTERS, max_size=12), max_size=6))
def test_words_by_hand(texts: list[str]) -> None:
    """Equal words have equal numbers, other words other ones, wherever they stand; no word crosses records."""
    found, expected = TextWords()(encoded(texts)), [[word.lower() for word in by_hand(text)] for text in texts]
    assert [len(own) for own in found] == [len(own) for own in expected]
    numbers = [int(number) for own in found for number in own]
    known = dict(zip((word for own in expected for word in own), numbers, strict=True))
    assert [known[word] for own in expected for word in own] == numbers
    assert len({*known.values()}) == len(known)


@given(st.lists(st.text(LETTERS, max_size=12), min_size=1, max_size=6))
def test_characters_have_the_same_words_as_bytes(texts: list[str]) -> None:
    tokenizer = Characters.of([LETTERS])
    words = TextWords.of(tokenizer)
    assert words is not None
    for own, expected in zip(words([*map(tokenizer.encode, texts)]), TextWords()(encoded(texts)), strict=True):
        assert own.tolist() == expected.tolist()


def test_what_the_vocabulary_lacks_separates() -> None:
    tokenizer = Characters("ab")
    words = TextWords.of(tokenizer)
    assert words is not None and [len(own) for own in words([tokenizer.encode("ab?a"), np.array([9])])] == [2, 0]


def test_tokens_that_make_no_words() -> None:
    assert TextWords.of(Kmers(k=3)) is None and TextWords.of(Bytes()) == TextWords()


def test_odd_records() -> None:
    """None, empty ones, one byte, bytes that are no UTF-8, and one word of a million letters."""
    assert TextWords()([]) == []
    odd = [b"", b"a", b"\xff", b"\xc3", b"x\xe2\x82y", b" \n", b"a" * 1_000_000, b"a " * 500_000]
    found = TextWords()([np.frombuffer(own, np.uint8) for own in odd])
    assert [len(own) for own in found] == [0, 1, 0, 0, 2, 0, 1, 500_000]
    assert (found[7] == found[1][0]).all() and found[6][0] != found[1][0]


def waves(records: int, period: float, rng: np.random.Generator) -> list[ndarray]:
    """Noisy sines of any phase, 60 to 400 samples long."""
    lengths = rng.integers(60, 400, records).tolist()
    return [
        (np.sin(2 * np.pi * np.arange(n) / period + rng.uniform(0, 7)) + rng.normal(size=n))[:, None] for n in lengths
    ]


def test_kernels_have_nine_taps_that_sum_to_zero() -> None:
    assert KERNELS.shape == (84, 9) and not KERNELS.sum(axis=1).any() and len({*map(bytes, KERNELS)}) == 84


def test_what_moments_cannot_tell_is_told() -> None:
    """Two periods under noise have the same mean, spread and range."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    series = waves(60, 9.0, rng) + waves(60, 23.0, rng)
    features, kind = SeriesFeatures.fit(series), np.repeat([0, 1], 60)
    rows = np.array([features(own) for own in series])
    rows = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-9)
    learned = LogisticRegression(C=0.01, max_iter=200).fit(rows[::2], kind[::2])
    assert learned.score(rows[1::2], kind[1::2]) > 0.95


def test_odd_series_have_finite_features() -> None:
    """One sample, a constant channel, many channels, huge numbers: as many features as any other, all finite."""
    rng = np.random.default_rng(0)
    for channels in (1, 12):
        usual = rng.normal(size=(50, channels))
        odd = [usual[:1], np.zeros((30, channels)), np.full((5, channels), 7.0), 1e18 * usual, 1e-18 * usual]
        features = SeriesFeatures.fit([usual, *odd])
        rows = np.array([features(own) for own in [usual, *odd]])
        assert np.isfinite(rows).all() and len(rows) == 6


def test_shares_do_not_depend_on_scale_and_amplitudes_do() -> None:
    rng = np.random.default_rng(0)
    series = rng.normal(size=(80, 1))
    features = SeriesFeatures.fit([series])
    own, large = features(series), features(100 * series)
    first = len(own) - features.thresholds.size
    within = slice(first, first + features.thresholds[0].size)
    np.testing.assert_allclose(own[within], large[within], atol=0.02)
    assert np.abs(own[:5] - large[:5]).max() > 1
    assert np.abs(own[within.stop :] - large[within.stop :]).max() > 0.1, "channels as they are keep their size"


def test_saved_thresholds_give_the_same_features() -> None:
    rng = np.random.default_rng(0)
    features = SeriesFeatures.fit([rng.normal(size=(n, 2)) for n in (40, 200)])
    again = SeriesFeatures(features.dilations, features.thresholds, features.moments)
    series = rng.normal(size=(90, 2))
    assert np.array_equal(features(series), again(series))
