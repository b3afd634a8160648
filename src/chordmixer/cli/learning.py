"""`train` and `demo`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer import terminal
from chordmixer.cli import options, settings
from chordmixer.cli.looking import first_rank, say, show, show_beside
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.training import Experiment

SMALL = 2_000
"""Training records below which `train` names --folds."""


@options.reading_labels
def train(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Files to learn from, or a task of the paper: adding, fragments, image, listops, pathfinder, "
            "retrieval, text. With --resume alone: a run folder.",
            show_default=False,
        ),
    ],
    reading: Any,
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
    baselines: Annotated[
        bool, typer.Option(help="Also fit baselines, and answer with the network, the best of them, or both.")
    ] = True,
    ladder: Annotated[
        bool,
        typer.Option("--ladder", help="Also train the network without its encoder: what does long range add?"),
    ] = False,
    folds: options.Folds = None,
    replicates: options.Replicates = None,
    ask: options.Ask = "auto",
    split: options.Split = "auto",
    rc: options.BothStrands = False,
    start: options.Start = None,
    freeze: options.Freeze = False,
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    base_length: Annotated[
        int | None, typer.Option(help="Lambda of the Adding problem.", rich_help_panel=options.SETTINGS)
    ] = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    device: options.TrainingDevice = None,
    unverified: options.Unverified = False,
    config: options.Config = None,
    set: options.Settings = None,
) -> None:
    """Learn from files, or a task of the paper: train, test, and leave a run folder.

    chordmixer train worm.fa.gz fly.fa.gz --out RUN

    chordmixer train genes.fa --labels genes.csv --group header:gene --out RUN

    chordmixer train genes.fa --labels genes.csv --from PRETRAINED --out RUN

    chordmixer train genes.fa --labels genes.csv --folds 5 --out RUN

    chordmixer train --resume RUN

    chordmixer train adding --base-length 200 --out RUN
    """
    from chordmixer.training import Experiment, ensemble
    from chordmixer.training import train as run
    from chordmixer.training.ladder import FOLDER as LOCAL
    from chordmixer.training.local_network import train_local
    from chordmixer.training.members import train_members

    data = settings.of_files(inputs, ask, split, rc, tokenizer, on_bad, cache)
    of_task = minutes if _is_task(inputs) else None  # of files, the recipe makes steps of them
    changes = [*settings.shorthands(model, epochs, of_task, seed, device), *(set or [])]
    changes += settings.members(folds, replicates, _is_task(inputs))
    if freeze and start is None and not (resume and out is None):
        raise ValueError("--freeze keeps the encoder of a trained run as it is: add --from RUN")
    if resume and out is None:
        _refuse_settings(data, reading, [base_length, config, start, minutes, changes or None, freeze or None])
        out = Path(inputs[0])
        experiment = Experiment.load(out, cache=cache, unverified=unverified)
    elif out is None:
        raise ValueError("no folder for the run: add --out RUN")
    else:
        if resume:
            settings.check_resume(out)
        recipe = settings.for_files(minutes and minutes / (folds or replicates or 1), device)
        starting = _starting(start, freeze, unverified)
        experiment = _experiment(data, reading, base_length, config, changes, starting, recipe)
    own_files, several = experiment.task == "files", ensemble.of(experiment)
    if ladder and os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("--ladder trains a second network in one process, and several were started: leave it out")
    if several and ladder:
        raise ValueError(
            "--ladder is of one network, and this run trains several: leave it out, or train without them"
        )
    if own_files:
        _introduce(experiment)
    if several:
        how: dict[str, Any] = {"resume": resume, "unverified": unverified, "baselines": baselines}
        evaluation = train_members(experiment, out, console=terminal.console(), say=say, **how)
        _conclude(evaluation, out, baselines, own_files, getattr(experiment.data, "cache", None), several=True)
        return
    evaluation = run(experiment, out, resume=resume, unverified=unverified)
    if not first_rank():
        return
    if experiment.task == "masking":  # what it amounts to, `pretrain` says in words of its own
        show([evaluation], out)
        return
    if own_files and baselines and (ladder or (out / LOCAL).exists()):
        train_local(out, terminal.console(), cache)
    _conclude(evaluation, out, baselines, own_files, getattr(experiment.data, "cache", None))


def demo(out: Annotated[Path, typer.Option(help="Where to put the runs.")] = Path("runs/demo")) -> None:
    """Two minutes on two cores: ChordMixer on a small Adding problem, beside the same network without mixing."""
    from chordmixer.recipes import demo as recipe
    from chordmixer.training import train as run

    encoders, plot = ("chordmixer", "pointwise"), "lengths-test.png"
    if out.is_file() or (out.exists() and {path.name for path in out.iterdir()} - {*encoders, plot}):
        raise ValueError(f"{out} holds more than an earlier demo: give a new folder")
    _remove_demo([out / encoder for encoder in encoders], out)
    evaluations = [run(recipe(encoder), out / encoder) for encoder in encoders]
    show(evaluations, out)
    tell(
        f"\nWithout rotation no token sees another: the second model fits one typical length and fails elsewhere.\n"
        f"Next:  chordmixer train YOUR_FILES --out RUN                   your own sequences\n"
        f"       chordmixer train adding --base-length 200 --out RUN     the paper's own task\n"
        f"       chordmixer evaluate {shlex.quote(str(out / 'chordmixer'))}               these scores again"
    )


def _remove_demo(runs: list[Path], out: Path) -> None:
    """The runs of an earlier demo, once it is sure that they are such."""
    import shutil

    from chordmixer.training import Experiment
    from chordmixer.training.run_folder import RunLock

    there = [run for run in runs if run.is_symlink() or run.exists()]
    for run in there:
        try:
            ours = not run.is_symlink() and Experiment.load(run, unverified=True).task == "adding"
        except ValueError:
            ours = False
        if not ours:
            raise ValueError(f"{out} holds more than an earlier demo: {run} is no run of it; give a new folder")
    for run in there:
        with RunLock(run):
            shutil.rmtree(run)


def _experiment(
    data: dict[str, Any],
    reading: Any,
    base_length: int | None,
    config: Path | None,
    changes: list[str],
    starting: Callable[[Experiment], Experiment],
    for_files: Callable[[Any], Experiment],
) -> Experiment:
    """Of a task of the paper where the first word names one and is no file, else of files."""
    from chordmixer import recipes
    from chordmixer.config import override
    from chordmixer.tasks import task_class
    from chordmixer.tasks.files import FilesConfig

    inputs = data["files"]
    if _is_task(inputs):
        if len(inputs) > 1 or _asks(data, reading) or data["cache"]:
            raise ValueError(
                f"{inputs[0]} is a task, not a file, and takes no files beside it: leave them out; if it needs data, "
                "name them with --set data.source=PATH or data.files=[...]"
            )
        own = [] if base_length is None else [f"data.base_length={base_length}"]
        recipe = recipes.RECIPES[inputs[0]]
        of_task = task_class(inputs[0]).Config()
        return settings.build(lambda known: starting(recipe(known)), of_task, config, own + changes)
    for path in inputs:
        if path != "-" and not Path(path).exists():
            raise ValueError(
                f"{path} is neither a file nor a task: give the path of a file or folder, or one of "
                f"{', '.join(recipes.RECIPES)}"
            )
    if inputs[0] in recipes.RECIPES:
        say(
            f"{inputs[0]} is here as a file or folder, and is read as one; for the task of this name, start elsewhere"
        )
    if base_length is not None:
        raise ValueError("--base-length is of the Adding problem: leave it out, or name the task adding")
    files = override(FilesConfig(reading=reading), data, "data")
    return settings.build(lambda known: starting(for_files(known)), files, config, changes)


def _is_task(inputs: list[str]) -> bool:
    """Whether the first word names a task of the paper, and no file."""
    from chordmixer import recipes

    return inputs[0] in recipes.RECIPES and not Path(inputs[0]).exists()


def _starting(run: Path | None, freeze: bool, unverified: bool) -> Callable[[Experiment], Experiment]:
    """What --from makes of a recipe's experiment, before the user's own settings change it."""
    from chordmixer.training.starting import start_from

    return lambda experiment: experiment if run is None else start_from(experiment, run, freeze, unverified)


def _refuse_settings(data: dict[str, Any], reading: Any, others: list[Any]) -> None:
    """A run that goes on is what it was."""
    if len(data["files"]) > 1 or _asks(data, reading) or any(value is not None for value in others):
        raise ValueError("--resume RUN takes its settings from the run: leave out the other options")


def _asks(data: dict[str, Any], reading: Any) -> bool:
    """Whether anything but the files was given."""
    from chordmixer.config import override
    from chordmixer.tasks.files import FilesConfig

    return override(FilesConfig(reading=reading), data, "data") != FilesConfig()


def _introduce(experiment: Experiment) -> None:
    """What was read, how it is split, and what may mislead."""
    from chordmixer.views.inspection import warnings

    if not first_rank():
        return
    task: Any = experiment.build_task()
    for line in task.account.lines():
        say(line)
    sizes = ", ".join(f"{len(own):,} for {part}" for part, own in task.split.parts.items())
    say(f"split ({task.split.method}): {sizes}")
    for part, leak in task.leaks.items():
        if leak.total:
            line, *_ = leak.lines(part, task.store.id)
            say(f"warning: {line}; --split similarity keeps such records together")
    for warning in warnings(task.inspection):
        say(f"warning: {warning}")


def _conclude(
    evaluation: Any, out: Path, baselines: bool, own_files: bool, cache: str | None, several: bool = False
) -> None:
    """The scores beside those of the baselines, what they amount to, the report, and what comes next."""
    from chordmixer.training.baselines import task_baselines
    from chordmixer.training.outcome import compare
    from chordmixer.views.report import write_report
    from chordmixer.views.runs import Run

    beside: list[Any] = []
    if several:  # the members are compared already
        beside = [own.evaluation for own in Run.load(out).baselines]
    elif baselines and own_files:
        beside = compare(out, say, cache, deliver=True)
        evaluation = Run.load(out).test
    elif baselines:
        beside = task_baselines.compare(out, say, cache)
    show_beside(evaluation, beside, out)
    if own_files:
        _explain(out, cache)
    tell(f"report: {write_report(out)}")
    if not own_files:
        return
    run = shlex.quote(str(out))
    tell(f"Next:  chordmixer predict {run} NEW_FILES -o answers.tsv")
    if not several:
        tell(f"       chordmixer embed {run} FILES -o embeddings.parquet")
    tell(f"       chordmixer explain {run} FILES -o why.html")
    tell(f"       chordmixer evaluate {run} OTHER_FILES")
    data = Run.load(out).data
    if not several and data and data.split["sizes"].get("training", SMALL) < SMALL:
        tell("small data: --folds 5 gives cross-validated scores and an ensemble")


def _explain(out: Path, cache: str | None) -> None:
    """Some test records for the report, which does without them where they cannot be had."""
    from chordmixer.views.explained_tests import explain_tests

    try:
        explain_tests(out, cache)
    except ValueError as error:
        tell(f"the report does not say where answers come from: {error}")
