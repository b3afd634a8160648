"""What a finished run leaves beside its scores: what its outputs mean, and baselines on the same records."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor

from chordmixer import files
from chordmixer.data import leakage
from chordmixer.data.features import TextWords
from chordmixer.tasks import Target, Task
from chordmixer.tasks.files import Files
from chordmixer.tasks.masking import Masking
from chordmixer.tasks.targets import Regression, TokenTarget
from chordmixer.terminal import tell
from chordmixer.training import answers, baselines, delivery, ladder, paired
from chordmixer.training.answers import Answers
from chordmixer.training.calibration import temperature
from chordmixer.training.evaluation import (
    Evaluation,
    Predictions,
    evaluation_contents,
    predict_records,
    predictions_file,
    save_evaluation,
    summarise,
)
from chordmixer.training.experiment import Experiment
from chordmixer.training.run_folder import CONFIG, JOURNAL, PROVENANCE, WAIT, WEIGHTS, RunLock
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
    """The network, what its outputs mean, its scores and predictions, and a manifest of it all."""
    _forget_delivery(folder)
    how = [PROVENANCE] if (folder / PROVENANCE).exists() else []
    files.write_manifest(folder, [CONFIG, JOURNAL, *how])
    files.write_recorded(folder, {WEIGHTS: files.tensor_bytes(weights), **documents(task, predictions)})
    for part, evaluation in evaluations.items():
        save_evaluation(folder, evaluation, predictions[part].of_task(task, part))


def _forget_delivery(folder: Path) -> None:
    """Of a run that is finished once more: its baseline is fitted again, and until then the network answers."""
    for name in {delivery.FILE, delivery.BASELINE} & {*files.recorded(folder)}:
        (folder / name).unlink(missing_ok=True)
    files.unrecord(folder, [delivery.FILE, delivery.BASELINE])


def documents(task: Task, predictions: Mapping[str, Predictions]) -> dict[str, bytes]:
    """What a task says of its data, labels.json with a temperature that the validation set gives, and of files the
    hashes of the records seen."""
    said = task.documents()
    if not said:
        return {}
    versions = {"chordmixer": __version__, "python": platform.python_version(), "torch": torch.__version__}
    said["data.json"]["versions"] = versions
    written = {name: files.json_bytes(content) for name, content in said.items()}
    if isinstance(task.target, TokenTarget):  # no answers about records
        return written
    tokenizer = said["tokenizer.json"]["tokenizer"]
    known = Answers(task.target, tokenizer, both_strands=task.complement is not None)  # type: ignore[arg-type]
    written |= {answers.FILE: files.json_bytes(_calibrated(known, predictions["validation"]).to_json())}
    return {**written, leakage.SEEN_FILE: leakage.pack_seen(task.seen())} if isinstance(task, Files) else written


def _calibrated(known: Answers, validation: Predictions) -> Answers:
    """With the temperature that suits the validation records; numbers have none."""
    if isinstance(known.target, Regression):
        return known
    return replace(known, temperature=temperature(known.unweighted(validation.outputs), validation.targets))


def compare(
    run: Path | str,
    say: Callable[[str], None] = tell,
    cache: Path | str | None = None,
    *,
    deliver: bool = False,
) -> list[Evaluation]:
    """Score baselines on the test part of a run on files, by the same code; leaves baselines.json.

    With `deliver`, the run from now on answers with its network, its best baseline or both, as the validation records
    choose; its scores are then those of that answer, and the network alone stands among the rows beside it.
    """
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    task = experiment.build_task()
    if not isinstance(task, Files | Masking):
        raise ValueError(f"{folder} is a run of {experiment.task}, which has no baselines: give a run on files")
    if len(task.store.values) > LONG:
        say("baselines on the same split, on the CPU: minutes with much data; leave them out: --no-baselines")
    if isinstance(task, Masking):
        return write_baselines(folder, experiment, task.target, _markov(task, experiment))
    fitted = list(_fitted(task))
    rows = [(own.name, own.sentence, _of_test(task, own.outputs)) for own in fitted]
    best = min((own for own in fitted if own.fitted), key=lambda own: own.loss, default=None)
    if deliver and best is not None and not (folder / delivery.FILE).exists():
        rows.append(_deliver(folder, experiment, task, best))
        rows += ladder.rows(folder)
    return write_baselines(folder, experiment, task.target, rows)


Row = tuple[str, str, Predictions]
"""What the run is compared with: its name, what it does, and its answers to the test records."""


def write_baselines(
    folder: Path, experiment: Experiment, target: Target, compared: Iterable[Row]
) -> list[Evaluation]:
    """Score them by the model's own code and compare the model with each, record by record.

    Leaves baselines.json, and their answers in baselines.parquet.
    """
    known = list(compared)
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
    """Put the model's difference to each baseline, where both answered the same records, into baselines.json, and
    what each step from the baseline to the delivered answer adds."""
    written = files.read_json(folder / BASELINES)
    found = paired.differences([folder], target, target.headline)
    for row in written["baselines"]:
        row["difference"] = asdict(found[row["name"]]) if row["name"] in found else None
    written["ladder"] = [asdict(step) for step in ladder.steps(folder, target)]
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {BASELINES: files.json_bytes(written)})


def _fitted(task: Files) -> Iterator[baselines.Baseline]:
    yield from baselines.fit_baselines(
        [task.store.tokens(i) for i in task.question.records],
        task.store.lengths[task.question.records],
        task.question.targets,
        task.split.parts,
        task.target,
        task.kind,
        words=TextWords.of(task.store.tokenizer),
    )


def _of_test(task: Files, outputs: ndarray) -> Predictions:
    test = task.records("test")
    names, lengths = [test.name(i) for i in range(len(test))], task.store.lengths[test.indices]
    return Predictions(names, lengths, task.question.targets[task.split.test], outputs, task.groups("test"))


def _deliver(folder: Path, experiment: Experiment, task: Files, best: baselines.Baseline) -> Row:
    """Fit and keep the combination; the scores become those of its answers. The network alone is a row beside it."""
    network = {part: Predictions.read(folder / predictions_file(part)) for part in ("validation", "test")}
    target: Any = task.target
    own = network["validation"]
    found = delivery.fit(target, own.outputs, own.targets, best, task.tokens("validation"), task.complement)
    contents = found.contents()
    for part, alone in network.items():
        answered = replace(alone, outputs=found.outputs(alone.outputs, task.tokens(part)))
        scored = replace(summarise(answered, target, experiment, part), encoder=found.title)
        contents |= evaluation_contents(scored, answered)
        if part == "validation":
            contents |= {answers.FILE: files.json_bytes(_calibrated(Answers.load(folder), answered).to_json())}
    with RunLock(folder, WAIT):
        files.write_recorded(folder, contents)
    return delivery.NETWORK, f"the trained network ({experiment.model.encoder}) without the baseline", network["test"]


def _markov(task: Masking, experiment: Experiment) -> Iterator[Row]:
    """They are asked as the model was: shown the same tokens, and counted by the same code."""
    test, config, cpu = task.records("test"), experiment.training, torch.device("cpu")
    for chain in task.baselines():
        answers = predict_records(chain, test, config, cpu, task.target, alone=True)  # type: ignore[arg-type]  # frozen
        yield chain.name, chain.sentence, answers
