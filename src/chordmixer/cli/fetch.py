"""The commands `fetch`, which downloads records from NCBI, and `sample`, which writes synthetic files."""

from __future__ import annotations

import shlex
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Annotated, Self

from chordmixer import terminal
from chordmixer.cli.options import argument, option
from chordmixer.terminal import tell

EVERY_SECONDS = 10.0
"""Interval between lines of progress if there is no terminal."""
NEXT = {
    "dna": "train gattaca.fa cattaga.fa --out RUN --minutes 0.1",
    "table": "train table.csv --out RUN --epochs 20",
    "series": "train series.csv --out RUN --epochs 20",
}
"""The command to try on each sample in its folder."""


def fetch(
    queries: Annotated[
        list[str], argument("Names such as Carassius, or whole Entrez terms; one file for each.", "QUERIES")
    ],
    out: Annotated[Path, option("Folder for the files.", None, "--out", "-o", show_default=False)],
    email: Annotated[str, option("Your address; NCBI requires one.", envvar="NCBI_EMAIL")] = "",
    api_key: Annotated[
        str, option("Key of an NCBI account: ten requests per second, not three.", envvar="NCBI_API_KEY")
    ] = "",
    format: Annotated[
        str, option("fasta, or genbank with lineage and features.", choices=("fasta", "genbank"))
    ] = "fasta",
    lengths: Annotated[str, option("Only records with this many bases.", metavar="MIN:MAX")] = "",
    most: Annotated[int | None, option("Maximum number of records per query.")] = None,
    page: Annotated[int, option("Records per request, up to 500; use fewer if they are long.")] = 200,
    server: Annotated[str | None, option("Another address of the E-utilities.", show_default=False)] = None,
) -> None:
    """Fetch records from NCBI's nucleotide database; the same command continues an interrupted fetch.

    chordmixer fetch Carassius Labeo --lengths 79:100101 --email you@site --out fish
    """
    from chordmixer.data import entrez, ncbi

    config = ncbi.FetchConfig(email, api_key, format, lengths, most, page, server or entrez.NCBI)  # type: ignore[arg-type]
    names = [ncbi.file_name(query, format) for query in queries]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"{queries[number]!r} and a query before it are both named {name}: fetch one elsewhere")
    try:
        for query, name in zip(queries, names, strict=True):
            with FetchMeter(name) as meter:
                ncbi.fetch(query, out, config, meter.update)
    except KeyboardInterrupt:
        tell("chordmixer: stopped; the records fetched so far are kept, and the same command continues", stderr=True)
        raise SystemExit(130) from None


def sample(
    name: Annotated[
        str,
        argument(
            "dna: two kinds of DNA, in FASTA. table: DNA with a number to predict, in CSV. series: slow and fast "
            "waves, in CSV.",
            None,
        ),
    ],
    out: Annotated[Path, option("The folder of the files.", None, "--out", "-o", show_default=False)],
    seed: Annotated[int, option("Another seed gives other records.")] = 0,
) -> None:
    """Write small synthetic files to try the commands on: made by a rule, not sequenced or measured.

    chordmixer sample dna --out sample
    """
    from chordmixer.data.samples import SAMPLES, write_sample

    paths = write_sample(name, out, seed)
    tell(f"synthetic: {' '.join((SAMPLES[name].__doc__ or '').split())}")
    for path in paths:
        tell(f"  {path}  {path.stat().st_size:,} bytes")
    tell(f"Next:  cd {shlex.quote(str(out))}\n       chordmixer {NEXT[name]}")


class FetchMeter:
    """Progress of a fetch: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, name: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.name, self.done_before = name, -1
        self.bar = Progress(TextColumn("{task.description}"), BarColumn(), console=terminal.console(stderr=True))
        self.line = self.bar.add_task(name, total=None)

    def __enter__(self) -> Self:
        if self.bar.console.is_terminal:
            self.bar.start()
        self.started = self.last_line = time.monotonic()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar.console.is_terminal:  # otherwise it would write an empty line
            self.bar.stop()

    def update(self, done: int, wanted: int) -> None:
        """Show that `done` of `wanted` records are fetched."""
        now = time.monotonic()
        if self.done_before < 0:  # records of an earlier call do not count for the speed
            self.done_before, self.started = done, now
        rate = (done - self.done_before) / max(now - self.started, 1e-9)
        left = f"{timedelta(seconds=int((wanted - done) / rate))} left" if rate else "starting"
        text = f"{self.name}  {done:,} of {wanted:,} records  {rate:,.0f} records/s  {left}"
        self.bar.update(self.line, description=text, completed=done, total=wanted)
        if not self.bar.console.is_terminal and now - self.last_line >= EVERY_SECONDS:
            self.last_line = now
            tell(text, stderr=True)
