from __future__ import annotations

from chordmixer.models.encoders import ENCODERS
from chordmixer.paper.benching.published import PAPER, SOURCE, compares, cost


def test_every_row_has_its_encoder() -> None:
    assert {name for own in PAPER.values() for name in own} <= set(ENCODERS)
    assert [len(own) for own in PAPER.values()] == [13, 3]


def test_numbers_as_they_stand_in_the_table() -> None:
    assert cost(200, "chordmixer") == (1.5, 4.9) and cost(128_000, "chordmixer") == (23.1, 604)
    assert cost(200, "tree_lstm") == (25.3, 9831) and cost(128_000, "cosformer") == (22.6, 994)
    assert cost(200, "mamba2") is None and "V100" in SOURCE


def test_other_lengths_have_none() -> None:
    assert compares(200) and not compares(1_000) and not compares(None)
