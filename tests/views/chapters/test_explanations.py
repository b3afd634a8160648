"""The chapter on where answers come from: of pictures of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from chordmixer.views.chapters.explanations import LETTERS, chapter
from chordmixer.views.explanations import Explained, Picture
from chordmixer.views.report import page
from chordmixer.views.runs import Run


def test_records_of_both_kinds(make_run: Callable[..., Path]) -> None:
    run = Run.load(make_run("two"))
    pictures = (
        Picture("<b>", ("Answer: <i>.",), "fall of the log-odds", (0, 2, 900), (1.0, 0.0), letters="A" * 900),
        Picture("wave", ("Answer: 3.",), "fall of the number", (0, 3), (1.0,), samples=(1.0, 2.0, 3.0)),
    )
    known = replace(run, explained=Explained(pictures, ("7 of 9 test records are left out.",)))
    markup = chapter(known)
    assert "7 of 9 test records are left out." in markup and "<h3>&lt;b&gt;</h3>" in markup and "<i>" not in markup
    assert f"Letters 1 to {LETTERS} of 900" in markup and "fall of the number" in markup
    assert "chordmixer explain" in markup and markup in page(known)
    assert "Where answers come from" not in page(run)
