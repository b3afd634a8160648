"""The chapter on members: a row each, their spread, and the ensemble."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.training import ensemble
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.intervals import Score
from chordmixer.views import verdict
from chordmixer.views.chapters import members
from chordmixer.views.report import page
from chordmixer.views.runs import Run

Make = Callable[..., Path]


def made(run: Run, kind: Literal["folds", "replicates"] = "folds") -> Run:
    rows = [EnsembleMember(k, "network and <6-mers>", Score(0.8 + 0.1 * k, 0.7, 1.0), Score(0.75)) for k in range(2)]
    assert run.test is not None
    known = Ensemble(kind, 2, True, "roc_auc", tuple(rows))
    return replace(run, ensemble=known, held_out=replace(run.test, split=known.held_out))


def test_a_row_a_member_then_spread_and_ensemble(make_run: Make) -> None:
    run = made(Run.load(make_run("two")))
    assert run.test is not None
    shown = members.chapter(run)
    names = re.findall(r'scope="row" class="words">([^<]*)<', shown)
    assert names == ["member 0", "member 1", "mean", "standard deviation", "ensemble"]
    assert "network and &lt;6-mers&gt;" in shown and "ROC-AUC, fold held out" in shown
    cells = [re.findall("<td[^>]*>(.*?)</td>", row) for row in shown.split("<tr>")[2:]]
    assert cells[2][1:] == ["0.850", "0.750"] and cells[3][1:] == ["0.071", "0.000"]
    assert "slightly too good" in shown and "members/0" in shown
    assert (
        "2-fold cross-validation on" in shown and "; mean 0.850 and standard deviation 0.071 over the folds" in shown
    )


def test_replicates_share_their_validation_records(make_run: Make) -> None:
    run = made(Run.load(make_run("two")), "replicates")
    shown = members.chapter(run)
    assert "ROC-AUC, validation" in shown and "over the seeds" in shown and "cross-validation" not in shown
    assert not any("cross-validation" in line for line in verdict.headline(run))


def test_in_the_report(make_run: Make) -> None:
    run = Run.load(make_run("two"))
    assert 'id="members"' not in page(run) and 'id="training"' in page(run)
    shown = page(made(run))
    assert 'href="#members"' in shown and 'id="training"' not in shown and "into 2 folds" in shown


def test_before_any_member_is_trained(make_run: Make) -> None:
    run = made(Run.load(make_run("two")))
    assert run.ensemble is not None
    shown = page(replace(run, ensemble=replace(run.ensemble, members=()), test=None, held_out=None))
    assert 'id="members"' in shown and "undefined" in shown and "nan" not in shown


def test_scores_that_cannot_be(make_run: Make) -> None:
    folder = make_run("two")
    known = made(Run.load(folder)).ensemble
    assert known is not None
    wrong = replace(known.members[0], test=Score(7.0))
    broken = replace(known, members=(wrong, known.members[1]))
    files.write_recorded(folder, {ensemble.FILE: files.json_bytes(to_dict(broken))})
    with pytest.raises(ValueError, match=r"roc_auc=7 cannot be"):
        Run.load(folder)
