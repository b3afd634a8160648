"""`inspect`, `evaluate` and `report`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from chordmixer import terminal
from chordmixer.cli import options
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.training import Evaluation


@options.reading_labels
def inspect(
    inputs: options.Inputs,
    reading: Any,
    target_type: options.TargetType = "auto",
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the lengths into this .png file.")] = None,
) -> None:
    """Look at files: lengths, letters, duplicates, classes or targets, and what may mislead a model.

    chordmixer inspect worm.fa.gz fly.fa.gz

    chordmixer inspect proteins.csv --column target=solubility --target-type number
    """
    from chordmixer.config import override
    from chordmixer.data.gathering import TokenizerConfig, default_cache, gather, labelled
    from chordmixer.tasks.questions import TargetType, inspect_asked
    from chordmixer.training.inference import check_choice
    from chordmixer.views import inspection as view

    check_choice("target_type", target_type, get_args(TargetType))

    config = override(TokenizerConfig(), {"name": tokenizer, "on_bad": on_bad or "error"}, "tokenizer")
    store, _ = gather(inputs, labelled(inputs, reading, say), config, cache or default_cache(), say)
    found = inspect_asked(store, target_type)  # type: ignore[arg-type]
    terminal.console().print(view.report(found))
    if plot:
        tell(f"plot: {view.plot(found, plot)}")


@options.reading_labels
def evaluate(
    run: options.Run,
    reading: Any,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...]", help="Files with labels; else a split of the run's own data."),
    ] = None,
    split: Annotated[str, typer.Option(help="training, validation or test, of the run's own data.")] = "test",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A folder for the scores (JSON), predictions (TSV) and plot of FILES."),
    ] = None,
    on_bad: options.OnBad = None,
    over_length: options.OverLength = "error",
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    force: options.Force = False,
    cache: options.Cache = None,
    unverified: options.Unverified = False,
) -> None:
    """Score a trained run, overall and by length, on its own data or on files.

    Of files, records that the run was trained on are counted, and the others are scored apart.

    chordmixer evaluate RUN

    chordmixer evaluate RUN worm=new_worm.fa.gz fly=new_fly.fa.gz -o SCORES
    """
    from chordmixer.training import evaluate as score

    if inputs:
        how = {"over_length": over_length, "on_bad": on_bad, "batch_tokens": batch_tokens, "device": device}
        _score_files(run, inputs, reading, out, force, how | {"unverified": unverified})
        return
    if out is not None:
        raise ValueError(
            f"-o {out} is for the scores of files: those of the run's own data go into {run}; leave it out"
        )
    if split not in ("training", "validation", "test"):
        raise ValueError(f"split {split!r} is not one of training, validation, test: choose one")
    evaluation = score(run, split, cache=cache, unverified=unverified)
    _show_metrics({split: evaluation})
    show([evaluation], run)


def _score_files(
    run: Path, inputs: list[str], reading: Any, out: Path | None, force: bool, how: dict[str, Any]
) -> None:
    from chordmixer.data.entries import Account
    from chordmixer.data.gathering import labelled
    from chordmixer.training import file_evaluation
    from chordmixer.views import evaluations, lengths

    if out is not None:
        file_evaluation.check_folder(out, force)
    account = Account()
    notes: list[str] = []  # the first line is what the scores are of
    reading = labelled(inputs, reading, notes.append)
    found = file_evaluation.evaluate_files(run, inputs, reading=reading, account=account, **how)
    for line in (evaluations.first_line(found), *notes, *account.lines()):
        say(line)
    columns = evaluations.columns(found)
    _show_metrics(columns)
    shown = [next(iter(columns.values()))]
    _print_lengths(shown)
    if out is None:
        say("not saved: add -o FOLDER to keep the scores, predictions and plot")
        return
    file_evaluation.save(out, found, run, inputs)
    lengths.plot(shown, out / file_evaluation.PLOT)
    say(f"saved in {out}: {file_evaluation.SCORES}, {file_evaluation.ROWS}, {file_evaluation.PLOT}")


def report(run: options.Run, unverified: options.Unverified = False) -> None:
    """Write RUN/report.html: curves, scores, mistakes, in one page that opens anywhere."""
    from chordmixer.views.report import write_report

    tell(f"report: {write_report(run, unverified)}")


# --- What commands say ---


def first_rank() -> bool:
    """Whether this process speaks for all, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


def say(line: str) -> None:
    if first_rank():
        tell(line)


def show_beside(evaluation: Evaluation, beside: list[Evaluation], folder: Path) -> None:
    """The scores of a model by length beside the best baseline's, one number for each, and who wins."""
    from chordmixer.training.ladder import NETWORKS
    from chordmixer.views import verdict
    from chordmixer.views.runs import Run

    metric = evaluation.headline
    baselines = [other for other in beside if other.encoder not in NETWORKS]
    best = max(baselines, key=lambda other: other.scores[metric].value, default=None)
    show([evaluation, *([replace(best, encoder=f"baseline: {best.encoder}")] if best else [])], folder)
    for other in [*beside, evaluation]:
        name = "the model" if other is evaluation else other.encoder
        say(f"{name}: {metric} {other.scores[metric].value:.3f}")
    for sentence in verdict.headline(Run.load(folder)):
        say(sentence)


def show(evaluations: list[Evaluation], folder: Path) -> None:
    """Scores by length, as a table and as a plot in the folder."""
    from chordmixer.views import lengths

    if first_rank():
        _print_lengths(evaluations)
        tell(f"plot: {lengths.plot(evaluations, folder / f'lengths-{evaluations[0].split}.png')}")


def _print_lengths(evaluations: list[Evaluation]) -> None:
    from chordmixer.views import lengths

    console = terminal.console()
    console.print(lengths.table(evaluations, console.width))


def _show_metrics(named: dict[str, Evaluation]) -> None:
    from chordmixer.views import evaluations

    terminal.console().print(evaluations.table(named))
