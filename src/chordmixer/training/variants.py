"""Score variants by a trained run: into the INFO of a VCF file, or as a table."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy import ndarray

from chordmixer import files
from chordmixer.config import from_dict, typed
from chordmixer.data.alleles import Alleles, OnMismatch, Window
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reference import Reference
from chordmixer.data.variants import (
    HEADER,
    Line,
    Variant,
    VariantColumns,
    header_line,
    is_vcf,
    open_vcf,
    read_variants,
    variants_of_line,
    with_scores,
    writing,
)
from chordmixer.tasks.targets import Regression
from chordmixer.tasks.variants import CONTEXTS, VariantsConfig, context_number
from chordmixer.training.inference import BATCHES, Engine, Item, batched, finite
from chordmixer.training.output_files import batch_of, check_output, open_output
from chordmixer.training.prediction import ENDINGS, prediction_columns, prediction_schema
from chordmixer.training.progress import Throughput
from chordmixer.version import __version__

logger = logging.getLogger(__name__)

T = TypeVar("T")

OPTIONAL = ("context",)
"""Optional columns that are read in addition to the variants; labels are not among them."""
VARIANT = {
    "contig": pa.string(),
    "position": pa.int64(),
    "ref": pa.string(),
    "alt": pa.string(),
    "context": pa.string(),
}


class PlacedVariant(NamedTuple):
    """A variant and its window of the reference."""

    variant: Variant
    window: Window

    @property
    def entry(self) -> Entry:
        """An entry with the variant's id and place, for messages."""
        return Entry(self.variant.id, b"", self.variant.place)


@dataclass(frozen=True)
class ScoringConfig:
    """Settings for reading and scoring variants; windows and alleles are built as in the training of the run."""

    columns: VariantColumns = field(default_factory=VariantColumns)
    """Columns of a table; or the INFO key of a VCF that has the context."""
    context: str | None = None
    """Context of all variants, for files without contexts."""
    on_mismatch: OnMismatch = "error"
    """Action for variants that do not fit the reference: stop, or leave them without a score and count them."""
    batch_tokens: int | None = None
    """Maximum number of tokens per batch; None: chosen by the device."""
    device: str | None = None
    """Device: auto, cpu or cuda."""
    safe_cells: bool = False
    """Put an apostrophe before cells of a TSV that a spreadsheet would run as formulas."""


def score(
    run: Path | str,
    path: Path | str,
    reference: Path | str,
    out: Path | str = "-",
    config: ScoringConfig | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    unverified: bool = False,
) -> Account:
    """Score the variants of a file, in its order.

    A .vcf or .vcf.gz output has all lines of the input VCF unchanged, with CHORDMIXER=score added to INFO: the
    probability of the second class, or the number. The file appears only when it is complete.
    A .tsv, .csv, .jsonl or .parquet output, or standard output (TSV), has a row for each variant with a score.
    Variants read = variants scored + variants rejected in the account.
    """
    config = config or ScoringConfig()
    as_vcf = str(out).endswith((".vcf", ".vcf.gz"))
    endings = (".vcf", ".gz") if as_vcf else ENDINGS
    if not check_output(out, [path, reference], endings, resume=resume, force=force, safe_cells=config.safe_cells):
        logger.info(f"{out} is whole already: nothing is left to do")
        return Account()
    if as_vcf and (resume or not is_vcf(path)):
        raise ValueError(f"{out} is written whole, from a VCF file: leave out --resume, or name a table (.tsv)")
    scorer = _Scorer(run, reference, config, unverified)
    if as_vcf:
        scorer.write_vcf(Path(path), Path(out))
    else:
        scorer.write_table(path, out, resume, force)
    return scorer.account


class _Scorer:
    """Scores variants with a run and a reference, and counts what it reads in an account."""

    def __init__(
        self,
        run: Path | str,
        reference: Path | str,
        config: ScoringConfig,
        unverified: bool = False,
    ) -> None:
        self.config, self.account, self.throughput = config, Account(), Throughput()
        self.engine = Engine(run, config.device, config.batch_tokens, using="network", unverified=unverified)
        folder, trained = self.engine.folder, self.engine.config
        if trained.get("task") != "variants":
            raise ValueError(f"{run} is a run of {trained.get('task')}: give one of chordmixer variants")
        document = files.read_json(folder / "data.json")
        self.contexts = _contexts(document.get("contexts"), f"{folder / 'data.json'}: contexts")
        data = from_dict(VariantsConfig, trained.get("data"), f"{folder / 'config.json'}: data")  # type: ignore[arg-type]
        self.alleles = Alleles(Reference(reference), data.window, data.longest, config.on_mismatch)
        self.defaults = {} if config.context is None else {"context": config.context}
        self.chunk = max(1, min(4096, BATCHES * self.engine.batch_tokens // (2 * data.window)))
        """Number of variants that are read at a time; it is the same when an output is resumed."""

    def write_vcf(self, path: Path, out: Path) -> None:
        """Write all lines unchanged but for the scores in INFO."""
        description = self._description()
        with open_vcf(path) as lines, writing(out) as file:
            for group in _groups(lines, self.chunk):
                for line, scores in self._scored(group):
                    if line.raw.startswith(HEADER):
                        file.write(header_line(description))
                    file.write(with_scores(line, scores))

    def _description(self) -> str:
        target = self.engine.labels.target
        if isinstance(target, Regression):
            return "number predicted by chordmixer"
        if target.outputs != 2:
            raise ValueError(
                f"INFO takes one number an allele, and this run tells {target.outputs} classes apart: name a table, "
                "such as scores.tsv"
            )
        return f"probability of {target.labels[1]} by chordmixer"

    def _scored(self, lines: Sequence[Line]) -> Iterator[tuple[Line, dict[int, float]]]:
        """Each line with the scores of its alternative alleles by number."""
        by_line = [
            variants_of_line(line, self.config.columns, self.defaults, OPTIONAL) if line.fields else []
            for line in lines
        ]
        flat = [variant for variants in by_line for variant in variants]
        windows = list(self.alleles.windows(flat, self.account))
        values = self._values([PlacedVariant(v, w) for v, w in zip(flat, windows, strict=True) if w is not None])
        placed = iter(windows)
        for line, variants in zip(lines, by_line, strict=True):
            yield line, {k: next(values) for k in range(len(variants)) if next(placed) is not None}

    def _values(self, variants: Sequence[PlacedVariant]) -> Iterator[float]:
        """The predicted number, or the probability of the second class, of each variant."""
        if not variants:
            return iter(())
        rows, labels = self._outputs(variants), self.engine.labels
        if isinstance(labels.target, Regression):
            return iter([labels.target.rounded(value) for value in labels.target.values(rows).tolist()])
        return iter([float(f"{p:.6g}") for p in labels.probabilities(rows)[:, 1].tolist()])

    def write_table(self, path: Path | str, out: Path | str, resume: bool, force: bool) -> None:
        """Write one row per variant with a score."""
        engine = self.engine
        schema = prediction_schema(engine.labels, VARIANT)
        used = {"version": __version__, "run": engine.digest, "device": engine.device.type}
        settings = asdict(self.config) | used | {"batch_tokens": engine.batch_tokens}
        variants = read_variants(path, self.config.columns, roles=OPTIONAL)
        with open_output(out, schema, settings, resume=resume, force=force) as sink:
            for group in _groups(variants, self.chunk):
                complete = [replace(v, **self.defaults) for v in group]  # type: ignore[arg-type]
                windows = self.alleles.windows(complete, self.account)
                placed = [PlacedVariant(v, w) for v, w in zip(complete, windows, strict=True) if w is not None]
                items = [Item(variant.entry, np.concatenate(self._tokens(variant))) for variant in placed]
                if sink.has(items) or not placed:
                    continue
                rows = prediction_columns(engine.labels, self._outputs(placed))
                first = [[getattr(v, name) for v, _ in placed] for name in ("contig", "position", "ref", "alt")]
                contexts = [variant.context or "" for variant, _ in placed]
                sink.write(batch_of(schema, [*first, contexts, *rows]))

    def _tokens(self, placed: PlacedVariant) -> tuple[ndarray, ndarray]:
        """The tokens of the reference allele and of the alternative allele."""
        return self.alleles.tokens(placed.window, context_number(placed.variant, self.contexts))

    def _outputs(self, variants: Sequence[PlacedVariant]) -> ndarray:
        """The outputs of the head for each variant, computed in batches under the token budget."""
        engine, outputs = self.engine, []
        for batch in batched(variants, lambda placed: sum(placed.window.lengths), engine.batch_tokens):
            packed = engine.packed([tokens for placed in batch for tokens in self._tokens(placed)])
            with engine.computing(packed, batch[0].entry):
                rows = engine.model(packed).double().cpu().numpy()
            outputs.append(finite(rows, [placed.entry for placed in batch]))
            self.throughput.done(len(batch), packed.tokens)
        return np.concatenate(outputs)


def _contexts(value: Any, where: str) -> list[str]:
    """The names of the contexts in a run's training data."""
    names: list[str] = typed(list[str], value, where)
    if len(names) > CONTEXTS:
        raise ValueError(f"{where} has {len(names):,} names, above the {CONTEXTS} of a model: use another copy")
    return names


def _groups(values: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(islice(values, size)):
        yield group
