"""`plan`: what a run would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.cli import options, settings
from chordmixer.cli.looking import say

if TYPE_CHECKING:
    from chordmixer.training import Experiment

OF_BOTH = ("files", "split", "tokenizer", "cache")
"""Of the data, what `train` and `pretrain` can be told."""


@options.reading_labels
def plan(
    inputs: options.Inputs,
    reading: Any,
    pretrain: Annotated[bool, typer.Option("--pretrain", help="What `pretrain` would do, not `train`.")] = False,
    time: Annotated[bool, typer.Option(help="Measure a few steps, to tell how long a run takes.")] = True,
    target_type: options.TargetType = "auto",
    split: options.Split = "auto",
    folds: options.Folds = None,
    replicates: options.Replicates = None,
    rc: options.BothStrands = False,
    start: options.Start = None,
    unverified: options.Unverified = False,
    freeze: options.Freeze = False,
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    config: options.Config = None,
    set: options.Settings = None,
    model: options.Model = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    seed: options.Seed = None,
    device: options.TrainingDevice = None,
    out: Annotated[Path | None, typer.Option(hidden=True)] = None,
    baselines: Annotated[bool, typer.Option(hidden=True)] = True,
) -> None:
    """Say what `train` would do with files: batches, memory, time, and records that would not fit.

    It takes the options of `train`, or with --pretrain those of `pretrain`, and writes nothing.

    chordmixer plan worm.fa.gz fly.fa.gz

    chordmixer plan genes.fa --labels genes.csv --from PRETRAINED --freeze

    chordmixer plan genomes.fa.gz --pretrain
    """
    from chordmixer.training import ensemble
    from chordmixer.training.experiment import check_lengths
    from chordmixer.training.forecast import cures, device_of, forecast, scored_lengths
    from chordmixer.views import plan as view

    data = settings.of_files(inputs, target_type, split, rc, tokenizer, on_bad, cache)
    changes = [*settings.shorthands(model, epochs, minutes if pretrain else None, seed, device), *(set or [])]
    changes += settings.members(folds, replicates)
    if pretrain:
        labels = {
            "--labels": reading.labels,
            "--rank": reading.rank,
            "--target-type": target_type != "auto",
            "--rc": rc,
        }
        labels |= {"--folds": folds, "--replicates": replicates}
        _refuse(labels | {"--on-unmatched": reading.on_unmatched != "error", "--from": start, "--freeze": freeze})
        experiment = _pretraining(data, reading, config, changes)
    else:
        recipe = settings.for_files(minutes, folds or replicates, device, start, freeze, unverified)
        experiment = _training(data, reading, start, config, changes, recipe)
    task: Any = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training, place = task.records("training"), device_of(experiment.training)
    made = forecast(experiment, training.lengths, place, training.name, timed=time, scored=scored_lengths(task))
    cure = cures(experiment, training.lengths, place, task.max_length) if view.near(made) else {}
    for line in view.lines(experiment, task, made, cure):
        say(line)
    if several := ensemble.of(experiment):
        say(f"{several[1]} members: this is what one of them takes, and they are trained one after the other")
    command = "pretrain" if pretrain else "train"
    say(f"Next:  chordmixer {command} with the same files and options{'' if out else ', and --out RUN'}")


def _training(
    data: dict[str, Any],
    reading: Any,
    start: Path | None,
    config: Path | None,
    changes: list[str],
    recipe: Callable[[Any], Experiment],
) -> Experiment:
    """The experiment of `train` with these options."""
    from chordmixer.config import override
    from chordmixer.models import Model
    from chordmixer.models.growing import take_over
    from chordmixer.tasks.files import FilesConfig

    experiment = settings.build(recipe, override(FilesConfig(reading=reading), data, "data"), config, changes)
    if start is not None:
        take_over(Model(experiment.model), Model.from_pretrained(start))  # refused here as it would be there
    return experiment


def _pretraining(data: dict[str, Any], reading: Any, config: Path | None, changes: list[str]) -> Experiment:
    """The experiment of `pretrain` with these options."""
    from chordmixer.config import override
    from chordmixer.recipes import masking
    from chordmixer.tasks.masking import MaskingConfig

    known = override(MaskingConfig(reading=reading), {name: data[name] for name in OF_BOTH}, "data")
    return settings.build(lambda given: masking(given, say), known, config, changes)


def _refuse(given: dict[str, Any]) -> None:
    """Options that `pretrain` does not have."""
    for option, value in given.items():
        if value:
            raise ValueError(f"{option} is an option of train, not of pretrain: leave out {option} or --pretrain")
