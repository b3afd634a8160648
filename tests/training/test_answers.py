from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.training.trained_runs import CLASSES, SEVERAL

from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training.answers import Answers


@pytest.mark.parametrize("target", [CLASSES, SEVERAL, Regression.of([1.0, 3.0])])
def test_there_and_back(tmp_path: Path, target: Regression) -> None:
    Answers(target, "dna", 1.25, True).save(tmp_path)
    found = Answers.load(tmp_path)
    assert found.to_dict() == Answers(target, "dna", 1.25, True).to_dict()
    assert list(json.loads((tmp_path / "labels.json").read_text())) == [
        *("format", "target", "temperature", "both_strands", "tokenizer")
    ]


def test_probabilities_are_without_the_weights_of_the_training() -> None:
    """A model that has learned nothing but the weighted shares answers with the classes' own ones."""
    two = Classification.of_counts(["a", "b"], [7, 3])
    np.testing.assert_allclose(Answers(two, "dna").probabilities(np.zeros((1, 2))), [[0.7, 0.3]], rtol=1e-6)
    classes = Answers(CLASSES, "dna").probabilities(np.log([[0.5, 0.3, 0.2]]))
    np.testing.assert_allclose(classes, [[0.5, 0.3, 0.2]], rtol=1e-6)
    several = Answers(SEVERAL, "dna").probabilities(np.zeros((1, 2)))
    np.testing.assert_allclose(several, [[0.3, 0.6]], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"labels\.json cannot be read as JSON"),
        ('{"format": 9}', r"labels\.json has format 9: this version reads 2"),
        (
            '{"format": 2, "target": {"kind": "regression"}}',
            r"labels\.json is not whole \(labels\.json\.tokenizer is missing",
        ),
        ('{"format": 2, "target": 3}', r"labels\.json is not whole"),
    ],
)
def test_damage(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Answers.load(tmp_path)


def test_a_run_that_is_not_of_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"labels\.json does not exist: give the run folder of a training on files"):
        Answers.load(tmp_path)
