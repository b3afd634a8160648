"""The prediction problem of a data set, from its columns: classes, several labels or a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy import ndarray

from chordmixer.data.columns import is_missing_number, real_number
from chordmixer.data.inspection import Inspection, inspect
from chordmixer.data.reading import Policy
from chordmixer.data.splits import Units
from chordmixer.data.store import Store
from chordmixer.tasks.targets import Classification, MultiLabel, Regression

TargetType = Literal["auto", "classes", "labels", "number"]
DataColumns = Mapping[str, ndarray]
"""Those of the columns `label`, `target` and `split` that have values."""

MIN_RECORDS = 3
"""Minimum records of a class: one for training, one for validation, one for the test."""
SHOWN = 5


@dataclass(frozen=True)
class Question:
    """The prediction problem: the records that have a target, and their targets."""

    kind: Literal["classes", "labels", "number"]
    records: ndarray
    """Numbers of the records in the store."""
    targets: ndarray
    """The target of each record: a class (int64), a row of zeros and ones (uint8), or a number (float64)."""
    names: list[str]
    """Names of the classes or labels."""
    unanswered: list[str]
    """Ids of the records without a target, which are left out."""
    rejected: Mapping[str, list[str]] = field(default_factory=dict)
    """Ids of other records that are left out, by reason."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counts of what else is left out, for the account."""

    def labels(self) -> Sequence[str] | ndarray:
        """The targets for stratification of a split: names of classes, else the targets."""
        return [self.names[k] for k in self.targets.tolist()] if self.kind == "classes" else self.targets

    def target(self, training: ndarray) -> Regression | Classification | MultiLabel:
        """The target, with the class weights, or the mean and scale, of the training records."""
        targets = self.targets[training]
        if self.kind == "number":
            return Regression.of(targets)
        return Classification(self.names, targets) if self.kind == "classes" else MultiLabel.of(self.names, targets)


def question(
    columns: DataColumns,
    name: Callable[[int], str],
    target_type: TargetType,
    separator: str = ";",
    on_missing: Policy = "error",
    least: int = MIN_RECORDS,
) -> Question:
    """Determine the target of each record, whose id is `name(number)`, from its columns.

    A target column is a regression, and so are labels that are all numbers but not all integers; other labels are
    classes. Several labels per record must be requested, since a semicolon may be part of a name. `target_type`
    overrides this; `separator` splits several labels. Classes of fewer than `least` records are an error, unless the
    split is given.
    """
    kind = _kind(columns, target_type)
    least = 1 if "split" in columns else least
    if kind == "number":
        numbers = _numbers(columns, name)
        records, unanswered = _with_target(~np.isnan(numbers), name, "target", on_missing)
        if len(records) and np.ptp(numbers[records]) == 0:
            raise ValueError(f"all {len(records):,} numbers are {numbers[records[0]]:g}: nothing to learn; see them")
        return Question("number", records, numbers[records], [], unanswered)
    texts = columns["label"].tolist()
    if kind == "labels":  # a record without labels is valid
        return _multi_label_question(texts, separator, least)
    records, unanswered = _with_target(np.array([text is not None for text in texts]), name, "label", on_missing)
    unique, targets = np.unique([texts[i] for i in records], return_inverse=True)
    names: list[str] = unique.tolist()
    _check_classes(names, np.bincount(targets), "class", least)
    if len(names) < 2:
        raise ValueError(
            f"all {len(records):,} records are of one class, {names[0]!r}: a model needs two or more to tell apart; "
            "give records of another, or a number to learn in a target column"
        )
    return Question("classes", records, targets.astype(np.int64), names, unanswered)


def settle_rare(
    question: Question, units: Units, least: int, on_rare: Policy, name: Callable[[int], str]
) -> Question:
    """Refuse or leave out the classes, or labels, that fewer than `least` units of the split have.

    `units` are those of the question's records; `name` returns the id of a record of the store.
    """
    if question.kind == "number" or units.method == "given":
        return question
    targets, classes = question.targets, question.kind == "classes"
    holders = [targets == k if classes else targets[:, k] > 0 for k in range(len(question.names))]
    counts = np.array([len(np.unique(units.numbers[rows])) for rows in holders])
    if on_rare == "error":
        cure = "leave them out with --on-rare reject"
        _check_classes(question.names, counts, "class" if classes else "label", least, units.noun, cure)
    kept = np.flatnonzero(counts >= least)
    if len(kept) == len(counts):
        return question
    rare = sorted((name for name, n in zip(question.names, counts, strict=True) if n < least))
    shown = ", ".join(rare[:SHOWN]) + (", ..." if len(rare) > SHOWN else "")
    few = f"with fewer than {least} {units.noun} ({shown})"
    if len(kept) < (2 if classes else 1):
        raise ValueError(
            f"--on-rare reject leaves {len(kept)} of {len(counts)} {question.kind}, without those {few}: add records "
            "or merge them"
        )
    names = [question.names[k] for k in kept]
    if not classes:
        return replace(question, targets=targets[:, kept], names=names, notes={f"labels left out, {few}": len(rare)})
    inside = np.isin(targets, kept)
    reason = f"of {len(rare)} {'class' if len(rare) == 1 else 'classes'} {few}"
    return replace(
        question,
        records=question.records[inside],
        targets=np.searchsorted(kept, targets[inside]),
        names=names,
        rejected={reason: [name(int(i)) for i in question.records[~inside]]},
    )


def inspect_target(store: Store, target_type: TargetType = "auto", separator: str = ";") -> Inspection:
    """Inspect a store with this target type; `auto`: both labels and numbers if it has both."""
    columns = store.present_columns("label", "target")
    if target_type == "auto" and len(columns) != 1:
        return inspect(store, numbers=columns.get("target"))
    kind = _kind(columns, target_type)
    if kind == "number":
        return inspect(store, [None] * len(store), _numbers(columns, store.id))
    return inspect(store, separator=separator if kind == "labels" else None)


def _kind(columns: DataColumns, target_type: TargetType) -> Literal["classes", "labels", "number"]:
    have = {name: name in columns for name in ("label", "target")}
    if not any(have.values()):
        raise ValueError(
            "no record has a label or a number to learn: give one file for each class, or --labels TABLE with ids "
            "and labels, or --labels header:NAME where the headers have them (a table's own: --column label=NAME)"
        )
    if target_type == "auto" and all(have.values()):
        raise ValueError(
            "the records have labels and numbers to learn: one is learnt at a time; add --target-type classes or "
            "--target-type number"
        )
    if target_type in ("classes", "labels") and not have["label"]:
        raise ValueError(f"--target-type {target_type} needs labels, not numbers: leave it out, or give --labels")
    if target_type != "auto":
        return target_type
    return "number" if have["target"] or _are_measurements(columns["label"].tolist()) else "classes"


def _are_measurements(texts: Sequence[str | None]) -> bool:
    """Whether all labels are numbers and some are not integers, so that they are not names of classes."""
    numbers = [real_number(text) for text in texts if text is not None and not is_missing_number(text)]
    return all(map(math.isfinite, numbers)) and not all(number.is_integer() for number in numbers)


def _numbers(columns: DataColumns, name: Callable[[int], str]) -> ndarray:
    """The target column, or labels parsed as numbers."""
    if "target" in columns:
        return columns["target"]
    texts = columns["label"].tolist()
    numbers = np.array([math.nan if is_missing_number(text) else real_number(text) for text in texts])
    for i, text in enumerate(texts):
        if math.isnan(numbers[i]) and not is_missing_number(text):
            raise ValueError(
                f"label {text!r} of record {name(i)!r} is not a finite number: --target-type number "
                "needs one each; correct it, or ask for classes"
            )
    return numbers


def _multi_label_question(texts: Sequence[str | None], separator: str, least: int) -> Question:
    if not separator:
        raise ValueError("separator='' stands between no labels: give the character that does, such as ;")
    rows = [{name for part in (text or "").split(separator) if (name := part.strip())} for text in texts]
    names = sorted(set().union(*rows))
    place = {name: k for k, name in enumerate(names)}
    targets = np.zeros((len(rows), len(names)), dtype=np.uint8)
    for i, row in enumerate(rows):
        targets[i, [place[name] for name in row]] = 1
    _check_classes(names, targets.sum(axis=0, dtype=np.int64), "label", least)
    return Question("labels", np.arange(len(rows)), targets, names, [])


def _with_target(
    present: ndarray, name: Callable[[int], str], noun: str, on_missing: Policy
) -> tuple[ndarray, list[str]]:
    """The records with a target, and the ids of those without; an error if these may not be left out."""
    missing = [name(int(i)) for i in np.flatnonzero(~present)]
    if missing and on_missing == "error":
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise ValueError(
            f"{len(missing):,} of {len(present):,} records have no {noun}, {shown}: fill them in, or leave such "
            "records out with --on-unmatched reject"
        )
    return np.flatnonzero(present), missing


def _check_classes(
    names: Sequence[str],
    counts: ndarray,
    noun: str,
    least: int,
    counted: str = "records",
    cure: str = "leave them out",
) -> None:
    """Raise an error if a class has fewer than `least` records: each part of a split needs one of each class."""
    few = Counter({name: int(count) for name, count in zip(names, counts, strict=True) if count < least})
    if few:
        shown = ", ".join(f"{name!r} ({count})" for name, count in few.most_common()[: -SHOWN - 1 : -1])
        many = "es" if noun == "class" else "s"
        wanted = "" if noun == "label" else ", or ask for a number with --target-type number if they are numbers"
        raise ValueError(
            f"{len(few):,} of {len(names):,} {noun}{many} have fewer than {least} {counted}, {shown}: training, "
            f"validation and test need one each; add records, merge {noun}{many} or {cure}{wanted}"
        )
