"""Split records into training, validation and test, as a function of the data and a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy import ndarray

from chordmixer.config import MOST_MEMBERS, check_numbers
from chordmixer.data import draws
from chordmixer.data.columns import SPLITS
from chordmixer.data.leakage import copies, digests
from chordmixer.data.sketches import SketchConfig, clusters, sketch_all

PARTS = ("training", "validation", "test")
BINS = 10
"""Number of bins of a regression's targets, by rank, for stratification."""

Targets = Sequence[Hashable] | ndarray
"""One label per record, real numbers (float), or for several labels per record a matrix of zeros and ones."""


@dataclass(frozen=True)
class SplitConfig:
    """Settings of the split."""

    method: Literal["auto", "given", "random", "grouped", "similarity"] = "auto"
    """`auto`: by the data's split column, else by its groups, else at random. Copies never cross a random split."""
    fractions: tuple[float, ...] = (0.7, 0.1, 0.2)
    """Fractions of the records for training, validation and test."""
    seed: int = 0
    """Seed of the random choices."""
    folds: int = 0
    """Number of cross-validation folds, 2 to 20, into which the records of training and validation are divided. A run
    on files then trains a member for each fold (`--folds`). Default 0: no cross-validation."""
    fold: int | None = None
    """The fold on which a member of such a run is validated; it is trained on the others. Default: none."""

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
        """The entry of data.json about the split."""
        return {"method": method, "seed": self.seed, "fractions": list(self.fractions), "sizes": sizes}


@dataclass(frozen=True)
class Split:
    """The records of each part, in ascending order."""

    training: ndarray
    validation: ndarray
    test: ndarray
    method: str
    """The method of the split: `given`, `random`, `grouped` or `similarity`."""

    @property
    def parts(self) -> dict[str, ndarray]:
        return {part: getattr(self, part) for part in PARTS}

    def check(self, noun: str, cure: str) -> Split:
        """Return the split itself, or raise an error if a part is empty."""
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
    """Split records by the method of `config`.

    `splits` and `groups` are columns of the data; a record whose group is None is a group of its own. `sequences` are
    token ids of the `kind` `dna`, `protein` or `text`: copies are never separated, with `similarity` near-copies too.

    >>> halves = SplitConfig(fractions=(0.5, 0.25, 0.25))
    >>> split(["a", "b"] * 4, halves, groups=["x", "x", "y", "y", "z", "z", "w", "w"]).parts["training"].tolist()
    [4, 5, 6, 7]
    """
    return split_units(targets, config, units(len(targets), config, splits, groups, sequences, kind), splits)


def split_units(
    targets: Targets, config: SplitConfig, units: Units, splits: Sequence[str | None] | None = None
) -> Split:
    """Split records by the method of their units."""
    method, group_of, noun = units
    if method == "given":
        parts = given_parts(splits or [])
        if not len(parts["validation"]):
            chosen, share = parts["training"], config.fractions[1] / sum(config.fractions[:2])
            training, validation = _assign(
                group_of[chosen], _select(targets, chosen), (1 - share, share), config.seed, noun
            )
            parts |= {"training": chosen[training], "validation": chosen[validation]}
    else:
        assigned = _assign(group_of, targets, config.fractions, config.seed, noun)
        parts = dict(zip(PARTS, assigned, strict=True))
    if config.fold is not None:
        parts |= _fold_parts(parts, group_of, targets, config, noun)
    return Split(**parts, method=method)


class Units(NamedTuple):
    """Records of one unit are never separated: those of a group, or copies."""

    method: str
    """The method of the split that they are for."""
    numbers: ndarray
    """The number of each record's unit."""
    noun: str
    """What units are called: groups or different records."""


def units(
    count: int,
    config: SplitConfig,
    splits: Sequence[str | None] | None = None,
    groups: Sequence[Hashable] | None = None,
    sequences: Sequence[ndarray] | None = None,
    kind: str = "",
) -> Units:
    """The units of `count` records; the other arguments are those of `split`."""
    if not count:
        raise ValueError("0 records cannot be split: the data are empty, or all records were rejected; give others")
    columns = {"given": splits, "grouped": groups, "similarity": sequences}
    present = {name: column is not None and any(v is not None for v in column) for name, column in columns.items()}
    method = config.method
    if method == "auto":
        method = "given" if present["given"] else "grouped" if present["grouped"] else "random"
    if method != "random" and not present[method]:
        wanted = {"given": "a split column", "grouped": "groups", "similarity": "sequences of letters"}[method]
        raise ValueError(f"split method {method!r} needs {wanted}, which the data lack: give them or another method")
    group_of = _group_numbers(method, count, groups if present["grouped"] else None, sequences, kind)
    noun = "groups" if present["grouped"] and method != "random" else "different records"
    return Units(method, group_of, noun)


def _fold_parts(
    parts: dict[str, ndarray], group_of: ndarray, targets: Targets, config: SplitConfig, noun: str
) -> dict[str, ndarray]:
    """Training and validation records of one fold; the test records are not part of the folds."""
    assert config.fold is not None, "it is a member's split"
    pool = np.sort(np.concatenate([parts["training"], parts["validation"]]))
    try:
        folds = _assign(group_of[pool], _select(targets, pool), [1 / config.folds] * config.folds, config.seed, noun)
    except ValueError as error:
        raise ValueError(f"{config.folds} folds are too many: {error}") from None
    validation = folds[config.fold]
    return {"training": np.delete(pool, validation), "validation": pool[validation]}


def _select(targets: Targets, records: ndarray) -> Targets:
    return [targets[i] for i in records] if isinstance(targets, Sequence) else targets[records]


def given_parts(splits: Sequence[str | None]) -> dict[str, ndarray]:
    """The records of each part by the data's split column; the validation part may be empty."""
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


def _group_numbers(
    method: str, count: int, groups: Sequence[Hashable] | None, sequences: Sequence[ndarray] | None, kind: str
) -> ndarray:
    """A group number for each record; records of the same group must be in the same part."""
    if method == "similarity" and sequences is not None:
        config = SketchConfig.of(kind)
        return clusters(sketch_all(sequences, config), config.threshold)
    if groups is not None and method != "random":
        return _integer_codes([("alone", i) if group is None else group for i, group in enumerate(groups)])[0]
    return np.arange(count) if sequences is None else copies(digests(sequences, canonical=kind == "dna"))


# --- Assignment of groups to parts ---


def grouped(groups: Sequence[Hashable], labels: Targets, fractions: Sequence[float], seed: int) -> list[list[int]]:
    """Split groups: the indices of each part, with sizes and labels as close to the fractions as groups allow.

    >>> train, test = grouped(["x", "x", "y", "z", "z", "w"], ["a", "b", "a", "a", "b", "b"], [0.5, 0.5], seed=0)
    >>> train, test
    ([2, 3, 4], [0, 1, 5])
    """
    _check(fractions)
    return [part.tolist() for part in _assign(_integer_codes(groups)[0], labels, fractions, seed, "groups")]


def _assign(groups: ndarray, targets: Targets, fractions: Sequence[float], seed: int, noun: str) -> list[ndarray]:
    """The records of each part. If the greedy rule leaves a label out of a part, it restarts from a group of each."""
    records, labels, names = _strata(targets)
    keys, counts = np.unique(groups[records] * (labels.max() + 1) + labels, return_counts=True)
    holder, label = np.divmod(keys, labels.max() + 1)
    rank = draws.permutation(draws.key(seed, "groups"), int(groups.max()) + 1).numpy()
    size_class = np.frexp(np.bincount(groups))[1]  # similar sizes in random order, so that the seed has an effect
    order = np.lexsort((rank, size_class))[::-1]
    part_of = _greedy(order, holder, label, counts, fractions, {})
    if any(len(np.unique(part_of[holder[label == k]])) < len(fractions) for k in range(len(names))):
        start = _seed_groups(order, holder, label, names, fractions, noun)
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
    """The part of each group: in order, each goes to the part that minimises sum((records - wanted)^2 / wanted).

    The sum is over parts and labels; group `holder[e]` has `counts[e]` records of label `label[e]`.
    """
    ends = np.searchsorted(holder, np.arange(len(order) + 1)).tolist()
    labels, numbers = label.tolist(), counts.tolist()
    totals = np.bincount(label, weights=counts)
    wanted, excess = np.outer(fractions, totals).tolist(), np.outer(fractions, -totals).tolist()
    part_of = np.full(len(order), -1)
    for group in [*start, *(g for g in order.tolist() if g not in start)]:
        contents = [(labels[e], numbers[e]) for e in range(ends[group], ends[group + 1])]
        if (part := start.get(group, -1)) < 0:
            costs = [
                sum(n * (n + 2 * over[k]) / want[k] for k, n in contents)
                for over, want in zip(excess, wanted, strict=True)
            ]
            part = costs.index(min(costs))
        part_of[group] = part
        for k, n in contents:
            excess[part][k] += n
    return part_of


def _seed_groups(
    order: ndarray, holder: ndarray, label: ndarray, names: list[Any], fractions: Sequence[float], noun: str
) -> dict[int, int]:
    """For each label, the rarest first, choose one group for every part: the smallest group for the smallest part."""
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
    """Pairs of record and label for stratification, and the labels' names; all records have label 0.

    Bins of real numbers are labels too, but have no name, and need not be in every part.
    """
    all_records = np.arange(len(targets))
    names: list[Any] = ["all"]
    if isinstance(targets, ndarray) and targets.ndim == 2:
        records, labels = np.nonzero(targets)
        names += range(targets.shape[1])
    elif isinstance(targets, ndarray) and targets.dtype.kind == "f":
        records, labels = all_records, np.argsort(np.argsort(targets, kind="stable")) * BINS // len(targets)
    else:
        labels, values = _integer_codes(targets)
        records, names = all_records, names + values
    return np.append(all_records, records), np.append(np.zeros_like(all_records), labels + 1), names


def _integer_codes(values: Sequence[Hashable] | ndarray) -> tuple[ndarray, list[Hashable]]:
    """Integer codes of values, in the order of first appearance, and the distinct values."""
    known: dict[Hashable, int] = {}
    numbers = [known.setdefault(v, len(known)) for v in (values.tolist() if isinstance(values, ndarray) else values)]
    return np.array(numbers, np.int64), list(known)


def _check(fractions: Sequence[float]) -> None:
    if not abs(sum(fractions) - 1) <= 1e-6 or not min(fractions) > 0:
        raise ValueError(f"split fractions {list(fractions)} must be above 0 and add up to 1: correct them")
