"""Load a run folder for reports: the contents of each file, or None if the file is missing."""

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

ROUNDING_TOLERANCE = 1e-6  # a rounded score may exceed the limits of its metric by this much


@dataclass(frozen=True)
class Scored:
    """A baseline with its scores on the test records."""

    name: str
    sentence: str
    evaluation: Evaluation
    difference: Difference | None = None
    """The model's headline metric minus that of this baseline; None: not compared on the same records."""


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
    complete: bool  # False: a process was killed, and its seconds are not counted


@dataclass(frozen=True)
class Run:
    """The contents of a run folder, as far as a report needs them."""

    folder: Path
    config: dict[str, Any]
    output_labels: OutputLabels | None
    target: Regression | Classification | MultiLabel | None  # from labels.json, or of the task
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
    """Scores of an ensemble on records that its members were not trained on: the records of training and validation,
    each predicted by the member whose fold held it out, or the validation records that replicates share."""
    explained: Explained | None = None  # explanations of some test records

    @staticmethod
    def load(folder: Path, unverified: bool = False) -> Run:
        """Read every file that exists; raise an error that names the file if one cannot be read."""
        run_folder.check_all(folder, unverified)
        config = read_config(folder)
        output_labels = OutputLabels.load(folder) if (folder / labels.FILE).exists() else None
        members = _ensemble(folder)
        return Run(
            folder=folder,
            config=config,
            output_labels=output_labels,
            target=output_labels.target if output_labels else _own_target(config),
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
            explained=_read(
                folder / run_folder.EXPLANATIONS, lambda document: from_dict(Explained, document, "explanations")
            ),
        )

    @property
    def task(self) -> str:
        return str(self.config.get("task", ""))

    @property
    def versions(self) -> dict[str, str]:
        version = {"chordmixer": str(self.config["version"])} if self.config.get("version") else {}
        return version | (self.data.versions if self.data else {})

    @property
    def labels(self) -> list[str]:
        return [] if self.target is None or isinstance(self.target, Regression) else self.target.labels


def evaluation_from(document: Mapping[str, Any], where: str = "evaluation") -> Evaluation:
    """Build an evaluation from its JSON, in which undefined scores are null."""
    return _checked(from_dict(Evaluation, document, where, undefined=True), where)


def _checked(evaluation: Evaluation, where: str = "evaluation") -> Evaluation:
    """Return the evaluation if its counts and scores are valid."""
    length_bins = {f"by_length.{row.percentile}": row.scores for row in evaluation.by_length}
    for part, scores in {"scores": evaluation.scores, **length_bins}.items():
        if evaluation.headline not in scores:
            raise ValueError(f"{where}.{part} lacks {evaluation.headline!r}, its headline")
        for name, score in scores.items():
            _check_score(name, score.value, score.low, score.high)
    for name, value in evaluation.guessing.items():
        _check_score(name, value)
    if min(evaluation.records, *(n for b in evaluation.by_length for n in (b.shortest, b.longest, b.records))) < 0:
        raise ValueError(f"{where} counts less than 0 records or tokens")
    return evaluation


def _read(path: Path, build: Callable[[Any], T]) -> T | None:
    if not path.exists():
        return None
    document = files.read_json(path)
    try:
        return build(document)
    except ValueError as error:
        raise ValueError(f"{path} is not whole ({error}): use another copy, or make it again") from None


def _ensemble(folder: Path) -> Ensemble | None:
    members = ensemble.read(folder)
    for member in members.members if members else ():
        for score in (member.validation, member.test):
            _check_score(members.metric if members else "", score.value, score.low, score.high)
    return members


def _own_target(config: Mapping[str, Any]) -> Regression | Classification | MultiLabel | None:
    target = getattr(task_class(config["task"]), "target", None) if config.get("task") in TASKS else None
    return target if isinstance(target, Regression | Classification | MultiLabel) else None


def _journal(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without a last one that was cut off when the process was killed."""
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


def _event(line: Any) -> dict[str, Any]:
    """Check a line of metrics.jsonl: a step, a part of the data, and numbers, some of which may be undefined."""
    row = typed(dict[str, Any], line, "the line")
    kinds: dict[str, Any] = {"step": int, "split": str}
    event = {name: typed(kinds.get(name, float), value, name, undefined=True) for name, value in row.items()}
    if not 0 <= event.get("step", -1) < 1 << 53:
        raise ValueError("it has no step, or one that cannot be")
    for name, value in event.items():
        if isinstance(value, float):
            _check_score(name, value)
    return event


def _check_score(name: str, *values: float | None) -> None:
    """Refuse values outside the range of a metric; undefined ones are allowed."""
    low, high = metrics.within(name)
    for value in values:
        if value is None or not math.isfinite(value):
            continue
        if not max(low, -HUGE) - ROUNDING_TOLERANCE <= value <= min(high, HUGE) + ROUNDING_TOLERANCE:
            raise ValueError(f"{name}={value:g} cannot be")


def steps(folder: Path) -> int:
    """The number of steps of a run; 0 if metrics.jsonl is missing."""
    return max((int(row["step"]) for row in _journal(folder / "metrics.jsonl") if "step" in row), default=0)


def lowest_loss(folder: Path) -> float:
    """The lowest loss of a run on its validation records; NaN if metrics.jsonl is missing."""
    rows = _journal(folder / "metrics.jsonl")
    return min((float(row["loss"]) for row in rows if row.get("split") == "validation"), default=float("nan"))


def _baselines(document: Mapping[str, Any]) -> list[Scored]:
    rows: list[Scored] = typed(list[Scored], document.get("baselines"), "baselines", undefined=True)
    for row in rows:
        _checked(row.evaluation)
    return rows


def _ladder(document: Mapping[str, Any]) -> list[LadderStep]:
    rows: list[LadderStep] = typed(list[LadderStep], document.get("ladder") or [], "ladder", undefined=True)
    return rows


def _data(document: Mapping[str, Any]) -> RunData:
    inspection, account = document.get("inspection"), document.get("account")
    leakage = typed(dict[str, dict[str, Any]], document.get("leakage") or {}, "leakage")
    return RunData(
        account=from_dict(Account, account, "account") if account else None,
        inspection=_inspection(inspection) if inspection else None,
        split=_split(typed(dict[str, Any], document.get("split") or {}, "split")),
        leakage={part: _leak(leak, f"leakage.{part}") for part, leak in leakage.items()},
        sources=typed(list[str], document.get("sources") or [], "sources"),
        versions=typed(dict[str, str], document.get("versions") or {}, "versions"),
        near=typed(bool, document.get("near_copies_looked_for", True), "near_copies_looked_for"),
    )


def _provenance(document: Mapping[str, Any]) -> Provenance:
    texts = {name: typed(str, document.get(name), name) for name in ("started", "command", "device")}
    starts, ends = (typed(int, document.get(name), name) for name in ("starts", "ends"))
    return Provenance(**texts, seconds=typed(float, document.get("seconds"), "seconds"), complete=starts == ends)


def _split(document: dict[str, Any]) -> dict[str, Any]:
    sizes = typed(dict[str, int], document.get("sizes") or {}, "split.sizes")
    return document | {"sizes": sizes, "method": typed(str, document.get("method", ""), "split.method")}


def _leak(document: Mapping[str, Any], where: str) -> Leak:
    """Build a Leak; in data.json its examples are ids instead of record numbers."""
    kind = dict[Literal["exact", "reverse", "near"], list[tuple[str | int, str | int]]]
    examples: Any = typed(kind, document.get("examples") or {}, f"{where}.examples")
    return replace(from_dict(Leak, {**document, "examples": {}}, where), examples=examples)


def _inspection(document: Mapping[str, Any]) -> Inspection:
    inspection = from_dict(Inspection, document, "inspection", undefined=True)
    duplicates, sizes = inspection.duplicates, inspection.classes.values()
    copies = [duplicates.exact, duplicates.reverse_complement or 0, duplicates.across_labels]
    if len(inspection.edges) != len(inspection.histogram) + 1 or 50 not in inspection.percentiles:
        raise ValueError("inspection.edges, histogram and percentiles do not fit each other")
    if any(copies) and not duplicates.examples:
        raise ValueError("inspection.duplicates has copies, and no example of them")
    counts = [*inspection.histogram, *inspection.letters.values(), *copies]
    if min(inspection.edges) < 1 or max(inspection.histogram) < 1 or min(counts) < 0 or min(sizes, default=1) < 1:
        raise ValueError("inspection has counts or lengths below their least")
    return inspection
