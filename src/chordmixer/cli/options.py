"""Options that several commands share, and their translation into the settings of a run."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from chordmixer.data.reading import Reading
    from chordmixer.training import Experiment

READING = "How files are read"
USING = "How the model is used"
LEARNING = "What is learned"
SETTINGS = "Settings"

ON_BAD = ("error", "unknown", "reject")
TOKENIZERS = ("auto", "dna", "protein", "bytes", "characters", "kmers", "numbers")
OVER_LENGTH = ("error", "windows", "reject")
DEVICES = ("auto", "cpu", "cuda")
TARGET_TYPES = ("auto", "classes", "labels", "number")
SPLITS = ("auto", "given", "grouped", "similarity", "random")
FORMATS = ("auto", "fasta", "fastq", "genbank", "csv", "jsonl", "parquet", "text", "npy", "wav")
POLICIES = ("error", "reject")


def one_of(words: Sequence[str]) -> Callable[..., str | None]:
    """Return a callback that checks the value of an option; its message names the option as it was typed."""

    def check(option: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in words:
            raise ValueError(f"{option.opts[0]} {value} is not a choice: give one of {', '.join(words)}")
        return value

    return check


def option(help: str, panel: str | None = None, *flags: str, choices: Sequence[str] = (), **more: Any) -> Any:
    """Define an option under the heading `panel`; `choices` are its allowed values."""
    check = one_of(choices) if choices else None
    return typer.Option(*flags, help=help, rich_help_panel=panel, callback=check, **more)


def argument(help: str, metavar: str | None = "FILES") -> Any:
    return typer.Argument(help=help, metavar=metavar, show_default=False)


Run = Annotated[Path, argument("A run folder.", None)]
Inputs = Annotated[
    list[str],
    argument("FASTA, FASTQ, GenBank, CSV, TSV, JSONL, Parquet, .npy, WAV, folders; also compressed; - is stdin."),
]
OnBad = Annotated[
    str | None,
    option(
        "Characters outside the alphabet: error, unknown (read as N or X, and counted), or reject the record.",
        READING,
        choices=ON_BAD,
    ),
]
Tokenizer = Annotated[
    str,
    option(
        "dna, protein, bytes, characters, kmers or numbers; auto: detected from the records.",
        READING,
        choices=TOKENIZERS,
    ),
]
Cache = Annotated[Path | None, option("Folder for the tokens of files; default: your cache folder.", READING)]
OverLength = Annotated[
    str,
    option(
        "Records longer than the model's maximum: error, windows (overlapping by half, averaged), or reject.",
        USING,
        choices=OVER_LENGTH,
    ),
]
BatchTokens = Annotated[int | None, option("Maximum number of tokens per batch; fewer need less memory.", USING)]
Device = Annotated[str | None, option("auto, cpu or cuda.", USING, choices=DEVICES)]
Resume = Annotated[bool, option("Continue an interrupted output.", USING, "--resume")]
TargetType = Annotated[
    str,
    option(
        "classes, labels (several per record) or number; auto: detected from the data.",
        LEARNING,
        choices=TARGET_TYPES,
    ),
]
Start = Annotated[Path | None, option("Start from a trained run's encoder.", LEARNING, "--from", metavar="RUN")]
Freeze = Annotated[bool, option("With --from: train only the head.", LEARNING, "--freeze")]
Config = Annotated[Path | None, option("A TOML file with settings.", SETTINGS)]
Settings = Annotated[list[str] | None, option("A setting, such as training.epochs=3.", SETTINGS)]
Using = Annotated[
    str | None,
    option("network, baseline or both; default: the choice made on the validation records.", show_default=False),
]
SafeCells = Annotated[
    bool, option("Put ' before cells that a spreadsheet would run as formulas.", USING, "--safe-cells")
]
Unverified = Annotated[
    bool, option("Also accept a run folder whose manifest.json is missing.", USING, "--unverified")
]
Force = Annotated[bool, option("Replace an existing output.", USING, "--force")]
Group = Annotated[
    str | None, option("Records of a group never cross a split: files, header:NAME or header:/REGEX/.", READING)
]


# --- Groups of options: a command takes one as a parameter ---


@dataclass(frozen=True)
class FileOptions:
    """Options of reading files without labels."""

    format: Annotated[
        str,
        option(
            "fasta, fastq, genbank, csv, jsonl, parquet, text, npy or wav; auto: detected from the content.",
            READING,
            choices=FORMATS,
        ),
    ] = "auto"
    column: Annotated[
        list[str] | None,
        option(
            "A table's column, by role: id, sequence, label, target, split, group, weight.",
            READING,
            metavar="ROLE=NAME",
        ),
    ] = None
    features: Annotated[
        str | None, option("GenBank features to use as records, such as CDS; default: whole records.", READING)
    ] = None
    on_empty: Annotated[str, option("Records without a letter: error or reject.", READING, choices=POLICIES)] = (
        "error"
    )
    max_record: Annotated[
        int | None, option("Maximum bytes of a record, decompressed; default 1 GiB. More is an error.", READING)
    ] = None

    def reading(self) -> Reading:
        """Convert the options to the library's `Reading`."""
        from chordmixer.data.columns import Columns
        from chordmixer.data.reading import Reading

        reading = Reading(
            kind=self.format,  # type: ignore[arg-type]
            columns=columns_from(self.column or [], Columns()),
            features=self.features,
            on_empty=self.on_empty,  # type: ignore[arg-type]
        )
        return reading if self.max_record is None else replace(reading, max_record=self.max_record)


@dataclass(frozen=True)
class LabelOptions(FileOptions):
    """Options of reading files with labels."""

    labels: Annotated[
        str | None,
        option(
            "Where labels are: files (one class per file, which CLASS=FILE names), header:NAME, header:/REGEX/, or a "
            "table with ids. Default: in the records; if these have none, one class per file.",
            READING,
        ),
    ] = None
    group: Group = None
    rank: Annotated[
        str | None, option("A GenBank record's label: organism, genus, lineage:N or qualifier:NAME.", READING)
    ] = None
    on_unmatched: Annotated[
        str,
        option("Records without a label, or labels without a record: error or reject.", READING, choices=POLICIES),
    ] = "error"

    def reading(self) -> Reading:
        """Convert the options to the library's `Reading`."""
        changes = {name: getattr(self, name) for name in ("labels", "group", "rank", "on_unmatched")}
        return replace(super().reading(), **changes)

    def named(self, inputs: list[str]) -> tuple[list[str], Reading]:
        """Split inputs such as CLASS=FILE into paths and class names; return the paths and how they are read."""
        from chordmixer.data.reading import FILES, named_files

        reading = self.reading()
        paths, names = named_files(inputs)
        if not names:
            return inputs, reading
        if self.labels not in (None, FILES):
            raise ValueError(
                f"--labels {self.labels} says where the classes are, and so does CLASS=FILE: leave out one of them"
            )
        return paths, replace(reading, labels=FILES, names=names)


@dataclass(frozen=True)
class UseOptions:
    """Options of using a trained run on files; `vars` returns the keyword arguments of the library's functions."""

    on_bad: OnBad = None
    over_length: OverLength = "error"
    batch_tokens: BatchTokens = None
    device: Device = None
    force: Force = False
    unverified: Unverified = False


@dataclass(frozen=True)
class RunOptions:
    """Options that `train`, `pretrain` and `plan` share: how data are split, and settings of a run."""

    split: Annotated[
        str,
        option(
            "given (by a column), grouped, similarity or random; auto: the first that the data allow.",
            LEARNING,
            choices=SPLITS,
        ),
    ] = "auto"
    tokenizer: Tokenizer = "auto"
    on_bad: OnBad = None
    cache: Cache = None
    epochs: Annotated[int | None, option("Passes over the training records.", SETTINGS, min=1)] = None
    minutes: Annotated[
        float | None, option("Train for as many steps as fit into this time on this machine.", SETTINGS, min=0)
    ] = None
    seed: Annotated[int | None, option("Seed of the initial weights and of the order of records.", SETTINGS)] = None
    device: Annotated[str | None, option("auto, cpu or cuda.", SETTINGS, choices=DEVICES)] = None
    unverified: Unverified = False
    config: Config = None
    set: Settings = None

    def data(self, files: list[str]) -> dict[str, Any]:
        """The fields of a task's config that all runs on files share."""
        return {
            "files": files,
            "split": {"method": self.split},
            "tokenizer": {"name": self.tokenizer, "on_bad": self.on_bad or "error"},
            "cache": None if self.cache is None else str(self.cache),
        }

    def changes(self, minutes: bool = True) -> list[str]:
        """Convert the options for common settings to arguments of --set, followed by those of --set itself."""
        settings: dict[str, object] = {"training.epochs": self.epochs}
        if minutes and self.minutes:
            settings |= {"training.minutes": self.minutes, "training.ema": 0}  # the number of steps is then unknown
        settings |= {"training.seed": self.seed, "training.device": self.device}
        return [f"{name}={value}" for name, value in settings.items() if value is not None] + [*(self.set or [])]

    def build(self, recipe: Callable[[Any], Experiment], data: Any, changes: Iterable[str]) -> Experiment:
        """Build the recipe's experiment for these data, changed by the TOML file, then by `changes`."""
        from chordmixer import fitting

        return fitting.build(recipe, data, settings_table(self.config, changes))


@dataclass(frozen=True)
class TrainOptions(RunOptions):
    """Options that `train` and `plan` share: also the target type, the ensemble and the encoder."""

    target_type: TargetType = "auto"
    on_rare: Annotated[
        str,
        option("Classes with too few records or groups to split: error, or reject them.", LEARNING, choices=POLICIES),
    ] = "error"
    rc: Annotated[
        bool, option("Both strands of DNA are equivalent: train and predict on both.", LEARNING, "--rc")
    ] = False
    folds: Annotated[
        int | None,
        option("For small data: cross-validate, and predict with the mean of this many networks, 2 to 20.", LEARNING),
    ] = None
    replicates: Annotated[
        int | None, option("Train this many networks from different seeds, 2 to 20; predict their mean.", LEARNING)
    ] = None
    start: Start = None
    freeze: Freeze = False
    model: Annotated[str | None, option("Another encoder, such as s4d or lstm.", SETTINGS)] = None

    def data(self, files: list[str]) -> dict[str, Any]:
        """The fields of a `FilesConfig`."""
        learned = {"target_type": self.target_type, "on_rare": self.on_rare, "both_strands": self.rc}
        return super().data(files) | learned

    def changes(self, minutes: bool = True) -> list[str]:
        """Convert the options for common settings, also those of an ensemble, to arguments of --set."""
        from chordmixer.fitting import ensemble_settings

        encoder = [] if self.model is None else [f"model.encoder={self.model}"]
        members = ensemble_settings(self.folds, self.replicates)
        return [*encoder, *super().changes(minutes), *(f"{name}={number}" for name, number in members.items())]

    def files_experiment(self, inputs: list[str], reading: Reading) -> Experiment:
        """Build the experiment of `train` on files."""
        from chordmixer import fitting
        from chordmixer.config import override
        from chordmixer.tasks.files import FilesConfig

        members = self.folds or self.replicates or 1
        start = (self.device, self.start, self.freeze, self.unverified)
        data = override(FilesConfig(reading=reading), self.data(inputs), "data")
        changes = self.changes(minutes=False)  # the recipe measures the time
        return self.build(lambda config: fitting.for_files(config, self.minutes, members, *start), data, changes)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a group of options by the single options of the group."""
    groups: dict[str, Any] = {p.name: p.annotation for p in _parameters(command) if is_dataclass(p.annotation)}
    single = [p for p in _parameters(command) if p.name not in groups]
    grouped = [p for group in groups.values() for p in _parameters(group)]

    @wraps(command)
    def run(**values: Any) -> None:
        built = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **built)

    ordered = [p.replace(kind=p.KEYWORD_ONLY) for p in single + grouped]
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in ordered}
    del run.__wrapped__  # else its signature is found in place of this one
    return run


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function, or of a dataclass's constructor, with their types resolved."""
    hints = get_type_hints(function, include_extras=True)
    return [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]


def columns_from(arguments: list[str], default: Any) -> Any:
    """Read the arguments of --column into columns by role; other roles keep their default."""
    from chordmixer.config import override

    pairs = [argument.partition("=") for argument in arguments]
    for argument, (role, equals, name) in zip(arguments, pairs, strict=True):
        if not (role and equals and name):
            raise ValueError(f"--column {argument} is not ROLE=NAME: write it as --column label=NAME")
    return override(default, {role.strip(): name for role, _, name in pairs}, "--column")


# --- Settings from TOML and --set ---


def settings_table(config: Path | None, settings: Iterable[str]) -> dict[str, Any]:
    """Read the settings of a TOML file, changed by those of --set."""
    from chordmixer.fitting import put

    table = _read_toml(config) if config else {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting} has no '=': write it as training.epochs=3")
        put(table, name.strip(), _parsed(text))
    return table


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as TOML ({error}): give a file with [data], [model], [training]"
        ) from None


def _parsed(text: str) -> Any:
    """Read a value as TOML, or as a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def check_resume(out: Path) -> None:
    """Refuse to resume a run that does not exist, unless torchrun uses the same command for start and restarts."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if not restarts and not (out / "config.json").exists():
        raise ValueError(f"{out} holds no run to resume: give the folder of one, or leave out --resume")
