"""What a finished run leaves: its labels and scores, and baselines on the same records.

baselines.json has the scores of each baseline, the paired difference of the run to it, and the ladder: what each step
from the baseline to the delivered prediction adds. baselines.parquet has the predictions of the baselines, as
predictions.parquet has the run's, so that any run on the same data can be compared with them.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from chordmixer import files
from chordmixer.data import leakage
from chordmixer.data.features import TextWords
from chordmixer.tasks import Task
from chordmixer.tasks.files import Files
from chordmixer.tasks.targets import Regression, Target, TokenTarget
from chordmixer.training import combination, labels
from chordmixer.training.baselines.fitting import Baseline, fit_baselines, fit_variant_baselines
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluation_contents,
    parquet_bytes,
    predict_records,
    predictions_file,
    read_table,
    save_evaluation,
    summarise,
)
from chordmixer.training.experiment import Experiment
from chordmixer.training.intervals import Difference
from chordmixer.training.labels import OutputLabels, fit_temperature
from chordmixer.training.run_folder import CONFIG, JOURNAL, PROVENANCE, WAIT, WEIGHTS, RunLock
from chordmixer.version import __version__

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import pyarrow as pa

    from chordmixer.tasks.masking import Masking

BASELINES, BASELINE_ROWS = "baselines.json", "baselines.parquet"
MODEL_ROWS = predictions_file("test")
LONG = 20_000_000
"""Tokens from which on fitting baselines takes minutes."""
LOCAL_FOLDER, LOCAL = "local", "local network"
"""Folder, within a run's, and name of the network without its encoder (`nested_runs`)."""
DELIVERED = "delivered"
NETWORKS = (LOCAL, combination.NETWORK)
"""Compared rows that are not baselines."""

Row = tuple[str, str, Predictions]
"""What a run is compared with: its name, a description, and its predictions for the test records."""


def evaluate_parts(
    experiment: Experiment, task: Task, predictions: Mapping[str, Predictions]
) -> dict[str, Evaluation]:
    """The scores of each part that was predicted."""
    return {
        part: summarise(own.of_task(task, part), task.target, experiment, part) for part, own in predictions.items()
    }


def write_results(
    folder: Path,
    task: Task,
    weights: Mapping[str, Tensor],
    evaluations: Mapping[str, Evaluation],
    predictions: Mapping[str, Predictions],
) -> None:
    """Write the network, what its outputs mean, its scores and predictions, and a manifest of it all."""
    combined = [combination.FILE, combination.BASELINE]  # of a run that is finished once more: they are fitted again
    for name in {*combined} & {*files.recorded(folder)}:
        (folder / name).unlink(missing_ok=True)
    files.unrecord(folder, combined)
    how = [PROVENANCE] if (folder / PROVENANCE).exists() else []
    files.write_manifest(folder, [CONFIG, JOURNAL, *how])
    files.write_recorded(folder, {WEIGHTS: files.tensor_bytes(weights), **task_documents(task, predictions)})
    for part, evaluation in evaluations.items():
        save_evaluation(folder, evaluation, predictions[part].of_task(task, part))


def task_documents(task: Task, predictions: Mapping[str, Predictions]) -> dict[str, bytes]:
    """The documents of a task, labels.json with a temperature from the validation set, and hashes of records seen."""
    documents = task.documents()
    if not documents:
        return {}
    versions = {"chordmixer": __version__, "python": platform.python_version(), "torch": torch.__version__}
    documents["data.json"]["versions"] = versions
    written = {name: files.json_bytes(content) for name, content in documents.items()}
    if isinstance(task.target, TokenTarget):  # predicts nothing of records
        return written
    tokenizer = documents["tokenizer.json"]["tokenizer"]
    own = OutputLabels(task.target, tokenizer, both_strands=task.complement is not None)  # type: ignore[arg-type]
    written |= _labels_file(own, predictions["validation"])
    return {**written, leakage.SEEN_FILE: leakage.pack_seen(task.seen())} if isinstance(task, Files) else written


def _labels_file(known: OutputLabels, validation: Predictions) -> dict[str, bytes]:
    """labels.json with the temperature that suits the validation records; numbers have none."""
    if not isinstance(known.target, Regression):
        found = fit_temperature(known.unweighted(validation.outputs), validation.targets)
        known = replace(known, temperature=found)
    return {labels.FILE: files.json_bytes(known.to_json())}


# --- Comparison with baselines ---


def compare(
    run: Path | str,
    cache: Path | str | None = None,
    *,
    deliver: bool = False,
    announce: bool = True,
) -> list[Evaluation]:
    """Score baselines on the test part of a run on files or variants, by the run's own code; writes baselines.json.

    With `deliver`, the run then predicts with its network, its best baseline or both, as the validation records
    choose; its scores become those of that choice, and the network alone is one of the rows beside it.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    if experiment.task not in ("files", "masking", "variants"):
        raise ValueError(f"{folder} is a run of {experiment.task}, which has no baselines: give a run on files")
    task: Any = experiment.build_task()
    if experiment.task == "variants":
        rows = [_row(task, own) for own in fit_variant_baselines(task)]
        return write_baselines(folder, experiment, task.target, rows)
    if announce and len(task.store.values) > LONG:
        logger.info("baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines")
    if experiment.task == "masking":
        return write_baselines(folder, experiment, task.target, _markov_rows(task, experiment))
    fitted = list(_fit_file_baselines(task))
    rows = [_row(task, own) for own in fitted]
    best = min((own for own in fitted if own.fitted), key=lambda own: own.loss, default=None)
    if deliver and best is not None and not (folder / combination.FILE).exists():
        rows.append(_deliver(folder, experiment, task, best))
        local = folder / LOCAL_FOLDER / MODEL_ROWS
        sentence = "the network without its encoder: convolutions, words and pooling, trained for half as long"
        rows += [(LOCAL, sentence, Predictions.read(local))] if local.exists() else []
    return write_baselines(folder, experiment, task.target, rows)


def _fit_file_baselines(task: Files) -> Iterator[Baseline]:
    yield from fit_baselines(
        [task.store.tokens(i) for i in task.question.records],
        task.store.lengths[task.question.records],
        task.question.targets,
        task.split.parts,
        task.target,
        task.kind,
        words=TextWords.of(task.store.tokenizer),
    )


def _row(task: Any, baseline: Baseline) -> Row:
    test = task.records("test")
    names, lengths, targets = [test.name(i) for i in range(len(test))], np.array(test.lengths), test.targets.numpy()
    predictions = Predictions(names, lengths, targets, baseline.outputs, task.groups("test"))
    return baseline.name, baseline.sentence, predictions


def _markov_rows(task: Masking, experiment: Experiment) -> Iterator[Row]:
    """Markov chains see the same masked tokens as the network."""
    test, config, cpu = task.records("test"), experiment.training, torch.device("cpu")
    for chain_ in task.baselines():
        found = predict_records(chain_, test, config, cpu, task.target, alone=True)  # type: ignore[arg-type]  # frozen
        yield chain_.name, chain_.sentence, found


def _deliver(folder: Path, experiment: Experiment, task: Files, best: Baseline) -> Row:
    """Fit and store the combination, and score its predictions; the network alone is the row beside it."""
    network = {part: Predictions.read(folder / predictions_file(part)) for part in ("validation", "test")}
    assert best.fitted is not None, "the baseline predicts new sequences"
    target: Any = task.target
    validation, tokens = network["validation"], {part: task.tokens(part) for part in network}
    found = combination.fit_combination(
        target,
        validation.outputs,
        validation.targets,
        best.fitted,
        best.name,
        tokens["validation"],
        task.complement,
    )
    contents = found.contents()
    for part, alone in network.items():
        predictions = replace(alone, outputs=found.outputs(alone.outputs, tokens[part]))
        evaluation = replace(summarise(predictions, target, experiment, part), encoder=found.title)
        contents |= evaluation_contents(evaluation, predictions)
        if part == "validation":
            contents |= _labels_file(OutputLabels.load(folder), predictions)
    with RunLock(folder, WAIT):
        files.write_recorded(folder, contents)
    sentence = f"the trained network ({experiment.model.encoder}) without the baseline"
    return combination.NETWORK, sentence, network["test"]


def write_baselines(folder: Path, experiment: Experiment, target: Target, rows: Iterable[Row]) -> list[Evaluation]:
    """Score the rows by the run's own code; writes baselines.json and baselines.parquet."""
    rows = list(rows)
    scored = [replace(summarise(own, target, experiment, "test"), encoder=name) for name, _, own in rows]
    document = [
        {"name": name, "sentence": sentence, "evaluation": asdict(evaluation)}
        for (name, sentence, _), evaluation in zip(rows, scored, strict=True)
    ]
    contents = {
        BASELINES: files.json_bytes({"format": 1, "baselines": document}),
        BASELINE_ROWS: baseline_rows({name: predictions for name, _, predictions in rows}),
    }
    with RunLock(folder, WAIT):
        files.write_recorded(folder, contents)
    write_differences(folder, target)
    return scored


def write_differences(folder: Path, target: Target) -> None:
    """Add the paired differences to the baselines, and the ladder, to baselines.json."""
    document = files.read_json(folder / BASELINES)
    found = differences([folder], target, target.headline)
    for row in document["baselines"]:
        row["difference"] = asdict(found[row["name"]]) if row["name"] in found else None
    document["ladder"] = [asdict(step) for step in ladder_steps(folder, target)]
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {BASELINES: files.json_bytes(document)})


def baseline_rows(baselines: Mapping[str, Predictions]) -> bytes:
    """The bytes of baselines.parquet: the baseline's name, then the columns of its predictions."""
    tables = [own.columns() for own in baselines.values()]
    names = [[name] * len(own.names) for name, own in baselines.items()]
    columns = {key: list(chain(*(table[key] for table in tables))) for key in tables[0]}
    return parquet_bytes({"baseline": list(chain(*names)), **columns})


def read_baseline_rows(folder: Path) -> dict[str, Predictions]:
    """The predictions of each baseline; none where the run has no baselines.parquet."""
    path = folder / BASELINE_ROWS
    return read_table(path, _by_baseline) if path.exists() else {}


def _by_baseline(rows: pa.Table) -> dict[str, Predictions]:
    names = np.array(rows.column("baseline").to_pylist(), dtype=object)
    return {name: Predictions.of_table(rows.filter(names == name)) for name in dict.fromkeys(names.tolist())}


def differences(runs: Sequence[Path], target: Target, metric: str) -> dict[str, Difference]:
    """By baseline, the score of a model less the baseline's, with a paired interval.

    `runs` are those of one model with several seeds, whose scores are averaged. A baseline that predicted other
    records has no difference.
    """
    if not runs or not all((run / MODEL_ROWS).exists() for run in runs):
        return {}
    models, known = [Predictions.read(run / MODEL_ROWS) for run in runs], read_baseline_rows(runs[0])
    sample = models[0].sample(target)
    return {
        name: sample.difference(metric, [model.outputs for model in models], baseline.outputs)
        for name, baseline in known.items()
        if all(baseline.same_records(model) for model in models)
    }


@dataclass(frozen=True)
class LadderStep:
    """A method and what it adds to the one before."""

    name: str
    gain: Difference | None = None
    """Of the headline metric; None for the first."""


def ladder_steps(run: Path, target: Target) -> list[LadderStep]:
    """From the baseline to the delivered prediction; none where the run keeps no baseline."""
    document = combination.read_document(run)
    known = read_baseline_rows(run) if document else {}
    if document is None or document.baseline not in known:
        return []
    found = {name: known[name] for name in (document.baseline, *NETWORKS) if name in known}
    if document.using == "both":
        found[DELIVERED] = Predictions.read(run / MODEL_ROWS)
    sample, names = found[document.baseline].sample(target), list(found)
    gains = [
        sample.difference(target.headline, [found[own].outputs], found[before].outputs)
        for before, own in pairwise(names)
    ]
    return [LadderStep(names[0]), *map(LadderStep, names[1:], gains)]
