"""The chapter on the worst mistakes."""

from __future__ import annotations

import re

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Predictions
from chordmixer.views.chapters import mistakes

EVEN = Classification.of_counts(["no", "yes"], [5, 5])


def ids(shown: str) -> list[str]:
    return re.findall(r'scope="row" class="words">([^<]*)<', shown)


def test_the_most_confident_wrong_answers_come_first() -> None:
    outputs = np.array([[0, 1], [0, 5], [0, 3], [9, 0]], dtype=np.float32)
    rows = Predictions(["a", "b<", "c", "d"], np.array([10, 2_000, 30, 40]), np.array([0, 0, 0, 0]), outputs)
    shown = mistakes.chapter(Answers(EVEN, "dna"), EVEN, rows)
    assert ids(shown) == ["b&lt;", "c", "a"]
    assert '<td>0.993</td><td class="words">yes</td><td class="words">no</td><td>0.007</td><td>2,000</td>' in shown
    assert "3 of 4 test records were answered wrongly; the most confident:" in shown


def test_only_so_many_are_shown() -> None:
    count = mistakes.ROWS + 5
    rows = Predictions(["x"] * count, np.ones(count, int), np.ones(count, int), np.tile([[2.0, 0.0]], (count, 1)))
    shown = mistakes.chapter(Answers(EVEN, "dna"), EVEN, rows)
    assert len(ids(shown)) == mistakes.ROWS and "the 20 most confident:" in shown


def test_no_mistake_is_said_to_be_none() -> None:
    rows = Predictions(["a"], np.array([1]), np.array([0]), np.array([[2.0, 0.0]]))
    assert "No test record was answered wrongly." in mistakes.chapter(Answers(EVEN, "dna"), EVEN, rows)
    target = MultiLabel(["a"], [5], 10)
    one = Predictions(["a"], np.array([1]), np.array([[1.0]]), np.array([[2.0]]))
    assert "No label of a test record was answered wrongly." in mistakes.chapter(Answers(target, "dna"), target, one)


def test_wrong_labels_name_record_and_label() -> None:
    target = MultiLabel(["a", "b"], [5, 5], 10)
    outputs = np.array([[5.0, -1.0], [-3.0, -2.0]])
    rows = Predictions(["r1", "r2"], np.array([7, 8]), np.array([[1.0, 1.0], [1.0, 0.0]]), outputs)
    shown = mistakes.chapter(Answers(target, "dna"), target, rows)
    assert ids(shown) == ["r2", "r1"] and "2 of 4 labels were answered wrongly" in shown
    assert '<td>0.047</td><td class="words">a</td><td class="words">has it</td><td>8</td>' in shown


def test_numbers_farthest_off() -> None:
    rows = Predictions(["a", "b"], np.array([7, 8]), np.array([1.0, 2.0]), np.array([[1.5], [-2.0]]))
    shown = mistakes.chapter(None, Regression(), rows)
    assert ids(shown) == ["b", "a"] and "<td>2.000</td><td>-2.000</td><td>-4.000</td><td>8</td>" in shown


def test_without_labels_it_says_so() -> None:
    rows = Predictions(["a"], np.array([1]), np.array([0]), np.array([[2.0, 0.0]]))
    assert "no labels.json: its mistakes cannot be named" in mistakes.chapter(None, EVEN, rows)
