"""`fetch`: records from NCBI."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

import typer

from chordmixer import terminal
from chordmixer.cli import options
from chordmixer.cli.looking import say
from chordmixer.terminal import tell

EVERY_SECONDS = 10.0
"""Between plain lines where there is no terminal."""


def fetch(
    queries: Annotated[
        list[str],
        typer.Argument(
            metavar="QUERIES",
            help="Names such as Carassius, or whole Entrez terms; a file for each.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the files.", show_default=False)],
    email: Annotated[str, typer.Option(envvar="NCBI_EMAIL", help="Yours; NCBI asks for it.")] = "",
    api_key: Annotated[
        str, typer.Option(envvar="NCBI_API_KEY", help="Of an NCBI account: ten requests a second, not three.")
    ] = "",
    format: Annotated[
        str,
        typer.Option(
            help="fasta, or genbank with lineage and features.", callback=options.one_of(("fasta", "genbank"))
        ),
    ] = "fasta",
    lengths: Annotated[str, typer.Option(metavar="MIN:MAX", help="Only records of so many bases.")] = "",
    most: Annotated[int | None, typer.Option(help="Only the first so many records of each.")] = None,
    page: Annotated[int, typer.Option(help="Records in a request, up to 500; fewer if they are long.")] = 200,
    server: Annotated[
        str | None, typer.Option(help="Another address of the E-utilities.", show_default=False)
    ] = None,
) -> None:
    """Fetch records from NCBI's nucleotide database; the same command goes on where it stopped.

    chordmixer fetch Carassius Labeo --lengths 32:100101 --email you@site --out fish
    """
    from chordmixer.data import ncbi

    config = ncbi.FetchConfig(email, api_key, format, lengths, most, page, server or ncbi.NCBI)  # type: ignore[arg-type]
    names = [ncbi.file_name(query, format) for query in queries]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"{queries[number]!r} and a query before it are both named {name}: fetch one elsewhere")
    try:
        for query, name in zip(queries, names, strict=True):
            with FetchMeter(name) as meter:
                ncbi.fetch(query, out, config, say, meter.update)
    except KeyboardInterrupt:
        tell("chordmixer: stopped; what came is kept, and the same command goes on", stderr=True)
        raise SystemExit(130) from None


class FetchMeter:
    """How far a fetch is: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, name: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.name, self.before = name, -1
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), console=terminal.console(stderr=True))
        self.line = self.bar.add_task(name, total=None)

    def __enter__(self) -> Self:
        if self.bar.console.is_terminal:
            self.bar.start()
        self.began = self.spoke = time.monotonic()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar.console.is_terminal:  # elsewhere it would write an empty line
            self.bar.stop()

    def update(self, done: int, wanted: int) -> None:
        """So many records are there, of so many."""
        now = time.monotonic()
        if self.before < 0:  # what an earlier start fetched says nothing of the pace
            self.before, self.began = done, now
        rate = (done - self.before) / max(now - self.began, 1e-9)
        left = f"{timedelta(seconds=int((wanted - done) / rate))} left" if rate else "starting"
        text = f"{self.name}  {done:,} of {wanted:,} records  {rate:,.0f} records/s  {left}"
        self.bar.update(self.line, description=text, completed=done, total=wanted)
        if not self.bar.console.is_terminal and now - self.spoke >= EVERY_SECONDS:
            self.spoke = now
            tell(text, stderr=True)
