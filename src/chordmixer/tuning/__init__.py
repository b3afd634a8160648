"""Bayesian search for the settings of a data set, by many short runs; needs the extra `tune` (optuna)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chordmixer import fitting, terminal

if TYPE_CHECKING:
    from chordmixer.dataset import Dataset
    from chordmixer.training import Experiment
    from chordmixer.tuning.results import StudyResult

logger = logging.getLogger(__name__)

__all__ = ["tune"]


def tune(
    data: Dataset,
    out: Path | str,
    *,
    minutes: float,
    trials: int | None = None,
    steps: int | None = None,
    start: Path | str | None = None,
    freeze: bool = False,
    seed: int | None = None,
    device: str | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> StudyResult:
    """Search for settings with a lower validation loss than the default ones, for `minutes` in total.

    `out` is the folder of the study; the same call in another process works on the same study, and continues one
    that was interrupted. `trials` limits their number; `steps` are the steps of a trial, by default chosen so that
    up to twenty trials of the default network fit into the time. `settings` are fixed in all trials.
    `fit(data, settings=tune(...).settings)` trains with the best settings.
    """
    changes = dict(settings or {})
    changes |= {
        f"training.{name}": value for name, value in (("seed", seed), ("device", device)) if value is not None
    }

    def recipe(config: Any) -> Experiment:
        return fitting.for_files(config, None, 1, device, start, freeze)

    with terminal.show_log() if verbose else nullcontext():
        check_start()
        experiment = fitting.build(recipe, data.stored(), fitting.nested(changes))
        return search(experiment, changes, Path(out), minutes=minutes, trials=trials, steps=steps)


def search(
    experiment: Experiment,
    given: Mapping[str, Any],
    out: Path,
    *,
    minutes: float,
    trials: int | None = None,
    steps: int | None = None,
) -> StudyResult:
    """Work on the study of this recipe; `given` are the settings, by dotted name, that are fixed."""
    check_start()
    if not 0 < minutes < math.inf:
        raise ValueError(f"--minutes {minutes:g} is not the time of a study: give a finite number above zero")
    from chordmixer.training import ensemble
    from chordmixer.tuning.page import write_study
    from chordmixer.tuning.results import study_result
    from chordmixer.tuning.study import Search

    if ensemble.kind_and_size(experiment):
        raise ValueError("--folds and --replicates train several networks: tune one, then train them with best.toml")
    work = Search(experiment, [*given], out, 60 * minutes, trials, steps)
    logger.info(f"study in {out}: {len(work.space)} settings, trials of {work.steps:,} steps")

    for _ in work.run():
        write_study(study_result(work, given))
    study = study_result(work, given)
    write_study(study)
    return study


def check_start() -> None:
    """Refuse to search on several ranks, or without optuna."""
    if terminal.rank_count() > 1:
        raise ValueError("tune trains each network in one process: start it several times, without torchrun")
    if find_spec("optuna") is None:
        raise ValueError("tune needs the optuna package: pip install 'chordmixer[tune]'")
