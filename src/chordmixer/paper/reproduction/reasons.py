"""Why a number is below the paper's: what is known to differ, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chordmixer.models import ChordMixerConfig
from chordmixer.paper.reproduction.entries import RunEntry
from chordmixer.paper.reproduction.running import Seen, TrainedRun
from chordmixer.training import Evaluation


def why_below(
    entry: RunEntry, trained: Sequence[TrainedRun], models: Sequence[Evaluation], seen: Seen, given: bool
) -> str:
    """A sentence on the models that score below their numbers in the paper; empty where none does.

    `given` says whether the user gave data, or a rule made them.
    """
    below = {
        model.encoder: entry.paper[model.encoder] - 100 * model.scores[entry.metric].value
        for model in models
        if model.encoder in entry.paper
    }
    points = ", ".join(f"{name} by {gap:.2f} points" for name, gap in below.items() if gap > 0)
    if not points:
        return ""
    known = list(_known(entry, trained, seen, given))
    why = f"what is known to differ is {'; '.join(known)}" if known else "no difference in protocol is known"
    return f"Below the paper is {points}: {why}. How much each of these costs was not measured."


def _known(entry: RunEntry, trained: Sequence[TrainedRun], seen: Seen, given: bool) -> Iterator[str]:
    experiment = min((run.experiment for run in trained), key=lambda own: own.model.encoder != "chordmixer")
    training, network = experiment.training, experiment.model.network
    if entry.released and training.epochs < entry.released.epochs:
        yield f"fewer epochs ({training.epochs:,} at most, {entry.released.epochs:,} in the released code)"
    if training.steps or training.minutes:
        yield f"an early end ({f'{training.steps:,} steps' if training.steps else f'{training.minutes:g} min'})"
    if entry.hyper and isinstance(network, ChordMixerConfig):
        theirs = (entry.hyper.hidden, entry.hyper.track_size, entry.hyper.rate)
        if (network.hidden, network.track_size, training.rate) != theirs:
            yield "other settings (table below)"
    if {name.lower() for name in entry.classes} - {name.lower() for name in seen.classes}:
        yield "other classes than the paper's"
    elif not given and entry.if_by_rule:
        yield "data of our own generator, not the release's"
    runs = len({run.experiment.training.seed for run in trained})
    if runs < entry.seeds:
        yield f"{runs} run{'' if runs == 1 else 's'} where the paper has the mean of {entry.seeds}"
    if entry.differences:
        yield "the protocol (end of this page)"
