"""`train`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.cli import options, settings
from chordmixer.cli.looking import first_rank, say, show, show_beside
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.fitting import Fitted
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
    from chordmixer import fitting
    from chordmixer.training import Experiment

    data, of_task = settings.of_files(inputs, ask, split, rc, tokenizer, on_bad, cache), _is_task(inputs)
    changes = [*settings.shorthands(model, epochs, minutes if of_task else None, seed, device), *(set or [])]
    changes += settings.members(folds, replicates, of_task)
    if resume and out is None:
        _refuse_settings(data, reading, [base_length, config, start, minutes, changes or None, freeze or None])
        out = Path(inputs[0])
        experiment = Experiment.load(out, cache=cache, unverified=unverified)
    elif out is None:
        raise ValueError("no folder for the run: add --out RUN")
    else:
        if resume:
            settings.check_resume(out)
        recipe = settings.for_files(minutes, folds or replicates, device, start, freeze, unverified)
        if of_task:
            experiment = _of_task(data, reading, base_length, config, changes, _starting(start, freeze, unverified))
        else:
            experiment = _of_files(data, reading, base_length, config, changes, recipe)
    if experiment.task != "files":
        _train_task(experiment, out, resume, unverified, baselines)
        return
    how: dict[str, Any] = {"resume": resume, "unverified": unverified, "baselines": baselines, "ladder": ladder}
    fitted = fitting.run_files(experiment, out, say=say, **how)
    if fitted is not None:
        _conclude(fitted, out)


def _of_task(
    data: dict[str, Any],
    reading: Any,
    base_length: int | None,
    config: Path | None,
    changes: list[str],
    starting: Callable[[Experiment], Experiment],
) -> Experiment:
    """A task of the paper, which the first word names."""
    from chordmixer import recipes
    from chordmixer.tasks import task_class

    name, *others = data["files"]
    if others or _asks(data, reading) or data["cache"]:
        raise ValueError(
            f"{name} is a task, not a file, and takes no files beside it: leave them out; if it needs data, "
            "name them with --set data.source=PATH or data.files=[...]"
        )
    own = [] if base_length is None else [f"data.base_length={base_length}"]
    recipe = recipes.load(recipes.RECIPES[name])
    return settings.build(lambda known: starting(recipe(known)), task_class(name).Config(), config, own + changes)


def _of_files(
    data: dict[str, Any],
    reading: Any,
    base_length: int | None,
    config: Path | None,
    changes: list[str],
    recipe: Callable[[Any], Experiment],
) -> Experiment:
    from chordmixer import recipes
    from chordmixer.config import override
    from chordmixer.tasks.files import FilesConfig

    first, *_ = data["files"]
    for path in data["files"]:
        if path != "-" and not Path(path).exists():
            raise ValueError(
                f"{path} is neither a file nor a task: give the path of a file or folder, or one of "
                f"{', '.join(recipes.RECIPES)}"
            )
    if first in recipes.RECIPES:
        say(f"{first} is here as a file or folder, and is read as one; for the task of this name, start elsewhere")
    if base_length is not None:
        raise ValueError("--base-length is of the Adding problem: leave it out, or name the task adding")
    return settings.build(recipe, override(FilesConfig(reading=reading), data, "data"), config, changes)


def _is_task(inputs: list[str]) -> bool:
    """Whether the first word names a task of the paper, and no file."""
    from chordmixer import recipes

    return inputs[0] in recipes.RECIPES and not Path(inputs[0]).exists()


def _starting(run: Path | None, freeze: bool, unverified: bool) -> Callable[[Experiment], Experiment]:
    """What --from makes of a task's experiment, before the user's own settings change it."""
    from chordmixer.training.starting import start_from

    if freeze and run is None:
        raise ValueError("--freeze keeps the encoder of a trained run as it is: add --from RUN")
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


def _train_task(experiment: Experiment, out: Path, resume: bool, unverified: bool, baselines: bool) -> None:
    """A task of the paper, or pre-training that goes on."""
    from chordmixer import recipes
    from chordmixer.training import train as run
    from chordmixer.views.report import write_report

    evaluation = run(experiment, out, resume=resume, unverified=unverified)
    if not first_rank():
        return
    if experiment.task == "masking":  # what it amounts to, `pretrain` says in words of its own
        show([evaluation], out)
        return
    cache = getattr(experiment.data, "cache", None)
    show_beside(evaluation, recipes.load(recipes.TASK_BASELINES)(out, say, cache) if baselines else [], out)
    tell(f"report: {write_report(out)}")


def _conclude(fitted: Fitted, out: Path) -> None:
    """The scores of a run on files beside those of the baselines, the report, and what comes next."""
    from chordmixer.views.runs import Run

    show_beside(fitted.evaluation, fitted.beside, out)
    tell(f"report: {fitted.report}")
    known, run = Run.load(out), shlex.quote(str(out))
    tell(f"Next:  chordmixer predict {run} NEW_FILES -o answers.tsv")
    if not known.ensemble:
        tell(f"       chordmixer embed {run} FILES -o embeddings.parquet")
    tell(f"       chordmixer evaluate {run} OTHER_FILES")
    if not known.ensemble and known.data and known.data.split["sizes"].get("training", SMALL) < SMALL:
        tell("small data: --folds 5 gives cross-validated scores and an ensemble")
