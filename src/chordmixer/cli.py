"""The command line: each command calls one library function. torch is imported only when one runs."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chordmixer.version import __version__

if TYPE_CHECKING:
    from chordmixer.training import Evaluation, Experiment

app = typer.Typer(
    help="Learn from long sequences of very different lengths, without padding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        print(f"chordmixer {__version__}")
        raise typer.Exit


@app.command()
def train(
    task: Annotated[str, typer.Argument(help="What to learn: adding. With --resume alone: a run folder.")],
    out: Annotated[Path | None, typer.Option(help="The run folder to make.")] = None,
    base_length: Annotated[int | None, typer.Option(help="Lambda of the Adding problem.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="A setting, such as training.epochs=3.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is there.")] = False,
) -> None:
    """Train a model, test it, and leave a run folder.

    chordmixer train adding --base-length 200 --out RUN

    chordmixer train --resume RUN
    """
    from chordmixer.training import Experiment
    from chordmixer.training import train as run

    given = base_length is not None or config or set
    if resume and out is None:
        if given:
            raise ValueError("--resume RUN takes its settings from the run: leave out the other options")
        out, experiment = Path(task), Experiment.load(Path(task))
    else:
        if out is None:
            raise ValueError("no folder for the run: add --out RUN")
        experiment = _experiment(task, base_length, config, set or [])
    _show([run(experiment, out, resume=resume)], out)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    split: Annotated[str, typer.Option(help="training, validation or test.")] = "test",
) -> None:
    """Score a trained run, overall and by length."""
    from chordmixer.training import evaluate as score

    if split not in ("training", "validation", "test"):
        raise ValueError(f"split {split!r} is not one of training, validation, test: choose one")
    _show([score(run, split)], run)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Where to put the runs.")] = Path("runs/demo")) -> None:
    """Two minutes on two cores: ChordMixer on a small Adding problem, beside the same network without mixing."""
    import shutil

    from chordmixer.recipes import demo as recipe
    from chordmixer.training import train as run

    encoders = ("chordmixer", "pointwise")
    if out.is_file() or (out.exists() and {path.name for path in out.iterdir()} - {*encoders, "lengths-test.png"}):
        raise ValueError(f"{out} holds more than an earlier demo: give a new folder")
    shutil.rmtree(out, ignore_errors=True)
    evaluations = [run(recipe(encoder), out / encoder) for encoder in encoders]
    _show(evaluations, out)
    print(
        f"\nWithout rotation no token sees another: the second model fits one typical length and fails elsewhere.\n"
        f"Next:  chordmixer train adding --base-length 200 --out RUN     the paper's own task\n"
        f"       chordmixer evaluate {out / 'chordmixer'}               these scores again\n"
        f"       README.md, 'Your own sequences', for your data from Python"
    )


def _experiment(task: str, base_length: int | None, config: Path | None, settings: Iterable[str]) -> Experiment:
    """A recipe, changed by a TOML file, then by --set."""
    from chordmixer.config import override
    from chordmixer.recipes import RECIPES
    from chordmixer.tasks import task_class

    data = task_class(task).Config()
    table = _read_toml(config) if config else {}
    if base_length is not None:
        _put(table, "data.base_length", base_length)
    for setting in settings:
        name, found, text = setting.partition("=")
        if not found:
            raise ValueError(f"--set {setting} has no '=': write it as training.epochs=3")
        _put(table, name.strip(), _parsed(text))
    data = override(data, _table(table.pop("data", {}), "data"), "data")
    return override(RECIPES[task](data), table)


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


def _show(evaluations: list[Evaluation], folder: Path) -> None:
    from rich.console import Console

    from chordmixer.views import lengths

    if os.environ.get("RANK", "0") != "0":
        return
    Console().print(lengths.table(evaluations))
    print(f"plot: {lengths.plot(evaluations, folder / f'lengths-{evaluations[0].split}.png')}")


def main() -> None:
    """Run a command; a user's mistake is one line and exit code 2."""
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except ValueError as error:
        _stop(error, 2)
    except KeyboardInterrupt as error:
        _stop(error, 130)
    except Exception as error:
        if type(error).__name__ == "Abort":  # the parser's word for Ctrl-C
            _stop(error, 130)
        if not hasattr(error, "format_message"):  # the parser's own errors have it, ours and torch's do not
            raise
        _stop(error.format_message(), 2)


def _stop(reason: object, code: int) -> None:
    print(f"chordmixer: {' '.join(str(reason).split()) or 'stopped'}", file=sys.stderr)
    raise SystemExit(code) from None
