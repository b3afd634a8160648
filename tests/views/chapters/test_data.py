"""The chapter on data: every number of data.json that a reader needs, in words and pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chordmixer.data.inspection import summarise_targets
from chordmixer.views.chapters import data
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def test_account_split_and_leakage_are_there(make_run: Make) -> None:
    shown = data.chapter(Run.load(make_run("two")))
    for said in (
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
        assert said in shown
    assert "Near-copies were not looked for" not in shown


def test_what_was_not_looked_for_is_said(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert run.data is not None
    assert "Near-copies were not looked for" in data.chapter(replace(run, data=replace(run.data, near=False)))
    bare = replace(run.data, leakage={}, split={}, sources=[], inspection=None, account=None)
    shown = data.chapter(replace(run, data=bare))
    assert "does not say whether copies cross the parts" in shown and "<h3>Split" not in shown


def test_many_classes_share_a_bar(make_run: Make) -> None:
    run = Run.load(make_run("many"))
    assert run.data is not None and run.data.inspection is not None
    assert f"{len(run.data.inspection.classes) - data.CLASSES} more" in data.chapter(run)


def test_a_task_without_files_shows_the_test_lengths(make_run: Make) -> None:
    shown = data.chapter(Run.load(make_run("adding")))
    assert "makes its own sequences" in shown and "Lengths of test records" in shown


@pytest.mark.parametrize("numbers", [[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]], ids=["several", "one-value"])
def test_numbers_to_predict_have_a_histogram(make_run: Make, numbers: list[float]) -> None:
    run = Run.load(make_run("regression"))
    assert run.data is not None and run.data.inspection is not None
    assert "Histogram of targets" not in data.chapter(run)  # of a run that was made before there was one
    seen = replace(run.data.inspection, targets=summarise_targets(np.array(numbers)))
    shown = data.chapter(replace(run, data=replace(run.data, inspection=seen)))
    assert "Histogram of targets" in shown and f"median {numbers[1]:.3f}" in shown
    assert "3 records, 0 without a target" in shown and "0 across targets" in shown
