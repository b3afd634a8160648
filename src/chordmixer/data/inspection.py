"""Statistics of a data set: lengths, letters, duplicates, classes, targets, and label leakage by length or GC."""

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
"""Maximum number of bins of a histogram."""
LARGE = 1e150
"""Numbers above it are scaled down first, since their squares and sums overflow."""


@dataclass(frozen=True)
class TargetSummary:
    """Statistics of a column of targets."""

    records: int
    """Number of records with a target."""
    missing: int
    """Number of records without a target."""
    quartiles: tuple[float, float, float, float, float]
    """Minimum, lower quartile, median, upper quartile, maximum."""
    mean: float
    deviation: float
    """Standard deviation of the population."""
    repeated: float
    """Share of the records whose target occurs in another record as well."""
    commonest: float
    """The most frequent target; the lowest if there are several."""
    commonest_share: float
    """Share of the records with the most frequent target."""
    edges: tuple[float, ...]
    """Edges of the histogram: bin i holds targets in [edges[i], edges[i + 1]); the last bin includes its end."""
    histogram: tuple[int, ...]


def summarise_targets(numbers: ndarray) -> TargetSummary | None:
    """Summarise finite targets; NaN is a record without a target. None if there are no targets."""
    known = numbers[~np.isnan(numbers)].astype(np.float64)
    if not len(known):
        return None
    largest = float(np.abs(known).max())
    scale = largest if largest > LARGE else 1.0
    scaled = known / scale
    values, counts = np.unique(known, return_counts=True)
    edges = np.unique(np.linspace(scaled.min(), scaled.max(), min(BINS, len(values)) + 1))
    edges = edges if len(edges) > 1 else np.repeat(edges, 2)
    lowest, lower, median, upper, highest = (np.percentile(scaled, [0, 25, 50, 75, 100]) * scale).tolist()
    return TargetSummary(
        records=len(known),
        missing=len(numbers) - len(known),
        quartiles=(lowest, lower, median, upper, highest),
        mean=float(scaled.mean()) * scale,
        deviation=float(scaled.std()) * scale,
        repeated=float(counts[counts > 1].sum() / len(known)),
        commonest=float(values[counts.argmax()]),
        commonest_share=float(counts.max() / len(known)),
        edges=tuple((edges * scale).tolist()),
        histogram=tuple(np.histogram(scaled, edges)[0].tolist()),
    )


PIECE = 1 << 20
"""Time steps that are processed at a time."""


@dataclass(frozen=True)
class Channels:
    """Statistics of each channel over all records, in the units of the files."""

    least: list[float]
    mean: list[float]
    deviation: list[float]
    """Standard deviation."""
    most: list[float]
    missing: int
    """Count of NaN and infinite numbers in the files, over all channels."""
    numbers: int
    """Count of all numbers, over all channels."""


def channels_of(store: Store) -> Channels | None:
    """Statistics of the channels; None if the records are not series. Missing numbers are stored as the mean."""
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
"""Number of ids shown as examples."""
BATCH = 32
FOLDS = 5
LEVELS = 32
"""Maximum number of equal-sized bins of length or GC content, to measure whether it predicts the label."""


@dataclass(frozen=True)
class Duplicates:
    """Counts of records with the same tokens. Of three copies two are duplicates."""

    exact: int
    """Records that equal an earlier one."""
    reverse_complement: int | None
    """Further records whose reverse complement equals an earlier one; None if tokens have no complement."""
    across_labels: int
    """Distinct sequences, of either strand, with more than one label, or more than one target without labels."""
    examples: list[list[str]]
    """Ids of the first few groups of equal records, those across labels first."""


@dataclass(frozen=True)
class Inspection:
    """The results of `chordmixer inspect`."""

    tokenizer: str
    records: int
    tokens: int
    percentiles: dict[int, int]
    """Percentiles of length, each the length of a record: 0 is the shortest, 50 the median."""
    edges: list[int]
    """Edges of the histogram: bin i holds lengths from edges[i] to edges[i + 1] - 1, in steps of equal ratio."""
    histogram: list[int]
    longest: list[tuple[str, int]]
    """Ids and lengths of the longest records."""
    letters: dict[str, int]
    """Counts of the characters in the files, the most frequent first."""
    ambiguous: float | None
    """Share of ambiguous or unknown tokens; None if the tokenizer has none."""
    gc: float | None
    """Share of G and C among A, C, G, T."""
    duplicates: Duplicates
    classes: dict[str, int]
    """Number of records of each label, the largest first."""
    unlabelled: int
    length_tells: float | None
    """ROC-AUC of length alone, as `tells_label` measures it; None without classes."""
    gc_tells: float | None
    """ROC-AUC of GC content alone; None without classes or for other tokens than DNA."""
    padding_in_batch: float
    """Share of padding if random batches of 32 records were padded to their longest."""
    padding_to_longest: float
    """Share of padding if every record were padded to the longest of all records."""
    account: Account
    targets: TargetSummary | None = None
    """Statistics of the numbers to predict; None without such targets."""
    channels: Channels | None = None
    """Statistics of real-valued series; None for letters and text."""


def inspect(
    store: Store,
    labels: Sequence[str | None] | None = None,
    numbers: ndarray | None = None,
    separator: str | None = None,
) -> Inspection:
    """Inspect a store. `labels` default to its column; a `separator` splits several labels of a record.

    `numbers` are the targets of a regression, NaN for none.
    """
    if labels is None:
        labels = store.column("label").tolist() if "label" in store.columns else [None] * len(store)
    for name, column in (("labels", labels), ("numbers", numbers)):
        if column is not None and len(column) != len(store):
            raise ValueError(f"{len(column):,} {name} for {len(store):,} records: give one each, None for none")
    lengths = store.lengths
    present = [label for label in labels if label is not None]
    parts = (part.strip() for label in present for part in label.split(separator))
    classes = Counter(present if separator is None else filter(None, parts))
    tokenizer, sequences = store.tokenizer, [store.tokens(i) for i in range(len(store))]
    certain, gc_shares, gc = lengths, None, None
    if tokenizer.certain < tokenizer.size:
        certain = np.array([np.count_nonzero(tokens < tokenizer.certain) for tokens in sequences])
    if isinstance(tokenizer, Dna):
        gc_counts = np.array([np.count_nonzero((tokens == 1) | (tokens == 2)) for tokens in sequences])
        gc_shares = np.divide(gc_counts, certain, out=np.full(len(store), np.nan), where=certain > 0)
        gc = float(gc_counts.sum() / certain.sum()) if certain.any() else None
    edges, histogram = length_histogram(lengths)
    percentiles = np.percentile(lengths, PERCENTILES, method="inverted_cdf").astype(int).tolist()
    longest = np.argsort(-lengths, kind="stable")[:SHOWN].tolist()
    codes = _codes(labels) if present else None
    single_codes = None if separator is not None else codes
    return Inspection(
        tokenizer=tokenizer.name,
        records=len(store),
        tokens=int(lengths.sum()),
        percentiles=dict(zip(PERCENTILES, percentiles, strict=True)),
        edges=edges,
        histogram=histogram,
        longest=[(store.id(i), int(lengths[i])) for i in longest],
        letters=dict(store.letters.most_common()),
        ambiguous=float((lengths - certain).sum() / lengths.sum()) if tokenizer.certain < tokenizer.size else None,
        gc=gc,
        duplicates=_duplicates(store, sequences, codes if numbers is None or present else _codes(numbers.tolist())),
        classes=dict(classes.most_common()),
        unlabelled=len(store) - len(present),
        length_tells=None if single_codes is None else tells_label(lengths, single_codes),
        gc_tells=None if single_codes is None or gc_shares is None else tells_label(gc_shares, single_codes),
        padding_in_batch=padding(lengths, BATCH),
        padding_to_longest=padding(lengths, len(lengths)),
        account=store.account,
        targets=None if numbers is None else summarise_targets(numbers),
        channels=channels_of(store),
    )


def _codes(values: Sequence[str | float | None]) -> ndarray:
    """An integer code for each distinct value, -1 for None and NaN."""
    known = dict.fromkeys(value for value in values if value is not None and value == value)
    code: dict[str | float | None, int] = {value: number for number, value in enumerate(known)}
    return np.array([code.get(value, -1) for value in values])


def length_histogram(lengths: ndarray) -> tuple[list[int], list[int]]:
    """Integer edges in steps of equal ratio, and the number of lengths between them."""
    low, high = int(lengths.min()), int(lengths.max()) + 1
    edges = np.unique(np.rint(np.geomspace(low, high, BINS + 1)).astype(np.int64))
    return edges.tolist(), np.histogram(lengths, edges)[0].tolist()


def padding(lengths: ndarray, batch: int) -> float:
    """Share of padding if random batches of `batch` records were padded to their longest."""
    shuffled = np.random.default_rng(0).permutation(lengths)
    starts = np.arange(0, len(lengths), batch)
    sizes = np.diff(np.append(starts, len(lengths)))
    return 1 - float(lengths.sum()) / float((np.maximum.reduceat(shuffled, starts) * sizes).sum())


def tells_label(values: ndarray, codes: ndarray) -> float | None:
    """ROC-AUC of predicting the class from one number per record: mean over the classes, each against the rest.

    The score of a record is the frequency of the class among records of similar value (up to 32 bins), so that a
    class of middle values counts as predictable too. It is cross-validated, so that the area is near 0.5 without
    signal, for small classes too. Classes of fewer than 5 records and codes below 0 are left out; None if fewer
    than two classes remain.
    """
    sizes = np.bincount(codes[codes >= 0], minlength=1)
    classes = np.flatnonzero(sizes >= FOLDS)
    used = np.isin(codes, classes) & np.isfinite(values)
    if len(classes) < 2 or not used.any():
        return None
    values, codes = values[used], np.searchsorted(classes, codes[used])
    levels = max(2, min(LEVELS, len(codes) // 25))
    edges = np.unique(np.quantile(values, np.arange(1, levels) / levels))
    cells = _folds(codes) * levels + np.searchsorted(edges, values, side="right")
    shape = (len(classes), FOLDS, levels)
    counts = np.bincount(codes * FOLDS * levels + cells, minlength=np.prod(shape)).reshape(shape)
    total = counts.sum(axis=0)
    return float(np.mean([_auc(positives, total) for positives in counts]))


def _folds(codes: ndarray) -> ndarray:
    """A random fold for each record, each class spread evenly over the folds."""
    order = np.random.default_rng(0).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    folds = np.empty(len(codes), dtype=np.int64)
    folds[order] = np.arange(len(codes)) % FOLDS
    return folds


def _auc(positives: ndarray, total: ndarray) -> float:
    """ROC-AUC of one class from the counts of its records and of all records by (fold, level); mean over folds."""
    training, training_total = positives.sum(axis=0) - positives, total.sum(axis=0) - total  # in the other folds
    rate = positives.sum() / total.sum()
    scores = (training + rate) / (training_total + 1)
    above = np.sign(scores[:, :, None] - scores[:, None, :]) / 2 + 0.5  # 1 higher, 0.5 equal, 0 lower
    wins = np.einsum("fi,fij,fj->f", positives, above, total - positives)
    pairs = positives.sum(axis=1) * (total - positives).sum(axis=1)
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
