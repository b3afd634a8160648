"""The chapter on confusions and labels."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.views.chapters import classes


def answered(truth: list[int], given: list[int], count: int) -> Predictions:
    outputs = 9 * np.eye(count, dtype=np.float32)[given]
    return Predictions([f"r{i}" for i in range(len(truth))], np.arange(len(truth)) + 5, np.array(truth), outputs)


def test_a_matrix_counts_truth_by_row() -> None:
    even = Answers(Classification.of_counts(["no", "yes"], [5, 5]), "dna")
    shown = classes.chapter(even, answered([0, 0, 0, 1, 1], [0, 0, 1, 1, 1], 2))
    assert '<th scope="row" class="words">no</th><td>2</td><td>1</td>' in shown
    assert '<th scope="row" class="words">yes</th><td>0</td><td>2</td>' in shown
    assert "4 of 5 records are on the diagonal" in shown and "80.0% of the answers are right" in shown
    shades = [float(shade) for shade in re.findall(r'fill-opacity="([\d.]+)"', shown)]
    assert shades == [0.667, 0.333, 0.0, 1.0]  # of the row
    assert "<td>3</td><td>0.667</td><td>1.000</td><td>0.800</td>" in shown


def test_the_confusion_is_that_of_the_scores_on_unequal_classes() -> None:
    """Of 41 records, by the weights of the training loss alone, 19 more would be called positive."""
    uneven = Answers(Classification.of_counts(["no", "yes"], [97, 3]), "dna", temperature=1.7)
    truth, positive = np.array([0] * 40 + [1]), np.array([-9.0] * 21 + [2.0] * 19 + [9.0])
    rows = replace(answered([0] * 41, [0] * 41, 2), targets=truth)
    rows = replace(rows, outputs=np.stack([0 * positive, positive], axis=1).astype(np.float32))
    shown, score = classes.chapter(uneven, rows), uneven.target.metrics(rows.outputs, truth)
    right = int(re.findall(r"([\d,]+) of 41 records are on the diagonal", shown)[0])
    assert right / 41 == score["accuracy"] == 1.0
    assert re.findall(r"([\d.]+)%", shown) == ["100.0"]  # no second rule with another number
    assert (uneven.probabilities(rows.outputs).argmax(axis=1) == uneven.target.decided(rows.outputs)).all()


def test_many_classes_show_the_most_confused() -> None:
    names = [f"c{k}" for k in range(25)]
    many = Answers(Classification.of_counts(names, [3] * 25), "dna")
    shown = classes.chapter(many, answered([3, 3, 3, 7], [4, 4, 3, 7], 25))
    assert "25 classes are too many for a matrix" in shown
    assert '<th scope="row" class="words">c3</th><td class="words">c4</td><td>2</td><td>66.7%</td>' in shown


def test_a_class_that_never_occurs_has_dashes() -> None:
    three = Answers(Classification.of_counts(["a", "b", "c"], [3, 3, 3]), "dna")
    shown = classes.chapter(three, answered([0, 1], [0, 1], 3))
    assert "<td>0</td><td>-</td><td>-</td><td>-</td>" in shown


def test_each_label_has_a_row() -> None:
    target = MultiLabel(["x<y", "z"], [5, 5], 10)
    rows = Predictions(["a", "b"], np.array([3, 4]), np.eye(2), np.array([[5, 5], [-5, 5]], dtype=np.float32))
    shown = classes.chapter(Answers(target, "dna"), rows)
    assert ">x&lt;y</th><td>1</td><td>1.000</td><td>1.000</td><td>1.000</td><td>1.000</td><td>1.000</td>" in shown
    assert ">z</th><td>1</td><td>0.500</td><td>0.500</td><td>1.000</td><td>0.500</td><td>0.667</td>" in shown
