"""Statistics of a data set: lengths, letters, duplicates, classes, targets, and what gives the label away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.sketches import strand_digests
from chordmixer.data.store import Store
from chordmixer.data.tokenizers import NOT_FINITE, Numbers

BINS = 16
"""Bins of a histogram, at most."""
LARGE = 1e150
"""Numbers above it are scaled down first: their squares and sums overflow."""


@dataclass(frozen=True)
class TargetSummary:
    """Statistics of a column of targets."""

    records: int
    """With a target."""
    missing: int
    """Records without one."""
    quartiles: tuple[float, float, float, float, float]
    """Lowest, lower quartile, median, upper quartile, highest."""
    mean: float
    deviation: float
    """The standard deviation, of all records and not of a sample."""
    repeated: float
    """Share of the records whose target another record has as well."""
    commonest: float
    """The most frequent target, the lowest of several."""
    commonest_share: float
    """Share of the records that have it."""
    edges: tuple[float, ...]
    """Of the histogram: bin i holds targets in [edges[i], edges[i + 1]); the last bin includes its end."""
    histogram: tuple[int, ...]


def summarise_targets(numbers: ndarray) -> TargetSummary | None:
    """Summarise finite numbers; NaN is a record without a target. None if there is no number."""
    known = numbers[~np.isnan(numbers)].astype(np.float64)
    if not len(known):
        return None
    largest = float(np.abs(known).max())
    scale = largest if largest > LARGE else 1.0
    shares = known / scale
    values, counts = np.unique(known, return_counts=True)
    edges = np.unique(np.linspace(shares.min(), shares.max(), min(BINS, len(values)) + 1))
    edges = edges if len(edges) > 1 else np.repeat(edges, 2)
    lowest, lower, median, upper, highest = (np.percentile(shares, [0, 25, 50, 75, 100]) * scale).tolist()
    return TargetSummary(
        records=len(known),
        missing=len(numbers) - len(known),
        quartiles=(lowest, lower, median, upper, highest),
        mean=float(shares.mean()) * scale,
        deviation=float(shares.std()) * scale,
        repeated=float(counts[counts > 1].sum() / len(known)),
        commonest=float(values[counts.argmax()]),
        commonest_share=float(counts.max() / len(known)),
        edges=tuple((edges * scale).tolist()),
        histogram=tuple(np.histogram(shares, edges)[0].tolist()),
    )


PIECE = 1 << 20
"""Steps that are looked at together."""


@dataclass(frozen=True)
class Channels:
    """Statistics of each channel over all records, in the units of the files."""

    least: list[float]
    mean: list[float]
    deviation: list[float]
    """Standard deviation."""
    most: list[float]
    missing: int
    """Numbers of all channels that are NaN or infinite in the files."""
    numbers: int
    """All of them."""


def channels_of(store: Store) -> Channels | None:
    """None if the records are no series. A missing number counts as the mean, as it is stored."""
    tokenizer, values = store.tokenizer, store.values
    if not isinstance(tokenizer, Numbers):
        return None
    mean = values.mean(axis=0, dtype=np.float64)
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    squares = sum(((piece - mean) ** 2).sum(axis=0) for piece in pieces)
    scale, offset = np.array(tokenizer.scale or 1.0), np.array(tokenizer.mean or 0.0)
    rows = (values.min(axis=0), mean, values.max(axis=0))
    least, mean, most = ((row * scale + offset).tolist() for row in rows)
    deviation = (np.sqrt(squares / len(values)) * scale).tolist()
    return Channels(least, mean, deviation, most, missing=store.letters[NOT_FINITE], numbers=values.size)


PERCENTILES = (0, 1, 10, 25, 50, 75, 90, 99, 100)
SHOWN = 5
"""Ids that stand as examples."""
BATCH = 32
FOLDS = 5
LEVELS = 32
"""Groups of equal size, at most, into which length or GC content is cut to see whether it tells the label."""


@dataclass(frozen=True)
class Duplicates:
    """Records with the same tokens. Of three copies two are duplicates."""

    exact: int
    """Records that an earlier one equals."""
    reverse_complement: int | None
    """Further records whose other strand an earlier one equals; None where tokens have no other strand."""
    across_labels: int
    """Sequences, of either strand, that stand under more than one label, or target where there are no labels."""
    examples: list[list[str]]
    """Ids of the first few groups of equal records, those across labels first."""


@dataclass(frozen=True)
class Inspection:
    """All numbers of `chordmixer inspect`."""

    tokenizer: str
    records: int
    tokens: int
    percentiles: dict[int, int]
    """Percentiles of length, each the length of a record: 0 is the shortest, 50 the median."""
    edges: list[int]
    """Of the histogram: bin i holds lengths from edges[i] to edges[i + 1] - 1, in steps of equal ratio."""
    histogram: list[int]
    longest: list[tuple[str, int]]
    """Ids and lengths."""
    letters: dict[str, int]
    """Characters of the files, the most frequent first."""
    ambiguous: float | None
    """Share of tokens that stand for no single known letter; None where every token does."""
    gc: float | None
    """Share of G and C among A, C, G, T."""
    duplicates: Duplicates
    classes: dict[str, int]
    """Records of each label, the largest first."""
    unlabelled: int
    length_tells: float | None
    """ROC-AUC of length alone, as `tells_label` measures it; None without classes."""
    gc_tells: float | None
    """The same for GC content."""
    padding_in_batch: float
    """Share of padding if random batches of 32 were padded to their longest."""
    padding_to_longest: float
    """Share of padding if every record were padded to the longest of all."""
    account: Account
    targets: TargetSummary | None = None
    """The numbers to predict; None where there are none."""
    channels: Channels | None = None
    """Statistics of real-valued series; None for letters and text."""


def inspect(
    store: Store,
    labels: Sequence[str | None] | None = None,
    numbers: ndarray | None = None,
    separator: str | None = None,
) -> Inspection:
    """Inspect a store; labels are its own unless given, several per record with a `separator`.

    `numbers` are targets, NaN for none.
    """
    if labels is None:
        labels = store.column("label").tolist() if "label" in store.columns else [None] * len(store)
    for name, column in (("labels", labels), ("numbers", numbers)):
        if column is not None and len(column) != len(store):
            raise ValueError(f"{len(column):,} {name} for {len(store):,} records: give one each, None for none")
    lengths = store.lengths
    given = [label for label in labels if label is not None]
    parts = (part.strip() for label in given for part in label.split(separator))
    classes = Counter(given if separator is None else filter(None, parts))
    tokenizer, sequences = store.tokenizer, [store.tokens(i) for i in range(len(store))]
    known, gc_shares, gc = lengths, None, None
    if tokenizer.certain < tokenizer.size:
        known = np.array([np.count_nonzero(tokens < tokenizer.certain) for tokens in sequences])
    if isinstance(tokenizer, Dna):
        strong = np.array([np.count_nonzero((tokens == 1) | (tokens == 2)) for tokens in sequences])
        gc_shares = np.divide(strong, known, out=np.full(len(store), np.nan), where=known > 0)
        gc = float(strong.sum() / known.sum()) if known.any() else None
    edges, histogram = length_histogram(lengths)
    percentiles = np.percentile(lengths, PERCENTILES, method="inverted_cdf").astype(int).tolist()
    longest = np.argsort(-lengths, kind="stable")[:SHOWN].tolist()
    codes = _codes(labels) if given else None
    single = None if separator is not None else codes
    return Inspection(
        tokenizer=tokenizer.name,
        records=len(store),
        tokens=int(lengths.sum()),
        percentiles=dict(zip(PERCENTILES, percentiles, strict=True)),
        edges=edges,
        histogram=histogram,
        longest=[(store.id(i), int(lengths[i])) for i in longest],
        letters=dict(store.letters.most_common()),
        ambiguous=float((lengths - known).sum() / lengths.sum()) if tokenizer.certain < tokenizer.size else None,
        gc=gc,
        duplicates=_duplicates(store, sequences, codes if numbers is None or given else _codes(numbers.tolist())),
        classes=dict(classes.most_common()),
        unlabelled=len(store) - len(given),
        length_tells=None if single is None else tells_label(lengths, single),
        gc_tells=None if single is None or gc_shares is None else tells_label(gc_shares, single),
        padding_in_batch=padding(lengths, BATCH),
        padding_to_longest=padding(lengths, len(lengths)),
        account=store.account,
        targets=None if numbers is None else summarise_targets(numbers),
        channels=channels_of(store),
    )


def _codes(values: Sequence[str | float | None]) -> ndarray:
    """A number for each different value, -1 for none."""
    known = dict.fromkeys(value for value in values if value is not None and value == value)
    code: dict[str | float | None, int] = {value: number for number, value in enumerate(known)}
    return np.array([code.get(value, -1) for value in values])


def length_histogram(lengths: ndarray) -> tuple[list[int], list[int]]:
    """Edges in steps of equal ratio, in whole numbers, and how many lengths stand between them."""
    low, high = int(lengths.min()), int(lengths.max()) + 1
    edges = np.unique(np.rint(np.geomspace(low, high, BINS + 1)).astype(np.int64))
    return edges.tolist(), np.histogram(lengths, edges)[0].tolist()


def padding(lengths: ndarray, batch: int) -> float:
    """Share of padding if random batches of so many records were padded to their longest."""
    shuffled = np.random.default_rng(0).permutation(lengths)
    starts = np.arange(0, len(lengths), batch)
    sizes = np.diff(np.append(starts, len(lengths)))
    return 1 - float(lengths.sum()) / float((np.maximum.reduceat(shuffled, starts) * sizes).sum())


def tells_label(values: ndarray, codes: ndarray) -> float | None:
    """Whether one number a record predicts its class: ROC-AUC, mean over the classes, each against the rest.

    Cross-validated, so that it is near 0.5 where there is no signal, for small classes too; and by how often a class
    occurs among records of similar value (32 groups), so that a class in the middle is seen as well. Classes of fewer
    than 5 records, and codes below 0, are left out; None where fewer than two classes are left.
    """
    sizes = np.bincount(codes[codes >= 0], minlength=1)
    kept = np.flatnonzero(sizes >= FOLDS)
    inside = np.isin(codes, kept) & np.isfinite(values)
    if len(kept) < 2 or not inside.any():
        return None
    values, codes = values[inside], np.searchsorted(kept, codes[inside])
    levels = max(2, min(LEVELS, len(codes) // 25))
    edges = np.unique(np.quantile(values, np.arange(1, levels) / levels))
    cells = _folds(codes) * levels + np.searchsorted(edges, values, side="right")
    shape = (len(kept), FOLDS, levels)
    counts = np.bincount(codes * FOLDS * levels + cells, minlength=np.prod(shape)).reshape(shape)
    total = counts.sum(axis=0)
    return float(np.mean([_auc(own, total) for own in counts]))


def _folds(codes: ndarray) -> ndarray:
    """A fold each, at random, every class spread evenly."""
    order = np.random.default_rng(0).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    folds = np.empty(len(codes), dtype=np.int64)
    folds[order] = np.arange(len(codes)) % FOLDS
    return folds


def _auc(own: ndarray, total: ndarray) -> float:
    """ROC-AUC of one class from the counts of its records and of all records by (fold, level); mean over folds."""
    seen, among = own.sum(axis=0) - own, total.sum(axis=0) - total  # in the other folds
    rate = own.sum() / total.sum()
    scores = (seen + rate) / (among + 1)
    above = np.sign(scores[:, :, None] - scores[:, None, :]) / 2 + 0.5  # 1 higher, 0.5 equal, 0 lower
    wins = np.einsum("fi,fij,fj->f", own, above, total - own)
    pairs = own.sum(axis=1) * (total - own).sum(axis=1)
    return float(np.mean(wins[pairs > 0] / pairs[pairs > 0]))


def _duplicates(store: Store, sequences: Sequence[ndarray], codes: ndarray | None) -> Duplicates:
    tokenizer = store.tokenizer
    digests = strand_digests(sequences, None if tokenizer.complement is None else tokenizer.reverse_complement)
    distinct = len(np.unique(digests[:, 0]))
    _, group, sizes = np.unique(digests.min(axis=1), return_inverse=True, return_counts=True)
    crossing = np.zeros(len(sizes), dtype=bool)
    if codes is not None:
        pairs = np.unique(np.stack([group[codes >= 0], codes[codes >= 0]]), axis=1)
        crossing = np.bincount(pairs[0], minlength=len(sizes)) > 1
    shown = [*np.flatnonzero(crossing), *np.flatnonzero((sizes > 1) & ~crossing)][:SHOWN]
    return Duplicates(
        exact=len(store) - distinct,
        reverse_complement=None if tokenizer.complement is None else distinct - len(sizes),
        across_labels=int(crossing.sum()),
        examples=[[store.id(int(i)) for i in np.flatnonzero(group == g)[:SHOWN]] for g in shown],
    )
