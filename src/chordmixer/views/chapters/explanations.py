"""Where answers come from: a few test records, and the parts that the answer falls without."""

from __future__ import annotations

import shlex

from chordmixer.views.explanations import MEANING, drawn
from chordmixer.views.page import Html, section, short, tag
from chordmixer.views.runs import Run

LETTERS = 600
"""Of a record, at most."""


def chapter(run: Run) -> Html:
    known = run.explained
    assert known is not None, "there are explanations"
    parts = [tag("div", tag("h3", short(own.id, 80)), drawn(own, LETTERS), class_="record") for own in known.records]
    said = " ".join(short(line, 400) for line in known.said)
    command = tag("code", f"chordmixer explain {shlex.quote(str(run.folder))} FILES -o why.html")
    return section(
        "explanations",
        "Where answers come from",
        tag("p", f"{'Some records' if parts else 'None'} of the test part. {said}"),
        tag("p", MEANING),
        *parts,
        tag("p", "Other records: ", command, "."),
    )
