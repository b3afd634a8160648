"""Words of texts, against splitting by hand."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chordmixer.data.alphabets import Kmers
from chordmixer.data.text_words import TextWords
from chordmixer.data.tokenizers import Bytes, Characters

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
