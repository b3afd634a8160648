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
    assert "by that rule" not in shown
    shades = [float(shade) for shade in re.findall(r'fill-opacity="([\d.]+)"', shown)]
    assert shades == [0.667, 0.333, 0.0, 1.0]  # of the row
    assert "<td>3</td><td>0.667</td><td>1.000</td><td>0.800</td>" in shown


def test_answers_that_class_weights_change_are_said() -> None:
    uneven = Answers(Classification.of_counts(["no", "yes"], [99, 1]), "dna")
    rows = answered([0, 0], [0, 0], 2)
    close = replace(rows, outputs=np.array([[9, 0], [0, 1]], dtype=np.float32))
    assert "by that rule 1 of 2 answers are others, and 50.0% are right" in classes.chapter(uneven, close)


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
