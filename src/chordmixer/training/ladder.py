"""What the data need: counts, local patterns, long-range structure, or all of them, each beside the one before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from chordmixer.tasks.targets import Target
from chordmixer.training import delivery, paired
from chordmixer.training.evaluation import Predictions
from chordmixer.training.intervals import Difference

FOLDER, LOCAL = "local", "local network"
"""Of a run, where its local network is trained (`local_network`), and what that is called."""
SENTENCE = "the network without its encoder: convolutions, words and pooling, trained for half as long"
DELIVERED = "delivered"
NETWORKS = (LOCAL, delivery.NETWORK)
"""Rows beside a run's answer that are no baselines."""


@dataclass(frozen=True)
class Step:
    """A method and what it adds to the one before."""

    name: str
    gain: Difference | None = None
    """Of the headline metric; None for the first."""


def rows(run: Path) -> list[tuple[str, str, Predictions]]:
    """The local network's answers to the test records, where it was trained to the end."""
    path = run / FOLDER / paired.MODEL
    return [(LOCAL, SENTENCE, Predictions.read(path))] if path.exists() else []


def steps(run: Path, target: Target) -> list[Step]:
    """From the baseline to what is delivered; none where the run keeps no baseline."""
    described = delivery.described(run)
    known = paired.read(run) if described else {}
    if described is None or described.baseline not in known:
        return []
    answered = {name: known[name] for name in (described.baseline, *NETWORKS) if name in known}
    if described.using == "both":
        answered[DELIVERED] = Predictions.read(run / paired.MODEL)
    sample, names = answered[described.baseline].sample(target), list(answered)
    gains = [
        sample.difference(target.headline, [answered[own].outputs], answered[before].outputs)
        for before, own in pairwise(names)
    ]
    return [Step(names[0]), *map(Step, names[1:], gains)]
