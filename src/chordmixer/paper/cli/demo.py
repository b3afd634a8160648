"""`demo`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from chordmixer.cli.looking import show
from chordmixer.terminal import tell


def demo(out: Annotated[Path, typer.Option(help="Where to put the runs.")] = Path("runs/demo")) -> None:
    """Two minutes on two cores: ChordMixer on a small Adding problem, beside the same network without mixing."""
    from chordmixer.paper.recipes import demo as recipe
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
