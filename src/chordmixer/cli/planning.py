"""`plan`: what a run would take."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chordmixer.cli import options, settings
from chordmixer.cli.looking import say


@options.reading_labels
def plan(
    inputs: options.Inputs,
    reading: Any,
    time: Annotated[bool, typer.Option(help="Measure a few steps, to tell how long a run takes.")] = True,
    ask: options.Ask = "auto",
    split: options.Split = "auto",
    rc: options.BothStrands = False,
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    config: options.Config = None,
    set: options.Settings = None,
) -> None:
    """Say what `train` would do with files: batches, memory, time, and records that would not fit.

    chordmixer plan worm.fa.gz fly.fa.gz
    """
    from chordmixer import recipes
    from chordmixer.config import override
    from chordmixer.tasks.files import FilesConfig
    from chordmixer.training.experiment import check_lengths
    from chordmixer.training.forecast import cures, device_of, forecast
    from chordmixer.views import plan as view

    data = settings.of_files(inputs, ask, split, rc, tokenizer, on_bad, cache)
    known = override(FilesConfig(reading=reading), data, "data")
    experiment = settings.build(lambda files: recipes.files(files, say), known, config, set or [])
    task: Any = experiment.build_task()
    for part in ("training", "validation", "test"):
        check_lengths(task.records(part), experiment.model.network.max_length, experiment.training)
    training, device = task.records("training"), device_of(experiment.training)
    made = forecast(experiment, training.lengths, device, training.name, timed=time)
    cure = cures(experiment, training.lengths, device, task.max_length) if view.near(made) else {}
    for line in view.lines(experiment, task, made, cure):
        say(line)
    say("Next:  chordmixer train with the same files and options, and --out RUN")
