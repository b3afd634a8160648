"""One page about a run: what was learnt, how well, on what, beside plain baselines, and where it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from chordmixer import files
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.run_folder import WAIT, RunLock
from chordmixer.version import __version__
from chordmixer.views import verdict
from chordmixer.views.chapters import (
    classes,
    confidence,
    data,
    explanations,
    learning,
    members,
    mistakes,
    numbers,
    ranking,
    scores,
    settings,
)
from chordmixer.views.page import Html, document, items, join, section, short, tag
from chordmixer.views.runs import Run

FILE = "report.html"
TITLES = {
    "scores": "Scores",
    "members": "Members",
    "data": "Data",
    "training": "Training",
    "classes": "Confusion",
    "ranking": "Ranking",
    "calibration": "Calibration",
    "numbers": "Predicted and true",
    "answers": "Answers",
    "mistakes": "Worst mistakes",
    "explanations": "Where answers come from",
    "settings": "Settings and use",
}


def write_report(run: Path, unverified: bool = False) -> Path:
    """Write RUN/report.html: whole in itself, readable offline, on a phone, in the dark and on paper."""
    path = Path(run) / FILE
    written = page(Run.load(Path(run), unverified))
    with RunLock(Path(run), WAIT):
        files.write_text(path, written)
    return path


def page(run: Run) -> Html:
    """The whole page of a run. What the folder does not hold is left out, with a sentence."""
    name = short(run.folder.resolve().name, 80)
    first, *rest = verdict.headline(run)
    lead = join([tag("p", first, class_="lead"), *(tag("p", line) for line in rest)])
    said = [*verdict.warnings(run)]
    warned = tag("aside", tag("h2", "Warnings"), items(said), class_="mind") if said else ""
    chapters = {"scores": scores.chapter(run)} | ({"members": members.chapter(run)} if run.ensemble else {})
    chapters |= {"data": data.chapter(run)} | ({} if run.ensemble else {"training": learning.chapter(run)})
    chapters |= dict(_answers(run)) | ({"explanations": explanations.chapter(run)} if run.explained else {})
    chapters |= {"settings": settings.chapter(run)}
    links = [tag("a", TITLES[key], href=f"#{key}") for key in chapters]
    contents = tag("nav", items(links), aria_label="Contents")
    foot = tag("footer", tag("p", f"Written by chordmixer {__version__}.", class_="quiet"))
    body = tag("main", tag("h1", f"Report on {name}"), settings.made(run), lead, warned, contents, *chapters.values())
    return document(f"Report on {name}", body, foot)


def _answers(run: Run) -> Iterator[tuple[str, Html]]:
    """What can be said of single answers."""
    rows, target = run.predictions, run.target
    if rows is None or target is None or not rows.names:
        missing = "no predictions.parquet" if rows is None or not rows.names else "no labels.json"
        said = f"The run has {missing}: single answers are not shown."
        yield "answers", section("answers", TITLES["answers"], tag("p", said))
        return
    if odd := rows.not_finite():
        said = f"{len(odd):,} records have outputs that are not finite, {short(odd[0], 80)} first: none is shown."
        yield "answers", section("answers", TITLES["answers"], tag("p", said))
        return
    if isinstance(target, Regression):
        yield "numbers", numbers.chapter(target, rows)
    elif run.answers and isinstance(target, Classification | MultiLabel):
        yield "classes", classes.chapter(run.answers, rows)
        yield "ranking", ranking.chapter(target, rows)
        yield "calibration", confidence.chapter(run.answers, rows)
    yield "mistakes", mistakes.chapter(run.answers, target, rows)
