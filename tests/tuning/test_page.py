"""The page of a study: with many trials, with the recipe alone, and with odd names."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer.tuning.page import study_page, write_study
from chordmixer.tuning.results import StudyResult, TrialResult

DEFAULT = {
    "training.learning_rate": 1e-3,
    "training.weight_decay": 0.1,
    "model.head": "mean_maximum_attention",
    "model.network.hidden": 64,
    "model.words": True,
}


def trial(number: int, loss: float, state: str = "finished", reason: str = "") -> TrialResult:
    rng = random.Random(number)
    values = DEFAULT | {
        "training.learning_rate": 10 ** rng.uniform(-4, -2),
        "model.network.hidden": rng.choice((32, 64, 128)),
        "model.words": rng.random() < 0.5,
        "model.head": rng.choice(("attention", "standard")),
    }
    settings = DEFAULT if number == 0 else values
    return TrialResult(number, state, loss, settings, number == 0, 30.0 + number, 0.5 * number + 0.4, reason)


@pytest.fixture
def result(tmp_path: Path) -> StudyResult:
    losses = [0.9, 1.1, 0.85, 25.0, 0.97, 0.7, 0.74, 1.0, 0.69, 0.72]
    trials = [trial(number, loss) for number, loss in enumerate(losses)]
    trials.insert(4, trial(10, math.nan, "pruned"))
    trials.append(trial(11, math.nan, "infeasible", "needs about 3.1 GB of memory, 2.0 GB are free"))
    importances = {
        "training.learning_rate": 0.61,
        "model.network.hidden": 0.24,
        "model.words": 0.11,
        "model.head": 0.04,
    }
    return StudyResult(tmp_path, trials, 5.5, 80, 800, {}, importances)


def test_the_page_has_the_best_settings_the_search_and_all_trials(result: StudyResult) -> None:
    page = study_page(result)
    assert "validation loss of 0.69, 23.3 % lower than the 0.9 of the default settings" in page
    assert f"chordmixer train FILES --config {result.folder}/best.toml --out RUN" in page
    titles = ["Loss by trial", "Loss over time", "Importance", "learning_rate", "network.hidden", "words", "head"]
    assert re.findall(r"<figure><h3>(.*?)</h3>", page) == titles
    rows = re.findall(r'<tr><th scope="row"[^>]*>(\d+)', page.split('id="trials"')[1])
    assert rows == ["8", "5", "9", "6", "2", "0", "4", "7", "1", "3", "10", "11"]
    assert "Trial 11: infeasible, needs about 3.1 GB of memory, 2.0 GB are free." in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page) and "NaN" not in page and "nan" not in page


def test_a_trial_that_diverged_does_not_flatten_the_others(result: StudyResult) -> None:
    first = study_page(result).split("Loss over time")[0]
    ticks = [float(tick) for tick in re.findall(r'text-anchor="end">([\d.]+)<', first)]
    assert ticks and max(ticks) < 5


def test_the_recipe_alone(result: StudyResult) -> None:
    single = replace(result, trials=result.trials[:1], importances={}, minutes=0.4)
    page = study_page(single)
    assert "these are the default settings" in page and "Too few trials are finished" in page


def test_losses_may_be_equal_or_below_zero(result: StudyResult) -> None:
    for loss in (0.5, -1.5, 0.0):
        same = replace(result, trials=[trial(number, loss) for number in range(3)])
        assert "validation loss of" in study_page(same)


def test_nothing_is_written_before_a_trial_is_finished(result: StudyResult) -> None:
    write_study(replace(result, trials=[trial(3, math.nan, "running")]))
    assert [*result.folder.iterdir()] == []
    write_study(result)
    assert {path.name for path in result.folder.iterdir()} == {"best.toml", "study.html"}


def test_a_folder_with_an_odd_name_is_only_text(result: StudyResult) -> None:
    page = study_page(replace(result, folder=Path("<script>alert(1)</script>")))
    assert "<script>alert" not in page
