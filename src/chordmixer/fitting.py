"""From a data set to a trained model: what `chordmixer train` does with files."""

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
    call with `resume=True` continues the run, or starts one where there is none. `verbose=False` prints nothing.
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

    def recipe(known: Any) -> Experiment:
        return for_files(known, minutes, folds or replicates or 1, device, start, freeze)

    shown = terminal.show_log() if verbose else nullcontext()
    try:
        with shown:
            again, stored = resume and (folder / "config.json").exists(), data.stored(cache)
            if again and minutes:
                experiment = _begun(folder, stored, nested(changes))
            else:
                experiment = build(recipe, stored, nested(changes))
            console = terminal.console(quiet=not verbose)
            run_files(experiment, folder, resume=again, baselines=baselines, ladder=ladder, console=console)
            from_main_rank(lambda: None)  # the main rank has written all files
            return Predictor(open_run(folder, device), temporary)
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _begun(run: Path, data: FilesConfig, changes: Mapping[str, Any]) -> Experiment:
    """The experiment of a run whose number of steps was measured when it began, and would be another one today."""
    experiment = override(Experiment.load(run, cache=data.cache), changes)
    if experiment.data.key != Files(data).config.key:
        raise ValueError(f"{run} was started on other records: resume with the same ones, or give a new folder")
    return experiment


@dataclass(frozen=True)
class Fitted:
    """What a run on files gave."""

    evaluation: Evaluation
    """Of the delivered answer, on the test records."""
    beside: list[Evaluation]
    """Of the baselines and the networks that it is compared with."""
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

    None of the ranks but the first, where `torchrun` started several, has anything to report.
    """
    several, cache = ensemble.kind_and_size(experiment), getattr(experiment.data, "cache", None)
    if ladder and several:
        raise ValueError(
            "--ladder is of one network, and this run trains several: leave it out, or train without them"
        )
    first = terminal.first_rank()
    if first:
        _introduce(experiment)
    console = console or terminal.console()
    how: dict[str, Any] = {"resume": resume, "unverified": unverified, "console": console}
    if several:
        evaluation = train_members(experiment, out, baselines=baselines, **how)
        if not first:
            return None
        return Fitted(evaluation, [own.evaluation for own in Run.load(out).baselines], _report(out, cache))
    evaluation = train(experiment, out, **how)
    if baselines and from_main_rank(lambda: ladder or (out / LOCAL_FOLDER).exists()):
        train_local(out, console, cache)
    if not first:
        return None
    beside = []
    if baselines:
        beside = compare(out, cache, deliver=True)
        evaluation = Run.load(out).test or evaluation
    return Fitted(evaluation, beside, _report(out, cache))


def _report(out: Path, cache: str | None) -> Path:
    """The page of a finished run, with explanations of some test records where these can be had."""
    try:
        explain_tests(out, cache)
    except ValueError as error:
        logger.info(f"the report does not explain any prediction: {error}")
    return write_report(out)


def _introduce(experiment: Experiment) -> None:
    """Log what was read, how it is split, and what may mislead."""
    task: Any = experiment.build_task()
    for line in task.account.lines():
        logger.info(line)
    sizes = ", ".join(f"{len(own):,} for {part}" for part, own in task.split.parts.items())
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
    """The recipe for files, within so many minutes for all members, from a trained run where one is given."""
    if freeze and start is None:
        raise ValueError("--freeze keeps the encoder of a trained run as it is: add --from RUN")
    experiment = recipes.files(data, minutes / members if minutes else None, device or "auto")
    return experiment if start is None else start_from(experiment, Path(start), freeze, unverified)


def ensemble_settings(folds: int | None, replicates: int | None) -> dict[str, int]:
    """The options of an ensemble as settings."""
    given = {"data.split.folds": ("--folds", folds), "training.replicates": ("--replicates", replicates)}
    asked = {name: (option, number) for name, (option, number) in given.items() if number is not None}
    if len(asked) == 2:
        raise ValueError("--folds and --replicates are two ways to choose members: give one of them")
    for option, number in asked.values():
        if not 2 <= number <= MOST_MEMBERS:
            raise ValueError(f"{option} {number} is not possible: give 2 to {MOST_MEMBERS}")
    return {name: number for name, (_, number) in asked.items()}


def build(recipe: Callable[[Any], Experiment], data: Any, given: Mapping[str, Any]) -> Experiment:
    """The recipe's experiment for these data, with the settings given in tables `data`, `model` and `training`.

    All that differs from the recipe is logged, so that a slip is seen before a long run. With several ranks the main
    one decides, since a recipe may measure the time of a step.
    """
    return from_main_rank(lambda: _build(recipe, data, given))


def _build(recipe: Callable[[Any], Experiment], data: Any, given: Mapping[str, Any]) -> Experiment:
    proposed = recipe(override(data, as_table(given.get("data", {}), "data"), "data"))
    made = override(proposed, {part: changes for part, changes in given.items() if part != "data"})
    changed = list(_changed(given, replace(proposed, data=data), made))
    if changed:
        logger.info(f"settings changed: {', '.join(changed)}")
    return made


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted names as tables within tables.

    >>> nested({"training.steps": 500, "training.seed": 1})
    {'training': {'steps': 500, 'seed': 1}}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        put(found, name, value)
    return found


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings in tables within tables by their dotted names.

    >>> dotted({"training": {"steps": 500, "seed": 1}})
    {'training.steps': 500, 'training.seed': 1}
    """
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= dotted(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def put(table: dict[str, Any], name: str, value: Any) -> None:
    """Set `a.b.c` in nested tables."""
    *parents, last = name.split(".")
    for parent in parents:
        table = as_table(table.setdefault(parent, {}), parent)
    table[last] = value


def as_table(value: Any, name: str) -> dict[str, Any]:
    """Refuse a value where settings are needed."""
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
