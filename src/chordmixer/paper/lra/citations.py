"""Pairs of papers from a list of citations: each that is there, and as many that are not.

Some papers are cited hundreds of times. A model that guessed `linked` for these would be right without reading the
other one, so false pairs are made of the same papers, each as often as in the true ones. All pairs of a citing paper
are in one part; cited papers are in several, so that a test asks about new papers that cite, often, known ones. What
stays to be guessed from: papers cite older ones, and papers of their own field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from chordmixer.data import draws
from chordmixer.data.splits import PARTS, grouped

FRACTIONS = (0.8, 0.1, 0.1)
"""Of the citations for training, validation and test: nearly those of the Arena's release."""
ATTEMPTS = 20
"""How often false pairs are tried for before it is given up."""

Pair = tuple[bytes, bytes, int]
"""Two documents, and 1 where they are linked."""


def read_citations(papers: Path, citations: Path, split: str, max_length: int, seed: int) -> Iterator[Pair]:
    """Each citation of a part between two known papers, and with the same citing paper one that is not there."""
    texts = _texts(papers, max_length)
    links: dict[frozenset[str], tuple[str, str]] = {}
    for citing, cited in _rows(citations, "citing", "cited"):
        if citing != cited and citing in texts and cited in texts:
            links.setdefault(frozenset((citing, cited)), (citing, cited))  # papers that cite each other are one pair
    if not links:
        raise ValueError(f"{citations} links no two papers of {papers}: give the two files of one set")
    pairs = list(links.values())
    part = grouped([citing for citing, _ in pairs], [1] * len(pairs), FRACTIONS, seed)[PARTS.index(split)]
    own = [pairs[i] for i in part]
    false = dealt(own, links, draws.key(seed, "retrieval", split))
    for (citing, cited), other in zip(own, false, strict=True):
        yield texts[citing], texts[cited], 1
        yield texts[citing], texts[other], 0


def dealt(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """The second papers dealt out anew, none to a first one that it is linked with, and none twice to the same.

    Each paper is thus in as many false pairs as true ones, on either side: one alone says nothing, only both do.

    >>> pairs = [("a", "x"), ("b", "y"), ("c", "z")]
    >>> dealt(pairs, {frozenset(pair) for pair in [*pairs, ("b", "x")]}, key=0)
    ['y', 'z', 'x']
    """
    for attempt in range(ATTEMPTS):
        if seconds := _dealt(pairs, links, draws.key(key, attempt)):
            return seconds
    raise ValueError(
        f"{len(pairs):,} citations of a part leave no false pairs of the same papers: nearly all are linked; give "
        "more papers and citations"
    )


def _dealt(pairs: Sequence[tuple[str, str]], links: Container[frozenset[str]], key: int) -> list[str]:
    """Shuffled; then each that may not be is swapped with another, or nothing where there is none to swap with."""
    firsts = [first for first, _ in pairs]
    seconds = [pairs[i][1] for i in draws.permutation(key, len(pairs)).tolist()]
    times = Counter(zip(firsts, seconds, strict=True))

    def may(place: int, second: str, most: int) -> bool:
        pair = firsts[place], second
        return firsts[place] != second and frozenset(pair) not in links and times[pair] < most

    for i in range(len(pairs)):
        if may(i, seconds[i], 2):  # it is counted itself
            continue
        others = draws.permutation(draws.key(key, i), len(pairs)).tolist()
        j = next((j for j in others if may(i, seconds[j], 1) and may(j, seconds[i], 1)), None)
        if j is None:
            return []
        times.subtract([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
        seconds[i], seconds[j] = seconds[j], seconds[i]
        times.update([(firsts[i], seconds[i]), (firsts[j], seconds[j])])
    return seconds


def _texts(path: Path, max_length: int) -> dict[str, bytes]:
    texts: dict[str, bytes] = {}
    for name, text in _rows(path, "id", "text"):
        if name in texts or not text:
            fault = "comes twice" if name in texts else "has no text"
            raise ValueError(f"{path}: paper {name!r} {fault}: every paper has an id of its own and a text; mend it")
        texts[name] = text[:max_length].encode()[:max_length]
    return texts


def _rows(path: Path, *names: str) -> Iterator[tuple[str, ...]]:
    """The rows of two columns of a Parquet file, some at a time."""
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if missing := set(names) - set(file.schema_arrow.names):
                raise ValueError(f"it has no column {min(missing)!r}")
            for batch in file.iter_batches(256, columns=list(names)):
                batch.validate(full=True)
                if empty := [name for name in names if batch.column(name).null_count]:
                    raise ValueError(f"its column {empty[0]!r} has rows without a value")
                yield from zip(*(map(str, batch.column(name).to_pylist()) for name in names), strict=True)
    except (ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{path} cannot be read ({reason}): use another copy") from None
