"""A trained run on variants: scores written back into a VCF file or as a table, and baselines beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
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
from chordmixer.packed import Packed
from chordmixer.tasks.targets import Regression
from chordmixer.tasks.variants import CONTEXTS, VariantsConfig, context_number
from chordmixer.training import formats, outputs
from chordmixer.training.inference import BATCHES, Item, Trained
from chordmixer.training.prediction import KINDS, columns_of, schema_of
from chordmixer.training.progress import Pace
from chordmixer.training.rows import to_stderr
from chordmixer.version import __version__

T = TypeVar("T")

OPTIONAL = ("context",)
"""What is read of variants that are to be scored: labels are not looked at."""
OWN = {"contig": pa.string(), "position": pa.int64(), "ref": pa.string(), "alt": pa.string(), "context": pa.string()}


@dataclass(frozen=True)
class ScoringConfig:
    """How variants are read that a run is to score; windows and alleles are as they were in its training."""

    columns: VariantColumns = field(default_factory=VariantColumns)
    """Of a table; or the key of a VCF's INFO that holds the context."""
    context: str | None = None
    """Of all variants, where the file does not say it."""
    on_mismatch: OnMismatch = "error"
    """Variants that do not fit the reference: stop, or leave them without a score and count them."""
    batch_tokens: int | None = None
    """Most tokens at once; None: by the device."""
    device: str | None = None
    """auto, cpu or cuda."""
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
    say: Callable[[str], None] = to_stderr,
) -> Account:
    """Score the variants of a file, in its order.

    To a name that ends in .vcf or .vcf.gz go all lines of a VCF file as they were, with CHORDMIXER=score in INFO: the
    probability of the second class, or the number. The file is there when it is whole, or not at all.
    To a .tsv, .csv, .jsonl or .parquet file, or as TSV to standard output, goes a row for each variant with a score.
    Variants read = scored + those that the account has as rejected.
    """
    config = config or ScoringConfig()
    as_vcf = str(out).endswith((".vcf", ".vcf.gz"))
    outputs.check_cells(out, config.safe_cells)
    if not outputs.check(out, [path, reference], (".vcf", ".gz") if as_vcf else KINDS, resume, force):
        say(f"{out} is whole already: nothing is left to do")
        return Account()
    if as_vcf and (resume or not is_vcf(path)):
        raise ValueError(f"{out} is written whole, from a VCF file: leave out --resume, or name a table (.tsv)")
    scorer = _Scorer(run, reference, config, say, unverified)
    if as_vcf:
        scorer.write_vcf(Path(path), Path(out))
    else:
        scorer.write_table(path, out, resume, force)
    return scorer.account


class _Scorer:
    """A run, a reference, and the account of what was read."""

    def __init__(
        self,
        run: Path | str,
        reference: Path | str,
        config: ScoringConfig,
        say: Callable[[str], None],
        unverified: bool = False,
    ) -> None:
        self.config, self.account, self.pace = config, Account(), Pace(say)
        self.trained = Trained(run, config.device, config.batch_tokens, using="network", unverified=unverified)
        if self.trained.config.get("task") != "variants":
            raise ValueError(f"{run} is a run of {self.trained.config.get('task')}: give one of chordmixer variants")
        about = files.read_json(self.trained.folder / "data.json")
        self.contexts = _contexts(about.get("contexts"), f"{self.trained.folder / 'data.json'}: contexts")
        path = self.trained.folder / "config.json"
        data = from_dict(VariantsConfig, self.trained.config.get("data"), f"{path}: data")  # type: ignore[arg-type]
        self.alleles = Alleles(Reference(reference), data.window, data.longest, config.on_mismatch)
        self.said = {} if config.context is None else {"context": config.context}
        self.chunk = max(1, min(4096, BATCHES * self.trained.batch_tokens // (2 * data.window)))
        """Variants at a time: the same whenever an output is gone on with."""

    def write_vcf(self, path: Path, out: Path) -> None:
        description = self._description()
        with open_vcf(path) as lines, writing(out) as file:
            for group in _groups(lines, self.chunk):
                for line, scores in self._scored(group):
                    if line.raw.startswith(HEADER):
                        file.write(header_line(description))
                    file.write(with_scores(line, scores))

    def _description(self) -> str:
        target = self.trained.answers.target
        if isinstance(target, Regression):
            return "number predicted by chordmixer"
        if target.outputs != 2:
            raise ValueError(
                f"INFO takes one number an allele, and this run tells {target.outputs} classes apart: name a table, "
                "such as scores.tsv"
            )
        return f"probability of {target.labels[1]} by chordmixer"

    def _scored(self, lines: Sequence[Line]) -> Iterator[tuple[Line, dict[int, float]]]:
        """Each line with the scores of its alternatives."""
        own = [
            variants_of_line(line, self.config.columns, self.said, OPTIONAL) if line.fields else [] for line in lines
        ]
        flat = [variant for variants in own for variant in variants]
        windows = list(self.alleles.windows(flat, self.account))
        values = self._values([(v, w) for v, w in zip(flat, windows, strict=True) if w is not None])
        placed = iter(windows)
        for line, variants in zip(lines, own, strict=True):
            yield line, {k: next(values) for k in range(len(variants)) if next(placed) is not None}

    def _values(self, kept: Sequence[tuple[Variant, Window]]) -> Iterator[float]:
        """A number each: the target's own, or the probability of the second class."""
        if not kept:
            return iter(())
        rows, answers = np.concatenate(self._outputs(kept)), self.trained.answers
        if isinstance(answers.target, Regression):
            return iter([answers.target.rounded(value) for value in answers.target.values(rows).tolist()])
        return iter([float(f"{share:.6g}") for share in answers.probabilities(rows)[:, 1].tolist()])

    def write_table(self, path: Path | str, out: Path | str, resume: bool, force: bool) -> None:
        answers = self.trained.answers
        schema, settings = schema_of(answers, OWN), self._settings()
        variants = read_variants(path, self.config.columns, roles=OPTIONAL)
        with outputs.opened(out, schema, settings, resume=resume, force=force) as sink:
            for group in _groups(variants, self.chunk):
                told = [replace(v, **self.said) for v in group]  # type: ignore[arg-type]
                windows = self.alleles.windows(told, self.account)
                kept = [(v, w) for v, w in zip(told, windows, strict=True) if w is not None]
                pairs = [(variant, self._tokens(variant, window)) for variant, window in kept]
                items = [Item(Entry(v.id, b"", v.place), np.concatenate(tokens)) for v, tokens in pairs]
                if sink.has(items) or not kept:
                    continue
                rows = columns_of(answers, np.concatenate(self._outputs(kept)), None)
                first = [[getattr(v, name) for v, _ in kept] for name in ("contig", "position", "ref", "alt")]
                contexts = [variant.context or "" for variant, _ in kept]
                sink.write(formats.batch_of(schema, [*first, contexts, *rows]))

    def _settings(self) -> dict[str, Any]:
        """All but the variants that rows depend on."""
        trained, config = self.trained, asdict(self.config)
        used = {"version": __version__, "run": trained.digest, "device": trained.device.type}
        return config | used | {"batch_tokens": trained.batch_tokens}

    def _tokens(self, variant: Variant, window: Window) -> tuple[ndarray, ndarray]:
        return self.alleles.tokens(window, context_number(variant, self.contexts))

    def _outputs(self, kept: Iterable[tuple[Variant, Window]]) -> list[ndarray]:
        """What the head gives, some variants at a time, under the token budget."""
        found: list[ndarray] = []
        batch: list[tuple[Variant, Window]] = []
        total = 0
        for variant, window in kept:
            size = sum(window.lengths)
            if batch and total + size > self.trained.batch_tokens:
                found.append(self._answer(batch))
                batch, total = [], 0
            batch.append((variant, window))
            total += size
        return [*found, self._answer(batch)] if batch else found

    def _answer(self, batch: Sequence[tuple[Variant, Window]]) -> ndarray:
        tokens = [ids for variant, window in batch for ids in self._tokens(variant, window)]
        packed = Packed.from_list([torch.from_numpy(ids) for ids in tokens]).to(self.trained.device)
        first = batch[0][0]
        with self.trained.computing(packed, Entry(first.id, b"", first.place)):
            rows: ndarray = self.trained.model(packed).double().cpu().numpy()
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise ValueError(f"{batch[bad[0]][0].place}: the model's answer is NaN or infinite: train again")
        self.pace.done(len(batch), packed.tokens)
        return rows


def _contexts(given: Any, where: str) -> list[str]:
    """The names of the contexts that a run has learnt."""
    names: list[str] = typed(list[str], given, where)
    if len(names) > CONTEXTS:
        raise ValueError(f"{where} has {len(names):,} names, above the {CONTEXTS} of a model: use another copy")
    return names


def _groups(things: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(islice(things, size)):
        yield group
