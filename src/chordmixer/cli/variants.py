"""`variants`: learn the effect of genetic variants, or score new ones with a run."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from chordmixer.cli import options
from chordmixer.cli.options import LEARNING, POLICIES, READING, argument, option
from chordmixer.cli.output import print_line, show_comparison
from chordmixer.terminal import first_rank, rank_count, show_log, tell

if TYPE_CHECKING:
    from chordmixer.training import Experiment
    from chordmixer.training.evaluation import Evaluation


@dataclass(frozen=True)
class VariantOptions:
    """Options of training on variants: how they are read, and what is learned."""

    window: Annotated[int | None, option("Bases of the reference around a variant.", READING)] = None
    names: Annotated[
        str | None, option("A regular expression for file names, with groups such as (?P<label>...).", READING)
    ] = None
    on_unmatched: Annotated[str, option("Variants without a label: error or reject.", READING, choices=POLICIES)] = (
        "error"
    )
    target_type: Annotated[
        str,
        option("classes or number; auto: detected from the data.", LEARNING, choices=("auto", "classes", "number")),
    ] = "auto"
    start: options.Start = None
    freeze: options.Freeze = False
    config: options.Config = None
    set: options.Settings = None


@options.with_options
def variants(
    inputs: Annotated[
        list[str], argument("VCF files, tables (CSV, TSV, Parquet), or a folder of VCF files; also compressed.")
    ],
    given: VariantOptions,
    reference: Annotated[Path, option("The FASTA file, plain or bgzip, that the variants were called on.")],
    out: Annotated[
        str, option("The run folder to create; with --run a .vcf, .vcf.gz or table; - is TSV.", None, "--out", "-o")
    ] = "-",
    run: Annotated[Path | None, option("Score the variants with this run; default: train a run.")] = None,
    column: Annotated[
        list[str] | None,
        option(
            "A table's column, or a key of INFO, by role: contig, position, ref, alt, label, target, split, group, "
            "context.",
            READING,
            metavar="ROLE=NAME",
        ),
    ] = None,
    context: Annotated[str | None, option("With --run: the tissue of all variants of a file.", READING)] = None,
    on_mismatch: Annotated[
        str, option("Variants that do not match the reference: error or reject.", READING, choices=POLICIES)
    ] = "error",
    baselines: Annotated[bool, option("Also score baselines on the same variants.")] = True,
    safe_cells: options.SafeCells = False,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = None,
    resume: options.Resume = False,
    force: options.Force = False,
    unverified: options.Unverified = False,
) -> None:
    """Learn the effect of variants from windows of the reference with either allele, or score new ones with a run.

    chordmixer variants known.vcf.gz --reference hg38.fa --column label=CLASS --out RUN

    chordmixer variants new.vcf.gz --reference hg38.fa --run RUN -o scored.vcf.gz
    """
    from chordmixer.data.variants import VariantColumns
    from chordmixer.training.loop import train
    from chordmixer.training.variants import ScoringConfig, score

    columns = options.columns_from(column or [], VariantColumns())
    if run is not None:
        if rank_count() > 1:
            raise ValueError(
                f"--run scores in one process, and {rank_count()} were started: start it without torchrun"
            )
        if len(inputs) > 1 or given.window or given.names or given.start or given.freeze or given.config or given.set:
            raise ValueError("--run takes one file and the run's own settings: leave out the options of training")
        how = ScoringConfig(columns, context, on_mismatch, batch_tokens, device, safe_cells)  # type: ignore[arg-type]
        with show_log(stderr=True):  # standard output may hold the scores
            account = score(run, inputs[0], reference, out, how, resume=resume, force=force, unverified=unverified)
        for line in account.lines():
            tell(line, stderr=True)
        return
    if out == "-" or context or force or batch_tokens or device or safe_cells:
        raise ValueError(
            "without --run a run is trained: name its folder with --out RUN, and leave out options of use"
        )
    if resume:
        options.check_resume(Path(out))
    data = {"files": inputs, "reference": str(reference), "on_mismatch": on_mismatch}
    experiment = _experiment(data, columns, given, unverified)
    evaluation = train(experiment, Path(out), resume=resume, unverified=unverified)
    if first_rank():
        _conclude(evaluation, Path(out), baselines, experiment)


def _experiment(data: dict[str, Any], columns: Any, given: VariantOptions, unverified: bool) -> Experiment:
    from chordmixer import fitting
    from chordmixer.config import override
    from chordmixer.recipes.variants import gtex, is_gtex
    from chordmixer.recipes.variants import variants as recipe
    from chordmixer.tasks.variants import VariantsConfig, variant_files
    from chordmixer.training.fine_tuning import start_from

    tissues = given.names is None and is_gtex(variant_files(data["files"]))
    if tissues:
        print_line("files named TISSUE_pos.vcf and TISSUE_neg.vcf: tissues and classes are read from their names")
    data |= {name: getattr(given, name) for name in ("names", "on_unmatched", "target_type")}
    data |= {} if given.window is None else {"window": given.window}
    config = override(VariantsConfig(columns=columns), data, "data")
    changes = options.settings_table(given.config, given.set or [])
    experiment = fitting.build(gtex if tissues else recipe, config, changes)
    if given.freeze and given.start is None:
        raise ValueError("--freeze keeps the weights of a run as they are: name it with --from RUN, or leave it out")
    return experiment if given.start is None else start_from(experiment, given.start, given.freeze, unverified)


def _conclude(evaluation: Evaluation, out: Path, baselines: bool, experiment: Experiment) -> None:
    """The scores beside those of the baselines, and the next command."""
    from chordmixer.training.results import compare
    from chordmixer.views.report import write_report

    show_comparison(evaluation, compare(out) if baselines else [], out)
    reference, run = shlex.quote(str(experiment.data.reference)), shlex.quote(str(out))
    tell(
        f"report: {write_report(out)}\n"
        f"Next:  chordmixer variants NEW.vcf --reference {reference} --run {run} -o scored.vcf"
    )
