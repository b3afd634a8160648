"""Features of sequences for baselines."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.features import TextWords
from chordmixer.training.baselines import features
from chordmixer.training.baselines.features import (
    MAX_VALUE,
    Frequencies,
    Grams,
    SeriesRows,
    TfIdf,
    gram_counts,
    kmer_frequencies,
)

DNA = Grams(2, letters=4)
records = st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=6)


def arrays(rows: list[list[int]]) -> list[np.ndarray]:
    return [np.array(row, dtype=np.uint8) for row in rows]


@given(records)
def test_frequencies_by_hand(rows: list[list[int]]) -> None:
    frequencies = kmer_frequencies(arrays(rows), np.arange(len(rows)), DNA)
    for row, row_frequencies in zip(rows, frequencies, strict=True):
        counts = Counter(4 * a + b for a, b in pairwise(row) if max(a, b) < 4)
        assert row_frequencies == pytest.approx([counts[code] / max(counts.total(), 1) for code in range(16)])


@pytest.mark.parametrize("limits", [(10, 4096), (1_000_000, 2), (1, 1)], ids=str)
def test_chunks_do_not_matter(limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, n).astype(np.uint8) for n in (5, 0, 30, 1, 8, 12, 12)]
    parts = {"training": np.arange(5), "test": np.array([6, 5])}
    dense, sparse = kmer_frequencies(rows, np.arange(7), DNA), gram_counts(rows, parts, DNA)
    monkeypatch.setattr(features, "CHUNK_TOKENS", limits[0])
    monkeypatch.setattr(features, "CHUNK_RECORDS", limits[1])
    assert (kmer_frequencies(rows, np.arange(7), DNA) == dense).all()
    counts = gram_counts(rows, parts, DNA)
    assert all((counts[part] != sparse[part]).nnz == 0 for part in parts)


def test_rows_of_records_in_the_asked_order() -> None:
    rows = arrays([[0, 0, 0], [1, 1, 1], [2, 2, 2]])
    assert kmer_frequencies(rows, np.array([2, 0]), DNA).argmax(axis=1).tolist() == [10, 0]


def test_weights_are_sublinear_tf_idf() -> None:
    """Of the grams of three training texts, one is in all, one in two, and one in a single text: it is dropped."""
    texts = [np.frombuffer(t, np.uint8) for t in (b"aabb", b"aabb", b"aacc", b"aaaabb")]
    tfidf = gram_counts(texts, {"training": np.arange(3), "test": np.array([3])}, Grams(1))
    assert tfidf["training"].shape[1] == 2 and tfidf["training"].dtype == np.float32
    common, rarer = np.log(4 / 4) + 1, np.log(4 / 3) + 1
    expected = np.array([(1 + np.log(4)) * common, (1 + np.log(2)) * rarer])
    assert sorted(tfidf["test"].toarray()[0]) == pytest.approx(sorted(expected / np.linalg.norm(expected)), rel=1e-5)
    assert tfidf["training"].toarray()[2].max() == 1


def test_the_commonest_grams_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [np.frombuffer(t, np.uint8) for t in (b"abc", b"abd", b"acd", b"aef")]
    parts = {"training": np.arange(4)}
    assert gram_counts(texts, parts, Grams(1))["training"].shape[1] == 4
    monkeypatch.setattr(features, "MAX_ENTRIES", 6)
    counts = gram_counts(texts, parts, Grams(1))["training"]
    assert counts.shape[1] == 3 and counts.nnz == 6


def test_several_lengths_stand_side_by_side() -> None:
    """Each row has norm one over all lengths of k-mers, and does not depend on other records."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, n).astype(np.uint8) for n in (5, 0, 30, 1, 8, 12, 12)]
    combined = TfIdf.fit(rows, (Grams(1, 4), Grams(2, 4)))
    separate = [TfIdf.fit(rows, (Grams(k, 4),)) for k in (1, 2)]
    assert combined.width == sum(part.width for part in separate)
    vectors = combined(rows).toarray()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1, float(vectors[3].any()), 1, 1, 1])
    for row, expected in zip(rows, vectors, strict=True):
        assert (combined([row]).toarray()[0] == expected).all()


def test_only_the_commonest_where_few_may_stay() -> None:
    """Limited rows are those that the limited features compute."""
    texts = [np.frombuffer(t, np.uint8) for t in (b"abc", b"abd", b"accd", b"aef", b"gg")]
    full = TfIdf.fit(texts, (Grams(1),))
    reduced, rows = full.limited(full(texts), 3)
    assert full.width == 4 and reduced.width == 3 and sorted(reduced.rarity)[0] == min(full.rarity)
    assert rows.dtype == np.float32 and rows.toarray() == pytest.approx(reduced(texts).toarray(), abs=1e-6)
    assert rows.toarray().max(axis=1)[4] == 0


def test_words_in_place_of_tokens() -> None:
    """A pair of words is one feature, whatever its case; letters within words are no features."""
    texts = [np.frombuffer(t, np.uint8) for t in (b"not good", b"Not Good", b"good not", b"notgood", b"")]
    tfidf = TfIdf.fit(texts, (Grams(1), Grams(2)), words=TextWords())
    rows = tfidf(texts).toarray()
    assert tfidf.width == 3 and (rows[0] == rows[1]).all() and not rows[3:].any()
    assert ((rows > 0).sum(axis=1) == [3, 3, 2, 0, 0]).all()


def test_nothing_to_count() -> None:
    counts = gram_counts([np.array([1, 2], dtype=np.uint8)] * 3, {"training": np.arange(3)}, Grams(5))
    assert counts["training"].shape == (3, 1) and counts["training"].nnz == 0


@pytest.mark.parametrize("k", [0, 32])
def test_impossible_lengths_of_kmers_are_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k} is not a k-mer's length: give 1 to 31"):
        Grams(k)


def test_training_rows_have_mean_zero_and_spread_one() -> None:
    rng = np.random.default_rng(0)
    dna = [rng.integers(0, 5, n).astype(np.uint8) for n in rng.integers(10, 90, 50)]
    series = [rng.normal(size=(n, 2)).astype(np.float32) for n in (1, 40, 90, 200)]
    for rows in (Frequencies.fit(dna, (Grams(1, 4), Grams(2, 4)), length=True)(dna), SeriesRows.fit(series)[1]):
        assert np.abs(rows.mean(axis=0)).max() < 1e-3
        assert np.isin(rows.std(axis=0).round(2), [0, 1]).all()


def test_a_row_depends_on_its_record_alone() -> None:
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(n, 3)).astype(np.float32) for n in (1, 40, 90, 200)]
    features, rows = SeriesRows.fit(series)
    assert (features(series) == rows).all() and (rows[2] == features([series[2]])[0]).all() and len(features([])) == 0


def test_constant_channels_and_records_unlike_all_others() -> None:
    series = [np.full((n, 1), 7, np.float32) for n in (1, 5, 300)]
    features, _ = SeriesRows.fit(series)
    rows = features([*series, np.full((9, 1), 1e30, np.float32), np.array([[-1e9], [1e9]], np.float32)])
    assert np.isfinite(rows).all() and np.abs(rows).max() <= MAX_VALUE


def test_another_number_of_channels() -> None:
    features, _ = SeriesRows.fit([np.ones((4, 2), np.float32)])
    with pytest.raises(ValueError, match="a series has 3 channels: the baseline learned from 2; give as many"):
        features([np.ones((4, 3), np.float32)])
