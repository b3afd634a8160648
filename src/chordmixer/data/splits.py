"""The split into training, validation and test records, a function of the data and a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer.config import MOST_MEMBERS, check_numbers
from chordmixer.data import draws
from chordmixer.data.columns import SPLITS
from chordmixer.data.leakage import copies, digests
from chordmixer.data.sketches import SketchConfig, clusters, sketch_all

PARTS = ("training", "validation", "test")
BINS = 10
"""Bins of a regression's targets, by rank, for stratification."""

Targets = Sequence[Hashable] | ndarray
"""A label a record, real numbers (float), or for several labels a record a matrix of zeros and ones."""


@dataclass(frozen=True)
class SplitConfig:
    """How records are split."""

    method: Literal["auto", "given", "random", "grouped", "similarity"] = "auto"
    """`auto`: as the data say; else by their groups; else at random. Copies never cross a split made at random."""
    fractions: tuple[float, ...] = (0.7, 0.1, 0.2)
    """For training, validation and test."""
    seed: int = 0
    """Another seed, another split."""
    folds: int = 0
    """Parts into which the records of training and validation are divided together, for cross-validation: 2 to 20. A
    run on files then trains a member for each (`--folds`). Default 0: none."""
    fold: int | None = None
    """The fold that a member of such a run validates on; it trains on the others. Default: none, the whole run."""

    def __post_init__(self) -> None:
        if len(self.fractions) != len(PARTS):
            raise ValueError(f"split fractions {list(self.fractions)} are not three: give training, validation, test")
        _check(self.fractions)
        check_numbers(self, folds=(0, MOST_MEMBERS))
        if self.folds == 1:
            raise ValueError(f"folds=1 leaves nothing to train on: give 2 to {MOST_MEMBERS}, or 0 for none")
        if self.fold is not None and not 0 <= self.fold < self.folds:
            raise ValueError(f"fold={self.fold} is not one of folds={self.folds}: they are counted from 0")

    def describe(self, method: str, sizes: dict[str, int]) -> dict[str, Any]:
        """The split as data.json records it."""
        return {"method": method, "seed": self.seed, "fractions": list(self.fractions), "sizes": sizes}


@dataclass(frozen=True)
class Split:
    """The records of each part, in ascending order."""

    training: ndarray
    validation: ndarray
    test: ndarray
    method: str
    """How it came about: `given`, `random`, `grouped` or `similarity`."""

    @property
    def parts(self) -> dict[str, ndarray]:
        return {part: getattr(self, part) for part in PARTS}

    def check(self, noun: str, cure: str) -> Split:
        """The same split, if no part is empty."""
        for part, records in self.parts.items():
            if not len(records):
                raise ValueError(f"the {part} part has no {noun}: every part needs one; give {cure}")
        return self


def split(
    targets: Targets,
    config: SplitConfig,
    splits: Sequence[str | None] | None = None,
    groups: Sequence[Hashable] | None = None,
    sequences: Sequence[ndarray] | None = None,
    kind: str = "",
) -> Split:
    """Split records as `config` says.

    `splits` and `groups` are columns of the data; a record whose group is None stands alone. `sequences` are token
    ids, of the kind `dna`, `protein` or `text`: copies among them stay together, and for `similarity` near ones too.

    >>> halves = SplitConfig(fractions=(0.5, 0.25, 0.25))
    >>> split(["a", "b"] * 4, halves, groups=["x", "x", "y", "y", "z", "z", "w", "w"]).parts["training"].tolist()
    [4, 5, 6, 7]
    """
    if not len(targets):
        raise ValueError("0 records cannot be split: the data are empty, or all records were rejected; give others")
    have = {"given": splits, "grouped": groups, "similarity": sequences}
    present = {name: column is not None and any(v is not None for v in column) for name, column in have.items()}
    method = config.method
    if method == "auto":
        method = "given" if present["given"] else "grouped" if present["grouped"] else "random"
    if method != "random" and not present[method]:
        wanted = {"given": "a split column", "grouped": "groups", "similarity": "sequences of letters"}[method]
        raise ValueError(f"split method {method!r} needs {wanted}, which the data lack: give them or another method")
    together = _together(method, len(targets), groups if present["grouped"] else None, sequences, kind)
    noun = "groups" if present["grouped"] and method != "random" else "different records"
    if method == "given":
        parts = given(splits or [])
        if not len(parts["validation"]):
            chosen, share = parts["training"], config.fractions[1] / sum(config.fractions[:2])
            kept, held = _share_out(together[chosen], _of(targets, chosen), (1 - share, share), config.seed, noun)
            parts |= {"training": chosen[kept], "validation": chosen[held]}
    else:
        shared = _share_out(together, targets, config.fractions, config.seed, noun)
        parts = dict(zip(PARTS, shared, strict=True))
    if config.fold is not None:
        parts |= _fold(parts, together, targets, config, noun)
    return Split(**parts, method=method)


def _fold(
    parts: dict[str, ndarray], together: ndarray, targets: Targets, config: SplitConfig, noun: str
) -> dict[str, ndarray]:
    """Training and validation records of one fold; the test records stay apart."""
    assert config.fold is not None, "it is a member's split"
    pool = np.sort(np.concatenate([parts["training"], parts["validation"]]))
    try:
        folds = _share_out(together[pool], _of(targets, pool), [1 / config.folds] * config.folds, config.seed, noun)
    except ValueError as error:
        raise ValueError(f"{config.folds} folds are too many: {error}") from None
    held = folds[config.fold]
    return {"training": np.delete(pool, held), "validation": pool[held]}


def _of(targets: Targets, records: ndarray) -> Targets:
    return [targets[i] for i in records] if isinstance(targets, Sequence) else targets[records]


def given(splits: Sequence[str | None]) -> dict[str, ndarray]:
    """The records of each part as a column names them; the validation part may be empty."""
    folded = [(name or "").strip().casefold() for name in splits]
    named = [SPLITS.get(name, name) for name in folded]
    for name, count in Counter(named).items():
        if name not in PARTS:
            value = f"split {name!r} of {count:,} records" if name else f"the split of {count:,} records"
            raise ValueError(f"{value} is not one of {', '.join(PARTS)}: name one, or leave those records out")
    parts = {part: np.flatnonzero([name == part for name in named]) for part in PARTS}
    for part in ("training", "test"):
        if not len(parts[part]):
            raise ValueError(f"the data's own split has no {part} record: name some, or choose another split method")
    return parts


def _together(
    method: str, count: int, groups: Sequence[Hashable] | None, sequences: Sequence[ndarray] | None, kind: str
) -> ndarray:
    """Group numbers: records with the same number must not be parted."""
    if method == "similarity" and sequences is not None:
        config = SketchConfig.of(kind)
        return clusters(sketch_all(sequences, config), config.threshold)
    if groups is not None and method != "random":
        return _numbers([("alone", i) if group is None else group for i, group in enumerate(groups)])[0]
    return np.arange(count) if sequences is None else copies(digests(sequences, canonical=kind == "dna"))


# --- Sharing out ---


def grouped(groups: Sequence[Hashable], labels: Targets, fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Indices of each part, whole groups in one part, sizes and labels as near the fractions as groups allow.

    >>> train, test = grouped(["x", "x", "y", "z", "z", "w"], ["a", "b", "a", "a", "b", "b"], [0.5, 0.5], seed=0)
    >>> train, test
    ([2, 3, 4], [0, 1, 5])
    """
    _check(fractions)
    return [part.tolist() for part in _share_out(_numbers(groups)[0], labels, fractions, seed, "groups")]


def _share_out(groups: ndarray, targets: Targets, fractions: Sequence[float], seed: int, noun: str) -> list[ndarray]:
    """The records of each part; where the greedy rule leaves one without a label, it starts from a group of each."""
    records, labels, names = _strata(targets)
    keys, counts = np.unique(groups[records] * (labels.max() + 1) + labels, return_counts=True)
    holder, label = np.divmod(keys, labels.max() + 1)
    chance = draws.permutation(draws.key(seed, "groups"), int(groups.max()) + 1).numpy()
    size_class = np.frexp(np.bincount(groups))[1]  # those of like size in random order, or few groups never change
    order = np.lexsort((chance, size_class))[::-1]
    part_of = _greedy(order, holder, label, counts, fractions, {})
    if any(len(np.unique(part_of[holder[label == k]])) < len(fractions) for k in range(len(names))):
        start = _one_of_each(order, holder, label, names, fractions, noun)
        part_of = _greedy(order, holder, label, counts, fractions, start)
    return [np.flatnonzero(part_of[groups] == part) for part in range(len(fractions))]


def _greedy(
    order: ndarray,
    holder: ndarray,
    label: ndarray,
    counts: ndarray,
    fractions: Sequence[float],
    start: dict[int, int],
) -> ndarray:
    """The part of each group: in this order each goes where it keeps sum((records - wanted)^2 / wanted) lowest.

    The sum is over parts and labels; group `holder[e]` has `counts[e]` records of label `label[e]`.
    """
    ends = np.searchsorted(holder, np.arange(len(order) + 1)).tolist()
    labels, numbers = label.tolist(), counts.tolist()
    totals = np.bincount(label, weights=counts)
    wanted, excess = np.outer(fractions, totals).tolist(), np.outer(fractions, -totals).tolist()
    part_of = np.full(len(order), -1)
    for group in [*start, *(g for g in order.tolist() if g not in start)]:
        own = [(labels[e], numbers[e]) for e in range(ends[group], ends[group + 1])]
        if (part := start.get(group, -1)) < 0:
            costs = [
                sum(n * (n + 2 * over[k]) / want[k] for k, n in own)
                for over, want in zip(excess, wanted, strict=True)
            ]
            part = costs.index(min(costs))
        part_of[group] = part
        for k, n in own:
            excess[part][k] += n
    return part_of


def _one_of_each(
    order: ndarray, holder: ndarray, label: ndarray, names: list[Any], fractions: Sequence[float], noun: str
) -> dict[int, int]:
    """For each label, the rarest first, a group for every part: the smallest group for the smallest part."""
    chosen: dict[int, int] = {}
    place = np.argsort(order[::-1])
    holders = [holder[label == k].tolist() for k in range(len(names))]
    for k in sorted(range(len(names)), key=lambda k: len(holders[k])):
        free = iter(sorted((g for g in holders[k] if g not in chosen), key=place.__getitem__))
        filled = {chosen[g] for g in holders[k] if g in chosen}
        for part in np.argsort(fractions, kind="stable").tolist():
            if part in filled:
                continue
            if (group := next(free, None)) is None:
                what = f"label {names[k]!r} has" if k else "the data have"
                raise ValueError(
                    f"{what} {len(holders[k])} {noun} for {len(fractions)} splits: each split needs one of its own; "
                    f"add records{', merge labels' if k else ''} or split another way"
                )
            chosen[group] = part
    return chosen


def _strata(targets: Targets) -> tuple[ndarray, ndarray, list[Any]]:
    """Pairs of a record and a label, and the labels' names; label 0 is every record's.

    Bins of real numbers are labels too, but have no name, and need not be in every part.
    """
    everyone = np.arange(len(targets))
    names: list[Any] = ["all"]
    if isinstance(targets, ndarray) and targets.ndim == 2:
        records, labels = np.nonzero(targets)
        names += range(targets.shape[1])
    elif isinstance(targets, ndarray) and targets.dtype.kind == "f":
        records, labels = everyone, np.argsort(np.argsort(targets, kind="stable")) * BINS // len(targets)
    else:
        labels, own = _numbers(targets)
        records, names = everyone, names + own
    return np.append(everyone, records), np.append(np.zeros_like(everyone), labels + 1), names


def _numbers(values: Sequence[Hashable] | ndarray) -> tuple[ndarray, list[Hashable]]:
    """Values as numbers, in the order of their first appearance."""
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(v, len(known)) for v in (values.tolist() if isinstance(values, ndarray) else values)]
    return np.array(numbers, np.int64), list(known)


def _check(fractions: Sequence[float]) -> None:
    if not abs(sum(fractions) - 1) <= 1e-6 or not min(fractions) > 0:
        raise ValueError(f"split fractions {list(fractions)} must be above 0 and add up to 1: correct them")
