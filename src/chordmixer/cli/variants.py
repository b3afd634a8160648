"""`variants`: learn the effect of genetic variants, or score new ones with a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.cli import options, settings
from chordmixer.cli.looking import first_rank, say, show_beside
from chordmixer.terminal import tell

if TYPE_CHECKING:
    from chordmixer.training import Experiment


Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ROLE=NAME",
        help="A table's column, or a key of INFO, by role: contig, position, ref, alt, label, target, split, "
        "group, context.",
        rich_help_panel=options.READING,
    ),
]
Names = Annotated[
    str | None,
    typer.Option(
        help="A regular expression for files' names, with groups such as (?P<label>...).",
        rich_help_panel=options.READING,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="With --run: the tissue of all variants of a file.", rich_help_panel=options.READING),
]
OnMismatch = Annotated[
    str,
    typer.Option(
        help="Variants that do not fit the reference: error, or reject.",
        callback=options.one_of(options.POLICIES),
        rich_help_panel=options.READING,
    ),
]
OnUnmatched = Annotated[
    str,
    typer.Option(
        help="Variants without a label: error, or reject.",
        callback=options.one_of(options.POLICIES),
        rich_help_panel=options.READING,
    ),
]
TargetType = Annotated[
    str,
    typer.Option(
        help="classes, or number; auto: by the data.",
        callback=options.one_of(("auto", "classes", "number")),
        rich_help_panel=options.ASKED,
    ),
]


def variants(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="VCF files, tables (CSV, TSV, Parquet), or a folder of VCF files; also compressed.",
            show_default=False,
        ),
    ],
    reference: Annotated[Path, typer.Option(help="FASTA, plain or of bgzip, that they were called on.")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="The run folder to make; with --run a .vcf, .vcf.gz or table; - is TSV."),
    ] = "-",
    run: Annotated[Path | None, typer.Option(help="Score the variants with this run; else one is trained.")] = None,
    window: Annotated[
        int | None, typer.Option(help="Bases of the reference around a variant.", rich_help_panel=options.READING)
    ] = None,
    column: Column = None,
    names: Names = None,
    context: Context = None,
    on_mismatch: OnMismatch = "error",
    on_unmatched: OnUnmatched = "error",
    start: options.Start = None,
    freeze: options.Freeze = False,
    target_type: TargetType = "auto",
    baselines: Annotated[bool, typer.Option(help="Also score plain baselines on the same variants.")] = True,
    safe_cells: options.SafeCells = False,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    resume: options.Resume = False,
    force: options.Force = False,
    unverified: options.Unverified = False,
    config: options.Config = None,
    set: options.Settings = None,
) -> None:
    """Learn the effect of variants from windows of the reference with either allele, or score new ones with a run.

    chordmixer variants known.vcf.gz --reference hg38.fa --column label=CLASS --out RUN

    chordmixer variants new.vcf.gz --reference hg38.fa --run RUN -o scored.vcf.gz
    """
    from chordmixer.data.variants import VariantColumns

    columns = options.columns_from(column or [], VariantColumns())
    if run is not None:
        if len(inputs) > 1 or window or names or start or freeze or config or set:
            raise ValueError("--run takes one file and the run's own settings: leave out the options of training")
        own = (columns, context, on_mismatch, batch_tokens, device, safe_cells)
        _score(run, inputs[0], reference, out, own, resume, force, unverified)
        return
    if out == "-" or context or force or batch_tokens or device or safe_cells:
        raise ValueError(
            "without --run a run is trained: name its folder with --out RUN, and leave out options of use"
        )
    given: dict[str, Any] = {
        "files": inputs,
        "reference": str(reference),
        "names": names,
        "on_mismatch": on_mismatch,
        "on_unmatched": on_unmatched,
        "target_type": target_type,
        **({} if window is None else {"window": window}),
    }
    _train(columns, given, Path(out), start, freeze, resume, unverified, baselines, config, set or [])


def _score(
    run: Path,
    path: str,
    reference: Path,
    out: str,
    settings: tuple[Any, ...],
    resume: bool,
    force: bool,
    unverified: bool,
) -> None:
    """Write the scores of a run, and say what became of the variants."""
    from chordmixer.training.variants import ScoringConfig, score

    how = ScoringConfig(*settings)
    account = score(run, path, reference, out, how, resume=resume, force=force, unverified=unverified)
    for line in account.lines():
        tell(line, stderr=True)


def _train(
    columns: Any,
    given: dict[str, Any],
    out: Path,
    start: Path | None,
    freeze: bool,
    resume: bool,
    unverified: bool,
    baselines: bool,
    config: Path | None,
    changes: list[str],
) -> None:
    from chordmixer.config import override
    from chordmixer.recipes.variants import gtex, is_gtex
    from chordmixer.recipes.variants import variants as recipe
    from chordmixer.tasks.variants import VariantsConfig, paths
    from chordmixer.training import train
    from chordmixer.training.starting import start_from

    if resume:
        settings.check_resume(out)
    tissues = given["names"] is None and is_gtex(paths(given["files"]))
    if tissues:
        say("files named TISSUE_pos.vcf and TISSUE_neg.vcf: tissues and classes are read from their names")
    data = override(VariantsConfig(columns=columns), given, "data")
    experiment = settings.build(lambda known: (gtex if tissues else recipe)(known, say), data, config, changes)
    if freeze and start is None:
        raise ValueError("--freeze keeps the weights of a run as they are: name it with --from RUN, or leave it out")
    if start is not None:
        experiment = start_from(experiment, start, freeze, unverified)
    evaluation = train(experiment, out, resume=resume, unverified=unverified)
    if first_rank():
        _conclude(evaluation, out, baselines, experiment)


def _conclude(evaluation: Any, out: Path, baselines: bool, experiment: Experiment) -> None:
    """The scores beside those of the baselines, and what to do next."""
    from chordmixer.training.baselines.variant_baselines import compare
    from chordmixer.views.report import write_report

    show_beside(evaluation, compare(out) if baselines else [], out)
    reference, run = shlex.quote(str(experiment.data.reference)), shlex.quote(str(out))
    tell(
        f"report: {write_report(out)}\n"
        f"Next:  chordmixer variants NEW.vcf --reference {reference} --run {run} -o scored.vcf"
    )
