"""The effect of genetic variants: a prediction from a window of the reference with each of two alleles.

Variants are never split at random. Those of one group, with overlapping windows, or at loci that are copies of each
other are in the same part, since a model may have memorised a locus from other variants in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from chordmixer.config import check_numbers
from chordmixer.data.alleles import AlleleRecords, Alleles, OnMismatch, Window, loci, merge_groups, near_copies
from chordmixer.data.alphabets import Dna
from chordmixer.data.entries import Account
from chordmixer.data.reference import Reference
from chordmixer.data.splits import SplitConfig, split
from chordmixer.data.variants import Variant, VariantColumns, read_variants
from chordmixer.tasks.questions import Question, question

CONTEXTS = 256
"""Maximum number of contexts, the size of the embedding in the model's head."""


@dataclass(frozen=True)
class VariantsConfig:
    """Settings of the variants, the reference, the target and the split."""

    files: tuple[str, ...] = field(default=(), compare=False)
    """VCF files or tables (CSV, TSV, Parquet), or folders of VCF files. Data are identified by content, not path."""
    reference: str = field(default="", compare=False)
    """A FASTA file, plain or compressed by bgzip."""
    window: int = 2048
    """Number of bases of the reference around a variant; fewer at the ends of contigs."""
    columns: VariantColumns = field(default_factory=VariantColumns)
    """Column names of a table, or keys of a VCF's INFO."""
    names: str | None = None
    """A regular expression for the files' names, whose named groups `label`, `context` and so on are values of all
    variants of a file. Default None: names have no meaning."""
    longest: int = 50
    """Maximum bases of an allele; variants with more are rejected."""
    on_mismatch: OnMismatch = "error"
    """Whether variants that disagree with the reference, or are outside of their contig, are an error or rejected."""
    on_unmatched: Literal["error", "reject"] = "error"
    """Whether variants without a label are an error or rejected."""
    target_type: Literal["auto", "classes", "number"] = "auto"
    """The type of target: one of several classes, or a number. Default `auto`: by the columns that have values."""
    split: SplitConfig = field(default_factory=SplitConfig)
    """Settings of the split: `given` by a column, or `grouped` by locus."""
    key: str | None = None
    """A hash of the files and of the reference's contigs, by which a run recognises its data."""

    def __post_init__(self) -> None:
        check_numbers(self, window=(1, 1 << 30), longest=(1, 1 << 30))
        if self.split.method in ("random", "similarity"):
            raise ValueError(f"split.method={self.split.method!r} would split a locus: give grouped, given or auto")


class Variants:
    """The task: predict one class or number from two sequences of letters."""

    Config = VariantsConfig
    embedding = "tokens"
    inputs = Dna().size
    sequences = 2
    head = "variant"
    complement = None
    keeps_validation = True

    def __init__(self, config: VariantsConfig) -> None:
        self.config = _with_key(config)
        self.data = _cached_data(self.config)
        self.split, self.account = self.data.split, self.data.account
        """Variant numbers of the split are positions in `data.windows`."""
        self.target = self.data.question.target(self.split.training)
        self.max_length = max(max(window.lengths) for window in self.data.windows)

    def records(self, split: str) -> AlleleRecords:
        return self.data.records(self.split.parts[split])

    def groups(self, split: str) -> ndarray:
        """The locus number of each variant of a part."""
        return np.asarray(self.data.groups[self.split.parts[split]])

    def documents(self) -> dict[str, dict[str, Any]]:
        """The contents of tokenizer.json and data.json."""
        data, parts = self.data, self.split.parts
        about = {
            "format": 1,
            "sources": list(self.config.files),
            "account": vars(self.account),
            "target_type": data.question.kind,
            "contexts": data.contexts,
            "loci": len(np.unique(data.groups)),
            "split": self.config.split.describe(
                f"{data.split.method}, whole loci", {part: len(variants) for part, variants in parts.items()}
            )
            | {"loci": {part: len(np.unique(data.groups[variants])) for part, variants in parts.items()}},
        }
        return {"tokenizer.json": data.alleles.letters.to_json(), "data.json": about}


class VariantData:
    """The variants, windows, groups and split of a config."""

    def __init__(self, config: VariantsConfig) -> None:
        self.alleles = Alleles(Reference(config.reference), config.window, config.longest, config.on_mismatch)
        read = [v for path in variant_files(config.files) for v in read_variants(path, config.columns, config.names)]
        account = Account()
        usable = [(v, w) for v, w in zip(read, self.alleles.windows(read, account), strict=True) if w is not None]
        if not usable:
            raise ValueError(f"no variant of {len(read):,} is left: {'; '.join(account.lines())}; give others")
        self.question = _question([variant for variant, _ in usable], config)
        chosen = [usable[i] for i in self.question.records]
        self.variants: list[Variant] = [variant for variant, _ in chosen]
        self.windows: list[Window] = [window for _, window in chosen]
        self.account = account.without(self.question.unanswered, "without a label")
        self.contexts, self.context = _contexts(self.variants)
        near = near_copies(self.windows, loci(self.windows), self.alleles.reference)
        self.groups = merge_groups(near, [variant.group for variant in self.variants])
        splits = [variant.split for variant in self.variants]
        parts = split(self.question.labels(), config.split, splits, self.groups.tolist())
        self.split = parts.check("variant", "variants of more loci")

    def records(self, indices: ndarray) -> AlleleRecords:
        """The records at these indices."""
        windows = [self.windows[i] for i in indices]
        return AlleleRecords(self.alleles, windows, self.context[indices], self.question.targets[indices])


def variant_files(files: Sequence[str]) -> list[Path]:
    """The paths of the files, and of the VCF files in folders."""
    paths: list[Path] = []
    for name in files:
        path = Path(name).expanduser()
        contents = (
            sorted(p for p in path.iterdir() if p.name.endswith((".vcf", ".vcf.gz"))) if path.is_dir() else [path]
        )
        if not contents:
            raise ValueError(f"{name} has no file that ends in .vcf or .vcf.gz: give another folder, or files")
        paths += contents
    if not paths:
        raise ValueError("no files were given: name a VCF file or a table of variants")
    return paths


def context_number(variant: Variant, contexts: Sequence[str]) -> int:
    """The index of a variant's context among those of a model; 0 for a model without contexts."""
    if not contexts:
        return 0
    if variant.context not in contexts:
        known = ", ".join(contexts[:8]) + (", ..." if len(contexts) > 8 else "")
        raise ValueError(
            f"{variant.place}: context {variant.context!r} is not one of those that this run has learnt, {known}: "
            "name one of them with --context, or where they stand with --column context=NAME"
        )
    return contexts.index(variant.context)


def _with_key(config: VariantsConfig) -> VariantsConfig:
    """The config with the key of its data; an error if they are not those that the run started with."""
    digest = hashlib.sha256(repr(sorted(Reference(config.reference).contigs.items())).encode())
    for path in variant_files(config.files):
        if not path.is_file():
            raise ValueError(f"{path} does not exist: give a VCF file or a table of variants")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    key = digest.hexdigest()
    if config.key not in (None, key):
        raise ValueError(
            f"{config.files[0]} or {config.reference} is not what this run was trained on: put the same files back, "
            "or start into a new folder"
        )
    return replace(config, key=key)


_cached_data = lru_cache(maxsize=2)(VariantData)
"""Shared by the recipe, the training and the baselines of one process."""


def _question(variants: Sequence[Variant], config: VariantsConfig) -> Question:
    labels, targets = [v.label for v in variants], [v.target for v in variants]
    known = {"label": np.array(labels, dtype=object), "target": np.array(targets, dtype=np.float64)}
    for name, column in (("label", labels), ("target", targets)):
        if all(value is None for value in column):
            del known[name]
    if not known:
        raise ValueError(
            "no variant has a label or a number to learn: name a table's column or a key of a VCF's INFO with "
            "--column label=NAME or --column target=NAME, or have labels read from the files' names with --names"
        )
    return question(known, lambda i: variants[i].id, config.target_type, on_missing=config.on_unmatched)


def _contexts(variants: Sequence[Variant]) -> tuple[list[str], ndarray]:
    """The names of all contexts, and the context number of each variant."""
    names = sorted({variant.context for variant in variants if variant.context is not None})
    if len(names) > CONTEXTS:
        raise ValueError(f"{len(names):,} contexts are more than the {CONTEXTS} that a model can learn: merge some")
    return names, np.array([context_number(variant, names) for variant in variants])
