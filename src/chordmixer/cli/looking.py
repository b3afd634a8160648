"""`inspect`, `evaluate` and `report`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.cli import options

if TYPE_CHECKING:
    from chordmixer.training import Evaluation


@options.reading_labels
def inspect(
    inputs: options.Inputs,
    reading: Any,
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the lengths into this .png file.")] = None,
) -> None:
    """Look at files: lengths, letters, duplicates, classes, and what may mislead a model.

    chordmixer inspect worm.fa.gz fly.fa.gz
    """
    from rich.console import Console

    from chordmixer.config import override
    from chordmixer.data.gathering import TokenizerConfig, default_cache, gather, labelled
    from chordmixer.data.inspection import inspect as look
    from chordmixer.views import inspection as view

    config = override(TokenizerConfig(), {"name": tokenizer, "on_bad": on_bad or "error"}, "tokenizer")
    store, _ = gather(inputs, labelled(inputs, reading, say), config, cache or default_cache(), say)
    found = look(store)
    Console().print(view.report(found))
    if plot:
        print(f"plot: {view.plot(found, plot)}")


@options.reading_labels
def evaluate(
    run: options.Run,
    reading: Any,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...]", help="Files with labels; else a split of the run's own data."),
    ] = None,
    split: Annotated[str, typer.Option(help="training, validation or test, of the run's own data.")] = "test",
    on_bad: options.OnBad = None,
    over_length: options.OverLength = "error",
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
) -> None:
    """Score a trained run, overall and by length, on its own data or on other files."""
    from chordmixer.data.entries import Account
    from chordmixer.data.gathering import labelled
    from chordmixer.training import evaluate as score
    from chordmixer.training.prediction import evaluate_files

    if not inputs:
        if split not in ("training", "validation", "test"):
            raise ValueError(f"split {split!r} is not one of training, validation, test: choose one")
        show([score(run, split)], run)
        return
    account = Account()
    evaluation = evaluate_files(
        run,
        inputs,
        reading=labelled(inputs, reading, say),
        over_length=over_length,  # type: ignore[arg-type]
        on_bad=on_bad,  # type: ignore[arg-type]
        batch_tokens=batch_tokens,
        device=device,
        account=account,
    )
    for line in account.lines():
        say(line)
    show([evaluation], run)


def report(run: options.Run) -> None:
    """Write RUN/report.html: curves, scores, mistakes, in one page that opens anywhere."""
    from chordmixer.views.report import write_report

    print(f"report: {write_report(run)}")


# --- What commands say ---


def first_rank() -> bool:
    """Whether this process speaks for all, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


def say(line: str) -> None:
    if first_rank():
        print(line, flush=True)


def show_beside(evaluation: Evaluation, plain: list[Evaluation], folder: Path) -> None:
    """The scores of a model by length beside the best plain baseline's, then one number for each."""
    metric = evaluation.headline
    best = max(plain, key=lambda other: other.scores[metric].value, default=None)
    show([evaluation, *([replace(best, encoder=f"plain: {best.encoder}")] if best else [])], folder)
    for other in [*plain, evaluation]:
        name = "the model" if other is evaluation else other.encoder
        say(f"{name}: {metric} {other.scores[metric].value:.3f}")


def show(evaluations: list[Evaluation], folder: Path) -> None:
    """Scores by length, as a table and as a plot in the folder."""
    from rich.console import Console

    from chordmixer.views import lengths

    if first_rank():
        console = Console()
        console.print(lengths.table(evaluations, console.width))
        print(f"plot: {lengths.plot(evaluations, folder / f'lengths-{evaluations[0].split}.png')}")
