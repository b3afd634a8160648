"""The commands `inspect`, `evaluate` and `report`, on files and on trained runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer import terminal
from chordmixer.cli import options
from chordmixer.cli.options import LabelOptions, UseOptions, option
from chordmixer.cli.output import print_lengths, print_line, show_lengths
from chordmixer.terminal import show_log, tell

if TYPE_CHECKING:
    from chordmixer.data.reading import Reading


@options.with_options
def inspect(
    inputs: options.Inputs,
    files: LabelOptions,
    target_type: options.TargetType = "auto",
    tokenizer: options.Tokenizer = "auto",
    on_bad: options.OnBad = None,
    cache: options.Cache = None,
    plot: Annotated[Path | None, option("Also plot the lengths into this .png file.")] = None,
) -> None:
    """Look at files: lengths, letters, duplicates, classes or targets, and what may mislead a model.

    chordmixer inspect worm.fa.gz fly.fa.gz

    chordmixer inspect proteins.csv --column target=solubility --target-type number
    """
    from chordmixer.config import override
    from chordmixer.data.store_cache import cache_folder, file_labels_line, gather, with_file_labels
    from chordmixer.data.tokenizers import TokenizerConfig
    from chordmixer.tasks.questions import inspect_target
    from chordmixer.views import inspection as inspection_view
    from chordmixer.views.plots import plot_histogram

    paths, reading = files.named(inputs)
    config = override(TokenizerConfig(), {"name": tokenizer, "on_bad": on_bad or "error"}, "tokenizer")
    labelled = with_file_labels(paths, reading)
    if labelled != reading:
        print_line(file_labels_line(paths))
    store, _ = gather(paths, labelled, config, cache or cache_folder())
    inspection = inspect_target(store, target_type)  # type: ignore[arg-type]
    terminal.console().print(inspection_view.report(inspection))
    if plot:
        tell(f"plot: {plot_histogram(inspection, plot)}")


@options.with_options
def evaluate(
    run: options.Run,
    files: LabelOptions,
    use: UseOptions,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...]", help="Files with labels; default: a split of the run's own data."),
    ] = None,
    split: Annotated[str, option("training, validation or test, of the run's own data.")] = "test",
    out: Annotated[
        Path | None,
        option("A folder for the scores (JSON), predictions (TSV) and plot of FILES.", None, "--out", "-o"),
    ] = None,
    cache: options.Cache = None,
) -> None:
    """Score a trained run, overall and by length, on its own data or on files.

    Records of files that the run was trained on are counted, and the others are scored separately.

    chordmixer evaluate RUN

    chordmixer evaluate RUN worm=new_worm.fa.gz fly=new_fly.fa.gz -o SCORES
    """
    from chordmixer.training.evaluation import evaluate as score
    from chordmixer.views import tables

    if inputs:
        _score_files(run, *files.named(inputs), out, **vars(use))
        return
    if out is not None:
        raise ValueError(
            f"-o {out} is for the scores of files: those of the run's own data go into {run}; leave it out"
        )
    if split not in ("training", "validation", "test"):
        raise ValueError(f"split {split!r} is not one of training, validation, test: choose one")
    evaluation = score(run, split, cache=cache, unverified=use.unverified)
    terminal.console().print(tables.metrics_table({split: evaluation}).terminal())
    show_lengths([evaluation], run)


def _score_files(run: Path, paths: list[str], reading: Reading, out: Path | None, *, force: bool, **use: Any) -> None:
    from chordmixer.data.entries import Account
    from chordmixer.data.store_cache import file_labels_line, with_file_labels
    from chordmixer.training import file_evaluation
    from chordmixer.views import tables
    from chordmixer.views.plots import plot_lengths

    if out is not None:
        file_evaluation.check_folder(out, force)
    account = Account()
    labelled = with_file_labels(paths, reading)
    with show_log(stderr=True):
        evaluation = file_evaluation.evaluate_files(run, paths, reading=labelled, account=account, **use)
    notes = [] if labelled == reading else [file_labels_line(paths)]
    for line in (tables.seen_line(evaluation), *notes, *account.lines()):
        print_line(line)
    columns = tables.seen_and_unseen(evaluation)
    terminal.console().print(tables.metrics_table(columns).terminal())
    headline = [next(iter(columns.values()))]
    print_lengths(headline)
    if out is None:
        print_line("not saved: add -o FOLDER to keep the scores, predictions and plot")
        return
    file_evaluation.save(out, evaluation, run, paths)
    plot_lengths(headline, out / file_evaluation.PLOT)
    print_line(f"saved in {out}: {file_evaluation.SCORES}, {file_evaluation.ROWS}, {file_evaluation.PLOT}")


def report(run: options.Run, unverified: options.Unverified = False) -> None:
    """Write RUN/report.html: scores, curves and mistakes on one page that opens anywhere."""
    from chordmixer.views.report import write_report

    tell(f"report: {write_report(run, unverified)}")
