"""Why a number is below the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.reasons import why_below
from chordmixer.paper.reproduction.running import Seen, TrainedRun
from chordmixer.training import Evaluation, Experiment

Evaluated = Callable[[str, float], Evaluation]
SEEN = Seen({"training": 64}, 30, 9_000, ["no", "yes"])


def said(name: str, experiment: Experiment, own: Evaluation, given: bool = False, **changes: object) -> str:
    entry = ENTRIES[name]
    assert isinstance(entry, RunEntry)
    run = TrainedRun(experiment, own, 1.0, False, 9)
    return why_below(replace(entry, **changes), [run], [own], SEEN, given)  # type: ignore[arg-type]


def test_what_is_known_to_differ(tiny: Experiment, evaluated: Evaluated) -> None:
    assert said("listops", tiny, evaluated("chordmixer", 0.55)) == (
        "Below the paper is chordmixer by 5.12 points: what is known to differ is fewer epochs (2 at most, 200 in "
        "the released code); other settings (table below); data of our own generator, not the release's; the "
        "protocol (end of this page). How much each of these costs was not measured."
    )
    short = replace(tiny, training=replace(tiny.training, steps=1_500))
    words = said("listops", short, evaluated("chordmixer", 0.55), given=True, classes=("a",), seeds=3)
    assert "; an early end (1,500 steps); " in words and "generator" not in words
    assert "; other classes than the paper's; 1 run where the paper has the mean of 3; " in words


def test_nothing_to_explain(tiny: Experiment, evaluated: Evaluated) -> None:
    assert said("listops", tiny, evaluated("chordmixer", 0.61)) == ""
    assert said("listops", tiny, evaluated("lstm", 0.2)) == "", "no number of the paper's"
    bare = {"hyper": None, "released": None, "differences": ()}
    words = said("listops", tiny, evaluated("chordmixer", 0.55), given=True, **bare)
    assert "points: no difference in protocol is known." in words
