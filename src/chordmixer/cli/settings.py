"""Settings of a run from the command line: a recipe, changed by a TOML file, by shorthands, then by --set."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chordmixer.cli.looking import say

if TYPE_CHECKING:
    from chordmixer.training import Experiment


def of_files(
    inputs: list[str], ask: str, split: str, rc: bool, tokenizer: str, on_bad: str | None, cache: Path | None
) -> dict[str, Any]:
    """The options of `train` and `plan` as fields of a `FilesConfig`."""
    return {
        "files": inputs,
        "asked": ask,
        "split": {"method": split},
        "both_strands": rc,
        "tokenizer": {"name": tokenizer, "on_bad": on_bad or "error"},
        "cache": None if cache is None else str(cache),
    }


def build(
    recipe: Callable[[Any], Experiment], data: Any, config: Path | None = None, settings: Iterable[str] = ()
) -> Experiment:
    """The recipe's experiment for these data, with what the user changed in [data], [model] and [training].

    All that differs from the recipe is printed, so that a slip is seen before a long run.
    """
    from chordmixer.config import override

    given = table(config, settings)
    proposed = recipe(override(data, _table(given.get("data", {}), "data"), "data"))
    made = override(proposed, {part: changes for part, changes in given.items() if part != "data"})
    changed = list(_changed(given, replace(proposed, data=data), made))
    if changed:
        say(f"settings changed: {', '.join(changed)}")
    return made


def shorthands(
    model: str | None, epochs: int | None, minutes: float | None, seed: int | None, device: str | None
) -> list[str]:
    """What the options for common settings are as arguments of --set."""
    given = {"model.encoder": model, "training.epochs": epochs, "training.minutes": minutes}
    if minutes:
        given["training.average"] = 0  # a share of the steps, whose number is not known then
    given |= {"training.seed": seed, "training.device": device}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def members(folds: int | None, replicates: int | None, of_task: bool = False) -> list[str]:
    """The options of an ensemble as arguments of --set."""
    given = {"data.split.folds": folds, "training.replicates": replicates}
    names = {"data.split.folds": "--folds", "training.replicates": "--replicates"}
    asked = {name: number for name, number in given.items() if number is not None}
    if len(asked) == 2:
        raise ValueError("--folds and --replicates are two ways to choose members: give one of them")
    for name, number in asked.items():
        if of_task:
            raise ValueError(f"{names[name]} is for files with labels: leave it out with a task of the paper")
        if not 2 <= number <= 20:
            raise ValueError(f"{names[name]} {number} is not possible: give 2 to 20")
    return [f"{name}={number}" for name, number in asked.items()]


def for_files(minutes: float | None, device: str | None) -> Callable[[Any], Experiment]:
    """The recipe for files, within so many minutes."""
    from chordmixer import recipes

    return lambda known: recipes.files(known, say, minutes or None, device or "auto")


def check_resume(out: Path) -> None:
    """Refuse to go on with what is not there; torchrun repeats one command, the first time and after a crash."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if not restarts and not (out / "config.json").exists():
        raise ValueError(f"{out} holds no run to go on with: give the folder of one, or leave out --resume")


def table(config: Path | None, settings: Iterable[str]) -> dict[str, Any]:
    """A TOML file's settings, and over them those of --set."""
    found = _read_toml(config) if config else {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting} has no '=': write it as training.epochs=3")
        _put(found, name.strip(), _parsed(text))
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as TOML ({error}): give a file with [data], [model], [training]"
        ) from None


def _parsed(text: str) -> Any:
    """A value as TOML would have it, or a bare word."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _put(table: dict[str, Any], name: str, value: Any) -> None:
    """Set `a.b.c` in nested tables."""
    *parents, last = name.split(".")
    for parent in parents:
        table = _table(table.setdefault(parent, {}), parent)
    table[last] = value


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} is not a table of settings: write [{name}], or {name}.SETTING=VALUE")
    return value


def _changed(given: Mapping[str, Any], before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Each setting that was given and is not what it would have been, with both values."""
    for name, value in given.items():
        old, new = (getattr(config, name, None) for config in (before, after))
        if isinstance(value, Mapping):
            yield from _changed(value, old, new, f"{where}{name}.")
        elif old != new:
            yield f"{where}{name}={_shown(new)} (default {_shown(old)})"


def _shown(value: Any) -> str:
    """As --set takes it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
