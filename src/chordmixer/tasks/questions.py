"""What is asked of a data set, told by its columns: one of several classes, several labels at once, or a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from chordmixer.data.columns import no_number
from chordmixer.data.inspection import Inspection, inspect
from chordmixer.data.labels import Policy
from chordmixer.data.numbers import real_number
from chordmixer.data.store import Store
from chordmixer.tasks.targets import Classification, MultiLabel, Regression

TargetType = Literal["auto", "classes", "labels", "number"]

LEAST = 3
"""Records of a class: one for training, one for validation, one for the test."""
SHOWN = 5


@dataclass(frozen=True)
class Question:
    """The records that have an answer, and the answers."""

    kind: Literal["classes", "labels", "number"]
    records: ndarray
    """Their numbers in the store."""
    targets: ndarray
    """Of each: a class (int64), a row of zeros and ones (uint8), or a number (float64)."""
    names: list[str]
    """Of the classes or labels."""
    unanswered: list[str]
    """Ids of the records that were left out since they have no answer."""

    def target(self, training: ndarray) -> Regression | Classification | MultiLabel:
        """With the weights, or the mean and spread, of these records: the training part."""
        own = self.targets[training]
        if self.kind == "number":
            return Regression.of(own)
        return Classification(self.names, own) if self.kind == "classes" else MultiLabel.of(self.names, own)


def question(store: Store, asked: TargetType, separator: str = ";", on_missing: Policy = "error") -> Question:
    """What the records ask; `asked` overrules the guess, and `separator` stands between several labels.

    Numbers in a target column are to be predicted, and so are labels that are all numbers but not all whole ones;
    other labels are classes. Several labels a record must be asked for: a semicolon may be part of a name.
    """
    kind = _kind(store, asked)
    least = 1 if "split" in store.columns else LEAST
    if kind == "number":
        numbers = _numbers(store)
        found = ~np.isnan(numbers)
        records, unanswered = _answered(store, found, "target", on_missing)
        if len(records) and np.ptp(numbers[records]) == 0:
            raise ValueError(f"all {len(records):,} numbers are {numbers[records[0]]:g}: nothing to learn; see them")
        return Question("number", records, numbers[records], [], unanswered)
    texts = store.column("label").tolist()
    if kind == "labels":  # a record without any is an answer too
        return _several(texts, separator, least)
    records, unanswered = _answered(store, np.array([text is not None for text in texts]), "label", on_missing)
    unique, targets = np.unique([texts[i] for i in records], return_inverse=True)
    names: list[str] = unique.tolist()
    _check_classes(names, np.bincount(targets), "class", least)
    if len(names) < 2:
        raise ValueError(
            f"all {len(records):,} records are of one class, {names[0]!r}: a model needs two or more to tell apart; "
            "give records of another, or a number to learn in a target column"
        )
    return Question("classes", records, targets.astype(np.int64), names, unanswered)


def inspect_asked(store: Store, asked: TargetType = "auto", separator: str = ";") -> Inspection:
    """What stands in a store, its answers taken as `asked` says; `auto`: labels and numbers where it has both."""
    have = {"label", "target"} & {*store.columns}
    if asked == "auto" and len(have) != 1:
        return inspect(store, numbers=_numbers(store) if have else None)
    kind = _kind(store, asked)
    if kind == "number":
        return inspect(store, [None] * len(store), _numbers(store))
    return inspect(store, separator=separator if kind == "labels" else None)


def _kind(store: Store, asked: TargetType) -> Literal["classes", "labels", "number"]:
    have = {name: name in store.columns for name in ("label", "target")}
    if not any(have.values()):
        raise ValueError(
            "no record has a label or a number to learn: give one file for each class, or --labels TABLE with ids "
            "and labels, or --labels header:NAME where the headers have them (a table's own: --column label=NAME)"
        )
    if asked == "auto" and all(have.values()):
        raise ValueError(
            "the records have labels and numbers to learn: one is learnt at a time; add --target-type classes or "
            "--target-type number"
        )
    if asked in ("classes", "labels") and not have["label"]:
        raise ValueError(
            f"--target-type {asked} needs labels, and the records have numbers: leave it out, or give --labels"
        )
    if asked != "auto":
        return asked
    return "number" if have["target"] or _measured(store.column("label").tolist()) else "classes"


def _measured(texts: Sequence[str | None]) -> bool:
    """Whether labels are all numbers, and not all of them whole: then they are no names."""
    numbers = [real_number(text) for text in texts if text is not None and not no_number(text)]
    return all(map(math.isfinite, numbers)) and not all(number.is_integer() for number in numbers)


def _numbers(store: Store) -> ndarray:
    """The target column, or labels read as numbers."""
    if "target" in store.columns:
        return store.column("target")
    texts = store.column("label").tolist()
    numbers = np.full(len(texts), np.nan)
    for i, text in enumerate(texts):
        missing = text is None or no_number(text)
        numbers[i] = math.nan if missing else real_number(text)
        if not missing and not math.isfinite(numbers[i]):
            raise ValueError(
                f"label {text!r} of record {store.id(i)!r} is not a finite number: --target-type number "
                "needs one each; correct it, or ask for classes"
            )
    return numbers


def _several(texts: Sequence[str | None], separator: str, least: int) -> Question:
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


def _answered(store: Store, found: ndarray, noun: str, on_missing: Policy) -> tuple[ndarray, list[str]]:
    """The records with an answer, and the ids of those without, where it is allowed to leave these out."""
    missing = [store.id(int(i)) for i in np.flatnonzero(~found)]
    if missing and on_missing == "error":
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        raise ValueError(
            f"{len(missing):,} of {len(store):,} records have no {noun}, {shown}: fill them in, or leave such "
            "records out with --on-unmatched reject"
        )
    return np.flatnonzero(found), missing


def _check_classes(names: Sequence[str], counts: ndarray, noun: str, least: int) -> None:
    """Each part of a split that we make needs a record of each class."""
    few = Counter({name: int(count) for name, count in zip(names, counts, strict=True) if count < least})
    if few:
        shown = ", ".join(f"{name!r} ({count})" for name, count in few.most_common()[: -SHOWN - 1 : -1])
        many = "es" if noun == "class" else "s"
        wanted = "" if noun == "label" else ", or ask for a number with --target-type number if they are numbers"
        raise ValueError(
            f"{len(few):,} of {len(names):,} {noun}{many} have fewer than {least} records, {shown}: training, "
            f"validation and test need one each; add records, merge {noun}{many} or leave them out{wanted}"
        )
