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


def question(store: Store, *args: Any, **options: Any) -> Question:
    return question_of(store.present_columns("label", "target", "split"), store.id, *args, **options)


@pytest.fixture
def make_store(tmp_path: Path) -> Make:
    """A store of records with these values of a column."""

    def write(**columns: list[Any]) -> Store:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        entries = [Entry(f"r{i}", b"ACGT" + b"A" * i, "x", **row) for i, row in enumerate(rows)]
        return write_store(entries, Dna(), tmp_path / f"store{len([*tmp_path.iterdir()])}", Account())

    return write


def test_labels_are_classes_in_alphabetic_order(make_store: Make) -> None:
    query = question(make_store(label=["worm", "fly"] * 3), "auto")
    assert (query.kind, query.names, query.targets.tolist()) == ("classes", ["fly", "worm"], [1, 0] * 3)
    assert query.records.tolist() == list(range(6)) and query.targets.dtype == np.int64
    target = query.target(np.array([0, 1, 2]))
    assert isinstance(target, Classification) and target.counts.tolist() == [1, 2]


def test_whole_numbers_are_classes_and_others_are_numbers(make_store: Make) -> None:
    assert question(make_store(label=["0", "1"] * 3), "auto").kind == "classes"
    query = question(make_store(label=["0.5", "1"] * 3), "auto")
    assert (query.kind, query.targets.tolist(), query.targets.dtype) == ("number", [0.5, 1] * 3, np.float64)
    assert question(make_store(label=["0", "1"] * 3), "number").kind == "number"
    assert question(make_store(label=["0.5", "1"] * 3), "classes").names == ["0.5", "1"]
    assert question(make_store(label=["nan", "1"] * 3), "auto").kind == "classes"


def test_targets_are_numbers(make_store: Make) -> None:
    query = question(make_store(target=[1.0, 2.0, 4.0]), "auto")
    target = query.target(np.array([0, 1]))
    assert isinstance(target, Regression) and (target.mean, target.scale) == (1.5, 0.5)


def test_several_labels_must_be_asked_for(make_store: Make) -> None:
    store = make_store(label=["a;b", "b", None, "a; b", "b;a", "a;b"])
    query = question(store, "labels")
    assert query.names == ["a", "b"] and query.unanswered == []
    assert query.targets.tolist() == [[1, 1], [0, 1], [0, 0], [1, 1], [1, 1], [1, 1]]
    assert isinstance(query.target(np.arange(6)), MultiLabel)
    assert question(make_store(label=["a;b", "c"] * 3), "auto").names == ["a;b", "c"]
    assert question(make_store(label=["a|b", "b", "a"] * 2), "labels", separator="|").names == ["a", "b"]


def test_records_without_an_answer_are_left_out_by_policy(make_store: Make) -> None:
    store = make_store(label=["a", None, "b", None] * 3)
    query = question(store, "auto", on_missing="reject")
    assert query.records.tolist() == [0, 2, 4, 6, 8, 10] and query.unanswered == ["r1", "r3", "r5", "r7", "r9", "r11"]
    query = question(make_store(target=[1.0, None, 2.0]), "auto", on_missing="reject")
    assert (query.records.tolist(), query.unanswered) == ([0, 2], ["r1"])


def test_a_given_split_may_have_few_of_a_class(make_store: Make) -> None:
    store = make_store(label=["a", "b", "a", "b"], split=["training", "training", "test", "test"])
    assert question(store, "auto").names == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "target_type", "message"),
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
def test_refusals(make_store: Make, columns: dict[str, list[Any]], target_type: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        question(make_store(**columns), target_type)


def test_an_empty_separator(make_store: Make) -> None:
    with pytest.raises(ValueError, match="separator='' stands between no labels: give the character that does"):
        question(make_store(label=["a"] * 3), "labels", separator="")


def test_labels_that_are_numbers_may_be_missing(make_store: Make) -> None:
    query = question(make_store(label=["0.5", "NA", "1.5", "nan"]), "auto", on_missing="reject")
    assert (query.kind, query.targets.tolist(), query.unanswered) == ("number", [0.5, 1.5], ["r1", "r3"])
    with pytest.raises(ValueError, match="2 of 4 records have no target, r1, r3: fill them in, or leave such"):
        question(make_store(label=["0.5", "NA", "1.5", "nan"]), "auto")


def test_inspection_follows_the_target_type(make_store: Make) -> None:
    store = make_store(label=["0.5", "NA", "1.5", "1.5"])
    inspected = inspect_target(store)
    assert inspected.classes == {} and inspected.targets is not None
    assert (inspected.targets.records, inspected.targets.missing, inspected.targets.commonest) == (3, 1, 1.5)
    assert inspect_target(store, "classes").classes == {"1.5": 2, "0.5": 1, "NA": 1}
    assert inspect_target(store, "classes").targets is None
    several = make_store(label=["a;b", "b", None])
    assert inspect_target(several, "labels").classes == {"b": 2, "a": 1}
    assert inspect_target(several).classes == {"a;b": 1, "b": 1}
    labels_and_numbers = inspect_target(make_store(label=["a", "b"], target=[1.0, 2.0]))
    assert labels_and_numbers.classes == {"a": 1, "b": 1} and labels_and_numbers.targets is not None
    assert inspect_target(make_store(group=["x", "y"])).targets is None
    with pytest.raises(ValueError, match="--target-type classes needs labels, not numbers"):
        inspect_target(make_store(target=[1.0, 2.0]), "classes")
