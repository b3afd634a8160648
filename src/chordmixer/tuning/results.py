"""What a study has found: its trials, the best settings beside the recipe's, and best.toml for `train --config`."""

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
IMPORTANT = 6
"""Finished trials from which on importances are estimated."""
STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.FAIL: "failed",
    TrialState.PRUNED: "pruned",
    TrialState.RUNNING: "running",
}


@dataclass(frozen=True)
class TrialResult:
    """A trial as it is shown."""

    number: int
    state: str
    """finished, pruned, out of time, infeasible, failed or running."""
    loss: float
    """The validation loss of the best weights; NaN unless it is finished."""
    values: dict[str, Any]
    """Of the settings that are searched."""
    default: bool
    """Whether they are those of the recipe, with or without words."""
    seconds: float
    minute: float
    """Of the study, in which it ended."""
    reason: str
    """Why it is not finished."""


@dataclass(frozen=True)
class StudyResult:
    """What a study has found so far."""

    folder: Path
    trials: list[TrialResult]
    """In the order in which they began."""
    minutes: float
    """In which one process or more worked on it."""
    steps: int
    """Of a trial."""
    full_steps: int
    """Of a full run."""
    given: dict[str, Any]
    """Settings that were given, and not searched."""
    importances: dict[str, float]
    """Shares of the variance of the losses, most important setting first; empty with few trials."""

    @property
    def config(self) -> Path:
        """The best settings, as `chordmixer train --config` takes them."""
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
        """The recipe itself: with or without words, whichever has the lower loss."""
        return min((own for own in self.finished if own.default), key=lambda own: own.loss, default=None)

    @property
    def finished(self) -> list[TrialResult]:
        return [trial for trial in self.trials if not math.isnan(trial.loss)]

    @property
    def settings(self) -> dict[str, Any]:
        """The best settings by their dotted names, as `fit` takes them, for a full run."""
        steps = {} if self.given.get("training.minutes") else {"training.steps": self.full_steps}
        return {**self.given, **settings_of(self.best.values), **steps}

    def lines(self) -> Iterator[str]:
        """A summary for the terminal."""
        counts = Counter(trial.state for trial in self.trials)
        told = ", ".join(f"{count} {state}" for state, count in counts.items())
        yield f"{len(self.trials)} trials of {self.steps:,} steps in {self.minutes:.1f} min: {told}"
        if not self.finished:
            return
        best, default = self.best, self.default
        if default is not None:
            yield f"default: validation loss {default.loss:.5g}"
        yield f"best:    validation loss {best.loss:.5g}, trial {best.number}{self._gain()}"
        known = {} if default is None else settings_of(default.values)
        for name, value in settings_of(best.values).items():
            if name not in known or known[name] != value:
                before = f"  (default {toml_value(known[name])})" if name in known else ""
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
    """The present state of a study."""
    study = search.study
    known = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    return StudyResult(
        folder=search.out,
        trials=[_result(trial) for trial in known],
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
    """A pruned trial has a value too: its last loss."""
    return math.nan if trial.state != TrialState.COMPLETE or trial.value is None else trial.value


def _importances(study: optuna.Study) -> dict[str, float]:
    if len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))) < IMPORTANT:
        return {}
    try:
        return dict(get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)))
    except RuntimeError:  # all losses are the same
        return {}


# --- best.toml ---


def best_toml(found: StudyResult) -> str:
    """The best settings as TOML, in tables `data`, `model` and `training`."""
    lines = [
        f"# The best settings of {len(found.trials)} trials, by chordmixer {__version__}: trial {found.best.number}, "
        f"validation loss {found.best.loss:.5g} after {found.steps:,} steps.",
        "# chordmixer train, with the same files and options as the study, takes them by --config.",
    ]
    tables: dict[str, list[str]] = {}
    for name, value in sorted(found.settings.items()):
        table, _, rest = name.partition(".")
        tables.setdefault(table, []).append(f"{rest} = {toml_value(value)}")
    return "\n".join([*lines, *(line for table, own in tables.items() for line in ("", f"[{table}]", *own))]) + "\n"


def toml_value(value: Any) -> str:
    """
    >>> toml_value([4, 6]), toml_value("attention"), toml_value(True), toml_value(None)
    ('[4, 6]', '"attention"', 'true', '"none"')
    """
    return json.dumps("none" if value is None else value, ensure_ascii=False)
