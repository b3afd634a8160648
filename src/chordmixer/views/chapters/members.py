"""The members of an ensemble: the scores of each, how far they are apart, and those of their mean."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from chordmixer.training.ensemble import Ensemble, folder_of
from chordmixer.views import metrics
from chordmixer.views.page import Html, join, section, short, table, tag
from chordmixer.views.runs import Run
from chordmixer.views.verdict import together

HELD = {
    "folds": "Cross-validation: every record of training and validation is answered by the member that did not train "
    "on it. That member chose its weights, and its share of the baseline, on the same fold, so that these scores are "
    "slightly too good; the test records are apart from all folds.",
    "replicates": "The members differ in the seed of the first weights and of the order of the records alone. Each "
    "chose its weights, and its share of the baseline, on the same validation records.",
}


def chapter(run: Run) -> Html:
    known = run.ensemble
    assert known is not None, "it is an ensemble"
    name, held = metrics.name(known.metric), "fold held out" if known.kind == "folds" else "validation"
    rows: list[Sequence[object]] = [
        (f"member {own.number}", short(own.answers, 60), metrics.cell(own.validation), metrics.cell(own.test))
        for own in known.members
    ]
    rows += [("mean", "", *_of_both(known, 0)), ("standard deviation", "", *_of_both(known, 1))]
    scores = [metrics.cell(own.scores.get(known.metric) if own else None) for own in (run.held_out, run.test)]
    rows.append(("ensemble", f"the {known.title}", *scores))
    head = ("", "answered by", f"{name}, {held}", f"{name}, test")
    last = (
        "The last row is all folds together, each answered by its own member, and on the test records the mean."
        if known.kind == "folds"
        else "The last row is the mean of all members."
    )
    look = f"chordmixer report {shlex.quote(str(folder_of(run.folder, 0)))}"
    return section(
        "members",
        "Members",
        *(tag("p", line) for line in together(run)),
        table(head, rows, words=(0, 1), name="members", stacked=True),
        tag("p", f"{last} {HELD[known.kind]}"),
        tag("p", "Each member is a run with a report of its own: ", tag("code", look), "."),
    )


def _of_both(known: Ensemble, which: int) -> list[Html]:
    return [join([metrics.number(known.spread(part)[which])]) for part in ("validation", "test")]
