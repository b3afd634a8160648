"""Runs inside a run folder: trials of words before a run, its local network after it, the members of an ensemble.

They are runs like any other, in RUN/trials, RUN/local and RUN/members, so that a kill costs no more there.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from chordmixer import files, terminal
from chordmixer.config import from_dict, to_dict
from chordmixer.models.words import WordsConfig
from chordmixer.training import ensemble, results, speed
from chordmixer.training.devices import choose_device
from chordmixer.training.ensemble import Answered, Ensemble, EnsembleMember
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluation_contents,
    predictions_file,
    summarise,
)
from chordmixer.training.experiment import Experiment, check_context_parallel, check_lengths
from chordmixer.training.forecast import check_memory
from chordmixer.training.labels import FILE as LABELS
from chordmixer.training.labels import OutputLabels
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.ranks import from_main_rank
from chordmixer.training.run_folder import CONFIG, PROVENANCE, main_folder, recording_provenance

logger = logging.getLogger(__name__)

TRIALS_FILE, TRIALS = "trials.json", "trials"
WITH, WITHOUT = "words", "no words"
LOCAL_SHARE = 0.5
"""Length of the local network's training, as a share of the run's."""
MEMBER_FILES = (LABELS, *(predictions_file(part) for part in ("validation", "test")), "evaluation-validation.json")


# --- Trials ---


@dataclass(frozen=True)
class Trials:
    """The result of the trial runs, trials.json."""

    losses: dict[str, float]
    """The lowest validation loss of each, after calibration."""
    chosen: str
    format: int = 1

    def line(self) -> str:
        """A message for the terminal and the report.

        >>> Trials({"words": 0.3104, "no words": 0.3777}, "words").line()
        'trial runs: validation loss 0.3104 with words, 0.3777 with no words; continuing with words'
        """
        losses = ", ".join(f"{loss:.4f} with {name}" for name, loss in self.losses.items())
        return f"trial runs: validation loss {losses}; continuing with {self.chosen}"


def read_trials(folder: Path) -> Trials | None:
    """The trials of a run; None where it had none, or they are not finished."""
    path = folder / TRIALS_FILE
    return from_dict(Trials, files.read_json(path), str(path)) if path.exists() else None


def decide_words(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    console: Console | None = None,
    unverified: bool = False,
    resumed_as: Path | None = None,
) -> tuple[Experiment, bool]:
    """The experiment with or without words, as two short runs decide, and whether its run has begun in `out`.

    Words help on some data and hurt on others; the validation loss of the trials decides. `resumed_as` is the folder
    that `--resume` takes.
    """
    if not experiment.training.trial:
        return experiment, resume
    if not experiment.model.words.lengths:
        return _decided(experiment, WITH), resume
    known = from_main_rank(lambda: read_trials(out) if resume and TRIALS_FILE in files.recorded(out) else None)
    if known is None:
        known = _run_trials(experiment, out, resume, console or terminal.console(), unverified, resumed_as or out)
    decided = _decided(experiment, known.chosen)

    def save() -> None:
        if Experiment.load(out, unverified=unverified).training.trial:
            decided.save(out)

    from_main_rank(save)
    return decided, True


def _run_trials(
    experiment: Experiment, out: Path, resume: bool, console: Console, unverified: bool, resumed_as: Path
) -> Trials:
    """Train both trials, or resume them."""
    _check_runnable(experiment)
    with main_folder(experiment, out, resume, unverified):
        losses = {}
        for name in (WITH, WITHOUT):
            console.print(f"trial run with {name}", markup=False, highlight=False)
            short = _shortened(_decided(experiment, name), experiment.training.trial)
            with _open_run(short, _trial_folder(out / TRIALS, name), resumed_as, console) as trial:
                losses[name] = trial.learn()
        made = Trials(losses, min(losses, key=losses.__getitem__))
        from_main_rank(lambda: _end_trials(out, made))
    console.print(made.line(), markup=False, highlight=False, soft_wrap=True)
    return made


def _end_trials(out: Path, made: Trials) -> None:
    files.write_recorded(out, {TRIALS_FILE: files.json_bytes(to_dict(made))})
    _remove_trials(out / TRIALS)


def _check_runnable(experiment: Experiment) -> None:
    """Refuse what a run would refuse, before a folder is made."""
    check_context_parallel(experiment)
    task = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training = task.records("training")
    check_memory(experiment, training.lengths, choose_device(experiment.training), training.name)


def _decided(experiment: Experiment, chosen: str) -> Experiment:
    model = experiment.model if chosen == WITH else replace(experiment.model, words=WordsConfig())
    return replace(experiment, model=model, training=replace(experiment.training, trial=0.0))


def _shortened(experiment: Experiment, share: float) -> Experiment:
    """The same over a share of the epochs, steps or minutes."""
    config = experiment.training
    return replace(
        experiment,
        training=replace(
            config,
            epochs=max(1, round(share * config.epochs)) if not config.steps + config.minutes else config.epochs,
            steps=max(1, round(share * config.steps)) if config.steps else 0,
            minutes=share * config.minutes,
            evaluate_every=-(-config.evaluate_every // round(1 / share)),
        ),
    )


def _trial_folder(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-")


def _remove_trials(folder: Path) -> None:
    """Remove the trial runs, and nothing else that may be in their folder."""
    for own in (_trial_folder(folder, name) for name in (WITH, WITHOUT)):
        if not own.is_symlink() and CONFIG in files.recorded(own):
            shutil.rmtree(own)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()


# --- Local network ---


def train_local(run: Path, console: Console, cache: Path | str | None = None) -> None:
    """Train the local network of a finished run, or resume it.

    It is the run's network without the encoder, which sees a few tokens at a time: what only the whole network learns
    is long-range structure.
    """
    experiment = local_experiment(Experiment.load(run, cache=cache))
    with _open_run(experiment, run / results.LOCAL_FOLDER, run, console) as local:
        local.train()


def local_experiment(experiment: Experiment) -> Experiment:
    """The same without the encoder, over half of the steps; ranks share its batches by records."""
    config = experiment.training
    shorter: dict[str, Any] = {"epochs": max(1, round(LOCAL_SHARE * config.epochs))}
    if config.steps:
        shorter = {"steps": max(1, round(LOCAL_SHARE * config.steps))}
    model = experiment.model.with_encoder("none")
    return replace(experiment, model=model, training=replace(config, **shorter, layer_decay=1.0, context_parallel=1))


def _open_run(experiment: Experiment, folder: Path, run: Path, console: Console) -> closing[TrainingRun]:
    """Start or resume a run inside the folder `run`."""
    begun = from_main_rank((folder / CONFIG).exists)
    return closing(TrainingRun(experiment, folder, begun, console, resumed_as=run))


# --- Members of an ensemble ---


def train_members(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    console: Console,
    unverified: bool = False,
    baselines: bool = True,
) -> Evaluation:
    """Train the members of an ensemble that are left; returns the scores of their mean on the test set.

    Each member is trained, compared with baselines and combined with the best of them like a run of its own.
    """
    check_context_parallel(experiment)
    experiment = speed.settle_precision(experiment, out)
    task: Any = experiment.build_task()
    ensemble.member(experiment, 0).build_task()  # fails where records are too few, before a folder is made
    with main_folder(experiment, out, resume, unverified):
        known = from_main_rank(lambda: _begin_ensemble(experiment, out, baselines, task.target.headline))
        if not known.whole:
            device = choose_device(experiment.training)
            with recording_provenance(out, device) if terminal.first_rank() else nullcontext():
                for number in range(len(known.members), known.size):
                    logger.info(f"member {number + 1} of {known.size}")
                    known = _train_member(experiment, out, known, number, console)
        evaluation = from_main_rank(lambda: _finish_ensemble(experiment, task, out, known))
    if known.baselines:
        from_main_rank(lambda: _copy_baselines(experiment, task, out))
    return evaluation


def _begin_ensemble(experiment: Experiment, out: Path, baselines: bool, metric: str) -> Ensemble:
    """The ensemble.json of a new or resumed ensemble."""
    kind_and_size = ensemble.of(experiment)
    assert kind_and_size is not None
    known = ensemble.read(out) if (out / ensemble.FILE).exists() else None
    if known is None:
        known = Ensemble(*kind_and_size, baselines, metric)
        _write_ensemble(out, known)
    if (known.kind, known.size, known.metric) != (*kind_and_size, metric):
        raise ValueError(f"{out / ensemble.FILE} is of another run than its config.json: use another copy")
    if not known.whole:
        files.unrecord(out, [PROVENANCE])
    return known


def _write_ensemble(out: Path, known: Ensemble) -> None:
    files.write_recorded(out, {ensemble.FILE: files.json_bytes(to_dict(known))})


def _train_member(experiment: Experiment, out: Path, known: Ensemble, number: int, console: Console) -> Ensemble:
    """Train one member, and add its scores to ensemble.json."""
    own, folder = ensemble.member(experiment, number), ensemble.folder_of(out, number)
    train(own, folder, resume=from_main_rank((folder / CONFIG).exists), console=console, resumed_as=out)
    return from_main_rank(lambda: _add_member(own, folder, out, known, number))


def _add_member(own: Experiment, folder: Path, out: Path, known: Ensemble, number: int) -> Ensemble:
    """Compare a trained member with baselines, and write its scores."""
    if known.baselines:
        results.compare(folder, own.data.cache, deliver=True)
    scored = {part: _evaluation(folder, part) for part in ("validation", "test")}
    scores = {part: evaluation.scores[known.metric] for part, evaluation in scored.items()}
    known = replace(known, members=(*known.members, EnsembleMember(number, scored["test"].encoder, **scores)))
    _write_ensemble(out, known)
    return known


def _evaluation(folder: Path, part: str) -> Evaluation:
    name = f"evaluation-{part}.json"
    return from_dict(Evaluation, files.read_json(folder / name), name, undefined=True)


def _finish_ensemble(experiment: Experiment, task: Any, out: Path, known: Ensemble) -> Evaluation:
    """Scores, predictions and documents of the members' mean, from what each has written."""
    folders = [ensemble.folder_of(out, number) for number in range(known.size)]
    for folder in folders:
        files.verify(folder, MEMBER_FILES)
    targets = [OutputLabels.load(folder).target for folder in folders]
    answered = {
        part: [Predictions.read(folder / predictions_file(part)) for folder in folders]
        for part in ("validation", "test")
    }
    mean: Any = {"test": _mean_predictions(task, targets, answered["test"])}
    held = known.held_out
    mean[held] = (_cross_validated if known.kind == "folds" else _mean_predictions)(
        task, targets, answered["validation"]
    )
    contents = results.task_documents(task, {"validation": mean[held]})
    scored = {}
    for part, predictions in mean.items():
        title = f"{known.size} folds" if part == ensemble.CROSSED else known.title
        scored[part] = replace(summarise(predictions, task.target, experiment, part), encoder=title)
        contents |= evaluation_contents(scored[part], predictions)
    files.write_recorded(out, contents)
    files.write_manifest(out, [PROVENANCE] if (out / PROVENANCE).exists() else [])
    return scored["test"]


def _mean_predictions(task: Any, targets: Sequence[Answered], answered: Sequence[Predictions]) -> Predictions:
    """The mean of members that predict the same records."""
    first, *others = answered
    if not all(own.same_records(first) for own in others):
        raise ValueError("the members have answered different records: use the files of one run, or train again")
    rows = [(target, own.outputs) for target, own in zip(targets, answered, strict=True)]
    return replace(first, outputs=ensemble.mean(task.target, rows))


def _cross_validated(task: Any, targets: Sequence[Answered], answered: Sequence[Predictions]) -> Predictions:
    """The predictions of members for one fold each: every record once. No group is in two folds."""
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
    """Compare the mean with the baselines of the first member."""
    first = ensemble.folder_of(out, 0)
    files.verify(first, [results.BASELINES, results.BASELINE_ROWS])
    target = OutputLabels.load(first).target
    sentences = {row["name"]: row["sentence"] for row in files.read_json(first / results.BASELINES)["baselines"]}
    rows = [
        (name, sentences[name], replace(own, outputs=ensemble.mean(task.target, [(target, own.outputs)])))
        for name, own in results.read_baseline_rows(first).items()
        if name not in results.NETWORKS
    ]
    results.write_baselines(out, experiment, task.target, rows)
