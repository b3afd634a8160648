"""`reproduce`: the paper's tables and figures."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer import terminal
from chordmixer.cli import options, settings
from chordmixer.cli.looking import first_rank, say
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.training import Evaluation

Name = Annotated[str | None, typer.Argument(help="What to reproduce; without it: a list.", show_default=False)]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="The same time for every model: the steps that each makes in so many minutes alone on this device, "
        "measured first. With --plan only that; the runs may then share the device."
    ),
]
Rates = Annotated[
    str,
    typer.Option(
        help="Learning rates that each model is trained with, such as 3e-4,1e-3: the page has the one of the lowest "
        "validation loss."
    ),
]
Like = Annotated[
    str, typer.Option(help="Whose settings: ours, those of the paper's table, or those of its released code.")
]
Start = Annotated[Path | None, typer.Option("--from", metavar="RUN", help="Start from a trained run's encoder.")]
Models = Annotated[
    str, typer.Option(help="Encoders, with commas between them; in ablations and adding also encoder-version.")
]


def reproduce(
    name: Name = None,
    data: Annotated[list[str] | None, typer.Option(help="A file or folder that it needs; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of runs and their page; else runs/NAME.")] = None,
    results: Annotated[Path | None, typer.Option(help="Also put the page, its numbers and picture there.")] = None,
    scale: Annotated[float, typer.Option(help="So many times the epochs, such as 0.1; the page says so.")] = 1.0,
    minutes: Minutes = None,
    rates: Rates = "",
    like: Like = "ours",
    start: Start = None,
    seeds: Annotated[int, typer.Option(help="Runs of each model.")] = 1,
    models: Models = "chordmixer",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the runs that are there.")] = False,
    at_once: Annotated[int, typer.Option(help="Runs that train at the same time, each in a process of its own.")] = 1,
    baselines: Annotated[bool, typer.Option(help="Also score plain baselines on the same records.")] = True,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what the runs would take.")] = False,
    unverified: options.Unverified = False,
    time: Annotated[bool, typer.Option(help="In the list: measure a step, to tell how long runs take.")] = True,
    set: options.Settings = None,
) -> None:
    """Run a table or figure of the paper, and write a page with its number beside ours.

    chordmixer reproduce

    chordmixer reproduce adding-200 --scale 0.1 --out RUN

    chordmixer reproduce image --data cifar10.parquet --like released

    chordmixer reproduce listops --models chordmixer,pointwise --seeds 3 --results docs/results

    chordmixer reproduce adding-1000 --models chordmixer,luna-average --minutes 2 --rates 3e-4,1e-3 --at-once 4
    """
    from chordmixer.paper import reproduction

    if name is None:
        _list(time)
        return
    changes, named = settings.table(None, set or []), [model.strip() for model in models.split(",")]
    folder = out or Path("runs") / name
    given: dict[str, Any] = {"like": like, "start": start, "unverified": unverified, "changes": changes}
    if plan and minutes is not None:
        reproduction.measure(name, folder, data or [], models=named, minutes=minutes, say=say, **given)
        return
    if plan:
        plans = reproduction.plan(name, data or [], scale, models=named, seeds=seeds, rates=_rates(rates), **given)
        for line in reproduction.plan_lines(name, plans):
            say(line)
        return
    try:
        pages, scores = reproduction.reproduce(
            name,
            folder,
            data or [],
            models=named,
            seeds=seeds,
            scale=scale,
            minutes=minutes,
            rates=_rates(rates),
            resume=resume,
            at_once=at_once,
            baselines=baselines,
            results=results,
            command=shlex.join(["chordmixer", *sys.argv[1:]]),
            say=say,
            **given,
        )
    except SystemExit:  # a signal: the run has saved where it was
        say("the same command with --resume goes on with all of it")
        raise
    if first_rank():
        _show(pages, scores)


def _rates(text: str) -> list[float]:
    """
    >>> _rates("3e-4, 0.001"), _rates("")
    ([0.0003, 0.001], [])
    """
    try:
        return [float(word) for word in text.split(",")] if text else []
    except ValueError:
        raise ValueError(f"--rates {text} are not numbers with commas between them: write 3e-4,1e-3") from None


def _show(pages: list[Path], scores: list[Evaluation]) -> None:
    if scores:
        from chordmixer.views import lengths

        console = terminal.console()
        console.print(lengths.table(scores, console.width))
    for path in pages:
        tell(f"page: {path}")


def _list(time: bool) -> None:
    from chordmixer.paper import reproduction

    if time:
        say("measuring a step, to tell how long runs take here (--no-time leaves it out) ...")
    console = terminal.console()
    console.print(
        reproduction.listing(reproduction.ENTRIES, reproduction.all_costs(reproduction.ENTRIES, time), console.width)
    )
    if time:
        say("Times follow from one step of adding-200, within two or three times; --plan measures the entry itself.")
    say("Next:  chordmixer reproduce NAME --plan    what it takes\n       chordmixer reproduce NAME --out RUN")
