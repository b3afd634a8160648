from __future__ import annotations

import numpy as np

from chordmixer.data.features import TextWords
from chordmixer.training.baselines.candidates import LARGE_TOKENS, Candidate, candidates
from chordmixer.training.baselines.features import Frequencies


def test_all_kmers_are_counted_where_records_can_fill_their_table() -> None:
    """Shares of 4,096 6-mers say something of records of that length, and take no more memory than is set aside."""
    dense = [
        next(candidates("dna", records, records * length, k=6)).dense
        for records, length in ((100, 5_000), (100, 4_000), (9_000, 5_000), (10_000, 5_000))
    ]
    assert dense == [True, False, True, False]
    assert next(candidates("dna", 10**6, 10**7)).dense  # 256 4-mers always


def test_much_data_has_lengths_counted_alone() -> None:
    assert [own.k for own in candidates("dna", 10, LARGE_TOKENS + 1) if own.k] == [(4,), (6,), (8,), (10,), (3, 4)]
    assert max(len(own.k) for own in candidates("dna", 10, LARGE_TOKENS)) == 3
    assert [own.k for own in candidates("protein", 10, 1000, single=True)] == [(2,), (3,), (4,)]


def test_words_are_counted_where_tokens_make_them() -> None:
    words = TextWords()
    assert [own.k for own in candidates("text", 10, LARGE_TOKENS, words=words) if own.words] == [(1, 2), (1, 2, 3)]
    assert [own.k for own in candidates("text", 10, LARGE_TOKENS + 1, words=words)] == [(5,), (1, 2)]
    for more in ({"words": None}, {"words": words, "k": 3}, {"words": words, "single": True}):
        assert not any(own.words for own in candidates("text", 10, 1000, **more))  # type: ignore[arg-type]
    own = Candidate("text", (1, 2), words=words)
    assert own.name == "words and pairs of them" and not own.neighbours and own.name in own.sentence


def test_short_kmers_find_no_neighbours() -> None:
    near = {own.name: own.neighbours for own in candidates("dna", 10, 1000)}
    assert [name for name, found in near.items() if found] == ["8-mers", "10-mers"] and len(near) == 8


def test_positions_are_looked_at_where_they_may_mean_something() -> None:
    kinds = {kind: [own.name for own in candidates(kind, 10, 1000) if own.positions] for kind in ("dna", "protein")}
    assert kinds == {"dna": ["letters by position"], "protein": ["letters by position"]}
    assert [own.name for own in candidates("text", 10, 2000) if own.positions] == ["characters by position"]
    assert [own.k for own in candidates("text", 10, 2000) if own.k] == [(5,), (4, 5, 6), (1, 2, 3)]
    for kind, tokens in (("text", 2001), ("operations", 100)):
        assert not any(own.positions for own in candidates(kind, 10, tokens))
    assert not any(own.positions for own in candidates("dna", 10, 1000, single=True))


def test_trees_grow_on_few_features() -> None:
    """Which are left out where their table is larger than all memory that is set aside."""
    assert [own.name for own in candidates("dna", 10, 1000) if own.trees] == ["3- and 4-mers and length"]
    assert [own.name for own in candidates("protein", 10, 1000) if own.trees] == ["composition and length"]
    assert next(candidates("real", 10, 1000)).trees
    assert not any(own.trees for own in candidates("dna", 200_000, 10**7))
    assert not any(own.trees for own in candidates("dna", 10, 1000, single=True))


def test_composition_is_fitted_with_the_length() -> None:
    proteins = [np.arange(n, dtype=np.uint8) % 20 for n in (5, 30, 400)]
    features, rows = Candidate("protein", (1,), length=True, dense=True).fit(proteins, room=100)
    assert isinstance(features, Frequencies) and features.width == 21
    assert (np.diff(rows[:, 20]) > 0).all() and (features(proteins) == rows).all()
