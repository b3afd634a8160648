"""Sections of a report on data, training and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chordmixer.data.inspection import summarise_targets
from chordmixer.views import report_data
from chordmixer.views.report_data import data_section, settings_section, smoothed, training_section
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def test_account_split_and_leakage_are_there(make_run: Make) -> None:
    html = data_section(Run.load(make_run("two")))
    for phrase in (
        "<code>genes.fa.gz</code>, <code>more &lt;genes&gt;.fa</code>",
        "302 records read: 300 used, 2 rejected",
        "2 rejected, empty: gene&lt;9&gt;, gene77",
        "41.0% of the bases are G or C",
        "by group: records of one group are never in two parts",
        "Duplicates among all records: 3 exact, 1 reverse complement; 0 across labels.",
        "test: 2 of 300 records (0.7 %) have a copy in training: 2 exact",
        "Histogram of lengths",
        "Records of each class",
    ):
        assert phrase in html
    assert "Near-copies were not searched for" not in html


def test_what_was_not_looked_for_is_said(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.data is not None
    assert "Near-copies were not searched for" in data_section(replace(run, data=replace(run.data, near=False)))
    bare = replace(run.data, leakage={}, split={}, sources=[], inspection=None, account=None)
    html = data_section(replace(run, data=bare))
    assert "does not say whether copies cross the parts" in html and "<h3>Split" not in html


def test_many_classes_share_a_bar(make_run: Make) -> None:
    run = Run.load(make_run("many"))
    assert run.data is not None and run.data.inspection is not None
    assert f"{len(run.data.inspection.classes) - report_data.MAX_CLASSES} more" in data_section(run)


def test_a_task_without_files_shows_the_test_lengths(make_run: Make) -> None:
    html = data_section(Run.load(make_run("adding")))
    assert "generates its data" in html and "Lengths of test records" in html


@pytest.mark.parametrize("numbers", [[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]], ids=["several", "one-value"])
def test_numbers_to_predict_have_a_histogram(make_run: Make, numbers: list[float]) -> None:
    run = Run.load(make_run("regression"))
    assert run.data is not None and run.data.inspection is not None
    assert "Histogram of targets" not in data_section(run)  # of a run that was made before there was one
    inspection = replace(run.data.inspection, targets=summarise_targets(np.array(numbers)))
    html = data_section(replace(run, data=replace(run.data, inspection=inspection)))
    assert "Histogram of targets" in html and f"median {numbers[1]:.3f}" in html
    assert "3 records, 0 without a target" in html and "0 across targets" in html


def test_steps_and_the_weights_kept(make_run: Make) -> None:
    html = training_section(Run.load(make_run("two")))
    assert "2,000 steps and 10 validations. The weights kept are those of step 2,000" in html
    assert "Training loss as a running mean over 10 points" in html
    assert "Validation ROC-AUC" in html


def test_the_best_step_need_not_be_the_last(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    worse = [*run.journal, {"step": 2200, "split": "validation", "loss": 0.9, "roc_auc": 0.6}]
    assert "2,200 steps and 11 validations. The weights kept are those of step 2,000" in training_section(
        replace(run, journal=worse)
    )


def test_one_point_and_nan(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [
        {"step": 1, "split": "validation", "loss": math.nan, "roc_auc": math.nan},
        {"step": 10, "split": "training", "loss": 0.7},
    ]
    for journal in (rows, rows[:1], rows[1:]):
        html = training_section(replace(run, journal=journal))
        assert "steps, without a validation" in html and '"nan' not in html


def test_a_loss_that_falls_far_has_a_logarithmic_axis(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [{"step": s, "split": "training", "loss": 10.0 ** -(s / 10)} for s in range(10, 60)]
    assert "loss (logarithmic)" in training_section(replace(run, journal=rows))
    assert "loss (logarithmic)" not in training_section(run)


def test_a_long_journal_is_drawn_with_few_points(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    rows = [{"step": s, "split": "training", "loss": 1 / (1 + s)} for s in range(20_000)]
    assert len(training_section(replace(run, journal=rows))) < 30_000


def test_without_a_journal_it_says_so(make_run: Make) -> None:
    assert "no metrics.jsonl" in training_section(replace(Run.load(make_run("two")), journal=[]))


def test_every_setting_has_a_row(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    html = settings_section(run)
    for name in (*run.config["training"], *(f"network.{key}" for key in run.config["model"]["network"])):
        assert f"<code>{name}</code>" in html
    assert "Trained with chordmixer 1.2.3, torch 2.13.0." in html
    assert "Tokens: dna." in html


def test_the_command_fits_the_run(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    spaced = replace(run, folder=Path("my runs/<one>"))
    assert "chordmixer predict &#x27;my runs/&lt;one&gt;&#x27; FILES -o answers.tsv" in settings_section(spaced)
    adding = Run.load(make_run("adding"))
    assert "chordmixer evaluate " in settings_section(adding) and "predict" not in settings_section(adding)


def test_versions_that_are_not_known(make_run: Make) -> None:
    run = Run.load(make_run("adding"))
    config = {key: value for key, value in run.config.items() if key != "version"}
    assert "does not say which versions" in settings_section(replace(run, config=config))


def test_a_running_mean_keeps_a_line_and_the_level() -> None:
    line = np.arange(50.0)
    np.testing.assert_allclose(smoothed(line, 5)[2:-2], line[2:-2])
    np.testing.assert_allclose(smoothed(np.full(7, 3.0), 3), 3.0)
    assert len(smoothed(np.empty(0), 3)) == 0
