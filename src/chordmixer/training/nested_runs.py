"""Runs inside a run folder: trials of parts of the model, the local network, the members of an ensemble.

They are ordinary runs in RUN/trials, RUN/local and RUN/members, each with its own checkpoints to resume from.
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
from chordmixer.training.ensemble import Ensemble, EnsembleMember
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluation_contents,
    predictions_file,
    summarise,
)
from chordmixer.training.experiment import Experiment, check_context_parallel, check_lengths, trial_count
from chordmixer.training.forecast import check_memory
from chordmixer.training.labels import FILE as LABELS
from chordmixer.training.labels import OutputLabels, RecordTarget
from chordmixer.training.loop import TrainingRun, train
from chordmixer.training.ranks import from_main_rank
from chordmixer.training.run_folder import CONFIG, PROVENANCE, main_folder, recording_provenance

logger = logging.getLogger(__name__)

TRIALS_FILE, TRIALS = "trials.json", "trials"
FEWER_EVALUATIONS = 4
"""Evaluations of a run for each of a trial run. In 25 pairs of trial runs on ten data sets the same one won with a
quarter of the evaluations, and all of them took up to half of the time."""
VARIANTS = {
    "words": (True, False),
    "no words": (False, False),
    "words and positions": (True, True),
    "positions": (False, True),
}
"""Whether the model of a trial run has words and positions, by its name."""
LOCAL_SHARE = 0.5
"""Training length of the local network, as a share of the training length of the run."""
MEMBER_FILES = (LABELS, *(predictions_file(part) for part in ("validation", "test")), "evaluation-validation.json")


# --- Trials ---


@dataclass(frozen=True)
class Trials:
    """The content of trials.json: the result of the trial runs."""

    losses: dict[str, float]
    """Lowest calibrated validation loss of each trial run."""
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
    """Read trials.json; None if the run has no finished trials."""
    path = folder / TRIALS_FILE
    return from_dict(Trials, files.read_json(path), str(path)) if path.exists() else None


def run_trials(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool,
    console: Console | None = None,
    unverified: bool = False,
    resumed_as: Path | None = None,
) -> tuple[Experiment, bool]:
    """Choose by short runs whether the model has words and positions.

    Return the experiment and whether to resume it in `out`. Both parts help on some data and hurt on others; the
    validation loss of the trials decides. `resumed_as` is the folder to pass to `--resume`.
    """
    if not experiment.training.trial:
        return experiment, resume
    if not trial_count(experiment.model):
        return replace(experiment, training=replace(experiment.training, trial=0.0)), resume
    trials = from_main_rank(lambda: read_trials(out) if resume and TRIALS_FILE in files.recorded(out) else None)
    if trials is None:
        trials = _run_trials(experiment, out, resume, console or terminal.console(), unverified, resumed_as or out)
    decided = _variant(experiment, trials.chosen)

    def save() -> None:
        if Experiment.load(out, unverified=unverified).training.trial:
            decided.save(out)

    from_main_rank(save)
    return decided, True


def _run_trials(
    experiment: Experiment, out: Path, resume: bool, console: Console, unverified: bool, resumed_as: Path
) -> Trials:
    """Train all trials, or resume them: with and without words, and the better of these with positions."""
    _check_runnable(experiment)
    model, losses = experiment.model, {}

    def learn(name: str) -> None:
        console.print(f"trial run with {name}", markup=False, highlight=False)
        short = _shortened(_variant(experiment, name), experiment.training.trial)
        with _open_run(short, _trial_folder(out / TRIALS, name), resumed_as, console) as trial:
            losses[name] = trial.learn()

    with main_folder(experiment, out, resume, unverified):
        for name in ("words", "no words") if model.words.lengths else ("no words",):
            learn(name)
        if model.positions:
            learn({"words": "words and positions", "no words": "positions"}[min(losses, key=losses.__getitem__)])
        trials = Trials(losses, min(losses, key=losses.__getitem__))
        from_main_rank(lambda: _end_trials(out, trials))
    console.print(trials.line(), markup=False, highlight=False, soft_wrap=True)
    return trials


def _end_trials(out: Path, trials: Trials) -> None:
    files.write_recorded(out, {TRIALS_FILE: files.json_bytes(to_dict(trials))})
    _remove_trials(out / TRIALS)


def _check_runnable(experiment: Experiment) -> None:
    """Raise the errors that the run itself would raise, before its folder is created."""
    check_context_parallel(experiment)
    task = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training = task.records("training")
    check_memory(experiment, training.lengths, choose_device(experiment.training), training.name)


def _variant(experiment: Experiment, name: str) -> Experiment:
    """The experiment with the model of a trial, and without further trials."""
    (words, positions), model = VARIANTS[name], experiment.model
    model = replace(
        model, words=model.words if words else WordsConfig(), positions=model.positions if positions else 0
    )
    return replace(experiment, model=model, training=replace(experiment.training, trial=0.0))


def _shortened(experiment: Experiment, share: float) -> Experiment:
    """The experiment over a share of its epochs, steps or minutes, with a quarter of its evaluations."""
    config = experiment.training
    return replace(
        experiment,
        training=replace(
            config,
            epochs=max(1, round(share * config.epochs)) if not config.steps + config.minutes else config.epochs,
            steps=max(1, round(share * config.steps)) if config.steps else 0,
            minutes=share * config.minutes,
            evaluate_every=-(-FEWER_EVALUATIONS * config.evaluate_every // round(1 / share)),
        ),
    )


def _trial_folder(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-")


def _remove_trials(folder: Path) -> None:
    """Remove the trial runs, but no other files in their folder."""
    for trial in (_trial_folder(folder, name) for name in VARIANTS):
        if not trial.is_symlink() and CONFIG in files.recorded(trial):
            shutil.rmtree(trial)
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        folder.rmdir()


# --- Local network ---


def train_local(run: Path, console: Console, cache: Path | str | None = None) -> None:
    """Train the local network of a finished run, or resume it.

    It is the run's network without the encoder and sees only a few tokens at a time, so that the difference between
    the two is due to long-range structure.
    """
    experiment = local_experiment(Experiment.load(run, cache=cache))
    with _open_run(experiment, run / results.LOCAL_FOLDER, run, console) as local:
        local.train()


def local_experiment(experiment: Experiment) -> Experiment:
    """The experiment of the local network: no encoder, half of the steps, no sequences split over ranks."""
    config = experiment.training
    shorter: dict[str, Any] = {"epochs": max(1, round(LOCAL_SHARE * config.epochs))}
    if config.steps:
        shorter = {"steps": max(1, round(LOCAL_SHARE * config.steps))}
    model = experiment.model.with_encoder("none")
    return replace(experiment, model=model, training=replace(config, **shorter, layer_decay=1.0, context_parallel=1))


def _open_run(experiment: Experiment, folder: Path, run: Path, console: Console) -> closing[TrainingRun]:
    """Start or resume a run in `folder`, which is inside the run folder `run`."""
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
    """Train the remaining members of an ensemble; return the scores of the mean prediction on the test set.

    Each member is trained, compared with baselines and combined with the best of them, as a single run is.
    """
    check_context_parallel(experiment)
    experiment = speed.settle_precision(experiment, out)
    task: Any = experiment.build_task()
    ensemble.member(experiment, 0).build_task()  # fails where records are too few, before a folder is made
    with main_folder(experiment, out, resume, unverified):
        document = from_main_rank(lambda: _begin_ensemble(experiment, out, baselines, task.target.headline))
        if not document.complete:
            device = choose_device(experiment.training)
            with recording_provenance(out, device) if terminal.first_rank() else nullcontext():
                for number in range(len(document.members), document.size):
                    logger.info(f"member {number + 1} of {document.size}")
                    document = _train_member(experiment, out, document, number, console)
        evaluation = from_main_rank(lambda: _finish_ensemble(experiment, task, out, document))
    if document.baselines:
        from_main_rank(lambda: _copy_baselines(experiment, task, out))
    return evaluation


def _begin_ensemble(experiment: Experiment, out: Path, baselines: bool, metric: str) -> Ensemble:
    """Write the ensemble.json of a new ensemble, or read that of a resumed one."""
    kind_and_size = ensemble.kind_and_size(experiment)
    assert kind_and_size is not None
    document = ensemble.read(out) if (out / ensemble.FILE).exists() else None
    if document is None:
        document = Ensemble(*kind_and_size, baselines, metric)
        _write_ensemble(out, document)
    if (document.kind, document.size, document.metric) != (*kind_and_size, metric):
        raise ValueError(f"{out / ensemble.FILE} is of another run than its config.json: use another copy")
    if not document.complete:
        files.unrecord(out, [PROVENANCE])
    return document


def _write_ensemble(out: Path, document: Ensemble) -> None:
    files.write_recorded(out, {ensemble.FILE: files.json_bytes(to_dict(document))})


def _train_member(experiment: Experiment, out: Path, document: Ensemble, number: int, console: Console) -> Ensemble:
    """Train one member, and add its scores to ensemble.json."""
    member, folder = ensemble.member(experiment, number), ensemble.folder_of(out, number)
    train(member, folder, resume=from_main_rank((folder / CONFIG).exists), console=console, resumed_as=out)
    return from_main_rank(lambda: _add_member(member, folder, out, document, number))


def _add_member(member: Experiment, folder: Path, out: Path, document: Ensemble, number: int) -> Ensemble:
    """Compare a trained member with baselines, and add its scores to ensemble.json."""
    if document.baselines:
        results.compare(folder, member.data.cache, deliver=True)
    evaluations = {part: _evaluation(folder, part) for part in ("validation", "test")}
    scores = {part: evaluation.scores[document.metric] for part, evaluation in evaluations.items()}
    entry = EnsembleMember(number, evaluations["test"].encoder, **scores)
    document = replace(document, members=(*document.members, entry))
    _write_ensemble(out, document)
    return document


def _evaluation(folder: Path, part: str) -> Evaluation:
    name = f"evaluation-{part}.json"
    return from_dict(Evaluation, files.read_json(folder / name), name, undefined=True)


def _finish_ensemble(experiment: Experiment, task: Any, out: Path, document: Ensemble) -> Evaluation:
    """Write scores, predictions and documents of the mean prediction, from the files of the members."""
    folders = [ensemble.folder_of(out, number) for number in range(document.size)]
    for folder in folders:
        files.verify(folder, MEMBER_FILES)
    targets = [OutputLabels.load(folder).target for folder in folders]
    predictions = {
        part: [Predictions.read(folder / predictions_file(part)) for folder in folders]
        for part in ("validation", "test")
    }
    mean: Any = {"test": _mean_predictions(task, targets, predictions["test"])}
    held_out = document.held_out
    mean[held_out] = (_cross_validated if document.kind == "folds" else _mean_predictions)(
        task, targets, predictions["validation"]
    )
    contents = results.task_documents(task, {"validation": mean[held_out]})
    evaluations = {}
    for part, mean_predictions in mean.items():
        title = f"{document.size} folds" if part == ensemble.CROSS_VALIDATION else document.title
        evaluations[part] = replace(summarise(mean_predictions, task.target, experiment, part), encoder=title)
        contents |= evaluation_contents(evaluations[part], mean_predictions)
    files.write_recorded(out, contents)
    files.write_manifest(out, [PROVENANCE] if (out / PROVENANCE).exists() else [])
    return evaluations["test"]


def _mean_predictions(task: Any, targets: Sequence[RecordTarget], predictions: Sequence[Predictions]) -> Predictions:
    """The mean prediction of members for the same records."""
    first, *others = predictions
    if not all(other.same_records(first) for other in others):
        raise ValueError("the members have answered different records: use the files of one run, or train again")
    outputs = [(target, rows.outputs) for target, rows in zip(targets, predictions, strict=True)]
    return replace(first, outputs=ensemble.mean(task.target, outputs))


def _cross_validated(task: Any, targets: Sequence[RecordTarget], folds: Sequence[Predictions]) -> Predictions:
    """Join the predictions of each member for its fold: every record once. No group is in two folds."""
    outputs = [
        ensemble.mean(task.target, [(target, fold.outputs)]) for target, fold in zip(targets, folds, strict=True)
    ]
    groups, first = [], 0
    for fold in folds:
        groups.append(np.arange(len(fold.names)) + first if fold.groups is None else fold.groups + first)
        first = int(groups[-1].max()) + 1
    return Predictions(
        names=[name for fold in folds for name in fold.names],
        lengths=np.concatenate([fold.lengths for fold in folds]),
        targets=np.concatenate([fold.targets for fold in folds]),
        outputs=np.concatenate(outputs),
        groups=None if folds[0].groups is None else np.concatenate(groups),
    )


def _copy_baselines(experiment: Experiment, task: Any, out: Path) -> None:
    """Compare the mean prediction with the baselines of the first member."""
    first = ensemble.folder_of(out, 0)
    files.verify(first, [results.BASELINES, results.BASELINE_ROWS])
    target = OutputLabels.load(first).target
    sentences = {row["name"]: row["sentence"] for row in files.read_json(first / results.BASELINES)["baselines"]}
    rows = [
        (name, sentences[name], replace(baseline, outputs=ensemble.mean(task.target, [(target, baseline.outputs)])))
        for name, baseline in results.read_baseline_rows(first).items()
        if name not in results.NETWORKS
    ]
    results.write_baselines(out, experiment, task.target, rows)
