"""The first lines of a report: which model wins, and what may mislead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chordmixer.models import ModelConfig
from chordmixer.training import Experiment, evaluation
from chordmixer.training.evaluation import Predictions, save_evaluation, summarise
from chordmixer.training.intervals import Difference
from chordmixer.training.labels import OutputLabels
from chordmixer.training.results import write_baselines
from chordmixer.views import verdict
from chordmixer.views.runs import Run

Make = Callable[..., Path]

EXPERIMENT = Experiment("files", None, ModelConfig(inputs=16, outputs=2))


def difference(value: float, low: float | None, high: float | None, over: Any = "records") -> Difference:
    return Difference("roc_auc", value, low, high, over)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (difference(0.043, 0.020, 0.065), "The model is better by 0.043 (0.020 to 0.065)"),
        (difference(-0.043, -0.065, -0.020), "The model is worse by 0.043 (0.020 to 0.065)"),
        (
            difference(0.043, 0.020, 0.065, "groups"),
            "The model is better by 0.043 (0.020 to 0.065, resampling groups)",
        ),
        (difference(0.02, -0.01, 0.05), "Tied: the test set cannot separate them"),
        (difference(0.0, 0.0, 0.0), "Tied: the test set cannot separate them"),
        (difference(0.5, None, None), "Too few test records of each class for a comparison"),
        (Difference("r2", 0.5, None, None, "records"), "Too few test records for a comparison"),
        (None, "No comparison on the same records is kept"),
    ],
)
def test_who_wins(own: Difference | None, expected: str) -> None:
    assert verdict.compared(own) == expected
    assert "s4d" in verdict.compared(own, "s4d")


def test_paired_records_settle_what_overlapping_intervals_do_not(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is right where the baseline is, and on some records more: both intervals overlap."""
    run = make_run("two", records=400, skill=0.7)
    monkeypatch.setattr(evaluation, "RESAMPLES", 200)
    target, model = OutputLabels.load(run).target, Predictions.read(run / "predictions.parquet")
    noisy = model.outputs + np.random.default_rng(0).normal(0, 0.6, model.outputs.shape).astype(np.float32)
    write_baselines(run, EXPERIMENT, target, [("4-mers", "", replace(model, outputs=noisy))])
    loaded = Run.load(run)
    assert loaded.test is not None
    model_score, baseline_score = loaded.test.scores["roc_auc"], loaded.baselines[0].evaluation.scores["roc_auc"]
    assert model_score.low is not None and baseline_score.high is not None and model_score.low < baseline_score.high
    text = " ".join(verdict.headline(loaded))
    assert re.search(r"4-mers, reaches 0\.\d+\. The model is better by 0\.0\d+ \(0\.0", text)


def test_one_positive_record_makes_no_winner(make_run: Make) -> None:
    run = make_run("two", records=40)
    target, model = OutputLabels.load(run).target, Predictions.read(run / "predictions.parquet")
    predictions = replace(model, targets=np.array([0] * 39 + [1]))
    scored = summarise(predictions, target, EXPERIMENT, "test")
    save_evaluation(run, scored, predictions)
    lucky = replace(predictions, outputs=np.stack([np.zeros(40), np.arange(40)], axis=1).astype(np.float32))
    write_baselines(run, EXPERIMENT, target, [("length alone", "", lucky)])
    text = " ".join(verdict.headline(Run.load(run)))
    assert "(too few records for an interval)" in text and "length alone, reaches 1.000" in text
    assert "Too few test records of each class for a comparison." in text and "Use the baseline" not in text


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("two", "trained to distinguish exon from intron; on 300 test records it reaches ROC-AUC"),
        ("five", "trained to distinguish 5 classes; on 300 test records it reaches accuracy"),
        ("regression", "trained to predict a number from a sequence; on 300 test records it reaches R²"),
        ("labels", "trained to predict which of 5 labels a sequence has; on 300 test records it reaches ROC-AUC"),
        ("adding", "trained to add the two marked numbers of a sequence (the Adding problem)"),
    ],
)
def test_what_was_asked(make_run: Make, kind: str, expected: str) -> None:
    first, *_ = verdict.headline(Run.load(make_run(kind)))
    assert expected in first and "95 % interval" in first


def test_a_baseline_that_wins_is_said_to(make_run: Make) -> None:
    text = " ".join(verdict.headline(Run.load(make_run("two", skill=0.5, baseline_skill=3.0))))
    assert "The best baseline, 4-mers, reaches" in text and "The model is worse by" in text


def test_a_model_that_learnt_nothing_is_said_to_have(make_run: Make) -> None:
    text = " ".join(verdict.headline(Run.load(make_run("two", skill=0.0, baseline_skill=0.0))))
    assert "the test set does not show that the model learned anything" in text


def test_without_scores_it_says_how_to_get_them(make_run: Make) -> None:
    run = replace(Run.load(make_run("two")), test=None)
    (sentence,) = verdict.headline(run)
    assert "evaluation-test.json is missing" in sentence and "chordmixer evaluate" in sentence


def test_warnings(make_run: Make) -> None:
    lines = [*verdict.warnings(Run.load(make_run("two", records=60)))]
    assert [
        any(start in line for line in lines)
        for start in (
            "length alone predicts the label with ROC-AUC 0.71",
            "3 exact duplicates",
            "2 of 60 test records have a copy or near-copy among the training records",
            "There are only 60 test records",
        )
    ] == [True] * 4


def test_a_temperature_at_its_end_is_said(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.output_labels is not None
    extreme = replace(run, output_labels=replace(run.output_labels, temperature=20.0))
    assert any("temperature 20 is at the end of its range" in line for line in verdict.warnings(extreme))
    assert not any("temperature" in line for line in verdict.warnings(run))
