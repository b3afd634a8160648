"""Options that several commands have, each defined once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from chordmixer.data.reading import Reading

READING = "How files are read"
USING = "How the model is used"
ASKED = "What is learnt"
SETTINGS = "Settings"

ON_BAD = ("error", "unknown", "reject")
TOKENIZERS = ("auto", "dna", "protein", "bytes", "characters", "kmers", "numbers")
OVER_LENGTH = ("error", "windows", "reject")
DEVICES = ("auto", "cpu", "cuda")
TARGET_TYPES = ("auto", "classes", "labels", "number")
SPLITS = ("auto", "given", "grouped", "similarity", "random")
FORMATS = ("auto", "fasta", "fastq", "genbank", "csv", "jsonl", "parquet", "text", "npy")
POLICIES = ("error", "reject")


def one_of(words: Sequence[str]) -> Callable[..., str | None]:
    """A check of an option's value, whose message names the option as it was typed."""

    def check(option: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in words:
            raise ValueError(f"{option.opts[0]} {value} is not a choice: give one of {', '.join(words)}")
        return value

    return check


Run = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="FASTA, FASTQ, GenBank, CSV, TSV, JSONL, Parquet, .npy, folders of texts; also compressed; - is stdin.",
        show_default=False,
    ),
]
OnBad = Annotated[
    str | None,
    typer.Option(
        help="Characters that are no letters: error, unknown (taken as N or X and counted), or reject the record.",
        callback=one_of(ON_BAD),
        rich_help_panel=READING,
    ),
]
Tokenizer = Annotated[
    str,
    typer.Option(
        help="dna, protein, bytes, characters, kmers or numbers; auto: by the records.",
        callback=one_of(TOKENIZERS),
        rich_help_panel=READING,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(help="Where read files are kept; else in your cache folder.", rich_help_panel=READING),
]
OverLength = Annotated[
    str,
    typer.Option(
        help="Records longer than the model: error, windows that overlap by half, averaged, or reject the record.",
        callback=one_of(OVER_LENGTH),
        rich_help_panel=USING,
    ),
]
BatchTokens = Annotated[
    int | None, typer.Option(help="Most tokens at once; fewer need less memory.", rich_help_panel=USING)
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda.", callback=one_of(DEVICES), rich_help_panel=USING)
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an output that was interrupted.", rich_help_panel=USING)
]
TargetType = Annotated[
    str,
    typer.Option(
        help="classes, labels (several a record), number; auto: by the data.",
        callback=one_of(TARGET_TYPES),
        rich_help_panel=ASKED,
    ),
]
Split = Annotated[
    str,
    typer.Option(
        help="given (by a column), grouped, similarity, random; auto: the first that the data have.",
        callback=one_of(SPLITS),
        rich_help_panel=ASKED,
    ),
]
BothStrands = Annotated[
    bool,
    typer.Option("--rc", help="Both strands of DNA are the same: train and answer on both.", rich_help_panel=ASKED),
]
Start = Annotated[
    Path | None,
    typer.Option("--from", metavar="RUN", help="Start from a trained run's encoder.", rich_help_panel=ASKED),
]
Freeze = Annotated[bool, typer.Option("--freeze", help="With --from: learn a head alone.", rich_help_panel=ASKED)]
Config = Annotated[Path | None, typer.Option(help="A TOML file with settings.", rich_help_panel=SETTINGS)]
Settings = Annotated[
    list[str] | None, typer.Option(help="A setting, such as training.epochs=3.", rich_help_panel=SETTINGS)
]
Folds = Annotated[
    int | None,
    typer.Option(
        help="Small data: cross-validate, and answer with the mean of so many networks, 2 to 20.",
        rich_help_panel=ASKED,
    ),
]
Replicates = Annotated[
    int | None,
    typer.Option(
        help="Train so many networks from different seeds, 2 to 20, and answer with their mean.",
        rich_help_panel=ASKED,
    ),
]
Model = Annotated[str | None, typer.Option(help="Another encoder, such as s4d or lstm.", rich_help_panel=SETTINGS)]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Passes over the training records.", rich_help_panel=SETTINGS)
]
Minutes = Annotated[
    float | None,
    typer.Option(min=0, help="Train as long as fits into so many minutes on this machine.", rich_help_panel=SETTINGS),
]
Using = Annotated[
    str | None,
    typer.Option(
        help="network, baseline or both; else what the validation records chose in training.", show_default=False
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Of the first weights and the order of the records.", rich_help_panel=SETTINGS)
]
TrainingDevice = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu or cuda.", callback=one_of(DEVICES), rich_help_panel=SETTINGS),
]
SafeCells = Annotated[
    bool,
    typer.Option(
        "--safe-cells", help="Put ' before cells that a spreadsheet would run as formulas.", rich_help_panel=USING
    ),
]
Unverified = Annotated[
    bool,
    typer.Option(
        "--unverified", help="Also take a run folder whose manifest.json is missing.", rich_help_panel=USING
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that is there.", rich_help_panel=USING)]


def files_format(
    format: Annotated[
        str,
        typer.Option(
            help="fasta, fastq, genbank, csv, jsonl, parquet, text or npy; auto: by the content.",
            callback=one_of(FORMATS),
            rich_help_panel=READING,
        ),
    ] = "auto",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE=NAME",
            help="A table's column, by role: id, sequence, label, target, split, group, weight.",
            rich_help_panel=READING,
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="GenBank features that are the records, such as CDS; else whole ones.", rich_help_panel=READING
        ),
    ] = None,
    on_empty: Annotated[
        str,
        typer.Option(
            help="Records without a letter: error, or reject.", callback=one_of(POLICIES), rich_help_panel=READING
        ),
    ] = "error",
    max_record: Annotated[
        int | None,
        typer.Option(
            help="Most bytes of one record, decompressed; 1 GiB unless given. More is an error.",
            rich_help_panel=READING,
        ),
    ] = None,
) -> Reading:
    """How files are read whose labels do not matter."""
    from chordmixer.data.columns import Columns
    from chordmixer.data.reading import Reading

    columns = columns_from(column or [], Columns())
    most = {} if max_record is None else {"max_record": max_record}
    return Reading(kind=format, columns=columns, features=features, on_empty=on_empty, **most)  # type: ignore[arg-type]


def files_with_labels(
    labels: Annotated[
        str | None,
        typer.Option(
            help="Where labels are: files (one a class, which CLASS=FILE names), header:NAME, header:/REGEX/, or a "
            "table with ids. Else as the records have them; several files without any: one a class.",
            rich_help_panel=READING,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Records of a group never cross a split: files, header:NAME or header:/REGEX/.",
            rich_help_panel=READING,
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(
            help="A GenBank record's label: organism, genus, lineage:N or qualifier:NAME.", rich_help_panel=READING
        ),
    ] = None,
    on_unmatched: Annotated[
        str,
        typer.Option(
            help="Records without a label, and the reverse: error, or reject.",
            callback=one_of(POLICIES),
            rich_help_panel=READING,
        ),
    ] = "error",
    **plain: Any,
) -> Reading:
    """How files are read whose labels matter."""
    from dataclasses import replace

    known = {"labels": labels, "group": group, "rank": rank, "on_unmatched": on_unmatched}
    return replace(files_format(**plain), **known)  # type: ignore[arg-type]


def reading_files(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose `reading` comes from the options of `files_format`."""
    return _taking(command, files_format, [files_format])


def reading_labels(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose `reading` comes from those of `files_with_labels` too."""
    return _taking(command, files_with_labels, [files_with_labels, files_format])


def _taking(
    command: Callable[..., None], build: Callable[..., Reading], options: list[Callable[..., Reading]]
) -> Callable[..., None]:
    """Replace the parameter `reading` by the options that it is built from."""
    shared = [p for option in options for p in _parameters(option) if p.kind != p.VAR_KEYWORD]
    own = [p for p in _parameters(command) if p.name != "reading"]

    @wraps(command)
    def run(**given: Any) -> None:
        reading = build(**{p.name: given.pop(p.name) for p in shared})
        if build is files_with_labels and "inputs" in given:
            given["inputs"], reading = with_names(given["inputs"], reading)
        command(**given, reading=reading)

    ordered = [p.replace(kind=p.KEYWORD_ONLY) for p in own + shared]
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in ordered}
    del run.__wrapped__  # its own signature is not to be found again
    return run


def with_names(inputs: list[str] | None, reading: Reading) -> tuple[list[str] | None, Reading]:
    """Paths, and how they are read: of inputs such as CLASS=FILE, with these classes."""
    from dataclasses import replace

    from chordmixer.data.labels import FILES, named_files

    paths, names = named_files(inputs or [])
    if not names:
        return inputs, reading
    if reading.labels not in (None, FILES):
        raise ValueError(
            f"--labels {reading.labels} says where the classes are, and so does CLASS=FILE: leave out one of them"
        )
    return paths, replace(reading, labels=FILES, names=names)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """With their types in place of the types' names."""
    plain = {name: kind for name, kind in function.__annotations__.items() if name not in ("return", "reading")}
    holder = type("Holder", (), {"__annotations__": plain, "__module__": function.__module__})
    hints = get_type_hints(holder, vars(inspect.getmodule(function)), include_extras=True)
    return [p.replace(annotation=hints.get(p.name, Any)) for p in inspect.signature(function).parameters.values()]


def columns_from(given: list[str], usual: Any) -> Any:
    """Columns by their roles, as --column names them, and the `usual` ones for all other roles."""
    from chordmixer.config import override

    pairs = [text.partition("=") for text in given]
    for text, (role, found, name) in zip(given, pairs, strict=True):
        if not (role and found and name):
            raise ValueError(f"--column {text} is not ROLE=NAME: write it as --column label=NAME")
    return override(usual, {role.strip(): name for role, _, name in pairs}, "--column")
