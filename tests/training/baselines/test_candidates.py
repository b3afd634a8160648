from __future__ import annotations

import numpy as np

from chordmixer.data.features import TextWords
from chordmixer.training.baselines.candidates import LARGE_TOKENS, Candidate, candidates
from chordmixer.training.baselines.features import Frequencies


def test_all_kmers_are_counted_where_records_can_fill_their_table() -> None:
    """Frequencies of 4,096 6-mers need records of that length, and no more memory than is set aside."""
    dense = [
        next(candidates("dna", records, records * length, k=6)).dense
        for records, length in ((100, 5_000), (100, 4_000), (9_000, 5_000), (10_000, 5_000))
    ]
    assert dense == [True, False, True, False]
    assert next(candidates("dna", 10**6, 10**7)).dense  # 256 4-mers always


def test_much_data_has_lengths_counted_alone() -> None:
    assert [c.k for c in candidates("dna", 10, LARGE_TOKENS + 1) if c.k] == [(4,), (6,), (8,), (10,), (3, 4)]
    assert max(len(c.k) for c in candidates("dna", 10, LARGE_TOKENS)) == 3
    assert [c.k for c in candidates("protein", 10, 1000, single=True)] == [(2,), (3,), (4,)]


def test_words_are_counted_where_tokens_make_them() -> None:
    words = TextWords()
    assert [c.k for c in candidates("text", 10, LARGE_TOKENS, words=words) if c.words] == [(1, 2), (1, 2, 3)]
    assert [c.k for c in candidates("text", 10, LARGE_TOKENS + 1, words=words)] == [(5,), (1, 2)]
    for options in ({"words": None}, {"words": words, "k": 3}, {"words": words, "single": True}):
        assert not any(c.words for c in candidates("text", 10, 1000, **options))  # type: ignore[arg-type]
    c = Candidate("text", (1, 2), words=words)
    assert c.name == "words and pairs of them" and not c.neighbours and c.name in c.sentence


def test_short_kmers_find_no_neighbours() -> None:
    flags = {c.name: c.neighbours for c in candidates("dna", 10, 1000)}
    assert [name for name, flag in flags.items() if flag] == ["8-mers", "10-mers"] and len(flags) == 8


def test_positions_are_looked_at_where_they_may_mean_something() -> None:
    kinds = {kind: [c.name for c in candidates(kind, 10, 1000) if c.positions] for kind in ("dna", "protein")}
    assert kinds == {"dna": ["letters by position"], "protein": ["letters by position"]}
    assert [c.name for c in candidates("text", 10, 2000) if c.positions] == ["characters by position"]
    assert [c.k for c in candidates("text", 10, 2000) if c.k] == [(5,), (4, 5, 6), (1, 2, 3)]
    for kind, tokens in (("text", 2001), ("operations", 100)):
        assert not any(c.positions for c in candidates(kind, 10, tokens))
    assert not any(c.positions for c in candidates("dna", 10, 1000, single=True))


def test_trees_grow_on_few_features() -> None:
    """They are left out where their table is larger than the memory that is set aside."""
    assert [c.name for c in candidates("dna", 10, 1000) if c.trees] == ["3- and 4-mers and length"]
    assert [c.name for c in candidates("protein", 10, 1000) if c.trees] == ["composition and length"]
    assert next(candidates("real", 10, 1000)).trees
    assert not any(c.trees for c in candidates("dna", 200_000, 10**7))
    assert not any(c.trees for c in candidates("dna", 10, 1000, single=True))


def test_composition_is_fitted_with_the_length() -> None:
    proteins = [np.arange(n, dtype=np.uint8) % 20 for n in (5, 30, 400)]
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(proteins, room=100)
    assert isinstance(features, Frequencies) and features.width == 21
    assert (np.diff(rows[:, 20]) > 0).all() and (features(proteins) == rows).all()
