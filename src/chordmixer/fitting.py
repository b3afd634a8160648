"""Train on a data set, compare with baselines and write the report: the steps of `chordmixer train` on files."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from chordmixer import recipes, terminal
from chordmixer.config import MOST_MEMBERS, override
from chordmixer.tasks.files import Files, FilesConfig
from chordmixer.training import Experiment, ensemble
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.fine_tuning import start_from
from chordmixer.training.inference import open_run
from chordmixer.training.loop import train
from chordmixer.training.nested_runs import train_local, train_members
from chordmixer.training.ranks import from_main_rank
from chordmixer.training.results import LOCAL_FOLDER, compare
from chordmixer.views import inspection
from chordmixer.views.explain import explain_tests
from chordmixer.views.report import write_report
from chordmixer.views.runs import Run

if TYPE_CHECKING:
    from chordmixer.dataset import Dataset
    from chordmixer.predictor import Predictor

logger = logging.getLogger(__name__)

FINE_TUNING_RATE = 1e-3
"""Highest learning rate by default of a run that starts from trained weights, on any device."""


def fit(
    data: Dataset,
    out: Path | str | None = None,
    *,
    minutes: float | None = None,
    folds: int | None = None,
    replicates: int | None = None,
    baselines: bool = True,
    ladder: bool = False,
    start: Path | str | None = None,
    freeze: bool = False,
    seed: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    verbose: bool = True,
) -> Predictor:
    """Train on a data set, and return the best predictor on its validation records: network, baseline or both.

    `out` is the run folder, with scores, predictions and a report; without one, a temporary folder is used and
    removed with the predictor. `minutes` limits the training time; by default its length comes from the data.
    `folds` and `replicates` train an ensemble on small data. `baselines=False` fits no baselines, `ladder` also
    trains the network without its encoder. `start` is a run whose encoder is the initial one, `freeze` keeps it
    fixed. `settings` changes any setting of config.json: `{"training.steps": 500}`. After an interruption, the same
    call with `resume=True` continues the run, or starts one if there is none. `verbose=False` prints nothing.
    """
    from chordmixer.predictor import Predictor

    changes = {**(settings or {}), **ensemble_settings(folds, replicates)}
    changes |= {
        f"training.{name}": value for name, value in (("seed", seed), ("device", device)) if value is not None
    }
    if out is None and terminal.rank_count() > 1:
        raise ValueError("fit on several ranks has no folder that they share: give `out`")
    temporary = Path(tempfile.mkdtemp(prefix="chordmixer-")) if out is None else None
    folder = temporary / "run" if temporary else Path(out or "")
    cache = temporary / "stores" if temporary and data.records is not None else None

    def recipe(config: Any) -> Experiment:
        return for_files(config, minutes, folds or replicates or 1, device, start, freeze)

    log = terminal.show_log() if verbose else nullcontext()
    try:
        with log:
            resuming, stored = resume and (folder / "config.json").exists(), data.stored(cache)
            if resuming:
                experiment = _resumed(folder, stored, nested(changes))
            else:
                experiment = build(recipe, stored, nested(changes))
            console = terminal.console(quiet=not verbose)
            run_files(experiment, folder, resume=resuming, baselines=baselines, ladder=ladder, console=console)
            from_main_rank(lambda: None)  # the main rank has written all files
            return Predictor(open_run(folder, device), temporary)
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _resumed(run: Path, data: FilesConfig, changes: Mapping[str, Any]) -> Experiment:
    """Load the experiment of a run to resume: settings that were measured when it began may now differ."""
    experiment = override(Experiment.load(run, cache=data.cache), changes)
    if experiment.data.key != Files(data).config.key:
        raise ValueError(f"{run} was started on other records: resume with the same ones, or give a new folder")
    return experiment


@dataclass(frozen=True)
class Fitted:
    """The results of a run on files."""

    evaluation: Evaluation
    """Scores of the delivered prediction on the test records."""
    compared: list[Evaluation]
    """Scores of the baselines and other networks on the same records."""
    report: Path


def run_files(
    experiment: Experiment,
    out: Path,
    *,
    resume: bool = False,
    unverified: bool = False,
    baselines: bool = True,
    ladder: bool = False,
    console: Console | None = None,
) -> Fitted | None:
    """Train a run on files to its end, compare it with baselines, and write the report.

    If `torchrun` started several ranks, all but the first return None.
    """
    is_ensemble, cache = ensemble.kind_and_size(experiment), getattr(experiment.data, "cache", None)
    if ladder and is_ensemble:
        raise ValueError(
            "--ladder is of one network, and this run trains several: leave it out, or train without them"
        )
    first = terminal.first_rank()
    if first:
        _introduce(experiment)
    console = console or terminal.console()
    options: dict[str, Any] = {"resume": resume, "unverified": unverified, "console": console}
    if is_ensemble:
        evaluation = train_members(experiment, out, baselines=baselines, **options)
        if not first:
            return None
        return Fitted(evaluation, [scored.evaluation for scored in Run.load(out).baselines], _report(out, cache))
    evaluation = train(experiment, out, **options)
    if baselines and from_main_rank(lambda: ladder or (out / LOCAL_FOLDER).exists()):
        train_local(out, console, cache)
    if not first:
        return None
    compared = []
    if baselines:
        compared = compare(out, cache, deliver=True)
        evaluation = Run.load(out).test or evaluation
    return Fitted(evaluation, compared, _report(out, cache))


def _report(out: Path, cache: str | None) -> Path:
    """Write the report of a finished run, with explanations of some test records if they can be computed."""
    try:
        explain_tests(out, cache)
    except ValueError as error:
        logger.info(f"the report does not explain any prediction: {error}")
    return write_report(out)


def _introduce(experiment: Experiment) -> None:
    """Log which records were read, how they are split, and warnings about the data."""
    task: Any = experiment.build_task()
    for line in task.account.lines():
        logger.info(line)
    sizes = ", ".join(f"{len(records):,} for {part}" for part, records in task.split.parts.items())
    logger.info(f"split ({task.split.method}): {sizes}")
    for part, leak in task.leaks.items():
        if leak.total:
            line, *_ = leak.lines(part, task.store.id)
            logger.warning(f"{line}; --split similarity keeps such records together")
    for warning in inspection.warnings(task.inspection):
        logger.warning(warning)


# --- Settings ---


def for_files(
    data: Any,
    minutes: float | None,
    members: int,
    device: str | None,
    start: Path | str | None,
    freeze: bool,
    unverified: bool = False,
) -> Experiment:
    """Build the experiment for files; `minutes` are for all members together, `start` is a run to fine-tune."""
    if freeze and start is None:
        raise ValueError("--freeze keeps the encoder of a trained run as it is: add --from RUN")
    experiment = recipes.files(data, minutes / members if minutes else None, device or "auto")
    if start is None:
        return experiment
    experiment = start_from(experiment, Path(start), freeze, unverified)
    rate = min(experiment.training.learning_rate, FINE_TUNING_RATE)
    return replace(experiment, training=replace(experiment.training, learning_rate=rate))


def ensemble_settings(folds: int | None, replicates: int | None) -> dict[str, int]:
    """Translate the options of an ensemble into settings."""
    options = {"data.split.folds": ("--folds", folds), "training.replicates": ("--replicates", replicates)}
    chosen = {name: (option, number) for name, (option, number) in options.items() if number is not None}
    if len(chosen) == 2:
        raise ValueError("--folds and --replicates are two ways to choose members: give one of them")
    for option, number in chosen.values():
        if not 2 <= number <= MOST_MEMBERS:
            raise ValueError(f"{option} {number} is not possible: give 2 to {MOST_MEMBERS}")
    return {name: number for name, (_, number) in chosen.items()}


def build(recipe: Callable[[Any], Experiment], data: Any, settings: Mapping[str, Any]) -> Experiment:
    """Build the recipe's experiment for these data, changed by settings in tables `data`, `model` and `training`.

    All differences from the recipe are logged, so that a mistake is seen before a long run. With several ranks the
    main one decides, since a recipe may measure the time of a step.
    """
    return from_main_rank(lambda: _build(recipe, data, settings))


def _build(recipe: Callable[[Any], Experiment], data: Any, settings: Mapping[str, Any]) -> Experiment:
    proposed = recipe(override(data, as_table(settings.get("data", {}), "data"), "data"))
    experiment = override(proposed, {part: changes for part, changes in settings.items() if part != "data"})
    changed = list(_changed(settings, replace(proposed, data=data), experiment))
    if changed:
        logger.info(f"settings changed: {', '.join(changed)}")
    return experiment


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings with dotted names to nested tables.

    >>> nested({"training.steps": 500, "training.seed": 1})
    {'training': {'steps': 500, 'seed': 1}}
    """
    tables: dict[str, Any] = {}
    for name, value in settings.items():
        put(tables, name, value)
    return tables


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Convert nested tables to settings with dotted names.

    >>> dotted({"training": {"steps": 500, "seed": 1}})
    {'training.steps': 500, 'training.seed': 1}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def put(table: dict[str, Any], name: str, value: Any) -> None:
    """Set the setting with a dotted name, such as `a.b.c`, in nested tables."""
    *parents, last = name.split(".")
    for parent in parents:
        table = as_table(table.setdefault(parent, {}), parent)
    table[last] = value


def as_table(value: Any, name: str) -> dict[str, Any]:
    """Return the value if it is a table of settings, else raise an error."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} is not a table of settings: write [{name}], or {name}.SETTING=VALUE")
    return value


def _changed(settings: Mapping[str, Any], before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Describe each setting whose value differs from the default, with both values."""
    for name, value in settings.items():
        old, new = (getattr(config, name, None) for config in (before, after))
        if isinstance(value, Mapping):
            yield from _changed(value, old, new, f"{where}{name}.")
        elif old != new:
            yield f"{where}{name}={_formatted(new)} (default {_formatted(old)})"


def _formatted(value: Any) -> str:
    """Format a value in the syntax of --set."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
