"""Settings of a run from the command line: a recipe, changed by a TOML file, by shorthands, then by --set."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chordmixer.cli.looking import say

if TYPE_CHECKING:
    from chordmixer.training import Experiment


def of_files(
    inputs: list[str], target_type: str, split: str, rc: bool, tokenizer: str, on_bad: str | None, cache: Path | None
) -> dict[str, Any]:
    """The options of `train` and `plan` as fields of a `FilesConfig`."""
    return {
        "files": inputs,
        "target_type": target_type,
        "split": {"method": split},
        "both_strands": rc,
        "tokenizer": {"name": tokenizer, "on_bad": on_bad or "error"},
        "cache": None if cache is None else str(cache),
    }


def build(
    recipe: Callable[[Any], Experiment], data: Any, config: Path | None = None, settings: Iterable[str] = ()
) -> Experiment:
    """The recipe's experiment for these data, with what the user changed in [data], [model] and [training]."""
    from chordmixer import fitting

    return fitting.build(recipe, data, table(config, settings), say)


def shorthands(
    model: str | None, epochs: int | None, minutes: float | None, seed: int | None, device: str | None
) -> list[str]:
    """What the options for common settings are as arguments of --set."""
    given = {"model.encoder": model, "training.epochs": epochs, "training.minutes": minutes}
    if minutes:
        given["training.ema"] = 0  # a share of the steps, whose number is not known then
    given |= {"training.seed": seed, "training.device": device}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def members(folds: int | None, replicates: int | None, of_task: bool = False) -> list[str]:
    """The options of an ensemble as arguments of --set."""
    from chordmixer.fitting import ensemble_settings

    for option, number in (("--folds", folds), ("--replicates", replicates)):
        if of_task and number is not None:
            raise ValueError(f"{option} is for files with labels: leave it out with a task of the paper")
    return [f"{name}={number}" for name, number in ensemble_settings(folds, replicates).items()]


def for_files(
    minutes: float | None, members: int | None, device: str | None, start: Path | None, freeze: bool, unverified: bool
) -> Callable[[Any], Experiment]:
    """The recipe for files with these options of `train` and `plan`."""
    from chordmixer import fitting

    return lambda known: fitting.for_files(known, minutes, members or 1, device, start, freeze, unverified, say)


def check_resume(out: Path) -> None:
    """Refuse to go on with what is not there; torchrun repeats one command, the first time and after a crash."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    if not restarts and not (out / "config.json").exists():
        raise ValueError(f"{out} holds no run to go on with: give the folder of one, or leave out --resume")


def table(config: Path | None, settings: Iterable[str]) -> dict[str, Any]:
    """A TOML file's settings, and over them those of --set."""
    from chordmixer.fitting import put

    found = _read_toml(config) if config else {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting} has no '=': write it as training.epochs=3")
        put(found, name.strip(), _parsed(text))
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
