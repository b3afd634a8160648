"""A tiny Adding problem, and evaluations that nobody trained for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.experiments import build
from chordmixer.training import Experiment
from chordmixer.training import evaluation as scoring
from chordmixer.training.evaluation import Evaluation, LengthBin, Score

TINY: dict[str, Any] = {
    "data": {"base_length": 20, "max_length": 60, "training": 64, "validation": 16, "test": 32},
    "model": {"network": {"track_size": 2, "hidden": 4}},
    "training": {"epochs": 2, "device": "cpu"},
}


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "RESAMPLES", 10)


@pytest.fixture(scope="session")
def tiny() -> Experiment:
    return build(ENTRIES["adding-200"], changes=TINY)  # type: ignore[arg-type]


@pytest.fixture
def changes() -> dict[str, Any]:
    return TINY


@pytest.fixture
def evaluated() -> Callable[[str, float], Evaluation]:
    """An evaluation of this encoder whose scores are all the same."""

    def make(encoder: str, value: float) -> Evaluation:
        score = {"accuracy": Score(value, value - 0.05, value + 0.05), "mse": Score(1.0, 1.0, 1.0)}
        undefined = {"accuracy": Score(float("nan"), float("nan"), float("nan")), "mse": Score(1.0, 1.0, 1.0)}
        bins = [LengthBin(50, 30, 99, 20, score), LengthBin(100, 100, 9_000, 12, undefined)]
        return Evaluation("adding", "test", encoder, "accuracy", 32, 0.1, score, {"accuracy": 0.125}, bins)

    return make
