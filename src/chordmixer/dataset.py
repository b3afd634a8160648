"""Records for training, evaluation or prediction: from files, lists, a DataFrame or a Hugging Face dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from chordmixer.config import override
from chordmixer.data import columns
from chordmixer.data.columns import ABSENT, Columns
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import FILES, Reading, read
from chordmixer.data.store_cache import IN_MEMORY, cache_folder, gather_records, with_file_labels
from chordmixer.tasks.files import FilesConfig

TargetType = Literal["auto", "classes", "labels", "number"]
LIST, ROW = "list", "row"
"""Where records in memory come from, for messages."""


class DataOptions(TypedDict, total=False):
    """Options of every data set, however its records are given."""

    target_type: TargetType
    """`classes`, `labels` (several per record) or `number`. Default `auto`: detected from the targets."""
    tokenizer: str
    """dna, protein, bytes, characters, kmers or numbers. Default `auto`: detected from the records."""
    split_method: str
    """given, grouped, similarity or random. Default `auto`: the first that the data have."""
    fractions: tuple[float, float, float]
    """Shares of the records for training, validation and test, unless the split is given. Default 0.7, 0.1, 0.2."""
    both_strands: bool
    """Treat both strands of DNA alike: train on either, predict the mean over both. Default False."""
    on_bad: str
    """Characters outside the alphabet: `error`, `unknown`, or `reject` the record. Default `error`."""
    cache: Path | str
    """Folder in which the tokens of the records are stored. Default: the user's cache folder."""


class TableOptions(DataOptions, total=False):
    """The same, and the names of a table's columns; those not given are found by their usual names, as in files."""

    sequence: str
    """Letters, text or lists of numbers."""
    target: str
    """What is predicted: classes, lists of labels, or numbers."""
    id: str
    """The name of a record."""
    group: str
    """Records of one group never cross a split."""
    split: str
    """train, validation or test."""
    weight: str
    """Weight of a record in the loss."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with their targets, and how they are tokenized and split.

    >>> data = Dataset.from_lists(["ACGTACGT", "TTGACA", "GGCC"], ["worm", "fly", "worm"])
    >>> [(entry.id, entry.label) for entry in data.entries()]
    [('list:1', 'worm'), ('list:2', 'fly'), ('list:3', 'worm')]
    """

    config: FilesConfig
    """Where the records are, how they are read, what is predicted from them, how they are split."""
    records: tuple[Entry, ...] | None = None
    """The records of a data set in memory; None: they are read from files."""

    # --- Where records come from ---

    @staticmethod
    def from_files(
        *paths: Path | str | Mapping[str, Path | str],
        labels: str | None = None,
        group: str | None = None,
        reading: Reading | None = None,
        **options: Unpack[DataOptions],
    ) -> Dataset:
        """From files and folders: FASTA, FASTQ, GenBank, CSV, TSV, JSONL, Parquet, `.npy` or texts, also compressed.

        `Dataset.from_files({"worm": "a.fa", "fly": "b.fa"})` names the class of each file. `labels` is `files`,
        `header:NAME`, `header:/REGEX/` or the path of a table with ids; `group` takes the same, but no table.
        `reading` has all other settings, such as the columns of a table.
        """
        known = reading or Reading()
        if labels is not None or group is not None:
            known = replace(known, labels=labels or known.labels, group=group or known.group)
        named = [path for path in paths if isinstance(path, Mapping)]
        if named:
            if len(paths) > 1:
                raise ValueError("a mapping of class names to files stands alone: put all files into it")
            known = replace(known, labels=FILES, names=tuple(named[0]))
        given = [*named[0].values()] if named else paths
        return Dataset(_config(options, files=[str(path) for path in given], reading=known))

    @staticmethod
    def from_lists(
        sequences: Iterable[Any],
        targets: Iterable[Any] | None = None,
        *,
        ids: Iterable[str] | None = None,
        groups: Iterable[str] | None = None,
        splits: Iterable[str] | None = None,
        weights: Iterable[float] | None = None,
        **options: Unpack[DataOptions],
    ) -> Dataset:
        """Sequences in memory, strings, bytes, or numbers of shape (N,) or (N, channels), with one target each.

        Strings and integers are classes, lists of strings are labels, floats are numbers to predict; `target_type`
        overrides this. Without targets the data set is for prediction only.
        """
        roles = {"id": ids, "group": groups, "split": splits, "weight": weights}
        table = {"sequence": _listed(sequences)} | {
            role: _listed(own) for role, own in roles.items() if own is not None
        }
        if targets is not None:
            answers = _listed(targets)
            table[_role(answers, options)] = answers
            options = _several(answers, options)
        for role, own in table.items():
            if len(own) != len(table["sequence"]):
                raise ValueError(
                    f"{len(own):,} values for {role} and {len(table['sequence']):,} sequences: give one for each"
                )
        return Dataset(_config(options, files=[IN_MEMORY]), tuple(_entries(table, LIST)))

    @staticmethod
    def from_pandas(frame: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Rows of a DataFrame: `Dataset.from_pandas(frame, sequence="seq", target="y")`."""
        table = _table(list(map(str, frame.columns)), options, lambda name: _listed(frame[name]))
        return Dataset(_config(_several(table.get("label", []), options), files=[IN_MEMORY]), tuple(_entries(table)))

    @staticmethod
    def from_huggingface(dataset: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Rows of a `datasets.Dataset`, or of a `DatasetDict`, whose keys are the parts train, validation and test.

        A `ClassLabel` column keeps the names of its classes.
        """
        parts: dict[str | None, Any] = dict(dataset) if isinstance(dataset, Mapping) else {None: dataset}
        found: list[Entry] = []
        answers: list[Any] = []
        for part, own in parts.items():
            table = _table(list(own.column_names), options, _column_of(own))
            if part is not None:
                table["split"] = [part] * len(table["sequence"])
            answers += table.get("label", [])
            found += _entries(table, ROW if part is None else part)
        return Dataset(_config(_several(answers, options), files=[IN_MEMORY]), tuple(found))

    # --- Reading and storing them ---

    def entries(self, account: Account | None = None) -> Iterator[Entry]:
        """The records before tokenization; rejected ones are counted in the account."""
        if self.records is not None:
            return iter(self.records)
        reading = with_file_labels(self.config.files, self.config.reading)
        return read(self.config.files, reading, Account() if account is None else account)

    def stored(self, cache: Path | str | None = None) -> FilesConfig:
        """The config with which a task opens these records; records in memory are first stored in `cache`."""
        config = self.config if cache is None else replace(self.config, cache=str(cache))
        if self.records is None:
            return config
        folder = cache_folder(config.cache)
        _, key = gather_records(self.records, config.tokenizer, folder)
        return replace(config, key=key)

    def __len__(self) -> int:
        return len(self.records) if self.records is not None else sum(1 for _ in self.entries())


def _config(options: DataOptions, files: Sequence[str], reading: Reading | None = None) -> FilesConfig:
    """The options of every data set, as settings of the task."""
    if unknown := options.keys() - TableOptions.__annotations__.keys():
        known = ", ".join(TableOptions.__annotations__)
        raise ValueError(f"{min(unknown)} is not an option of a data set: give one of {known}")
    split: dict[str, Any] = {"method": options.get("split_method", "auto")}
    if "fractions" in options:
        split["fractions"] = list(options["fractions"])
    given = {
        "files": list(files),
        "target_type": options.get("target_type", "auto"),
        "split": split,
        "both_strands": options.get("both_strands", False),
        "tokenizer": {"name": options.get("tokenizer", "auto"), "on_bad": options.get("on_bad", "error")},
        "cache": None if options.get("cache") is None else str(options["cache"]),
    }
    return override(FilesConfig(reading=reading or Reading()), given, "data")


def _listed(values: Iterable[Any]) -> list[Any]:
    """Plain values: scalars of NumPy as Python's, tensors and other arrays as NumPy's."""
    if isinstance(values, str | bytes):
        raise ValueError(f"{str(values)[:40]!r} is one value where a list of them is needed: write [{'...'!r}]")
    found = []
    for value in values:
        if isinstance(value, np.generic):
            value = value.item()
        elif not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
            value = np.asarray(value)
        found.append(list(value) if isinstance(value, tuple | set | frozenset) else value)
    return found


def _role(answers: Sequence[Any], options: DataOptions) -> Literal["label", "target"]:
    """Whether targets are names or numbers."""
    asked = options.get("target_type", "auto")
    if asked != "auto":
        return "target" if asked == "number" else "label"
    known = [own for own in answers if own is not None and not (isinstance(own, float) and math.isnan(own))]
    return "target" if known and all(isinstance(own, float) for own in known) else "label"


def _several(answers: Sequence[Any], options: DataOptions) -> DataOptions:
    """Lists of labels ask for several of them."""
    if options.get("target_type", "auto") == "auto" and any(isinstance(own, list | np.ndarray) for own in answers):
        return {**options, "target_type": "labels"}
    return options


def _table(names: Sequence[str], options: TableOptions, column: Callable[[str], list[Any]]) -> dict[str, list[Any]]:
    """The columns of a table by their roles."""
    roles = ("sequence", "id", "group", "split", "weight")
    chosen: dict[str, Any] = {role: options.get(role) for role in roles}
    target, answers = options.get("target"), []
    if target is not None:
        answers = column(target) if target in names else []
        chosen |= {"label": ABSENT, "target": ABSENT, _role(answers, options): target}
    found = columns.find_columns(Columns(**chosen), names, "the table")
    return {role: answers if name == target else column(name) for role, name in found.items()}


def _column_of(dataset: Any) -> Callable[[str], list[Any]]:
    """A function that gives a column of a Hugging Face dataset, its classes by their names."""

    def column(name: str) -> list[Any]:
        values = _listed(dataset[name])
        classes = getattr((getattr(dataset, "features", None) or {}).get(name), "names", None)
        if not classes:
            return values
        return [None if own is None or own == -1 else classes[own] for own in values]

    return column


def _entries(table: Mapping[str, Sequence[Any]], name: str = ROW) -> Iterator[Entry]:
    """Records of a table in memory, by the rules for those of files."""
    roles = {role: role for role in table}
    for number, row in enumerate(zip(*table.values(), strict=True), 1):
        place = f"{name}, record {number}"
        entry = columns.row_entry(name, number, columns.parse_row(dict(zip(table, row, strict=True)), roles, place))
        if not entry.length:
            raise ValueError(f"{place} is empty: a record needs a letter or a number; leave it out")
        yield entry


def as_entries(data: Dataset | Iterable[Any]) -> Iterable[Entry]:
    """The records of a data set, or sequences without targets."""
    return data.entries() if isinstance(data, Dataset) else _entries({"sequence": _listed(data)}, LIST)
