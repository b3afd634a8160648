"""Commands of the paper: `reproduce`, `bench` and `demo`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer import terminal
from chordmixer.cli import options
from chordmixer.cli.output import print_line, show_lengths
from chordmixer.terminal import first_rank, tell

if TYPE_CHECKING:
    from chordmixer.training.evaluation import Evaluation

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
    str,
    typer.Option(
        help="Whose settings: ours; paper, its table; released, its code; files, ours with what train adds to a "
        "network on files: convolutions, words, positions and three poolings."
    ),
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
    baselines: Annotated[bool, typer.Option(help="Also score baselines on the same records.")] = True,
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
    request = reproduction.Request(
        name,
        data or (),
        [model.strip() for model in models.split(",")],
        seeds,
        scale,
        minutes,
        _rates(rates),
        like,
        start,
        unverified,
        options.settings_table(None, set or []),
    )
    folder = out or Path("runs") / name
    if plan and minutes is not None:
        reproduction.measure(request, folder)
        return
    if plan:
        for line in reproduction.plan_lines(name, reproduction.plan(request)):
            print_line(line)
        return
    settings: dict[str, Any] = {"resume": resume, "at_once": at_once, "baselines": baselines, "results": results}
    try:
        pages, scores = reproduction.reproduce(
            request, folder, command=shlex.join(["chordmixer", *sys.argv[1:]]), **settings
        )
    except SystemExit:  # a signal: the run has saved where it was
        print_line("the same command with --resume goes on with all of it")
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
        from chordmixer.views.tables import length_table

        console = terminal.console()
        console.print(length_table(scores, console.width))
    for path in pages:
        tell(f"page: {path}")


def _list(time: bool) -> None:
    from chordmixer.paper import reproduction

    if time:
        print_line("measuring a step, to tell how long runs take here (--no-time leaves it out) ...")
    console = terminal.console()
    console.print(
        reproduction.listing(reproduction.ENTRIES, reproduction.all_costs(reproduction.ENTRIES, time), console.width)
    )
    if time:
        print_line(
            "Times follow from one step of adding-200, within two or three times; --plan measures the entry itself."
        )
    print_line("Next:  chordmixer reproduce NAME --plan    what it takes\n       chordmixer reproduce NAME --out RUN")


def bench(
    models: Annotated[str, typer.Option(help="Encoders, with commas between them; else all.")] = "",
    base_length: Annotated[
        str, typer.Option(help="The Adding problem's lengths for these; else 200,128k, as in the paper.")
    ] = "",
    lengths: Annotated[str, typer.Option(help="Fixed lengths instead, such as 1k,10k,100k.")] = "",
    batch: Annotated[int, typer.Option(help="Sequences of a batch.")] = 5,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda.", callback=options.one_of(options.DEVICES))
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="fp32 or bf16; auto: bf16 on a GPU.", callback=options.one_of(("auto", "fp32", "bf16"))),
    ] = "auto",
    backend: Annotated[
        str,
        typer.Option(
            help="Of ChordMixer: torch or triton; auto: by the device.",
            callback=options.one_of(("auto", "torch", "triton")),
        ),
    ] = "auto",
    longest: Annotated[
        bool, typer.Option("--longest", help="Search for the longest sequence of each, by doubling.")
    ] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds of an encoder at a setting.")] = 300.0,
    memory_limit: Annotated[float, typer.Option(help="Gigabytes of an encoder; 0: all that is free.")] = 0.0,
    out: Annotated[Path, typer.Option(help="The numbers; .md and .png are put beside it.")] = Path("runs/bench.json"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what is there.")] = False,
) -> None:
    """Measure time and peak memory of encoders, each in a process of its own, beside the paper's table.

    chordmixer bench --models chordmixer,transformer,cnn --base-length 200

    chordmixer bench --lengths 1k,10k,100k --batch 1 --out lengths.json

    chordmixer bench --longest --models chordmixer,transformer --time-limit 60
    """
    from chordmixer.config import override
    from chordmixer.models.encoders import ENCODERS
    from chordmixer.paper import benching
    from chordmixer.paper.benching import views

    if base_length and lengths:
        raise ValueError("--base-length draws lengths and --lengths fixes them: give one of the two")
    bases = [] if lengths or (longest and not base_length) else numbers(base_length or "200,128k", "--base-length")
    changes = {"batch": batch, "device": device, "precision": precision, "backend": backend}
    changes |= {"time_limit": time_limit, "memory_limit": memory_limit}
    config = override(benching.BenchConfig(), changes)
    at = benching.settings(bases, numbers(lengths, "--lengths") if lengths else [], batch)
    names = [name.strip() for name in models.split(",")] if models else [name for name in ENCODERS if name != "none"]
    command = shlex.join(["chordmixer", *sys.argv[1:]])
    try:
        report = benching.bench(names, at, out, config, longest=longest, resume=resume, command=command)
    except KeyboardInterrupt:
        print_line(f"what was measured is in {out}: the same command with --resume goes on")
        raise
    console = terminal.console()
    for setting in report.settings:
        console.print(views.table(setting, report.at(setting), console.width).terminal())
        for line in benching.words(report.at(setting), setting):
            print_line(line)
    if report.reaches:
        console.print(views.reach_table(report.reaches).terminal())
    tell(f"page: {out.with_suffix('.md')}")


def numbers(text: str, option: str) -> list[int]:
    """Parse comma-separated whole numbers, such as 200 or 128k.

    >>> numbers("200, 128k, 1.5M", "--lengths")
    [200, 128000, 1500000]
    """
    values = []
    for word in text.split(","):
        text = word.strip().lower()
        factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:], 1)
        try:
            values.append(round(float(text[:-1] if factor > 1 else text) * factor))
        except (ValueError, OverflowError):
            raise ValueError(f"{option} {word.strip()!r} is not a number: write it as 200 or 128k") from None
    return values


def demo(out: Annotated[Path, typer.Option(help="Where to put the runs.")] = Path("runs/demo")) -> None:
    """Two minutes on two cores: ChordMixer on a small Adding problem, beside the same network without mixing."""
    from chordmixer.paper.recipes import demo as recipe
    from chordmixer.training.loop import train as run

    encoders, plot = ("chordmixer", "pointwise"), "lengths-test.png"
    if out.is_file() or (out.exists() and {path.name for path in out.iterdir()} - {*encoders, plot}):
        raise ValueError(f"{out} holds more than an earlier demo: give a new folder")
    _remove_demo([out / encoder for encoder in encoders], out)
    evaluations = [run(recipe(encoder), out / encoder) for encoder in encoders]
    show_lengths(evaluations, out)
    tell(
        f"\nWithout rotation no token sees another: the second model fits one typical length and fails elsewhere.\n"
        f"Next:  chordmixer train YOUR_FILES --out RUN                   your own sequences\n"
        f"       chordmixer train adding --base-length 200 --out RUN     the paper's own task\n"
        f"       chordmixer evaluate {shlex.quote(str(out / 'chordmixer'))}               these scores again"
    )


def _remove_demo(runs: list[Path], out: Path) -> None:
    """Remove the runs of an earlier demo, after checking that they are runs of it."""
    import shutil

    from chordmixer.training import Experiment
    from chordmixer.training.run_folder import RunLock

    existing = [run for run in runs if run.is_symlink() or run.exists()]
    for run in existing:
        try:
            is_demo = not run.is_symlink() and Experiment.load(run, unverified=True).task == "adding"
        except ValueError:
            is_demo = False
        if not is_demo:
            raise ValueError(f"{out} holds more than an earlier demo: {run} is no run of it; give a new folder")
    for run in existing:
        with RunLock(run):
            shutil.rmtree(run)
