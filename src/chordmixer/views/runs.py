"""What a run folder holds, for those who look at it: each part as it was written, or None where it is missing."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chordmixer import files
from chordmixer.data.entries import Account
from chordmixer.data.inspection import Duplicates, Inspection
from chordmixer.data.leakage import Leak
from chordmixer.data.target_summary import TargetSummary
from chordmixer.models.model import read_config
from chordmixer.tasks import TASKS, task_class
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training import answers, provenance
from chordmixer.training.answers import Answers
from chordmixer.training.evaluation import Evaluation, LengthBin, Predictions
from chordmixer.training.intervals import Difference, Score

T = TypeVar("T")


@dataclass(frozen=True)
class Scored:
    """A plain baseline and how good it is."""

    name: str
    sentence: str
    evaluation: Evaluation
    difference: Difference | None = None
    """The model less this baseline, by the headline metric; None: they were not compared record by record."""


@dataclass(frozen=True)
class DataSeen:
    """The data.json of a run on files."""

    account: Account | None
    inspection: Inspection | None
    split: dict[str, Any]
    leakage: dict[str, Leak]
    sources: list[str]
    versions: dict[str, str]
    """Of what trained, where it says so."""
    near: bool
    """Whether near-copies were looked for, and not only exact ones."""


@dataclass(frozen=True)
class Provenance:
    """The run.json of a run: when, by which command, on what and for how long it was trained."""

    started: str
    command: str
    """Empty where Python called the library."""
    device: str
    seconds: float
    whole: bool
    """Whether all its seconds are known: a start that was killed has none."""


@dataclass(frozen=True)
class Run:
    """All that a report needs."""

    folder: Path
    config: dict[str, Any]
    answers: Answers | None
    target: Regression | Classification | MultiLabel | None
    """What was asked: of labels.json, or of a task that has one of its own."""
    journal: list[dict[str, Any]]
    test: Evaluation | None
    predictions: Predictions | None
    """Of the test part."""
    baselines: list[Scored]
    data: DataSeen | None
    provenance: Provenance | None = None

    @staticmethod
    def load(folder: Path) -> Run:
        """Read every file that is there; one that cannot be understood is an error that names it."""
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder: give the --out folder of a training run")
        config = read_config(folder)
        known = Answers.load(folder) if (folder / answers.FILE).exists() else None
        return Run(
            folder=folder,
            config=config,
            answers=known,
            target=known.target if known else _own_target(config),
            journal=_journal(folder / "metrics.jsonl"),
            test=_read(folder / "evaluation-test.json", evaluation_from),
            predictions=Predictions.read(rows) if (rows := folder / "predictions.parquet").exists() else None,
            baselines=_read(folder / "baselines.json", _baselines) or [],
            data=_read(folder / "data.json", _data),
            provenance=_read(folder / provenance.FILE, _provenance),
        )

    @property
    def task(self) -> str:
        return str(self.config.get("task", ""))

    @property
    def versions(self) -> dict[str, str]:
        own = {"chordmixer": str(self.config["version"])} if self.config.get("version") else {}
        return own | (self.data.versions if self.data else {})

    @property
    def labels(self) -> list[str]:
        return [] if self.target is None or isinstance(self.target, Regression) else self.target.labels


def evaluation_from(given: Mapping[str, Any]) -> Evaluation:
    """An evaluation from its JSON."""
    bins = [LengthBin(**{**row, "scores": _scores(row["scores"])}) for row in given["by_length"]]
    return Evaluation(**{**given, "scores": _scores(given["scores"]), "by_length": bins})


def _scores(given: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score(_number(s["value"]), _end(s["low"]), _end(s["high"])) for name, s in given.items()}


def _number(given: float | None) -> float:
    """NaN where it is not defined."""
    return math.nan if given is None else float(given)


def _end(given: float | None) -> float | None:
    """Of an interval, where there is one."""
    return None if given is None or math.isnan(given) else float(given)


def _read(path: Path, build: Callable[[Any], T]) -> T | None:
    if not path.exists():
        return None
    given = files.read_json(path)
    try:
        return build(given)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not whole ({error!r}): use another copy, or make it again") from None


def _own_target(config: Mapping[str, Any]) -> Regression | Classification | MultiLabel | None:
    target = getattr(task_class(config["task"]), "target", None) if config.get("task") in TASKS else None
    return target if isinstance(target, Regression | Classification | MultiLabel) else None


def _journal(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last one that a kill has torn."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not a JSON object: use another copy") from None
    return rows


def steps(folder: Path) -> int:
    """That a run has made; 0 where its journal is gone."""
    return max((int(row["step"]) for row in _journal(folder / "metrics.jsonl") if "step" in row), default=0)


def lowest_loss(folder: Path) -> float:
    """On the validation records of a run; NaN where its journal is gone."""
    rows = _journal(folder / "metrics.jsonl")
    return min((float(row["loss"]) for row in rows if row.get("split") == "validation"), default=float("nan"))


def _baselines(given: Mapping[str, Any]) -> list[Scored]:
    return [
        Scored(str(r["name"]), str(r["sentence"]), evaluation_from(r["evaluation"]), _difference(r.get("difference")))
        for r in given["baselines"]
    ]


def _difference(given: Mapping[str, Any] | None) -> Difference | None:
    if given is None:
        return None
    value, low, high = _number(given["value"]), _end(given["low"]), _end(given["high"])
    return Difference(str(given["metric"]), value, low, high, "groups" if given["over"] == "groups" else "records")


def _data(given: Mapping[str, Any]) -> DataSeen:
    inspection = given.get("inspection")
    account = given.get("account")
    return DataSeen(
        account=_account(account) if account else None,
        inspection=_inspection(inspection) if inspection else None,
        split=dict(given.get("split") or {}),
        leakage={part: Leak(**leak) for part, leak in (given.get("leakage") or {}).items()},
        sources=[str(source) for source in given.get("sources") or []],
        versions={str(name): str(version) for name, version in (given.get("versions") or {}).items()},
        near=bool(given.get("near_copies_looked_for", True)),
    )


def _provenance(given: Mapping[str, Any]) -> Provenance:
    return Provenance(
        started=str(given["started"]),
        command=str(given["command"]),
        device=str(given["device"]),
        seconds=float(given["seconds"]),
        whole=int(given["starts"]) == int(given["ends"]),
    )


def _inspection(given: Mapping[str, Any]) -> Inspection:
    """JSON has no keys that are numbers, and no counters."""
    return Inspection(
        **{
            **given,
            "percentiles": {int(p): int(length) for p, length in given["percentiles"].items()},
            "longest": [(str(name), int(length)) for name, length in given["longest"]],
            "duplicates": Duplicates(**given["duplicates"]),
            "account": _account(given["account"]),
            "targets": TargetSummary(**given["targets"]) if given.get("targets") else None,
        }
    )


def _account(given: Mapping[str, Any]) -> Account:
    return Account(**{**given, "rejected": Counter(given["rejected"]), "notes": Counter(given["notes"])})
