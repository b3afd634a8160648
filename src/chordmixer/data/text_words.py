"""Words of a text as numbers, for many records at once: what counts of words are made of."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy import ndarray

from chordmixer.data.encoding import Tokenizer
from chordmixer.data.kmers import mix
from chordmixer.data.tokenizers import Bytes, Characters

POINTS, LAST = 0x110000, 0x40000
"""Code points of Unicode, and from where on none is a letter."""
ALONE = 1 << 31
"""Added to the code point of a character that is a word of its own."""
IDEOGRAPHS = ((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""First and last of scripts that are written without blanks: Chinese, and Japanese with its kana."""
_NONE = np.empty(0, np.uint32)


@dataclass(frozen=True)
class TextWords:
    """Token ids of a text become one 64-bit number for each of its words, in their order.

    A word is a run of letters, marks and digits in lower case; each other visible character, and each Chinese or
    Japanese one, is a word of its own. Blanks, control characters and bytes that are not UTF-8 only separate.

    >>> words = TextWords()
    >>> one, other = words([np.frombuffer(text.encode(), np.uint8) for text in ("No, no!", "NO one")])
    >>> len(one), len(other), bool(one[0] == one[2] == other[0])
    (4, 2, True)
    """

    points: ndarray | None = None
    """The code point of each token id, uint32; None: tokens are the bytes of UTF-8."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TextWords | None:
        """Of bytes and of characters; other tokens, such as k-mers, make no words."""
        if isinstance(tokenizer, Bytes):
            return cls()
        if isinstance(tokenizer, Characters):
            return cls(np.array([*map(ord, tokenizer.vocabulary), ord("\N{REPLACEMENT CHARACTER}")], np.uint32))
        return None

    def __call__(self, sequences: Sequence[ndarray]) -> list[ndarray]:
        """A uint64 array for each record."""
        points = [self._points(own) for own in sequences]
        ends = np.cumsum([len(own) for own in points], dtype=np.int64)
        symbols = _symbols()[np.insert(np.concatenate([_NONE, *points]), ends, 0)]  # no word crosses a record's end
        place = np.flatnonzero(symbols)
        symbols = symbols[place]
        alone, first = symbols >= ALONE, np.ones(len(place), bool)
        first[1:] = (np.diff(place) > 1) | alone[1:] | alone[:-1]
        starts = np.flatnonzero(first)
        within = np.arange(len(place)) - np.repeat(starts, np.diff(np.append(starts, len(place))))
        letters = mix(symbols.astype(np.uint64) << np.uint64(32) | within.astype(np.uint64))
        words = np.add.reduceat(letters, starts) if len(starts) else letters
        return np.split(words, np.searchsorted(place[starts], ends + np.arange(len(ends))))[: len(points)]

    def _points(self, tokens: ndarray) -> ndarray:
        if self.points is not None:
            own: ndarray = np.take(self.points, tokens, mode="clip")  # the last one is unknown
            return own
        text = np.asarray(tokens).astype(np.uint8).tobytes().decode("utf-8", "replace")
        return np.frombuffer(text.encode("utf-32-le"), np.uint32)


@cache
def _symbols() -> ndarray:
    """Of every code point what it is in a word, uint32: its lower case, with `ALONE` or without, or 0 for none."""
    symbols = np.zeros(POINTS, np.uint32)
    for point in range(LAST):
        letter = chr(point)
        group = unicodedata.category(letter)[0]
        if group in "LMN":
            symbols[point] = ord(letter.lower()[0])
        elif group in "PS":
            symbols[point] = point | ALONE
    symbols[ord("\N{REPLACEMENT CHARACTER}")] = 0
    for first, last in IDEOGRAPHS:
        here = symbols[first : last + 1]
        here[here > 0] |= np.uint32(ALONE)
    return symbols
