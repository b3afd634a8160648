"""Options that several commands share become one Reading."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from chordmixer.cli import learning, looking, options, using
from chordmixer.data.columns import Columns
from chordmixer.data.gathering import TokenizerConfig
from chordmixer.data.labels import Policy
from chordmixer.data.reading import Kind, Reading
from chordmixer.data.splits import SplitConfig
from chordmixer.tasks.questions import TargetType
from chordmixer.training import TrainingConfig
from chordmixer.training.inference import OnBad, OverLength

Command = Callable[..., tuple[int, str, str]]


def test_options_become_a_reading() -> None:
    seen: list[Any] = []

    def command(run: options.Run, reading: Any, device: options.Device = None) -> None:
        """What it does."""
        seen.append((run, reading, device))

    shared = options.reading_labels(command)
    assert shared.__doc__ == "What it does."
    names = list(inspect.signature(shared).parameters)
    assert names[:2] == ["run", "device"] and "reading" not in names and {"labels", "column", "on_empty"} < set(names)
    defaults = {name: p.default for name, p in inspect.signature(shared).parameters.items() if name != "run"}
    shared(run=Path("r"), **defaults)
    shared(run=Path("r"), **(defaults | {"labels": "files", "column": ["label=Phylum", "id = x"], "format": "csv"}))
    assert seen[0] == (Path("r"), Reading(), None)
    assert seen[1][1] == Reading(kind="csv", columns=Columns(label="Phylum", id=" x"), labels="files")


def test_who_asks_for_labels() -> None:
    asks = {
        command.__name__: "labels" in inspect.signature(command).parameters
        for command in (learning.train, looking.inspect, looking.evaluate, using.predict, using.embed)
    }
    assert asks == {"train": True, "inspect": True, "evaluate": True, "predict": False, "embed": False}


def test_choices_are_those_of_the_library() -> None:
    tokenizer, method, device = (
        get_type_hints(config)[name]
        for config, name in ((TokenizerConfig, "name"), (SplitConfig, "method"), (TrainingConfig, "device"))
    )
    for given, kind in (
        (options.ON_BAD, OnBad),
        (options.OVER_LENGTH, OverLength),
        (options.TOKENIZERS, tokenizer),
        (options.SPLITS, method),
        (options.DEVICES, device),
        (options.TARGET_TYPES, TargetType),
        (options.FORMATS, Kind),
        (options.POLICIES, Policy),
    ):
        assert {*given} == {*get_args(kind)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--column", "label"], "--column label is not ROLE=NAME: write it as --column label=NAME"),
        (["--column", "lable=x"], "--column.lable is not a setting: did you mean label?"),
        (["--format", "docx"], "--format docx is not a choice: give one of auto, fasta"),
        (["--on-empty", "drop"], "--on-empty drop is not a choice: give one of error, reject"),
        (["--on-unmatched", "drop"], "--on-unmatched drop is not a choice: give one of error, reject"),
        (["--on-bad", "drop"], "--on-bad drop is not a choice: give one of error, unknown, reject"),
        (["--tokenizer", "words"], "--tokenizer words is not a choice: give one of auto, dna"),
        (["--group", "gene"], "--group gene is not files, header:NAME or header:/REGEX/"),
        (["--labels", "header:"], "'header:' names nothing in a header"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line(chordmixer: Command, motifs: list[str], given: list[str], message: str) -> None:
    code, _, errors = chordmixer("inspect", *motifs, *given)
    assert (code, errors.count("\n")) == (2, 1) and message in errors
