"""The results of a study: its trials, the best settings compared with the recipe, and best.toml."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from chordmixer.tuning.journal import seconds_of
from chordmixer.tuning.space import settings_of
from chordmixer.tuning.study import DEFAULT, MINUTE, REASON, SECONDS, Search
from chordmixer.version import __version__

BEST, PAGE = "best.toml", "study.html"
MIN_FOR_IMPORTANCE = 6
"""Minimum number of finished trials to estimate importances."""
STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "pruned",
    TrialState.RUNNING: "running",
}


@dataclass(frozen=True)
class TrialResult:
    """The settings and the outcome of a trial."""

    number: int
    state: str
    """finished, pruned, out of time, infeasible, failed or running."""
    loss: float
    """The validation loss of the best weights; NaN unless it is finished."""
    values: dict[str, Any]
    """Values of the settings that are searched."""
    default: bool
    """Whether these are the values of the recipe, with or without words and positions."""
    seconds: float
    minute: float
    """The minute of the study in which the trial ended."""
    reason: str
    """The reason why it is not finished."""


@dataclass(frozen=True)
class StudyResult:
    """The results of a study so far."""

    folder: Path
    trials: list[TrialResult]
    """All trials, in the order in which they began."""
    minutes: float
    """Minutes in which at least one process worked on the study."""
    steps: int
    """Number of steps of a trial."""
    full_steps: int
    """Number of steps of a full run."""
    given: dict[str, Any]
    """Settings that the user has set, which are not searched."""
    importances: dict[str, float]
    """Fractions of the variance of the losses, most important setting first; empty with few trials."""

    @property
    def config(self) -> Path:
        """The file of the best settings, for `chordmixer train --config`."""
        return self.folder / BEST

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    @property
    def best(self) -> TrialResult:
        """The finished trial with the lowest validation loss."""
        return min(self.finished, key=lambda trial: trial.loss)

    @property
    def default(self) -> TrialResult | None:
        """The trial of the recipe itself with the lowest loss, with or without words and positions."""
        return min((trial for trial in self.finished if trial.default), key=lambda trial: trial.loss, default=None)

    @property
    def finished(self) -> list[TrialResult]:
        return [trial for trial in self.trials if not math.isnan(trial.loss)]

    @property
    def settings(self) -> dict[str, Any]:
        """The best settings by dotted name, for a full run by `fit`."""
        steps = {} if self.given.get("training.minutes") else {"training.steps": self.full_steps}
        return {**self.given, **settings_of(self.best.values), **steps}

    def lines(self) -> Iterator[str]:
        """A summary for the terminal."""
        counts = Counter(trial.state for trial in self.trials)
        summary = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{len(self.trials)} trials of {self.steps:,} steps in {self.minutes:.1f} min: {summary}"
        if not self.finished:
            return
        best, default = self.best, self.default
        if default is not None:
            yield f"default: validation loss {default.loss:.5g}"
        yield f"best:    validation loss {best.loss:.5g}, trial {best.number}{self._gain()}"
        default_settings = {} if default is None else settings_of(default.values)
        for name, value in settings_of(best.values).items():
            if name not in default_settings or default_settings[name] != value:
                before = f"  (default {toml_value(default_settings[name])})" if name in default_settings else ""
                yield f"  {name} = {toml_value(value)}{before}"

    def _gain(self) -> str:
        best, default = self.best, self.default
        if default is None or best.default:
            return ", the default itself" if best.default else ""
        return f", {percent_lower(best.loss, default.loss)} lower"


def percent_lower(loss: float, than: float) -> str:
    """
    >>> percent_lower(0.75, 1.0), percent_lower(-1.0, 0.0)
    ('25.0 %', '1')
    """
    return f"{100 * (than - loss) / than:.1f} %" if than > 0 else f"{than - loss:.3g}"


def study_result(search: Search, given: Mapping[str, Any]) -> StudyResult:
    """Collect the present results of a study."""
    study = search.study
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    return StudyResult(
        folder=search.out,
        trials=[_result(trial) for trial in trials],
        minutes=seconds_of(study) / 60,
        steps=search.steps,
        full_steps=search.full,
        given=dict(given),
        importances=_importances(study),
    )


def _result(trial: FrozenTrial) -> TrialResult:
    about, state = trial.user_attrs, STATES[trial.state]
    reason = str(about.get(REASON, ""))
    if trial.state == TrialState.PRUNED:
        state, _, reason = reason.partition(": ")
    return TrialResult(
        number=trial.number,
        state=state,
        loss=_loss(trial),
        values=dict(trial.params),
        default=DEFAULT in about,
        seconds=float(about.get(SECONDS, 0.0)),
        minute=float(about.get(MINUTE, 0.0)),
        reason=reason,
    )


def _loss(trial: FrozenTrial) -> float:
    """The loss of a finished trial, else NaN; the value of a pruned trial is its last loss."""
    return math.nan if trial.state != TrialState.COMPLETE or trial.value is None else trial.value


def _importances(study: optuna.Study) -> dict[str, float]:
    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < MIN_FOR_IMPORTANCE:
        return {}
    try:
        return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)))
    except RuntimeError:  # all losses are equal
        return {}


# --- best.toml ---


def best_toml(study: StudyResult) -> str:
    """Format the best settings as TOML, in tables `data`, `model` and `training`."""
    lines = [
        f"# The best settings of {len(study.trials)} trials, by chordmixer {__version__}: trial {study.best.number}, "
        f"validation loss {study.best.loss:.5g} after {study.steps:,} steps.",
        "# chordmixer train, with the same files and options as the study, takes them by --config.",
    ]
    tables: dict[str, list[str]] = {}
    for name, value in sorted(study.settings.items()):
        table, _, rest = name.partition(".")
        tables.setdefault(table, []).append(f"{rest} = {toml_value(value)}")
    return "\n".join([*lines, *(line for table, rows in tables.items() for line in ("", f"[{table}]", *rows))]) + "\n"


def toml_value(value: Any) -> str:
    """
    >>> toml_value([4, 6]), toml_value("attention"), toml_value(True), toml_value(None)
    ('[4, 6]', '"attention"', 'true', '"none"')
    """
    return json.dumps("none" if value is None else value, ensure_ascii=False)
