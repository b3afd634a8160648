"""The task for a user's own files: their store, target and split."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, get_args

import numpy as np
from numpy import ndarray

from chordmixer.config import LONGEST, check_numbers
from chordmixer.data.entries import Account
from chordmixer.data.inspection import Inspection
from chordmixer.data.leakage import SEEN_PARTS, Leak, digests, find_leaks, seen_hashes
from chordmixer.data.loading import StoreRecords
from chordmixer.data.reading import Policy, Reading
from chordmixer.data.sketches import SketchConfig, sketch_all
from chordmixer.data.splits import PARTS, Split, SplitConfig, Units, split_units, units
from chordmixer.data.store import Store
from chordmixer.data.store_cache import cache_folder, file_labels_line, gather, with_file_labels
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.tasks.questions import TargetType, inspect_target, question, settle_rare

logger = logging.getLogger(__name__)

KINDS = {"dna": "dna", "protein": "protein", "bytes": "text", "characters": "text", "kmers": "text"}
"""The kind of tokens of each tokenizer, for k-mer counts and sketches; real numbers are `real`."""
MAX_COMPARED_TOKENS = 300_000_000
"""Total tokens up to which near-copies across the split are searched for; it takes about two minutes at this size."""


@dataclass(frozen=True)
class StoreConfig:
    """Settings of files, their reading and their split."""

    files: tuple[str, ...] = field(default=(), compare=False)
    """Paths of files and folders, or - for standard input. Data are identified by content, not by path."""
    reading: Reading = field(default_factory=Reading)
    """Settings of reading, including the sources of labels and groups."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Settings of tokenization."""
    split: SplitConfig = field(default_factory=SplitConfig, kw_only=True)
    """Settings of the split into training, validation and test."""
    seed: int = field(default=0, kw_only=True)
    """Seed of the task's random choices; the split has its own."""
    cache: str | None = field(default=None, compare=False, kw_only=True)
    """The folder of stores. Default None: the user's cache folder."""
    key: str | None = field(default=None, kw_only=True)
    """The store's name in that folder: a hash of the files' content and the settings of reading."""

    def open_store(self, reading: Reading) -> tuple[Store, str]:
        """Open or build the store of the files; returns it and its key."""
        if not self.files:
            raise ValueError("no files were given: name at least one, or - for standard input")
        return gather(self.files, reading, self.tokenizer, cache_folder(self.cache), self.key)


@dataclass(frozen=True)
class FilesConfig(StoreConfig):
    """Settings of files and of the prediction target."""

    target_type: TargetType = "auto"
    """The type of target: one of several classes (`classes`), several labels per record (`labels`), or a `number`.
    Default `auto`: detected from the data."""
    separator: str = ";"
    """The separator between several labels of a record."""
    on_rare: Policy = "error"
    """Classes or labels with too few records, or groups, for one in each part of a split: an error, or `reject`: they
    are left out and counted. A given split leaves none out."""
    both_strands: bool = False
    """Train on a random strand of DNA in each epoch, and predict the mean over both strands. For records of either
    strand, such as fragments of genomes; not if the strand has a meaning, as for introns and genes, or differs in
    composition, as in mitochondria."""
    augment: bool | None = None
    """Train on random crops of each series, with slightly changed scale, new in each epoch. For recordings; not if
    positions or amplitudes have a meaning of their own. Default: for classes of series, not for numbers."""
    cut: int | None = None
    """Length in tokens to which longer records are cut, in training and prediction; they are counted. Default None:
    records are not cut."""

    def __post_init__(self) -> None:
        check_numbers(self, cut=(1, LONGEST))
        if self.on_rare not in get_args(Policy):
            raise ValueError(f"--on-rare {self.on_rare} is not a choice: give one of {', '.join(get_args(Policy))}")


class Files:
    """The task. Its `config` has the store's key, so that it can be reopened after the files have moved.

    Rotation is circular: the network reads the first token after the last. That is correct for a circular record,
    for which the start in the file matters little; the ends of a linear record are joined, as in the paper.
    """

    Config = FilesConfig
    keeps_validation = True

    def __init__(self, config: FilesConfig) -> None:
        self.config = _with_key(config)
        self._data = _cached_data(self.config)
        store, self.question = self._data.store, self._data.question
        self.store, self.split = store, self._data.split
        """Record numbers of the split are positions in `question.records`."""
        self.kind = token_kind(store)
        """The kind of tokens, for k-mer counts and sketches: dna, protein, text or real."""
        self.embedding = "real" if store.values.dtype.kind == "f" else "tokens"
        self.inputs = store.tokenizer.size
        self.max_length = int(store.lengths[self.question.records].max())
        self.target = self.question.target(self.split.training)
        self.complement = store.tokenizer.complement if config.both_strands else None

    def records(self, split: str) -> StoreRecords:
        """The records of `training`, `validation` or `test`; training has random strands and crops if set."""
        numbers = self.split.parts[split]
        indices = self.question.records[numbers]
        weights = None
        if split == "training" and "weight" in self.store.columns:
            weights = _normalised_weights(self.store.column("weight")[indices])
        strands = self.config.seed if self.config.both_strands else None
        crops = self.config.seed if self.config.augment else None
        return StoreRecords(self.store, indices, self.question.targets[numbers], weights, strands, crops)

    def tokens(self, split: str) -> list[ndarray]:
        """The tokens of each record of a part, without augmentation."""
        return [self.store.tokens(i) for i in self.question.records[self.split.parts[split]]]

    def groups(self, split: str) -> ndarray | None:
        """The group number of each record, None without a group column. A record without a group is its own group."""
        if "group" not in self.store.columns:
            return None
        names = self.store.column("group")[self.question.records[self.split.parts[split]]].tolist()
        keys = [(i, None) if name is None else (-1, name) for i, name in enumerate(names)]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(keys))}
        return np.array([numbers[group] for group in keys])

    @property
    def account(self) -> Account:
        """The account of reading, in which records without a target are rejected."""
        noun = "target" if self.question.kind == "number" else "label"
        account = self.store.account.without(self.question.unanswered, f"without a {noun}")
        for reason, ids in self.question.rejected.items():
            account = account.without(ids, reason)
        account.notes.update(self.question.notes)
        return account

    @property
    def inspection(self) -> Inspection:
        """Statistics of the files."""
        return self._data.inspection

    @property
    def leaks(self) -> dict[str, Leak]:
        """Copies of training records in validation and test, by the records' numbers in the store."""
        return self._data.leaks

    def seen(self) -> dict[str, ndarray]:
        """Hashes of the training and validation records, to recognise them in files that are evaluated later."""
        records = {part: self.question.records[self.split.parts[part]] for part in SEEN_PARTS}
        if self.config.split.folds and self.config.split.fold is None:  # members train on both parts
            first, second = SEEN_PARTS
            records = {first: np.concatenate([*records.values()]), second: records[second][:0]}
        store = self.store
        return {part: seen_hashes(map(store.tokens, numbers), store.tokenizer) for part, numbers in records.items()}

    def documents(self) -> dict[str, dict[str, Any]]:
        """The contents of tokenizer.json and data.json."""

        def named(leak: Leak) -> dict[str, list[list[str]]]:
            return {kind: [[self.store.id(i) for i in p] for p in pairs] for kind, pairs in leak.examples.items()}

        sizes = {part: len(records) for part, records in self.split.parts.items()}
        about = {
            "format": 1,
            "sources": self.store.sources,
            "account": vars(self.account),
            "target_type": self.question.kind,
            "inspection": asdict(replace(self.inspection, account=Account())) | {"account": vars(self.store.account)},
            "split": self.config.split.describe(self.split.method, sizes) | {"folds": self.config.split.folds},
            "leakage": {part: asdict(leak) | {"examples": named(leak)} for part, leak in self.leaks.items()},
            "near_copies_looked_for": len(self.store.values) <= MAX_COMPARED_TOKENS and self.kind != "real",
        }
        return {"tokenizer.json": self.store.tokenizer.to_json(), "data.json": about}


def _normalised_weights(weights: ndarray) -> ndarray:
    """Weights scaled to mean one; an error if the smallest is too small for float32."""
    shares = weights / weights.max()
    normalised: ndarray = shares / shares.mean()
    if not normalised.min() >= np.finfo(np.float32).tiny:
        raise ValueError(
            f"record weights from {weights.min():g} to {weights.max():g} are too far apart: in float32 the smallest "
            "would count as nothing; give weights of more similar sizes"
        )
    return normalised


def _with_key(config: FilesConfig) -> FilesConfig:
    """The config with its store's key, after reading the files or finding their store."""
    reading = with_file_labels(config.files, config.reading) if config.key is None else config.reading
    if reading != config.reading:
        logger.info(file_labels_line(config.files))
    return replace(config, reading=reading, key=config.open_store(reading)[1])


class _FilesData:
    """Store, question and split of a config, with inspection and leaks on demand."""

    def __init__(self, config: FilesConfig) -> None:
        reading, self.separator = config.reading, config.separator
        store, _ = config.open_store(reading)
        self.store = store if config.cut is None else store.cut(config.cut)
        columns = self.store.present_columns("label", "target", "split")
        asked = question(columns, self.store.id, config.target_type, config.separator, reading.on_unmatched, least=1)
        if config.both_strands and self.store.tokenizer.complement is None:
            raise ValueError(
                f"--rc asks for both strands, and {self.store.tokenizer.name} tokens have one: leave it out, or name "
                "the tokenizer with --tokenizer dna if these are nucleotides"
            )
        if config.augment and token_kind(self.store) != "real":
            raise ValueError("data.augment=true is for series of real numbers, and these are symbols: leave it out")
        found = units_of(self.store, asked.records, config.split)
        least = len(PARTS) if config.on_rare == "error" else max(len(PARTS), config.split.folds + 2)
        self.question = settle_rare(asked, found, least, config.on_rare, self.store.id)
        found = found._replace(numbers=found.numbers[np.isin(asked.records, self.question.records)])
        self.split = split_store(self.store, self.question.records, self.question.labels(), config.split, found)

    @cached_property
    def inspection(self) -> Inspection:
        return inspect_target(self.store, self.question.kind, self.separator)

    @cached_property
    def leaks(self) -> dict[str, Leak]:
        """Leaks by the records' numbers in the store."""
        kind, records = token_kind(self.store), self.question.records
        sequences = [self.store.tokens(i) for i in records]
        sketches, threshold = None, 1.0
        if kind != "real" and len(self.store.values) <= MAX_COMPARED_TOKENS:
            config = SketchConfig.of(kind)
            sketches, threshold = sketch_all(sequences, config), config.threshold
        hashes = digests(sequences, canonical=kind == "dna")
        return find_leaks(hashes, sketches, threshold, self.split.parts, records)


_cached_data = lru_cache(maxsize=2)(_FilesData)
"""Shared by the recipe, the training and the baselines of one process."""


def split_store(
    store: Store,
    records: ndarray,
    targets: Sequence[Hashable] | ndarray,
    config: SplitConfig,
    units: Units | None = None,
) -> Split:
    """Split the given records of a store by its columns `split` and `group`, or by their sequences.

    `units` are those of `units_of`, if they are known.
    """
    splits = store.present_columns("split").get("split")
    parts = split_units(
        targets,
        config,
        units or units_of(store, records, config),
        None if splits is None else splits[records].tolist(),
    )
    return parts.check("record", "more records")


def units_of(store: Store, records: ndarray, config: SplitConfig) -> Units:
    """The units of the given records of a store."""
    columns = {f"{name}s": v[records].tolist() for name, v in store.present_columns("split", "group").items()}
    sequences = [store.tokens(i) for i in records]
    return units(len(records), config, **columns, sequences=sequences, kind=token_kind(store))


def token_kind(store: Store) -> str:
    return KINDS.get(store.tokenizer.name, "real")
