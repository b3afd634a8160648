"""best.toml has the settings of the best trial; summaries compare it with the recipe."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer.fitting import dotted
from chordmixer.tuning.results import StudyResult, TrialResult, best_toml

VALUES = {"training.learning_rate": 1e-3, "model.head": "attention", "model.words": True, "model.words.dropout": 0.5}
BETTER = {"training.learning_rate": 0.0031234, "model.head": "attention", "model.words": False} | {
    "model.words.dropout": 0.2
}


@pytest.fixture
def result() -> StudyResult:
    trials = [
        TrialResult(0, "finished", 0.5, VALUES, True, 1.0, 0.1, ""),
        TrialResult(1, "finished", 0.6, VALUES | {"model.words": False}, True, 1.0, 0.2, ""),
        TrialResult(2, "finished", 0.4, BETTER, False, 1.0, 0.3, ""),
        TrialResult(3, "pruned", math.nan, BETTER, False, 1.0, 0.4, ""),
    ]
    settings = {"training.seed": 3, "data.cut": None, "model.words.bits": 6}
    return StudyResult(Path("STUDY"), trials, 0.4, 80, 2_000, settings, {})


def test_best_toml_has_the_best_and_the_given_settings(result: StudyResult) -> None:
    assert dotted(tomllib.loads(best_toml(result))) == {
        "data.cut": "none",
        "model.head": "attention",
        "model.words.bits": 6,
        "model.words.lengths": [],
        "training.learning_rate": 0.00312,
        "training.seed": 3,
        "training.steps": 2_000,
        "training.trial": 0.0,
    }
    timed = replace(result, given={"training.minutes": 3.0})
    assert "training.steps" not in timed.settings  # the end of a run is one or the other


def test_the_summary_has_the_default_beside_the_best(result: StudyResult) -> None:
    assert [*result.lines()] == [
        "4 trials of 80 steps in 0.4 min: 3 finished, 1 pruned",
        "default: validation loss 0.5",
        "best:    validation loss 0.4, trial 2, 20.0 % lower",
        "  training.learning_rate = 0.00312  (default 0.001)",
        "  model.words.lengths = []",
    ]
    single = replace(result, trials=result.trials[:1])
    assert [*single.lines()][-1] == "best:    validation loss 0.5, trial 0, the default itself"
    assert len([*replace(result, trials=result.trials[3:]).lines()]) == 1
