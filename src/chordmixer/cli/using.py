"""`predict`, `embed` and `explain`: a trained run at work on files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from chordmixer.cli import options
from chordmixer.terminal import tell


@options.reading_files
def predict(
    run: options.Run,
    inputs: options.Inputs,
    reading: Any,
    out: Annotated[
        str, typer.Option("--out", "-o", help=".tsv, .csv, .jsonl or .parquet; - is standard output.")
    ] = "-",
    min_confidence: Annotated[
        float | None, typer.Option(help="Answers of a lower probability are `unclassified`.")
    ] = None,
    on_bad: options.OnBad = None,
    over_length: options.OverLength = "error",
    safe_cells: options.SafeCells = False,
    using: options.Using = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    resume: options.Resume = False,
    force: options.Force = False,
    unverified: options.Unverified = False,
) -> None:
    """Answer for each record of files: its class with probabilities, its labels, or its number.

    chordmixer predict RUN new.fa.gz -o answers.tsv

    chordmixer predict RUN new.fa.gz --using baseline -o answers.tsv
    """
    from chordmixer.training.prediction import predict as answer

    account = answer(
        run,
        inputs,
        out,
        min_confidence=min_confidence,
        over_length=over_length,  # type: ignore[arg-type]
        on_bad=on_bad,  # type: ignore[arg-type]
        reading=reading,
        batch_tokens=batch_tokens,
        device=device,
        safe_cells=safe_cells,
        using=using,  # type: ignore[arg-type]
        resume=resume,
        force=force,
        unverified=unverified,
    )
    _tell(account.lines())


@options.reading_files
def embed(
    run: options.Run,
    inputs: options.Inputs,
    reading: Any,
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="The file to write: .parquet, .tsv, .csv, or .npy with the ids beside it."),
    ],
    per_token: Annotated[bool, typer.Option("--per-token", help="A vector a token, not one a record.")] = False,
    on_bad: options.OnBad = None,
    over_length: options.OverLength = "error",
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    resume: options.Resume = False,
    force: options.Force = False,
    unverified: options.Unverified = False,
) -> None:
    """Write what the model makes of each record of files: a vector, for other tools to work with.

    chordmixer embed RUN genes.fa.gz -o embeddings.parquet
    """
    from chordmixer.training.embedding import embed as write

    account = write(
        run,
        inputs,
        out,
        per_token=per_token,
        over_length=over_length,  # type: ignore[arg-type]
        on_bad=on_bad,  # type: ignore[arg-type]
        reading=reading,
        batch_tokens=batch_tokens,
        device=device,
        resume=resume,
        force=force,
        unverified=unverified,
    )
    _tell(account.lines())


@options.reading_files
def explain(
    run: options.Run,
    inputs: options.Inputs,
    reading: Any,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The file to write: .html (a page), .bedgraph, .tsv.", show_default=False),
    ],
    method: Annotated[
        str,
        typer.Option(
            help="occlusion: hide one part after the other. gradients: quicker, of the network alone.",
            callback=options.one_of(("occlusion", "gradients")),
        ),
    ] = "occlusion",
    target: Annotated[
        str | None,
        typer.Option("--class", help="The class or label to explain; else the predicted one.", show_default=False),
    ] = None,
    blocks: Annotated[int, typer.Option(help="Parts of a record that are hidden, at most.")] = 128,
    on_bad: options.OnBad = None,
    over_length: options.OverLength = "error",
    using: options.Using = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    force: options.Force = False,
    unverified: options.Unverified = False,
) -> None:
    """Show where in each record the answer came from: which parts it falls without.

    chordmixer explain RUN new.fa.gz -o why.html

    chordmixer explain RUN new.fa.gz --class worm -o why.bedgraph
    """
    from chordmixer.views.explained_files import explain_files

    account = explain_files(
        run,
        inputs,
        out,
        method=method,  # type: ignore[arg-type]
        target=target,
        blocks=blocks,
        over_length=over_length,  # type: ignore[arg-type]
        on_bad=on_bad,  # type: ignore[arg-type]
        reading=reading,
        batch_tokens=batch_tokens,
        device=device,
        using=using,  # type: ignore[arg-type]
        force=force,
        unverified=unverified,
    )
    _tell(account.lines())


def _tell(lines: Iterable[str]) -> None:
    """Standard output may be the answers."""
    for line in lines:
        tell(line, stderr=True)
