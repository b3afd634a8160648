"""Values of any type in the JSON files of a run: each command ends well, or with one line that names the file."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chordmixer import files
from chordmixer.training import evaluation, results

Command = Callable[..., tuple[int, str, str]]
VALUES: list[Any] = [
    None,
    [],
    {},
    "",
    "\x1b[31m",
    "9" * 500,
    -1,
    1.5,
    1e308,
    10**30,
    2**40,
    True,
    [None],
    {"a": None},
]
DEEP: Any = 0
for _ in range(400):
    DEEP = {"a": [DEEP]}
MUTANTS = 5
"""Mutants of each file; some hundreds were tried once."""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File names in a mutant refer to nothing here."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run, with baselines; tests only read it."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("hostile") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "RESAMPLES", 5)
        results.compare(folder)
    return folder


def nested_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in nested lists and tables, except the root."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from nested_paths(part, (*path, key))


def mutate(document: Any, rng: random.Random) -> tuple[Any, str]:
    """Remove or replace one value; return the document and a description of the change."""
    *parents, last = rng.choice([*nested_paths(document)])
    part = document
    for key in parents:
        part = part[key]
    if rng.random() < 0.2:
        del part[last]
        return document, f"{parents} {last} removed"
    part[last] = rng.choice([*VALUES, DEEP])
    return document, f"{parents} {last}"


COMMANDS = {
    "config.json": ["report", "predict", "embed", "evaluate"],
    "labels.json": ["report", "predict", "embed", "evaluate"],
    "tokenizer.json": ["predict", "embed"],
    "data.json": ["report"],
    "evaluation-test.json": ["report"],
    "baselines.json": ["report"],
    "metrics.jsonl": ["report"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_one_line_that_names_the_file(
    chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path, name: str
) -> None:
    rng = random.Random(7)
    refused = 0
    for number in range(MUTANTS):
        folder = tmp_path / str(number)
        shutil.copytree(run, folder)
        first, *rest = (run / name).read_text().splitlines() if name.endswith("l") else [(run / name).read_text()]
        mutant, description = mutate(json.loads(first), rng)
        (folder / name).write_text("\n".join([json.dumps(mutant), *([first] if name.endswith("l") else []), *rest]))
        files.write_manifest(folder, [name])
        arguments = {
            "predict": ["predict", folder, motifs[0], "-o", folder / "y.tsv"],
            "embed": ["embed", folder, motifs[0], "-o", folder / "y.parquet"],
            "evaluate": ["evaluate", folder, *motifs],
        }
        for command in COMMANDS[name]:
            code, out, errors = chordmixer(*arguments.get(command, [command, folder]))
            assert code in (0, 2) and "\x1b" not in out + errors, f"{command}, {description}: {errors}"
            if code:
                refused += 1
                assert errors.count("\n") == 1 and len(errors) < 1000, f"{command}, {description}: {errors}"
    assert refused


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"data": []}),
        ("config.json", {"model": {"encoder": []}}),
        ("config.json", {"training": {"epochs": 2**70}}),
        ("labels.json", {"temperature": 0}),
        ("labels.json", {"target": {"kind": "regression", "mean": "x"}}),
        ("labels.json", {"both_strands": None}),
        ("tokenizer.json", {"tokenizer": ["dna"]}),
    ],
    ids=str,
)
def test_what_broke_before(
    chordmixer: Command, run: Path, motifs: list[str], tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    files.write_json(folder / name, files.read_json(folder / name) | change)
    files.write_manifest(folder, [name])
    commands = [["predict", folder, motifs[0]], ["evaluate", folder, *motifs]]
    for arguments in commands if "training" not in change else [["train", "--resume", folder]]:
        code, _, errors = chordmixer(*arguments)
        assert code == 2 and errors.count("\n") == 1 and name in errors, errors
