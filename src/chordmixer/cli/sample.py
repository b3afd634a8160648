"""`sample`: small files to try the other commands on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from chordmixer.terminal import tell

NEXT = {
    "dna": "train gattaca.fa cattaga.fa --out RUN --epochs 5",
    "table": "train table.csv --out RUN --epochs 20",
    "series": "train series.csv --out RUN --epochs 20",
}
"""A command to go on with, in the folder of the files."""


def sample(
    name: Annotated[
        str,
        typer.Argument(
            help="dna: two kinds of DNA, in FASTA. table: DNA with a number to predict, in CSV. series: slow and "
            "fast waves, in CSV.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the files.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Another one gives other records.")] = 0,
) -> None:
    """Write small files to try the commands on. They are synthetic: made by a rule, not sequenced or measured.

    chordmixer sample dna --out sample
    """
    from chordmixer.data.samples import SAMPLES, write_sample

    paths = write_sample(name, out, seed)
    tell(f"synthetic: {' '.join((SAMPLES[name].__doc__ or '').split())}")
    for path in paths:
        tell(f"  {path}  {path.stat().st_size:,} bytes")
    tell(f"Next:  cd {shlex.quote(str(out))}\n       chordmixer {NEXT[name]}")
