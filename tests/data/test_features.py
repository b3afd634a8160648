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
    expected = [
        sum(t * radix ** (k - 1 - i) for i, t in enumerate(tokens[start : start + k])) % (1 << 64)
        for start in range(len(tokens) - k + 1)
    ]
    assert kmer_codes(np.array(tokens, dtype=np.uint64), k, radix).tolist() == expected


@given(st.lists(letters, min_size=1, max_size=5), st.integers(1, 6), st.sampled_from([None, 4]))
def test_whole_runs_are_within_a_record_and_of_letters(records: list[list[int]], k: int, limit: int | None) -> None:
    tokens = np.array([t for r in records for t in r], dtype=np.uint8)
    if len(tokens) < k:
        return
    owner = [number for number, r in enumerate(records) for _ in r]
    expected = [
        owner[i] == owner[i + k - 1] and (limit is None or max(tokens[i : i + k]) < limit)
        for i in range(len(tokens) - k + 1)
    ]
    assert valid_kmers(tokens, np.array([len(r) for r in records]), k, limit).tolist() == expected


@given(st.lists(letters, max_size=9), st.integers(1, 20), st.integers(1, 4))
def test_chunks_hold_every_record_once_in_order(records: list[list[int]], tokens: int, limit: int) -> None:
    chunked = list(chunks([np.array(r) for r in records], tokens, limit))
    assert [r.tolist() for chunk in chunked for r in chunk] == records
    assert all(0 < len(chunk) <= limit for chunk in chunked)
    assert all(len(chunk) == 1 or sum(map(len, chunk)) <= tokens for chunk in chunked)


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


def split_words(text: str) -> list[str]:
    return re.findall(r"[日本語.'!]|[aBéЯ1]+", text)


def encoded(texts: list[str]) -> list[np.ndarray]:
    return [Bytes().encode(text) for text in texts]


@given(st.lists(st.text(LETTERS, max_size=12), max_size=6))
def test_words_by_hand(texts: list[str]) -> None:
    """Equal words have equal numbers and different words different ones, at any place; no word crosses records."""
    actual, expected = TextWords()(encoded(texts)), [[word.lower() for word in split_words(text)] for text in texts]
    assert [len(record) for record in actual] == [len(record) for record in expected]
    numbers = [int(number) for record in actual for number in record]
    codes = dict(zip((word for record in expected for word in record), numbers, strict=True))
    assert [codes[word] for record in expected for word in record] == numbers
    assert len({*codes.values()}) == len(codes)


@given(st.lists(st.text(LETTERS, max_size=12), min_size=1, max_size=6))
def test_characters_have_the_same_words_as_bytes(texts: list[str]) -> None:
    tokenizer = Characters.of([LETTERS])
    words = TextWords.of(tokenizer)
    assert words is not None
    for actual, expected in zip(words([*map(tokenizer.encode, texts)]), TextWords()(encoded(texts)), strict=True):
        assert actual.tolist() == expected.tolist()


def test_what_the_vocabulary_lacks_separates() -> None:
    tokenizer = Characters("ab")
    words = TextWords.of(tokenizer)
    assert words is not None and [len(codes) for codes in words([tokenizer.encode("ab?a"), np.array([9])])] == [2, 0]


def test_tokens_that_make_no_words() -> None:
    assert TextWords.of(Kmers(k=3)) is None and TextWords.of(Bytes()) == TextWords()


def test_odd_records() -> None:
    """No records, empty records, one byte, bytes that are not UTF-8, and one word of a million letters."""
    assert TextWords()([]) == []
    odd = [b"", b"a", b"\xff", b"\xc3", b"x\xe2\x82y", b" \n", b"a" * 1_000_000, b"a " * 500_000]
    result = TextWords()([np.frombuffer(record, np.uint8) for record in odd])
    assert [len(record) for record in result] == [0, 1, 0, 0, 2, 0, 1, 500_000]
    assert (result[7] == result[1][0]).all() and result[6][0] != result[1][0]


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
    features, labels = SeriesFeatures.fit(series), np.repeat([0, 1], 60)
    rows = np.array([features(record) for record in series])
    rows = (rows - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-9)
    classifier = LogisticRegression(C=0.01, max_iter=200).fit(rows[::2], labels[::2])
    assert classifier.score(rows[1::2], labels[1::2]) > 0.95


def test_odd_series_have_finite_features() -> None:
    """One sample, a constant channel, many channels, huge numbers: as many features as any other, all finite."""
    rng = np.random.default_rng(0)
    for channels in (1, 12):
        usual = rng.normal(size=(50, channels))
        odd = [usual[:1], np.zeros((30, channels)), np.full((5, channels), 7.0), 1e18 * usual, 1e-18 * usual]
        features = SeriesFeatures.fit([usual, *odd])
        rows = np.array([features(record) for record in [usual, *odd]])
        assert np.isfinite(rows).all() and len(rows) == 6


def test_shares_do_not_depend_on_scale_and_amplitudes_do() -> None:
    rng = np.random.default_rng(0)
    series = rng.normal(size=(80, 1))
    features = SeriesFeatures.fit([series])
    original, scaled = features(series), features(100 * series)
    first = len(original) - features.thresholds.size
    within = slice(first, first + features.thresholds[0].size)
    np.testing.assert_allclose(original[within], scaled[within], atol=0.02)
    assert np.abs(original[:5] - scaled[:5]).max() > 1
    assert np.abs(original[within.stop :] - scaled[within.stop :]).max() > 0.1, (
        "unscaled channels keep their amplitude"
    )


def test_saved_thresholds_give_the_same_features() -> None:
    rng = np.random.default_rng(0)
    features = SeriesFeatures.fit([rng.normal(size=(n, 2)) for n in (40, 200)])
    restored = SeriesFeatures(features.dilations, features.thresholds, features.moments)
    series = rng.normal(size=(90, 2))
    assert np.array_equal(features(series), restored(series))
