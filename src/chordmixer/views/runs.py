"""A run folder as reports need it: each file as it was written, or None where it is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from chordmixer import files
from chordmixer.config import from_dict, typed
from chordmixer.data.entries import Account
from chordmixer.data.inspection import Inspection
from chordmixer.data.leakage import Leak
from chordmixer.models.model import read_config
from chordmixer.tasks import TASKS, task_class
from chordmixer.tasks.targets import HUGE, Classification, MultiLabel, Regression
from chordmixer.training import combination, ensemble, labels, nested_runs, run_folder
from chordmixer.training.combination import CombinationDocument
from chordmixer.training.ensemble import Ensemble
from chordmixer.training.evaluation import Evaluation, Predictions
from chordmixer.training.intervals import Difference
from chordmixer.training.labels import OutputLabels
from chordmixer.training.nested_runs import Trials
from chordmixer.training.results import LadderStep
from chordmixer.views import metrics
from chordmixer.views.explanations import Explained

T = TypeVar("T")

ROUNDED = 1e-6  # how far beyond its limits a rounded number may be


@dataclass(frozen=True)
class Scored:
    """A baseline and its scores."""

    name: str
    sentence: str
    evaluation: Evaluation
    difference: Difference | None = None
    """The model minus this baseline, by the headline metric; None: not compared on the same records."""


@dataclass(frozen=True)
class RunData:
    """The data.json of a run on files."""

    account: Account | None
    inspection: Inspection | None
    split: dict[str, Any]
    leakage: dict[str, Leak]
    sources: list[str]
    versions: dict[str, str]  # of the libraries that trained the run
    near: bool  # whether near-copies were searched for, and not only exact ones


@dataclass(frozen=True)
class Provenance:
    """The run.json of a run: when, by which command, on which device and for how long it was trained."""

    started: str
    command: str  # empty where the library was called from Python
    device: str
    seconds: float
    whole: bool  # whether all seconds are counted: those of a killed process are not


@dataclass(frozen=True)
class Run:
    """All that a report needs."""

    folder: Path
    config: dict[str, Any]
    answers: OutputLabels | None
    target: Regression | Classification | MultiLabel | None  # of labels.json, or of a task that has one of its own
    journal: list[dict[str, Any]]
    test: Evaluation | None
    predictions: Predictions | None  # of the test records
    baselines: list[Scored]
    data: RunData | None
    provenance: Provenance | None = None
    ladder: Sequence[LadderStep] = ()  # from the baseline to the delivered prediction, each with its gain
    delivered: CombinationDocument | None = None
    """How network and baseline are combined; None: the network alone predicts."""
    trials: Trials | None = None
    ensemble: Ensemble | None = None  # the members, where several networks predict together
    held_out: Evaluation | None = None
    """Of an ensemble: the records of training and validation, each predicted by the member of the fold that held it
    out, or the validation records that replicates share."""
    explained: Explained | None = None  # explanations of some test records

    @staticmethod
    def load(folder: Path, unverified: bool = False) -> Run:
        """Read every file that exists; a file that cannot be read is an error that names it."""
        run_folder.check_all(folder, unverified)
        config = read_config(folder)
        known = OutputLabels.load(folder) if (folder / labels.FILE).exists() else None
        members = _ensemble(folder)
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
            provenance=_read(folder / run_folder.PROVENANCE, _provenance),
            ladder=_read(folder / "baselines.json", _ladder) or (),
            delivered=combination.read_document(folder),
            trials=nested_runs.read_trials(folder),
            ensemble=members,
            held_out=_read(folder / f"evaluation-{members.held_out}.json", evaluation_from) if members else None,
            explained=_read(folder / run_folder.EXPLANATIONS, lambda own: from_dict(Explained, own, "explanations")),
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


def evaluation_from(given: Mapping[str, Any], where: str = "evaluation") -> Evaluation:
    """An evaluation from its JSON, in which undefined scores are null."""
    return _checked(from_dict(Evaluation, given, where, undefined=True), where)


def _checked(found: Evaluation, where: str = "evaluation") -> Evaluation:
    """The evaluation, after its counts and scores are checked."""
    bins = {f"by_length.{row.percentile}": row.scores for row in found.by_length}
    for part, scores in {"scores": found.scores, **bins}.items():
        if found.headline not in scores:
            raise ValueError(f"{where}.{part} lacks {found.headline!r}, its headline")
        for name, score in scores.items():
            _check_score(name, score.value, score.low, score.high)
    for name, value in found.guessing.items():
        _check_score(name, value)
    if min(found.records, *(n for b in found.by_length for n in (b.shortest, b.longest, b.records))) < 0:
        raise ValueError(f"{where} counts less than 0 records or tokens")
    return found


def _read(path: Path, build: Callable[[Any], T]) -> T | None:
    if not path.exists():
        return None
    given = files.read_json(path)
    try:
        return build(given)
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}): use another copy, or make it again") from None


def _ensemble(folder: Path) -> Ensemble | None:
    known = ensemble.read(folder)
    for member in known.members if known else ():
        for score in (member.validation, member.test):
            _check_score(known.metric if known else "", score.value, score.low, score.high)
    return known


def _own_target(config: Mapping[str, Any]) -> Regression | Classification | MultiLabel | None:
    target = getattr(task_class(config["task"]), "target", None) if config.get("task") in TASKS else None
    return target if isinstance(target, Regression | Classification | MultiLabel) else None


def _journal(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last one that a kill has torn."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_event(json.loads(line)))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                reason = "" if isinstance(error, json.JSONDecodeError) else f" ({error})"
                raise ValueError(f"{path}, line {number} is not a JSON object{reason}: use another copy") from None
    return rows


def _event(given: Any) -> dict[str, Any]:
    """A line of metrics.jsonl: a step, a part of the data, and numbers, of which some may be undefined."""
    row = typed(dict[str, Any], given, "the line")
    kinds: dict[str, Any] = {"step": int, "split": str}
    found = {name: typed(kinds.get(name, float), value, name, undefined=True) for name, value in row.items()}
    if not 0 <= found.get("step", -1) < 1 << 53:
        raise ValueError("it has no step, or one that cannot be")
    for name, value in found.items():
        if isinstance(value, float):
            _check_score(name, value)
    return found


def _check_score(name: str, *values: float | None) -> None:
    """A metric may be undefined, but not outside its range."""
    low, high = metrics.within(name)
    for value in values:
        if value is None or not math.isfinite(value):
            continue
        if not max(low, -HUGE) - ROUNDED <= value <= min(high, HUGE) + ROUNDED:
            raise ValueError(f"{name}={value:g} cannot be")


def steps(folder: Path) -> int:
    """The steps of a run; 0 where metrics.jsonl is missing."""
    return max((int(row["step"]) for row in _journal(folder / "metrics.jsonl") if "step" in row), default=0)


def lowest_loss(folder: Path) -> float:
    """On the validation records of a run; NaN where metrics.jsonl is missing."""
    rows = _journal(folder / "metrics.jsonl")
    return min((float(row["loss"]) for row in rows if row.get("split") == "validation"), default=float("nan"))


def _baselines(given: Mapping[str, Any]) -> list[Scored]:
    rows: list[Scored] = typed(list[Scored], given.get("baselines"), "baselines", undefined=True)
    for row in rows:
        _checked(row.evaluation)
    return rows


def _ladder(given: Mapping[str, Any]) -> list[LadderStep]:
    rows: list[LadderStep] = typed(list[LadderStep], given.get("ladder") or [], "ladder", undefined=True)
    return rows


def _data(given: Mapping[str, Any]) -> RunData:
    inspection, account = given.get("inspection"), given.get("account")
    leakage = typed(dict[str, dict[str, Any]], given.get("leakage") or {}, "leakage")
    return RunData(
        account=from_dict(Account, account, "account") if account else None,
        inspection=_inspection(inspection) if inspection else None,
        split=_split(typed(dict[str, Any], given.get("split") or {}, "split")),
        leakage={part: _leak(leak, f"leakage.{part}") for part, leak in leakage.items()},
        sources=typed(list[str], given.get("sources") or [], "sources"),
        versions=typed(dict[str, str], given.get("versions") or {}, "versions"),
        near=typed(bool, given.get("near_copies_looked_for", True), "near_copies_looked_for"),
    )


def _provenance(given: Mapping[str, Any]) -> Provenance:
    words = {name: typed(str, given.get(name), name) for name in ("started", "command", "device")}
    starts, ends = (typed(int, given.get(name), name) for name in ("starts", "ends"))
    return Provenance(**words, seconds=typed(float, given.get("seconds"), "seconds"), whole=starts == ends)


def _split(given: dict[str, Any]) -> dict[str, Any]:
    sizes = typed(dict[str, int], given.get("sizes") or {}, "split.sizes")
    return given | {"sizes": sizes, "method": typed(str, given.get("method", ""), "split.method")}


def _leak(given: Mapping[str, Any], where: str) -> Leak:
    """The examples of data.json are ids, not numbers."""
    kind = dict[Literal["exact", "reverse", "near"], list[tuple[str | int, str | int]]]
    examples: Any = typed(kind, given.get("examples") or {}, f"{where}.examples")
    return replace(from_dict(Leak, {**given, "examples": {}}, where), examples=examples)


def _inspection(given: Mapping[str, Any]) -> Inspection:
    found = from_dict(Inspection, given, "inspection", undefined=True)
    twice, sizes = found.duplicates, found.classes.values()
    copies = [twice.exact, twice.reverse_complement or 0, twice.across_labels]
    if len(found.edges) != len(found.histogram) + 1 or 50 not in found.percentiles:
        raise ValueError("inspection.edges, histogram and percentiles do not fit each other")
    if any(copies) and not twice.examples:
        raise ValueError("inspection.duplicates has copies, and no example of them")
    counts = [*found.histogram, *found.letters.values(), *copies]
    if min(found.edges) < 1 or max(found.histogram) < 1 or min(counts) < 0 or min(sizes, default=1) < 1:
        raise ValueError("inspection has counts or lengths below their least")
    return found
