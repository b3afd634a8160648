"""Sketches: which hashes are kept, and that chunks, strands and neighbours do not change them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data import sketches
from chordmixer.data.kmers import complement
from chordmixer.data.sketches import WHOLE, SketchConfig, digest, sketch, sketch_all


def dna(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, length).astype(np.uint8)


def test_all_kmers_of_a_short_record() -> None:
    tokens = dna(60)
    distinct = {min(tuple(tokens[i : i + 16]), tuple(complement(tokens[i : i + 16]))) for i in range(45)}
    assert len(sketch(tokens)) == len(distinct)


def test_the_smallest_of_a_long_one() -> None:
    every = sketch(dna(2000), size=5000)
    assert len(every) == 1985 and (np.diff(every.astype(np.int64)) > 0).all() and every[-1] < WHOLE
    assert sketch(dna(2000), size=100).tolist() == every[:100].tolist()


def test_all_below_the_common_limit_besides() -> None:
    every = sketch(dna(20_000), size=30_000)
    found = sketch_all([dna(20_000)], SketchConfig(size=100), every=10)
    assert found[0].tolist() == every[every < WHOLE // 10].tolist()
    assert found.limits.tolist() == [WHOLE // 10]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.sampled_from([1, 3, 1000]))
def test_limits_say_what_is_complete(lengths: list[int], every: int) -> None:
    config = SketchConfig(k=5, size=10)
    records = [dna(n, seed) for seed, n in enumerate(lengths)]
    found = sketch_all(records, config, every)
    assert len(found) == len(records)
    for record, tokens in enumerate(records):
        whole = sketch(tokens, k=5, size=10_000)
        assert found[record].tolist() == whole[whole < found.limits[record]].tolist()
        assert len(found[record]) >= min(10, len(whole))


@given(st.lists(st.integers(0, 4), max_size=50))
def test_strands_are_one(tokens: list[int]) -> None:
    record = np.array(tokens, dtype=np.uint8)
    assert sketch(record, k=6).tolist() == sketch(complement(record), k=6).tolist()


def test_text_has_a_direction() -> None:
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog", np.uint8)
    assert not set(sketch(text, k=6, canonical=False)) & set(sketch(text[::-1], k=6, canonical=False))


def test_where_a_circle_is_cut_does_not_matter() -> None:
    record = dna(5000)
    one, other = (set(sketch(r, size=10_000)) for r in (record, np.roll(record, 1234)))
    assert len(one & other) > 0.99 * len(one)


def test_unknown_letters_break_kmers() -> None:
    record = dna(100)
    record[50] = 4
    assert set(sketch(record)) == set(sketch(record[:50])) | set(sketch(record[51:]))
    assert len(sketch(np.full(100, 4, np.uint8))) == 0


def test_records_shorter_than_a_kmer_are_one() -> None:
    record = dna(9)
    assert sketch(record).tolist() == sketch(complement(record)).tolist() and len(sketch(record)) == 1
    assert sketch(record).tolist() != sketch(dna(9, seed=1)).tolist()
    assert len(sketch(record[:0])) == 0


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor pieces of a record that is longer than a chunk."""
    records = [dna(n, seed) for seed, n in enumerate([40, 3000, 5, 0, 700, 15, 16, 17])]
    config = SketchConfig(size=50)
    expected = sketch_all(records, config, every=20)
    for chunk in (16, 100, 1000):
        monkeypatch.setattr(sketches, "CHUNK", chunk)
        found = sketch_all(records, config, every=20)
        assert found.hashes.tolist() == expected.hashes.tolist()
        assert found.offsets.tolist() == expected.offsets.tolist()
        assert found.limits.tolist() == expected.limits.tolist()


def test_the_same_on_every_machine() -> None:
    assert sketch(np.arange(24, dtype=np.uint8) % 4, k=4, size=3).tolist() == [
        127351391890278,
        166362155735425,
        225511311147612,
    ]
    assert digest(np.arange(5, dtype=np.uint8)) == 17483692334919901202


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very many records keep fewer hashes each, but never too few to compare."""
    monkeypatch.setattr(sketches, "HASHES", 1000)
    assert sketch_all([dna(400, seed) for seed in range(20)], SketchConfig()).sizes == pytest.approx(100, abs=20)
    assert sketch_all([dna(400, seed) for seed in range(200)], SketchConfig()).sizes.min() == 32


def test_no_records() -> None:
    assert len(sketch_all([], SketchConfig())) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k=0 is not a k-mer's length: give 1 to 31"),
        ({"k": 32}, "k=32 is not a k-mer's length: give 1 to 31"),
        ({"k": 256, "canonical": False}, "k=256 is not a k-mer's length: give 1 to 255"),
        ({"size": 0}, "size=0 keeps no hash: give 1 or more"),
        ({"threshold": 0.0}, "threshold=0.0 is not a share: give more than 0, and at most 1"),
        ({"threshold": 1.5}, "threshold=1.5 is not a share"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SketchConfig(**settings)  # type: ignore[arg-type]


def test_kinds() -> None:
    assert SketchConfig.of("dna").canonical and not SketchConfig.of("text").canonical
    with pytest.raises(ValueError, match="'real' cannot be compared by k-mers: the kinds are dna, protein, text"):
        SketchConfig.of("real")
