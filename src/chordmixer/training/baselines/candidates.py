"""Features that baselines choose from, for each kind of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import ndarray

from chordmixer.data.features import TextWords
from chordmixer.training.baselines.features import BITS as DEFAULT_BITS
from chordmixer.training.baselines.features import ENTRIES, Features, Frequencies, Grams, SeriesRows, TfIdf
from chordmixer.training.baselines.positions import Positions

LETTERS = {"dna": 4, "operations": 15, "protein": 20}
"""Of kinds that have few: the shares of all their k-mers are features, where these are not too many."""
SINGLE = {"dna": (4, 6, 8, 10), "operations": (2,), "protein": (2, 3, 4), "text": (5,)}
"""Lengths of k-mers where each is counted alone."""
SETS: dict[str, tuple[tuple[int, ...], ...]] = {
    "dna": ((4,), (6,), (8,), (10,), (4, 6, 8), (6, 8, 10)),
    "operations": ((2,),),
    "protein": ((2,), (3,), (1, 2), (2, 3, 4), (3, 4, 5)),
    "text": ((5,), (4, 5, 6)),
}
"""Lengths of k-mers that are counted together; of several, in one TF-IDF matrix."""
WORDS = {(1, 2): "words and pairs of them", (1, 2, 3): "words, pairs and triples of them"}
"""Lengths of runs of words that are counted together, where tokens make words."""
BITS = {"dna": 21, "text": 21}
"""Of a hashed feature's number, where the default makes too many share one: there are a million 10-mers, and a text
has some 400,000 5-grams."""
COMPOSED = {"dna": (3, 4), "protein": (1,)}
"""Lengths whose shares are taken together with the logarithm of the length."""
NEAR = {"dna": 8, "protein": 3, "text": 4}
"""K-mers of at least this length find nearest neighbours."""
LONG = 40_000_000
"""Training tokens beyond which each length is counted alone: several together cost as much as each of them."""
FEW, ALL = 256, 4096
"""K-mers whose shares are features: always, and where records are long enough to fill their table."""
SHORT = 200
"""Mean length of texts up to which `BRIEF` and characters by position are tried: names and formulas, not prose."""
BRIEF = (1, 2, 3)
"""Lengths of n-grams of such texts, besides those of all."""
KINDS = (*SINGLE, "real")


@dataclass(frozen=True)
class Candidate:
    """Features that can be fitted."""

    kind: str
    k: tuple[int, ...] = ()
    length: bool = False
    dense: bool = False
    words: TextWords | None = None
    """Makes words of tokens, runs of which are then counted."""
    positions: bool = False
    """Which letter stands at which position, in place of counts."""

    @property
    def neighbours(self) -> bool:
        """Whether nearest neighbours are looked for: short k-mers, which all records share, say little of them."""
        return (
            not (self.dense or self.words or self.positions) and self.kind in NEAR and min(self.k) >= NEAR[self.kind]
        )

    @property
    def trees(self) -> bool:
        """Whether trees are grown: on features that are few, or of which each says something of its own."""
        return self.length or self.kind == "real"

    @property
    def name(self) -> str:
        """As in '6-, 8- and 10-mers'."""
        if self.kind == "real":
            return "series features"
        if self.words:
            return WORDS[self.k]
        if self.positions:
            return "characters by position" if self.kind == "text" else "letters by position"
        noun = "mers" if self.kind in ("dna", "protein") else "grams"
        if self.k == (1,) and self.length:
            return "composition and length"
        *first, last = map(str, self.k)
        mers = f"{', '.join(f'{k}-' for k in first)} and {last}-{noun}" if first else f"{last}-{noun}"
        return f"{mers} and length" if self.length else mers

    @property
    def sentence(self) -> str:
        """What is looked at."""
        if self.kind == "real":
            return "amplitudes, spectrum, autocorrelation and 84 fixed convolutions of each channel, standardised"
        if self.positions:
            return f"which of the {self.name.split()[0]} stands at each position from the start and from the end"
        if self.length:
            count = sum(LETTERS[self.kind] ** k for k in self.k)
            what = "letters" if self.k == (1,) else "k-mers of these lengths"
            return f"the shares of the {count} {what} and the logarithm of the length, standardised"
        if self.dense:
            return f"the frequencies of all {LETTERS[self.kind] ** self.k[0]:,} {self.name}, standardised"
        return f"hashed counts of {self.name}, weighted by how rare each is (TF-IDF)"

    def fit(self, training: Sequence[ndarray], room: int) -> tuple[Features, Any]:
        """Features of training records, and their rows; sparse ones have at most `room` entries."""
        if self.kind == "real":
            return SeriesRows.fit(training)
        if self.positions:
            found = Positions.fit(training, LETTERS.get(self.kind))
            return found, found(training)
        grams = [Grams(k, LETTERS.get(self.kind)) for k in self.k]
        features: Features
        if self.dense:
            features = Frequencies.fit(training, grams, self.length)
        else:
            features = TfIdf.fit(training, grams, room, self.words, BITS.get(self.kind, DEFAULT_BITS))
        return features, features(training)


def candidates(
    kind: str, records: int, tokens: int, k: int = 0, single: bool = False, words: TextWords | None = None
) -> Iterator[Candidate]:
    """All for a kind of tokens, of so many training records and tokens; where tokens make words, also of these.

    >>> [own.name for own in candidates("text", 100, 100_000)]
    ['5-grams', '4-, 5- and 6-grams']
    """
    if kind == "real":
        yield Candidate(kind)
        return
    alone = tuple((own,) for own in SINGLE[kind])
    brief = kind == "text" and tokens <= SHORT * records
    several = (*SETS[kind], BRIEF) if brief else SETS[kind]
    for own in ((k,),) if k else alone if single or tokens > LONG else several:
        size = LETTERS[kind] ** own[0] if len(own) == 1 and kind in LETTERS else ALL + 1
        filled = size <= min(ALL, tokens / max(records, 1)) and size * records <= ENTRIES
        yield Candidate(kind, own, dense=size <= FEW or filled)
    if k or single:
        return
    if kind in COMPOSED and records * sum(LETTERS[kind] ** own for own in COMPOSED[kind]) <= ENTRIES:
        yield Candidate(kind, COMPOSED[kind], length=True, dense=True)
    if kind in ("dna", "protein") or brief:
        yield Candidate(kind, positions=True)
    for own in [*WORDS][: 1 if tokens > LONG else None] if words else ():
        yield Candidate(kind, own, words=words)
