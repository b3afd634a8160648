"""What is said first: who wins, plainly, and what to mind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chordmixer.training.evaluation import Score
from chordmixer.views import verdict
from chordmixer.views.runs import Run

Make = Callable[..., Path]


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        (Score(0.9, 0.86, 0.94), Score(0.8, 0.75, 0.85), "the model is better, and the intervals do not overlap"),
        (Score(0.8, 0.75, 0.85), Score(0.9, 0.86, 0.94), "the plain baseline wins, and the intervals do not overlap"),
        (Score(0.9, 0.8, 0.94), Score(0.8, 0.75, 0.85), "the model is ahead, but the intervals overlap"),
        (Score(0.8, 0.75, 0.87), Score(0.9, 0.86, 0.94), "the plain baseline is ahead, but the intervals overlap"),
        (Score(0.8, 0.75, 0.85), Score(0.8, 0.75, 0.85), "both are equal, but the intervals overlap"),
        (Score(float("nan"), float("nan"), float("nan")), Score(0.8, 0.75, 0.85), "the model has no such score"),
    ],
)
def test_who_wins(own: Score, other: Score, said: str) -> None:
    assert said in verdict.beside_baseline(own, other, "4-mers")


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("two", "trained to tell exon from intron; on 300 test records it reaches ROC-AUC"),
        ("five", "trained to tell 5 classes apart; on 300 test records it reaches accuracy"),
        ("regression", "trained to predict a number from a sequence; on 300 test records it reaches R²"),
        ("labels", "trained to say which of 5 labels a sequence has; on 300 test records it reaches ROC-AUC"),
        ("adding", "trained to add the two marked numbers of a sequence (the Adding problem)"),
    ],
)
def test_what_was_asked(make_run: Make, kind: str, asked: str) -> None:
    first, *_ = verdict.headline(Run.load(make_run(kind)))
    assert asked in first and "95 % interval" in first


def test_a_baseline_that_wins_is_said_to(make_run: Make) -> None:
    said = " ".join(verdict.headline(Run.load(make_run("two", skill=0.5, rival=3.0))))
    assert "The best plain baseline, 4-mers, reaches" in said and "the plain baseline wins" in said


def test_a_model_that_learnt_nothing_is_said_to_have(make_run: Make) -> None:
    said = " ".join(verdict.headline(Run.load(make_run("two", skill=0.0, rival=0.0))))
    assert "the model has not been shown to have learnt anything" in said


def test_without_scores_it_says_how_to_get_them(make_run: Make) -> None:
    run = replace(Run.load(make_run("two")), test=None)
    (only,) = verdict.headline(run)
    assert "evaluation-test.json is missing" in only and "chordmixer evaluate" in only


def test_what_to_mind(make_run: Make) -> None:
    said = [*verdict.to_mind(Run.load(make_run("two", records=60)))]
    assert [
        any(start in line for line in said)
        for start in (
            "length alone predicts the label with ROC-AUC 0.71",
            "3 exact duplicates",
            "2 of 60 test records have a copy or near-copy among the training records",
            "The test part has only 60 records",
        )
    ] == [True] * 4


def test_a_temperature_at_its_end_is_said(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.answers is not None
    hot = replace(run, answers=replace(run.answers, temperature=20.0))
    assert any("temperature 20 is at the end of what is tried" in line for line in verdict.to_mind(hot))
    assert not any("temperature" in line for line in verdict.to_mind(run))
