"""The command `tune`, which searches for better settings than the default ones."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from chordmixer.cli import options
from chordmixer.cli.options import LabelOptions, TrainOptions, option
from chordmixer.terminal import tell


@dataclass(frozen=True)
class TuneOptions(TrainOptions):
    """The options of `train`, without ensembles; --minutes is the time of the whole study."""

    minutes: Annotated[
        float | None, option("Time of the whole study, however many processes work on it.", options.SETTINGS, min=0)
    ] = None
    folds: Annotated[int | None, option("", hidden=True)] = None
    replicates: Annotated[int | None, option("", hidden=True)] = None


@options.with_options
def tune(
    inputs: options.Inputs,
    args: TuneOptions,
    files: LabelOptions,
    out: Annotated[Path | None, option("The folder of the study, new or to be continued.")] = None,
    trials: Annotated[int | None, option("Most trials; default: as many as the time allows.", min=1)] = None,
    steps: Annotated[
        int | None, option("Steps of a trial; default: measured, so that up to twenty trials fit.", min=1)
    ] = None,
) -> None:
    """Search for settings with a lower validation loss than the default ones, by short trial runs.

    It takes the files and options of `train`; settings given by --set or --config are kept, and not searched. The
    same command in another process, or on another machine with the same file system, joins the study; after an
    interruption it goes on.

    chordmixer tune worm.fa.gz fly.fa.gz --out STUDY --minutes 60

    chordmixer train worm.fa.gz fly.fa.gz --config STUDY/best.toml --out RUN
    """
    from chordmixer import tuning
    from chordmixer.fitting import dotted

    tuning.check_start()
    if out is None:
        raise ValueError("no folder for the study: add --out STUDY")
    if args.minutes is None:
        raise ValueError("no time for the study: add --minutes M")
    paths, reading = files.named(inputs)
    experiment = replace(args, minutes=None).files_experiment(paths, reading)
    settings = dotted(options.settings_table(args.config, args.changes(minutes=False)))
    study = tuning.search(experiment, settings, out, minutes=args.minutes, trials=trials, steps=steps)
    for line in study.lines():
        tell(line)
    if study.finished:
        tell(f"page: {study.page}")
        best = shlex.quote(str(study.config))
        tell(f"Next:  chordmixer train with the same files and options, --config {best} --out RUN")
