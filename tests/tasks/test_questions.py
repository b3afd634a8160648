from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account, Entry
from chordmixer.data.store import Store, write_store
from chordmixer.tasks.questions import Question, inspect_target
from chordmixer.tasks.questions import question as question_of
from chordmixer.tasks.targets import Classification, MultiLabel, Regression

Make = Callable[..., Store]


def question(store: Store, *asked: Any, **options: Any) -> Question:
    return question_of(store.present_columns("label", "target", "split"), store.id, *asked, **options)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A store of records with these values of a column."""

    def make(**columns: list[Any]) -> Store:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        entries = [Entry(f"r{i}", b"ACGT" + b"A" * i, "x", **row) for i, row in enumerate(rows)]
        return write_store(entries, Dna(), tmp_path / f"store{len([*tmp_path.iterdir()])}", Account())

    return make


def test_labels_are_classes_in_alphabetic_order(make: Make) -> None:
    asked = question(make(label=["worm", "fly"] * 3), "auto")
    assert (asked.kind, asked.names, asked.targets.tolist()) == ("classes", ["fly", "worm"], [1, 0] * 3)
    assert asked.records.tolist() == list(range(6)) and asked.targets.dtype == np.int64
    target = asked.target(np.array([0, 1, 2]))
    assert isinstance(target, Classification) and target.counts.tolist() == [1, 2]


def test_whole_numbers_are_classes_and_others_are_numbers(make: Make) -> None:
    assert question(make(label=["0", "1"] * 3), "auto").kind == "classes"
    asked = question(make(label=["0.5", "1"] * 3), "auto")
    assert (asked.kind, asked.targets.tolist(), asked.targets.dtype) == ("number", [0.5, 1] * 3, np.float64)
    assert question(make(label=["0", "1"] * 3), "number").kind == "number"
    assert question(make(label=["0.5", "1"] * 3), "classes").names == ["0.5", "1"]
    assert question(make(label=["nan", "1"] * 3), "auto").kind == "classes"


def test_targets_are_numbers(make: Make) -> None:
    asked = question(make(target=[1.0, 2.0, 4.0]), "auto")
    target = asked.target(np.array([0, 1]))
    assert isinstance(target, Regression) and (target.mean, target.scale) == (1.5, 0.5)


def test_several_labels_must_be_asked_for(make: Make) -> None:
    store = make(label=["a;b", "b", None, "a; b", "b;a", "a;b"])
    asked = question(store, "labels")
    assert asked.names == ["a", "b"] and asked.unanswered == []
    assert asked.targets.tolist() == [[1, 1], [0, 1], [0, 0], [1, 1], [1, 1], [1, 1]]
    assert isinstance(asked.target(np.arange(6)), MultiLabel)
    assert question(make(label=["a;b", "c"] * 3), "auto").names == ["a;b", "c"]
    assert question(make(label=["a|b", "b", "a"] * 2), "labels", separator="|").names == ["a", "b"]


def test_records_without_an_answer_are_left_out_by_policy(make: Make) -> None:
    store = make(label=["a", None, "b", None] * 3)
    asked = question(store, "auto", on_missing="reject")
    assert asked.records.tolist() == [0, 2, 4, 6, 8, 10] and asked.unanswered == ["r1", "r3", "r5", "r7", "r9", "r11"]
    asked = question(make(target=[1.0, None, 2.0]), "auto", on_missing="reject")
    assert (asked.records.tolist(), asked.unanswered) == ([0, 2], ["r1"])


def test_a_given_split_may_have_few_of_a_class(make: Make) -> None:
    store = make(label=["a", "b", "a", "b"], split=["training", "training", "test", "test"])
    assert question(store, "auto").names == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        (
            {"weight": [2.0] * 3},
            "auto",
            "no record has a label or a number to learn: give one file for each class, or",
        ),
        ({"weight": [2.0] * 3}, "auto", "--labels TABLE with ids and labels, or --labels header:NAME"),
        ({"label": ["a"] * 3, "target": [1.0] * 3}, "auto", "labels and numbers to learn: one is learnt at a time"),
        ({"target": [1.0] * 3}, "classes", "--target-type classes needs labels, not numbers"),
        ({"target": [1.0] * 3}, "labels", "--target-type labels needs labels, not numbers"),
        ({"label": ["a"] * 3}, "auto", "all 3 records are of one class, 'a': a model needs two or more"),
        ({"label": ["a"] * 3 + ["b"]}, "auto", r"1 of 2 classes have fewer than 3 records, 'b' \(1\): training"),
        ({"label": ["a"] * 3 + ["b"]}, "auto", "add records, merge classes or leave them out, or ask for a number"),
        ({"label": ["a"] * 3 + ["b"]}, "labels", r"1 of 2 labels have fewer than 3 records, 'b' \(1\)"),
        (
            {"label": ["a", "b"] * 3 + [None] * 7},
            "auto",
            r"7 of 13 records have no label, r6, r7, r8, r9, r10, \.\.\.:",
        ),
        ({"label": ["a", "b"] * 3 + [None]}, "auto", "leave such records out with --on-unmatched reject"),
        ({"target": [1.0, None, 2.0]}, "auto", "1 of 3 records have no target, r1: fill them in"),
        ({"target": [2.5] * 3}, "auto", "all 3 numbers are 2.5: nothing to learn"),
        (
            {"label": ["1", "2", "x"]},
            "number",
            "label 'x' of record 'r2' is not a finite number: --target-type number needs",
        ),
        ({"label": ["1", "2", "inf"]}, "number", "label 'inf' of record 'r2' is not a finite number"),
    ],
)
def test_refusals(make: Make, columns: dict[str, list[Any]], asked: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question(make(**columns), asked)


def test_an_empty_separator(make: Make) -> None:
    with pytest.raises(ValueError, match="separator='' stands between no labels: give the character that does"):
        question(make(label=["a"] * 3), "labels", separator="")


def test_labels_that_are_numbers_may_be_missing(make: Make) -> None:
    asked = question(make(label=["0.5", "NA", "1.5", "nan"]), "auto", on_missing="reject")
    assert (asked.kind, asked.targets.tolist(), asked.unanswered) == ("number", [0.5, 1.5], ["r1", "r3"])
    with pytest.raises(ValueError, match="2 of 4 records have no target, r1, r3: fill them in, or leave such"):
        question(make(label=["0.5", "NA", "1.5", "nan"]), "auto")


def test_what_is_inspected_follows_what_is_asked(make: Make) -> None:
    store = make(label=["0.5", "NA", "1.5", "1.5"])
    found = inspect_target(store)
    assert found.classes == {} and found.targets is not None
    assert (found.targets.records, found.targets.missing, found.targets.commonest) == (3, 1, 1.5)
    assert inspect_target(store, "classes").classes == {"1.5": 2, "0.5": 1, "NA": 1}
    assert inspect_target(store, "classes").targets is None
    several = make(label=["a;b", "b", None])
    assert inspect_target(several, "labels").classes == {"b": 2, "a": 1}
    assert inspect_target(several).classes == {"a;b": 1, "b": 1}
    both = inspect_target(make(label=["a", "b"], target=[1.0, 2.0]))
    assert both.classes == {"a": 1, "b": 1} and both.targets is not None
    assert inspect_target(make(group=["x", "y"])).targets is None
    with pytest.raises(ValueError, match="--target-type classes needs labels, not numbers"):
        inspect_target(make(target=[1.0, 2.0]), "classes")
