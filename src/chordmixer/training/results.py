"""Results of a finished run: its labels and scores, and baselines on the same records.

baselines.json has the scores of each baseline, the paired difference between the run and that baseline, and the
ladder: the gain of each step from the best baseline to the delivered prediction. baselines.parquet has the
predictions of the baselines in the format of predictions.parquet, so that any run on the data can be compared.
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
LARGE_TOKENS = 20_000_000
"""Number of tokens above which fitting baselines takes minutes."""
LOCAL_FOLDER, LOCAL = "local", "local network"
"""Folder inside the run folder, and name, of the network without its encoder (`nested_runs`)."""
DELIVERED = "delivered"
NETWORKS = (LOCAL, combination.NETWORK)
"""Names of rows in the comparison that are not baselines."""

Row = tuple[str, str, Predictions]
"""A row of the comparison: name, description, and predictions for the test records."""


def evaluate_parts(
    experiment: Experiment, task: Task, predictions: Mapping[str, Predictions]
) -> dict[str, Evaluation]:
    """The scores of each predicted part."""
    return {
        part: summarise(rows.of_task(task, part), task.target, experiment, part) for part, rows in predictions.items()
    }


def write_results(
    folder: Path,
    task: Task,
    weights: Mapping[str, Tensor],
    evaluations: Mapping[str, Evaluation],
    predictions: Mapping[str, Predictions],
) -> None:
    """Write the weights, the meaning of the outputs, scores, predictions and the manifest."""
    combined = [combination.FILE, combination.BASELINE]  # of an earlier end of this run; they will be fitted again
    for name in {*combined} & {*files.recorded(folder)}:
        (folder / name).unlink(missing_ok=True)
    files.unrecord(folder, combined)
    provenance = [PROVENANCE] if (folder / PROVENANCE).exists() else []
    files.write_manifest(folder, [CONFIG, JOURNAL, *provenance])
    files.write_recorded(folder, {WEIGHTS: files.tensor_bytes(weights), **task_documents(task, predictions)})
    for part, evaluation in evaluations.items():
        save_evaluation(folder, evaluation, predictions[part].of_task(task, part))


def task_documents(task: Task, predictions: Mapping[str, Predictions]) -> dict[str, bytes]:
    """Contents by file name: the task's documents, labels.json with a temperature fitted on the validation set, and
    the hashes of training and validation records."""
    documents = task.documents()
    if not documents:
        return {}
    versions = {"chordmixer": __version__, "python": platform.python_version(), "torch": torch.__version__}
    documents["data.json"]["versions"] = versions
    written = {name: files.json_bytes(content) for name, content in documents.items()}
    if isinstance(task.target, TokenTarget):  # predicts tokens, so that records have no labels
        return written
    tokenizer = documents["tokenizer.json"]["tokenizer"]
    output_labels = OutputLabels(task.target, tokenizer, both_strands=task.complement is not None)  # type: ignore[arg-type]
    written |= _labels_file(output_labels, predictions["validation"])
    return {**written, leakage.SEEN_FILE: leakage.pack_seen(task.seen())} if isinstance(task, Files) else written


def _labels_file(output_labels: OutputLabels, validation: Predictions) -> dict[str, bytes]:
    """labels.json with a temperature fitted on the validation records; regression has none."""
    if not isinstance(output_labels.target, Regression):
        temperature = fit_temperature(output_labels.unweighted(validation.outputs), validation.targets)
        output_labels = replace(output_labels, temperature=temperature)
    return {labels.FILE: files.json_bytes(output_labels.to_json())}


# --- Comparison with baselines ---


def compare(
    run: Path | str,
    cache: Path | str | None = None,
    *,
    deliver: bool = False,
    announce: bool = True,
) -> list[Evaluation]:
    """Fit baselines to the data of a run, score them on its test part, and write baselines.json.

    With `deliver`, the run then predicts with its network, its best baseline or both, whichever is best on the
    validation records. Its scores become those of that choice, and the network alone is one of the compared rows.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    if experiment.task not in ("files", "masking", "variants"):
        raise ValueError(f"{folder} is a run of {experiment.task}, which has no baselines: give a run on files")
    task: Any = experiment.build_task()
    if experiment.task == "variants":
        rows = [_row(task, baseline) for baseline in fit_variant_baselines(task)]
        return write_baselines(folder, experiment, task.target, rows)
    if announce and len(task.store.values) > LARGE_TOKENS:
        logger.info("baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines")
    if experiment.task == "masking":
        return write_baselines(folder, experiment, task.target, _markov_rows(task, experiment))
    fitted = list(_fit_file_baselines(task))
    rows = [_row(task, baseline) for baseline in fitted]
    candidates = (baseline for baseline in fitted if baseline.fitted)
    best = min(candidates, key=lambda baseline: baseline.loss, default=None)
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
        groups=_groups(task),
    )


def _groups(task: Files) -> np.ndarray | None:
    """A group for each training record: its own group, or that of its exact copies; None if more belong together."""
    if task.split.method == "similarity":
        return None
    groups = task.groups("training")
    if groups is not None:
        return groups
    return leakage.copies(leakage.digests(task.tokens("training"), canonical=task.kind == "dna"))


def _row(task: Any, baseline: Baseline) -> Row:
    test = task.records("test")
    names, lengths, targets = [test.name(i) for i in range(len(test))], np.array(test.lengths), test.targets.numpy()
    predictions = Predictions(names, lengths, targets, baseline.outputs, task.groups("test"))
    return baseline.name, baseline.sentence, predictions


def _markov_rows(task: Masking, experiment: Experiment) -> Iterator[Row]:
    """The rows of Markov chains, for the same masked tokens as the network's."""
    test, config, cpu = task.records("test"), experiment.training, torch.device("cpu")
    for chain_ in task.baselines():
        rows = predict_records(chain_, test, config, cpu, task.target, alone=True)  # type: ignore[arg-type]  # frozen
        yield chain_.name, chain_.sentence, rows


def _deliver(folder: Path, experiment: Experiment, task: Files, best: Baseline) -> Row:
    """Fit and store the combination, score its predictions, and return the row of the network alone."""
    network = {part: Predictions.read(folder / predictions_file(part)) for part in ("validation", "test")}
    assert best.fitted is not None, "the baseline predicts new sequences"
    target: Any = task.target
    validation, tokens = network["validation"], {part: task.tokens(part) for part in network}
    combined = combination.fit_combination(
        target,
        validation.outputs,
        validation.targets,
        best.fitted,
        best.name,
        tokens["validation"],
        task.complement,
    )
    contents = combined.contents()
    for part, alone in network.items():
        predictions = replace(alone, outputs=combined.outputs(alone.outputs, tokens[part]))
        evaluation = replace(summarise(predictions, target, experiment, part), encoder=combined.title)
        contents |= evaluation_contents(evaluation, predictions)
        if part == "validation":
            contents |= _labels_file(OutputLabels.load(folder), predictions)
    with RunLock(folder, WAIT):
        files.write_recorded(folder, contents)
    sentence = f"the trained network ({experiment.model.encoder}) without the baseline"
    return combination.NETWORK, sentence, network["test"]


def write_baselines(folder: Path, experiment: Experiment, target: Target, rows: Iterable[Row]) -> list[Evaluation]:
    """Score the rows as a run is scored; write baselines.json and baselines.parquet."""
    rows = list(rows)
    scored = [
        replace(summarise(predictions, target, experiment, "test"), encoder=name) for name, _, predictions in rows
    ]
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
    """Add the paired difference of each baseline, and the ladder, to baselines.json."""
    document = files.read_json(folder / BASELINES)
    by_name = differences([folder], target, target.headline)
    for row in document["baselines"]:
        row["difference"] = asdict(by_name[row["name"]]) if row["name"] in by_name else None
    document["ladder"] = [asdict(step) for step in ladder_steps(folder, target)]
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {BASELINES: files.json_bytes(document)})


def baseline_rows(baselines: Mapping[str, Predictions]) -> bytes:
    """The bytes of baselines.parquet: the baseline's name, then the columns of its predictions."""
    tables = [rows.columns() for rows in baselines.values()]
    names = [[name] * len(rows.names) for name, rows in baselines.items()]
    columns = {key: list(chain(*(table[key] for table in tables))) for key in tables[0]}
    return parquet_bytes({"baseline": list(chain(*names)), **columns})


def read_baseline_rows(folder: Path) -> dict[str, Predictions]:
    """The predictions of each baseline by its name; empty if the run has no baselines.parquet."""
    path = folder / BASELINE_ROWS
    return read_table(path, _by_baseline) if path.exists() else {}


def _by_baseline(rows: pa.Table) -> dict[str, Predictions]:
    names = np.array(rows.column("baseline").to_pylist(), dtype=object)
    return {name: Predictions.of_table(rows.filter(names == name)) for name in dict.fromkeys(names.tolist())}


def differences(runs: Sequence[Path], target: Target, metric: str) -> dict[str, Difference]:
    """The score of a model minus the score of each baseline, with a paired interval, by the baseline's name.

    `runs` are runs of one model with different seeds; their scores are averaged. A baseline that predicted other
    records is left out.
    """
    if not runs or not all((run / MODEL_ROWS).exists() for run in runs):
        return {}
    models, baselines = [Predictions.read(run / MODEL_ROWS) for run in runs], read_baseline_rows(runs[0])
    sample = models[0].sample(target)
    return {
        name: sample.difference(metric, [model.outputs for model in models], baseline.outputs)
        for name, baseline in baselines.items()
        if all(baseline.same_records(model) for model in models)
    }


@dataclass(frozen=True)
class LadderStep:
    """A method on the ladder, and its gain over the method before it."""

    name: str
    gain: Difference | None = None
    """Gain in the headline metric; None for the first method."""


def ladder_steps(run: Path, target: Target) -> list[LadderStep]:
    """The ladder from the best baseline to the delivered prediction; empty if the run stores no baseline."""
    document = combination.read_document(run)
    rows = read_baseline_rows(run) if document else {}
    if document is None or document.baseline not in rows:
        return []
    steps = {name: rows[name] for name in (document.baseline, *NETWORKS) if name in rows}
    if document.using == "both":
        steps[DELIVERED] = Predictions.read(run / MODEL_ROWS)
    sample, names = steps[document.baseline].sample(target), list(steps)
    gains = [
        sample.difference(target.headline, [steps[after].outputs], steps[before].outputs)
        for before, after in pairwise(names)
    ]
    return [LadderStep(names[0]), *map(LadderStep, names[1:], gains)]
