"""What a finished run leaves beside its scores: what its outputs mean, and plain baselines on the same records."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from chordmixer import files
from chordmixer.data import seen
from chordmixer.tasks import Target, Task
from chordmixer.tasks.files import Files
from chordmixer.tasks.masking import Masking
from chordmixer.tasks.targets import Regression, TokenTarget
from chordmixer.terminal import tell
from chordmixer.training import answers, paired, provenance
from chordmixer.training.answers import Answers
from chordmixer.training.calibration import temperature
from chordmixer.training.evaluation import Evaluation, Predictions, predict_records, save_evaluation, summarise
from chordmixer.training.experiment import Experiment
from chordmixer.training.plain import plain_baselines
from chordmixer.training.run_folder import CONFIG, JOURNAL, WAIT, WEIGHTS, RunLock
from chordmixer.version import __version__

BASELINES = "baselines.json"
LONG = 20_000_000
"""Tokens from which on baselines take long enough to say so."""


def evaluate(experiment: Experiment, task: Task, predictions: Mapping[str, Predictions]) -> dict[str, Evaluation]:
    """The scores of each part that was predicted."""
    return {
        part: summarise(own.of_task(task, part), task.target, experiment, part) for part, own in predictions.items()
    }


def write(
    folder: Path,
    task: Task,
    weights: Mapping[str, Tensor],
    evaluations: Mapping[str, Evaluation],
    predictions: Mapping[str, Predictions],
) -> None:
    """The model, what its outputs mean, its scores and predictions, and a manifest of it all."""
    how = [provenance.FILE] if (folder / provenance.FILE).exists() else []
    files.write_manifest(folder, [CONFIG, JOURNAL, *how])
    files.write_recorded(folder, {WEIGHTS: files.tensor_bytes(weights), **_documents(task, predictions)})
    for part, evaluation in evaluations.items():
        save_evaluation(folder, evaluation, predictions[part].of_task(task, part))


def _documents(task: Task, predictions: Mapping[str, Predictions]) -> dict[str, bytes]:
    """What a task says of its data, labels.json with a temperature that the validation set gives, and of files the
    hashes of the records seen."""
    documents = task.documents()
    if not documents:
        return {}
    versions = {"chordmixer": __version__, "python": platform.python_version(), "torch": torch.__version__}
    documents["data.json"]["versions"] = versions
    written = {name: files.json_bytes(content) for name, content in documents.items()}
    if isinstance(task.target, TokenTarget):  # no answers about records
        return written
    tokenizer = documents["tokenizer.json"]["tokenizer"]
    known = Answers(task.target, tokenizer, both_strands=task.complement is not None)  # type: ignore[arg-type]
    if not isinstance(known.target, Regression):
        own = predictions["validation"]
        known = replace(known, temperature=temperature(known.unweighted(own.outputs), own.targets))
    written |= {answers.FILE: files.json_bytes(known.to_json())}
    return {**written, seen.FILE: seen.packed(task.seen())} if isinstance(task, Files) else written


def compare(run: Path | str, say: Callable[[str], None] = tell, cache: Path | str | None = None) -> list[Evaluation]:
    """Score plain baselines on the test part of a run on files, by the same code; leaves baselines.json."""
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    task = experiment.build_task()
    if not isinstance(task, Files | Masking):
        raise ValueError(f"{folder} is a run of {experiment.task}, which has no plain baselines: give a run on files")
    if len(task.store.values) > LONG:
        say("plain baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines")
    baselines = _plain(task) if isinstance(task, Files) else _markov(task, experiment)
    return write_baselines(folder, experiment, task.target, baselines)


Baseline = tuple[str, str, Predictions]
"""Its name, what it does, and its answers to the test records."""


def write_baselines(
    folder: Path, experiment: Experiment, target: Target, baselines: Iterable[Baseline]
) -> list[Evaluation]:
    """Score them by the model's own code and compare the model with each, record by record.

    Leaves baselines.json, and their answers in baselines.parquet.
    """
    known = list(baselines)
    scored = [replace(summarise(own, target, experiment, "test"), encoder=name) for name, _, own in known]
    rows = [
        {"name": name, "sentence": sentence, "evaluation": asdict(evaluation)}
        for (name, sentence, _), evaluation in zip(known, scored, strict=True)
    ]
    answered = paired.packed({name: predictions for name, _, predictions in known})
    with RunLock(folder, WAIT):
        files.write_recorded(
            folder, {BASELINES: files.json_bytes({"format": 1, "baselines": rows}), paired.ROWS: answered}
        )
    write_differences(folder, target)
    return scored


def write_differences(folder: Path, target: Target) -> None:
    """Put the model's difference to each baseline, where both answered the same records, into baselines.json."""
    written = files.read_json(folder / BASELINES)
    found = paired.differences([folder], target, target.headline)
    for row in written["baselines"]:
        row["difference"] = asdict(found[row["name"]]) if row["name"] in found else None
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {BASELINES: files.json_bytes(written)})


def _plain(task: Files) -> Iterator[Baseline]:
    test = task.records("test")
    names, lengths = [test.name(i) for i in range(len(test))], task.store.lengths[test.indices]
    for plain in plain_baselines(
        [task.store.tokens(i) for i in task.question.records],
        task.store.lengths[task.question.records],
        task.question.targets,
        task.split.parts,
        task.target,
        task.kind,
    ):
        targets, groups = task.question.targets[task.split.test], task.groups("test")
        yield plain.name, plain.sentence, Predictions(names, lengths, targets, plain.outputs, groups)


def _markov(task: Masking, experiment: Experiment) -> Iterator[Baseline]:
    """They are asked as the model was: shown the same tokens, and counted by the same code."""
    test, config, cpu = task.records("test"), experiment.training, torch.device("cpu")
    for chain in task.baselines():
        answers = predict_records(chain, test, config, cpu, task.target, alone=True)  # type: ignore[arg-type]  # frozen
        yield chain.name, chain.sentence, answers
