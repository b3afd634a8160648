"""The feature sets that baselines are fitted on, for each kind of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import ndarray

from chordmixer.data.features import TextWords
from chordmixer.training.baselines.features import HASH_BITS as DEFAULT_BITS
from chordmixer.training.baselines.features import MAX_ENTRIES, Features, Frequencies, Grams, SeriesRows, TfIdf
from chordmixer.training.baselines.positions import Positions

LETTERS = {"dna": 4, "operations": 15, "protein": 20}
"""Alphabet size of the kinds whose k-mers can all be columns of a table."""
SINGLE_LENGTHS = {"dna": (4, 6, 8, 10), "operations": (2,), "protein": (2, 3, 4), "text": (5,)}
"""Values of k where each k-mer length is a candidate of its own."""
LENGTH_SETS: dict[str, tuple[tuple[int, ...], ...]] = {
    "dna": ((4,), (6,), (8,), (10,), (4, 6, 8), (6, 8, 10)),
    "operations": ((2,),),
    "protein": ((2,), (3,), (1, 2), (2, 3, 4), (3, 4, 5)),
    "text": ((5,), (4, 5, 6)),
}
"""Values of k of each candidate; several lengths share one TF-IDF matrix."""
WORD_RUNS = {(1, 2): "words and pairs of them", (1, 2, 3): "words, pairs and triples of them"}
"""Numbers of consecutive words that are counted, for texts that have words."""
BITS = {"dna": 21, "text": 21}
"""Bits of a feature hash, where the default has too many collisions: there are a million 10-mers of DNA, and a text
has about 400,000 distinct 5-grams."""
COMPOSITION_LENGTHS = {"dna": (3, 4), "protein": (1,)}
"""Values of k whose frequencies are combined with the logarithm of the length."""
NEIGHBOUR_K = {"dna": 8, "protein": 3, "text": 4}
"""Smallest k for nearest neighbours. Shorter k-mers are shared by all records."""
LARGE_TOKENS = 40_000_000
"""Number of training tokens above which only single k-mer lengths are candidates, to save time."""
SMALL_TABLE, MAX_TABLE = 256, 4096
"""Number of k-mers up to which frequencies replace hashed counts: always, and where records are as long as that."""
SHORT_TEXT = 200
"""Mean length of texts up to which `SHORT_GRAMS` and characters by position are candidates: names and formulas."""
SHORT_GRAMS = (1, 2, 3)
"""Additional n-gram lengths for short texts."""
KINDS = (*SINGLE_LENGTHS, "real")


@dataclass(frozen=True)
class Candidate:
    """A set of features that a baseline can be fitted on."""

    kind: str
    k: tuple[int, ...] = ()
    length: bool = False
    dense: bool = False
    words: TextWords | None = None
    """Splits texts into words, whose runs are counted instead of characters."""
    positions: bool = False
    """One-hot letters by position instead of counts."""

    @property
    def neighbours(self) -> bool:
        """Whether nearest neighbours are fitted: only on hashed counts of k-mers that are long enough to be rare."""
        hashed = not (self.dense or self.words or self.positions)
        return hashed and self.kind in NEIGHBOUR_K and min(self.k) >= NEIGHBOUR_K[self.kind]

    @property
    def trees(self) -> bool:
        """Whether trees are fitted: only on small tables of interpretable features."""
        return self.length or self.kind == "real"

    @property
    def name(self) -> str:
        """The name in reports, such as '6-, 8- and 10-mers'."""
        if self.kind == "real":
            return "series features"
        if self.words:
            return WORD_RUNS[self.k]
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
        """A description of the features for reports."""
        if self.kind == "real":
            return "amplitudes, spectrum, autocorrelation and 84 fixed convolutions of each channel, standardised"
        if self.positions:
            return f"one-hot {self.name.split()[0]} at each position from the start and from the end"
        if self.length:
            count = sum(LETTERS[self.kind] ** k for k in self.k)
            what = "letters" if self.k == (1,) else "k-mers of these lengths"
            return f"the frequencies of the {count} {what} and the logarithm of the length, standardised"
        if self.dense:
            return f"the frequencies of all {LETTERS[self.kind] ** self.k[0]:,} {self.name}, standardised"
        return f"hashed counts of {self.name}, weighted by rarity (TF-IDF)"

    def fit(self, training: Sequence[ndarray], room: int) -> tuple[Features, Any]:
        """Fit the features on training records, and return them with the rows of these records.

        Sparse rows have at most `room` entries in all.
        """
        if self.kind == "real":
            return SeriesRows.fit(training)
        if self.positions:
            positions = Positions.fit(training, LETTERS.get(self.kind))
            return positions, positions(training)
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
    """All feature sets for a kind of tokens and a number of training records and tokens.

    `k` allows a single k-mer length only; `single` allows no sets of several lengths; `words` adds words of texts.

    >>> [candidate.name for candidate in candidates("text", 100, 100_000)]
    ['5-grams', '4-, 5- and 6-grams']
    """
    if kind == "real":
        yield Candidate(kind)
        return
    is_short_text = kind == "text" and tokens <= SHORT_TEXT * records
    if k:
        length_sets: tuple[tuple[int, ...], ...] = ((k,),)
    elif single or tokens > LARGE_TOKENS:
        length_sets = tuple((length,) for length in SINGLE_LENGTHS[kind])
    else:
        length_sets = (*LENGTH_SETS[kind], SHORT_GRAMS) if is_short_text else LENGTH_SETS[kind]
    for lengths in length_sets:
        yield Candidate(kind, lengths, dense=_fits_a_table(kind, lengths, records, tokens))
    if k or single:
        return
    composition = COMPOSITION_LENGTHS.get(kind, ())
    if composition and records * sum(LETTERS[kind] ** length for length in composition) <= MAX_ENTRIES:
        yield Candidate(kind, composition, length=True, dense=True)
    if kind in ("dna", "protein") or is_short_text:
        yield Candidate(kind, positions=True)
    if words:
        for run_lengths in [*WORD_RUNS][: 1 if tokens > LARGE_TOKENS else None]:
            yield Candidate(kind, run_lengths, words=words)


def _fits_a_table(kind: str, lengths: tuple[int, ...], records: int, tokens: int) -> bool:
    """Whether the frequencies of all k-mers are features: a single length, with few k-mers or with long records."""
    if len(lengths) > 1 or kind not in LETTERS:
        return False
    kmers: int = LETTERS[kind] ** lengths[0]
    return kmers <= SMALL_TABLE or (
        kmers <= min(MAX_TABLE, tokens / max(records, 1)) and kmers * records <= MAX_ENTRIES
    )
