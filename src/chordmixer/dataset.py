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
LIST_SOURCE, ROW_SOURCE = "list", "row"
"""Source names of records in memory, for messages."""


class DataOptions(TypedDict, total=False):
    """Options of data sets from any source."""

    target_type: TargetType
    """`classes`, `labels` (several per record) or `number`. Default `auto`: detected from the targets."""
    tokenizer: str
    """dna, protein, bytes, characters, kmers or numbers. Default `auto`: detected from the records."""
    split_method: str
    """given, grouped, similarity or random. Default `auto`: the first that the data have."""
    fractions: tuple[float, float, float]
    """Fractions of training, validation and test records, unless the split is given. Default 0.7, 0.1, 0.2."""
    both_strands: bool
    """Train on either strand of DNA at random, and predict the mean over both. Default False."""
    on_rare: Literal["error", "reject"]
    """Classes or labels with too few records or groups for one in each part of a split: an error, or left out and
    counted. Default `error`."""
    on_bad: str
    """Characters outside the alphabet: `error`, `unknown`, or `reject` the record. Default `error`."""
    cache: Path | str
    """Folder in which the tokens of the records are stored. Default: the user's cache folder."""


class TableOptions(DataOptions, total=False):
    """Options of data sets from tables: also the names of the columns, by default found by their usual names."""

    sequence: str
    """Column of sequences: letters, text or lists of numbers."""
    target: str
    """Column of targets: classes, lists of labels, or numbers."""
    id: str
    """Column of record names."""
    group: str
    """Column of groups; the records of a group are never split."""
    split: str
    """Column of the part of each record: train, validation or test."""
    weight: str
    """Column of the weights of records in the loss."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with their targets, and how they are tokenized and split.

    >>> data = Dataset.from_lists(["ACGTACGT", "TTGACA", "GGCC"], ["worm", "fly", "worm"])
    >>> [(entry.id, entry.label) for entry in data.entries()]
    [('list:1', 'worm'), ('list:2', 'fly'), ('list:3', 'worm')]
    """

    config: FilesConfig
    """The sources of the records, how they are read and split, and the type of their targets."""
    records: tuple[Entry, ...] | None = None
    """The records of a data set in memory; None: they are read from files."""

    # --- Sources of records ---

    @staticmethod
    def from_files(
        *paths: Path | str | Mapping[str, Path | str],
        labels: str | None = None,
        group: str | None = None,
        reading: Reading | None = None,
        **options: Unpack[DataOptions],
    ) -> Dataset:
        """Read FASTA, FASTQ, GenBank, CSV, TSV, JSONL, Parquet, `.npy`, WAV and text files, also compressed.

        `Dataset.from_files({"worm": "a.fa", "fly": "b.fa"})` names the class of each file. `labels` is `files`,
        `header:NAME`, `header:/REGEX/` or the path of a table with ids; `group` takes the same, but no table.
        `reading` has all other settings of reading, such as the columns of a table.
        """
        settings = reading or Reading()
        if labels is not None or group is not None:
            settings = replace(settings, labels=labels or settings.labels, group=group or settings.group)
        mappings = [path for path in paths if isinstance(path, Mapping)]
        if mappings:
            if len(paths) > 1:
                raise ValueError("a mapping of class names to files stands alone: put all files into it")
            settings = replace(settings, labels=FILES, names=tuple(mappings[0]))
        files = [*mappings[0].values()] if mappings else paths
        return Dataset(_config(options, files=[str(path) for path in files], reading=settings))

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
            role: _listed(column) for role, column in roles.items() if column is not None
        }
        if targets is not None:
            target_values = _listed(targets)
            table[_role(target_values, options)] = target_values
            options = _with_target_type(target_values, options)
        for role, column in table.items():
            if len(column) != len(table["sequence"]):
                raise ValueError(
                    f"{len(column):,} values for {role} and {len(table['sequence']):,} sequences: give one for each"
                )
        return Dataset(_config(options, files=[IN_MEMORY]), tuple(_entries(table, LIST_SOURCE)))

    @staticmethod
    def from_pandas(frame: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Rows of a DataFrame: `Dataset.from_pandas(frame, sequence="seq", target="y")`."""
        table = _table(list(map(str, frame.columns)), options, lambda name: _listed(frame[name]))
        return Dataset(
            _config(_with_target_type(table.get("label", []), options), files=[IN_MEMORY]), tuple(_entries(table))
        )

    @staticmethod
    def from_huggingface(dataset: Any, **options: Unpack[TableOptions]) -> Dataset:
        """Rows of a `datasets.Dataset`, or of a `DatasetDict`, whose keys are the parts train, validation and test.

        A `ClassLabel` column keeps the names of its classes.
        """
        parts: dict[str | None, Any] = dict(dataset) if isinstance(dataset, Mapping) else {None: dataset}
        entries: list[Entry] = []
        targets: list[Any] = []
        for part, rows in parts.items():
            table = _table(list(rows.column_names), options, _column_of(rows))
            if part is not None:
                table["split"] = [part] * len(table["sequence"])
            targets += table.get("label", [])
            entries += _entries(table, ROW_SOURCE if part is None else part)
        return Dataset(_config(_with_target_type(targets, options), files=[IN_MEMORY]), tuple(entries))

    # --- Reading and storing records ---

    def entries(self, account: Account | None = None) -> Iterator[Entry]:
        """Iterate over the records before tokenization; rejected ones are counted in the account."""
        if self.records is not None:
            return iter(self.records)
        reading = with_file_labels(self.config.files, self.config.reading)
        return read(self.config.files, reading, Account() if account is None else account)

    def stored(self, cache: Path | str | None = None) -> FilesConfig:
        """Return the config with which a task opens these records; records in memory are stored in `cache` first."""
        config = self.config if cache is None else replace(self.config, cache=str(cache))
        if self.records is None:
            return config
        folder = cache_folder(config.cache)
        _, key = gather_records(self.records, config.tokenizer, folder)
        return replace(config, key=key)

    def __len__(self) -> int:
        return len(self.records) if self.records is not None else sum(1 for _ in self.entries())


def _config(options: DataOptions, files: Sequence[str], reading: Reading | None = None) -> FilesConfig:
    """Translate the options of a data set into settings of the task."""
    if unknown := options.keys() - TableOptions.__annotations__.keys():
        known = ", ".join(TableOptions.__annotations__)
        raise ValueError(f"{min(unknown)} is not an option of a data set: give one of {known}")
    split: dict[str, Any] = {"method": options.get("split_method", "auto")}
    if "fractions" in options:
        split["fractions"] = list(options["fractions"])
    settings = {
        "files": list(files),
        "target_type": options.get("target_type", "auto"),
        "split": split,
        "on_rare": options.get("on_rare", "error"),
        "both_strands": options.get("both_strands", False),
        "tokenizer": {"name": options.get("tokenizer", "auto"), "on_bad": options.get("on_bad", "error")},
        "cache": None if options.get("cache") is None else str(options["cache"]),
    }
    return override(FilesConfig(reading=reading or Reading()), settings, "data")


def _listed(values: Iterable[Any]) -> list[Any]:
    """Convert values to a list: NumPy scalars become Python scalars, tensors and other arrays NumPy arrays."""
    if isinstance(values, str | bytes):
        raise ValueError(f"{str(values)[:40]!r} is one value where a list of them is needed: write [{'...'!r}]")
    converted = []
    for value in values:
        if isinstance(value, np.generic):
            value = value.item()
        elif not isinstance(value, np.ndarray) and hasattr(value, "__array__"):
            value = np.asarray(value)
        converted.append(list(value) if isinstance(value, tuple | set | frozenset) else value)
    return converted


def _role(targets: Sequence[Any], options: DataOptions) -> Literal["label", "target"]:
    """The role of the targets: "label" for names, "target" for numbers."""
    target_type = options.get("target_type", "auto")
    if target_type != "auto":
        return "target" if target_type == "number" else "label"
    known = [value for value in targets if value is not None and not (isinstance(value, float) and math.isnan(value))]
    return "target" if known and all(isinstance(value, float) for value in known) else "label"


def _with_target_type(targets: Sequence[Any], options: DataOptions) -> DataOptions:
    """Set the target type to `labels` if any target is a list and no type is chosen."""
    if options.get("target_type", "auto") == "auto" and any(
        isinstance(target, list | np.ndarray) for target in targets
    ):
        return {**options, "target_type": "labels"}
    return options


def _table(names: Sequence[str], options: TableOptions, column: Callable[[str], list[Any]]) -> dict[str, list[Any]]:
    """Read the columns of a table, by role."""
    roles = ("sequence", "id", "group", "split", "weight")
    chosen: dict[str, Any] = {role: options.get(role) for role in roles}
    target, targets = options.get("target"), []
    if target is not None:
        targets = column(target) if target in names else []
        chosen |= {"label": ABSENT, "target": ABSENT, _role(targets, options): target}
    matches = columns.find_columns(Columns(**chosen), names, "the table")
    return {role: targets if name == target else column(name) for role, name in matches.items()}


def _column_of(dataset: Any) -> Callable[[str], list[Any]]:
    """Return a function that reads a column of a Hugging Face dataset, with class names in place of numbers."""

    def column(name: str) -> list[Any]:
        values = _listed(dataset[name])
        classes = getattr((getattr(dataset, "features", None) or {}).get(name), "names", None)
        if not classes:
            return values
        return [None if value is None or value == -1 else classes[value] for value in values]

    return column


def _entries(table: Mapping[str, Sequence[Any]], name: str = ROW_SOURCE) -> Iterator[Entry]:
    """Convert the rows of a table in memory to records, by the rules for tables in files."""
    roles = {role: role for role in table}
    for number, row in enumerate(zip(*table.values(), strict=True), 1):
        place = f"{name}, record {number}"
        entry = columns.row_entry(name, number, columns.parse_row(dict(zip(table, row, strict=True)), roles, place))
        if not entry.length:
            raise ValueError(f"{place} is empty: a record needs a letter or a number; leave it out")
        yield entry


def as_entries(data: Dataset | Iterable[Any]) -> Iterable[Entry]:
    """Convert a data set, or sequences without targets, to records."""
    return data.entries() if isinstance(data, Dataset) else _entries({"sequence": _listed(data)}, LIST_SOURCE)
