"""Train the members of an ensemble one after the other, or go on with them, and score what they answer together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from chordmixer import files
from chordmixer.config import from_dict, to_dict
from chordmixer.terminal import tell
from chordmixer.training import ensemble, ladder, outcome, paired
from chordmixer.training.answers import FILE as LABELS
from chordmixer.training.answers import Answers
from chordmixer.training.devices import choose_device
from chordmixer.training.ensemble import Answered, Ensemble, EnsembleMember
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluation_contents,
    predictions_file,
    summarise,
)
from chordmixer.training.experiment import Experiment
from chordmixer.training.loop import train
from chordmixer.training.run_folder import PROVENANCE, open_folder, recording_provenance

READ = (LABELS, *(predictions_file(part) for part in ("validation", "test")), "evaluation-validation.json")


def train_members(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    console: Console,
    unverified: bool = False,
    baselines: bool = True,
    say: Callable[[str], None] = tell,
) -> Evaluation:
    """Train what is left of an ensemble into `out`; the scores of its mean on the test part.

    Each member is trained, compared with baselines and combined with the best of them as a run of its own is. One
    that is finished is not trained again.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("--folds and --replicates train in one process: start it without torchrun")
    task: Any = experiment.build_task()
    ensemble.member(experiment, 0).build_task()  # whether there are records enough is known before a folder is made
    lock = open_folder(experiment, out, resume, unverified)
    try:
        known = _begun(experiment, out, baselines, task.target.headline)
        if not known.whole:
            files.unrecord(out, [PROVENANCE])
            with recording_provenance(out, choose_device(experiment.training)):
                for number in range(len(known.members), known.size):
                    say(f"member {number + 1} of {known.size}")
                    known = _add(experiment, out, known, number, console, say)
        evaluation = _finish(experiment, task, out, known)
    finally:
        lock.release()
    if known.baselines:
        _copy_baselines(experiment, task, out)
    return evaluation


def _begun(experiment: Experiment, out: Path, baselines: bool, metric: str) -> Ensemble:
    """The ensemble as far as it is trained."""
    asked = ensemble.of(experiment)
    assert asked is not None, "it is one"
    known = ensemble.read(out) if (out / ensemble.FILE).exists() else None
    if known is None:
        known = Ensemble(*asked, baselines, metric)
        _write(out, known)
    if (known.kind, known.size, known.metric) != (*asked, metric):
        raise ValueError(f"{out / ensemble.FILE} is of another run than its config.json: use another copy")
    return known


def _write(out: Path, known: Ensemble) -> None:
    files.write_recorded(out, {ensemble.FILE: files.json_bytes(to_dict(known))})


def _add(
    experiment: Experiment, out: Path, known: Ensemble, number: int, console: Console, say: Callable[[str], None]
) -> Ensemble:
    """Train a member to its end."""
    own, folder = ensemble.member(experiment, number), ensemble.folder_of(out, number)
    train(own, folder, resume=(folder / "config.json").exists(), console=console, resumed_as=out)
    if known.baselines:
        outcome.compare(folder, say, own.data.cache, deliver=True)
    scored = {part: _evaluation(folder, part) for part in ("validation", "test")}
    scores = {part: evaluation.scores[known.metric] for part, evaluation in scored.items()}
    known = replace(known, members=(*known.members, EnsembleMember(number, scored["test"].encoder, **scores)))
    _write(out, known)
    return known


def _evaluation(folder: Path, part: str) -> Evaluation:
    name = f"evaluation-{part}.json"
    return from_dict(Evaluation, files.read_json(folder / name), name, undefined=True)


def _finish(experiment: Experiment, task: Any, out: Path, known: Ensemble) -> Evaluation:
    """Scores, predictions and documents of the members' mean, from what each has written."""
    folders = [ensemble.folder_of(out, number) for number in range(known.size)]
    for folder in folders:
        files.verify(folder, READ)
    targets = [Answers.load(folder).target for folder in folders]
    answered = {
        part: [Predictions.read(folder / predictions_file(part)) for folder in folders]
        for part in ("validation", "test")
    }
    mean: Any = {"test": _mean(task, targets, answered["test"])}
    held = known.held_out
    mean[held] = (_crossed if known.kind == "folds" else _mean)(task, targets, answered["validation"])
    contents = outcome.documents(task, {"validation": mean[held]})
    scored = {}
    for part, predictions in mean.items():
        title = f"{known.size} folds" if part == ensemble.CROSSED else known.title
        scored[part] = replace(summarise(predictions, task.target, experiment, part), encoder=title)
        contents |= evaluation_contents(scored[part], predictions)
    files.write_recorded(out, contents)
    files.write_manifest(out, [PROVENANCE] if (out / PROVENANCE).exists() else [])
    return scored["test"]


def _mean(task: Any, targets: Sequence[Answered], answered: Sequence[Predictions]) -> Predictions:
    """Of members that answered the same records."""
    first, *others = answered
    if not all(own.same_records(first) for own in others):
        raise ValueError("the members have answered different records: use the files of one run, or train again")
    rows = [(target, own.outputs) for target, own in zip(targets, answered, strict=True)]
    return replace(first, outputs=ensemble.mean(task.target, rows))


def _crossed(task: Any, targets: Sequence[Answered], answered: Sequence[Predictions]) -> Predictions:
    """Of members that answered a fold each: every record once, fold by fold. No group is in two folds."""
    outputs = [ensemble.mean(task.target, [(own, rows.outputs)]) for own, rows in zip(targets, answered, strict=True)]
    groups, first = [], 0
    for own in answered:
        groups.append(np.arange(len(own.names)) + first if own.groups is None else own.groups + first)
        first = int(groups[-1].max()) + 1
    return Predictions(
        names=[name for own in answered for name in own.names],
        lengths=np.concatenate([own.lengths for own in answered]),
        targets=np.concatenate([own.targets for own in answered]),
        outputs=np.concatenate(outputs),
        groups=None if answered[0].groups is None else np.concatenate(groups),
    )


def _copy_baselines(experiment: Experiment, task: Any, out: Path) -> None:
    """Those of the first member beside the mean; its network is none."""
    first = ensemble.folder_of(out, 0)
    files.verify(first, [outcome.BASELINES, paired.ROWS])
    target = Answers.load(first).target
    sentences = {row["name"]: row["sentence"] for row in files.read_json(first / outcome.BASELINES)["baselines"]}
    rows = [
        (name, sentences[name], replace(own, outputs=ensemble.mean(task.target, [(target, own.outputs)])))
        for name, own in paired.read(first).items()
        if name not in ladder.NETWORKS
    ]
    outcome.write_baselines(out, experiment, task.target, rows)
