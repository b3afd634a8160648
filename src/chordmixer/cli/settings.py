"""Settings of a run from the command line: a recipe, changed by a TOML file, then by --set."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    """The recipe's experiment for these data, with what the user changed in [data], [model] and [training]."""
    from chordmixer.config import override

    changes = table(config, settings)
    data = override(data, _table(changes.pop("data", {}), "data"), "data")
    return override(recipe(data), changes)


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
