"""`bench`: time and memory of encoders."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from chordmixer import terminal
from chordmixer.cli import options
from chordmixer.cli.looking import say
from chordmixer.terminal import tell


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
    from chordmixer.paper.views import speed

    if base_length and lengths:
        raise ValueError("--base-length draws lengths and --lengths fixes them: give one of the two")
    bases = [] if lengths or (longest and not base_length) else numbers(base_length or "200,128k", "--base-length")
    given = {"batch": batch, "device": device, "precision": precision, "backend": backend}
    given |= {"time_limit": time_limit, "memory_limit": memory_limit}
    config = override(benching.BenchConfig(), given)
    at = benching.settings(bases, numbers(lengths, "--lengths") if lengths else [], batch)
    names = [name.strip() for name in models.split(",")] if models else [name for name in ENCODERS if name != "none"]
    command = shlex.join(["chordmixer", *sys.argv[1:]])
    try:
        report = benching.bench(names, at, out, config, longest=longest, resume=resume, command=command, say=say)
    except KeyboardInterrupt:
        say(f"what was measured is in {out}: the same command with --resume goes on")
        raise
    console = terminal.console()
    for setting in report.settings:
        console.print(speed.table(setting, report.at(setting), console.width))
        for line in benching.words(report.at(setting), setting):
            say(line)
    if report.reaches:
        console.print(speed.reach_table(report.reaches))
    tell(f"page: {out.with_suffix('.md')}")


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers with commas between them.

    >>> numbers("200, 128k, 1.5M", "--lengths")
    [200, 128000, 1500000]
    """
    found = []
    for word in text.split(","):
        plain = word.strip().lower()
        times = {"k": 1_000, "m": 1_000_000}.get(plain[-1:], 1)
        try:
            found.append(round(float(plain[:-1] if times > 1 else plain) * times))
        except (ValueError, OverflowError):
            raise ValueError(f"{option} {word.strip()!r} is not a number: write it as 200 or 128k") from None
    return found
