"""The commands `predict`, `embed` and `explain`, which use a trained run on files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from chordmixer.cli import options
from chordmixer.cli.options import FileOptions, UseOptions, option
from chordmixer.terminal import first_rank, show_log, tell


@options.with_options
def predict(
    run: options.Run,
    inputs: options.Inputs,
    files: FileOptions,
    use: UseOptions,
    out: Annotated[str, option(".tsv, .csv, .jsonl or .parquet; - is standard output.", None, "--out", "-o")] = "-",
    min_confidence: Annotated[
        float | None, option("Predictions with a lower probability become `unclassified`.")
    ] = None,
    safe_cells: options.SafeCells = False,
    using: options.Using = None,
    resume: options.Resume = False,
) -> None:
    """Predict a class, labels or a number for every record of files, with probabilities.

    chordmixer predict RUN new.fa.gz -o answers.tsv

    chordmixer predict RUN new.fa.gz --using baseline -o answers.tsv
    """
    from chordmixer.training.prediction import predict as predict_files

    with show_log(stderr=True):  # standard output may hold the predictions
        account = predict_files(
            run,
            inputs,
            out,
            min_confidence=min_confidence,
            reading=files.reading(),
            safe_cells=safe_cells,
            using=using,  # type: ignore[arg-type]
            resume=resume,
            **vars(use),
        )
    _to_stderr(account.lines())


@options.with_options
def embed(
    run: options.Run,
    inputs: options.Inputs,
    files: FileOptions,
    use: UseOptions,
    out: Annotated[
        str, option("The file to write: .parquet, .tsv, .csv, or .npy with the ids beside it.", None, "--out", "-o")
    ],
    per_token: Annotated[bool, option("One vector per token, not per record.", None, "--per-token")] = False,
    resume: options.Resume = False,
) -> None:
    """Write an embedding of every record of files, for use in other tools.

    chordmixer embed RUN genes.fa.gz -o embeddings.parquet
    """
    from chordmixer.training.prediction import embed as write

    keywords = {"reading": files.reading(), "resume": resume, **vars(use)}
    with show_log(stderr=True):
        account = write(run, inputs, out, per_token=per_token, **keywords)
    _to_stderr(account.lines())


@options.with_options
def explain(
    run: options.Run,
    inputs: options.Inputs,
    files: FileOptions,
    use: UseOptions,
    out: Annotated[
        Path, option("The file to write: .html (a page), .bedgraph or .tsv.", None, "--out", "-o", show_default=False)
    ],
    method: Annotated[
        str,
        option(
            "occlusion: hide one part after the other. gradients: faster, of the network alone.",
            choices=("occlusion", "gradients"),
        ),
    ] = "occlusion",
    target: Annotated[
        str | None,
        option("The class or label to explain; default: the predicted one.", None, "--class", show_default=False),
    ] = None,
    blocks: Annotated[int, option("Maximum number of parts of a record that are hidden in turn.")] = 128,
    using: options.Using = None,
) -> None:
    """Show which parts of each record the prediction depends on.

    chordmixer explain RUN new.fa.gz -o why.html

    chordmixer explain RUN new.fa.gz --class worm -o why.bedgraph
    """
    from chordmixer.views.explain import explain_files

    with show_log(stderr=True):
        account = explain_files(
            run,
            inputs,
            out,
            method=method,  # type: ignore[arg-type]
            target=target,
            blocks=blocks,
            reading=files.reading(),
            using=using,  # type: ignore[arg-type]
            **vars(use),
        )
    _to_stderr(account.lines())


def _to_stderr(lines: Iterable[str]) -> None:
    """Print lines to standard error, since standard output may hold the predictions."""
    for line in lines if first_rank() else ():
        tell(line, stderr=True)
