"""Explain predictions: of files, for `explain`; of a few test records of a run, for its report.

Explanations of test records are kept in the run folder as explanations.json, so that the report needs neither the
data nor the network. The work is bounded by sizes alone, not by time, so that the same run gives the same file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray
from torch import nn

from chordmixer import files
from chordmixer.config import to_dict
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.tasks.files import Files
from chordmixer.tasks.targets import Classification, Regression
from chordmixer.training import speed
from chordmixer.training.combination import Using
from chordmixer.training.evaluation import Predictions, predictions_file
from chordmixer.training.experiment import Experiment
from chordmixer.training.explanation import BLOCKS, Explanation, Method, explain, from_tokens, runs
from chordmixer.training.inference import Engine, OnBad, OverLength, open_run
from chordmixer.training.labels import OutputLabels
from chordmixer.training.run_folder import EXPLANATIONS, WAIT, RunLock
from chordmixer.views import explanations, metrics
from chordmixer.views.explanations import Explained, Picture
from chordmixer.views.page import short

logger = logging.getLogger(__name__)

SUFFIXES = (".bedgraph", ".bedGraph", ".tsv", ".html")
MAX_SHOWN = 20  # number of records on a page of `explain`
CORRECT_RECORDS = 3  # number of correct predictions in a report, each of another class; it also has a wrong one
MIN_BLOCKS = 16  # minimum number of parts of a test record that are hidden in turn; longer records are left out
MAX_WORK, MAX_TOKENS = 15e9, 150_000
"""Maximum number of multiplications and of predicted tokens for a report: about three seconds on one core."""
SERIES_COST = 100_000  # approximate number of multiplications per sample of the baseline for series
METHODS = {
    "occlusion": "Each part of a record was hidden in turn, and the prediction repeated.",
    "gradients": "Estimated from the gradients of the run's network, in one pass, without the baseline.",
}


# --- Files ---


def explain_files(
    run: Path | str,
    paths: Sequence[Path | str],
    out: Path | str,
    *,
    method: Method = "occlusion",
    target: str | None = None,
    blocks: int = BLOCKS,
    over_length: OverLength = "error",
    on_bad: OnBad | None = None,
    reading: Reading | None = None,
    batch_tokens: int | None = None,
    device: str | None = None,
    using: Using | None = None,
    force: bool = False,
    unverified: bool = False,
) -> Account:
    """Write which parts of each record the prediction depends on; the ending of `out` is the format.

    `.bedgraph`: one line per stretch of equal values: the record's id, start (from 0), end and value. `.tsv`: one
    line per position (from 1), with its letter or sample. `.html`: a page on the first 20 records.
    """
    from chordmixer.training.output_files import check_output

    check_output(out, paths, SUFFIXES, force=force)
    engine = open_run(run, device, batch_tokens, using=using, unverified=unverified)
    account = Account()
    entries = read(paths, (reading or Reading()).unlabelled, account)
    selected = islice(entries, MAX_SHOWN) if Path(out).suffix == ".html" else entries
    options: dict[str, Any] = {"method": method, "target": target, "blocks": blocks, "over_length": over_length}
    explained = explain(engine, selected, on_bad=on_bad, account=account, **options)
    if chosen := speed.threads_line():
        logger.info(chosen)
    if Path(out).suffix == ".html":
        _write_page(Path(out), engine, explained, entries, method)
    else:
        column = "sample" if engine.tokenizer.dtype.kind == "f" else "letter"
        lines = tsv(explained, column) if Path(out).suffix == ".tsv" else bedgraph(explained)
        with files.explaining_no_room(Path(out), "more", ""), files.replacing(Path(out), sweeping=True) as file:
            file.writelines(line.encode() for line in lines)
    return account


def bedgraph(explanations: Iterable[Explanation]) -> Iterator[str]:
    """Format explanations as bedGraph: half-open intervals from 0, with neighbours of equal value on one line."""
    seen = set()
    for explanation in explanations:
        name = explanation.entry.id
        if not name or any(c.isspace() or not c.isprintable() for c in name):
            raise ValueError(f"id {name!r} cannot stand in a bedGraph: it needs one word; write .tsv, or rename it")
        if name in seen:
            raise ValueError(
                f"id {name} occurs twice: a bedGraph has one record of a name; write .tsv, or rename one"
            )
        seen.add(name)
        values = explanation.by_letter
        for a, b in pairwise(runs(values).tolist()):
            yield f"{name}\t{a}\t{b}\t{values[a]:.6g}\n"


def tsv(explanations: Iterable[Explanation], column: str = "letter") -> Iterator[str]:
    """Format explanations as TSV: a header, then one line per position, from 1; tabs and line breaks are escaped."""
    yield f"id\tposition\t{column}\tvalue\n"
    for explanation in explanations:
        name, values = _cell(explanation.entry.id), explanation.by_letter.tolist()
        for position, (sample, value) in enumerate(zip(_samples(explanation), values, strict=True), 1):
            yield f"{name}\t{position}\t{sample}\t{value:.6g}\n"


def _samples(explanation: Explanation) -> Iterator[str]:
    """Each letter, or the numbers of all channels of each sample, separated by commas."""
    if explanation.letters is not None:
        return map(_cell, explanation.letters)
    rows: ndarray = np.asarray(explanation.sequence).reshape(len(explanation.values), -1)
    return (",".join(f"{value:.6g}" for value in row) for row in rows.tolist())


def _cell(text: str) -> str:
    return text.translate({9: "\\t", 10: "\\n", 13: "\\r"})


def _write_page(
    out: Path,
    engine: Engine,
    explained: Iterator[Explanation],
    rest: Iterator[Entry],
    method: Method,
) -> None:
    pictures = [Picture.of(explanation) for explanation in explained]
    more = sum(1 for _ in rest)
    if more:
        logger.info(
            f"{more:,} more records are not shown: a page has the first {MAX_SHOWN}; a .tsv or .bedgraph file has all"
        )
    title = f"Explanations of the predictions of {engine.folder.resolve().name}"
    files.write_text(out, explanations.document(title, METHODS[method], pictures, more))


# --- Test records of a run ---


class ChosenRecord(NamedTuple):
    """A test record to explain."""

    record: int
    label: str | None  # the class or label to explain; None: the number
    sentence: str  # on whether the prediction is correct


def explain_tests(run: Path | str, cache: Path | str | None = None) -> Explained:
    """Explain some test records of a run on files, and write explanations.json into its folder."""
    folder = Path(run)
    experiment = Experiment.load(folder, cache=cache)
    task: Any = experiment.build_task()
    if not isinstance(task, Files):
        raise ValueError(f"{folder} is a run of {experiment.task}: only runs on files are explained")
    engine = open_run(folder, "cpu" if experiment.training.device == "cpu" else None)
    predictions = Predictions.read(folder / predictions_file("test"))
    allowed = affordable(engine)
    longest = allowed // ((CORRECT_RECORDS + 1) * (MIN_BLOCKS + 1))
    chosen = [*choose(engine.labels, predictions, predictions.lengths <= longest)]
    tokens = task.tokens("test")
    total = sum(len(tokens[choice.record]) for choice in chosen)
    blocks = min(BLOCKS, allowed // max(total, 1) - 1)
    pictures = []
    for choice in chosen:
        name = predictions.names[choice.record]
        entry = Entry(name, from_tokens(tokens[choice.record], engine.tokenizer), f"test record {name}")
        pictures += [
            Picture.of(explanation, choice.sentence)
            for explanation in explain(engine, [entry], target=choice.label, blocks=blocks)
        ]
    explained = Explained(tuple(pictures), (*_notes(predictions.lengths, longest, blocks, bool(chosen)),))
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {EXPLANATIONS: files.json_bytes(to_dict(explained))})
    return explained


def affordable(engine: Engine) -> int:
    """The number of tokens that may be predicted within `MAX_WORK` and `MAX_TOKENS`."""
    cost = 0
    for member in engine.members:
        if member.network:
            parts: list[nn.Module | None] = [member.model.encoder, member.model.stem]
            weights = sum(p.numel() for part in parts if part is not None for p in part.parameters())
            cost += weights * (2 if member.both_strands else 1)
        if member.combined is not None and member.combined.using != "network" and member.tokenizer.dtype.kind == "f":
            cost += SERIES_COST
    return int(min(MAX_TOKENS / len(engine.members), MAX_WORK / max(cost, 1)))


def _notes(lengths: ndarray, longest: int, blocks: int, any_chosen: bool) -> Iterator[str]:
    if any_chosen:
        yield (
            f"Each record was cut into at most {blocks} parts; each part was hidden in turn, and the prediction "
            "repeated."
        )
    if left_out := int((lengths > longest).sum()):
        yield (
            f"{left_out:,} of {len(lengths):,} test records are longer than {longest:,} tokens and left out; "
            "chordmixer explain has no such limit."
        )


def choose(output_labels: OutputLabels, predictions: Predictions, fits: ndarray) -> Iterator[ChosenRecord]:
    """Choose records to explain, among those that fit: confident correct predictions and the most confident error.

    The correct predictions are of up to three classes or labels. For numbers: the largest and the smallest
    prediction, and the largest error.
    """
    target = output_labels.target
    if isinstance(target, Regression):
        yield from _numbers(target, predictions, fits)
        return
    shares, decided = output_labels.probabilities(predictions.outputs), target.decided(predictions.outputs)
    is_true, predicted = predictions.targets > 0.5, decided
    if isinstance(target, Classification):
        classes = np.arange(target.outputs)
        is_true, predicted = predictions.targets[:, None] == classes, decided[:, None] == classes
    right = np.where(is_true & predicted & fits[:, None], shares, -1)
    wrong = np.where(~is_true & predicted & fits[:, None], shares, -1)
    frequent = np.argsort(-is_true.sum(axis=0), kind="stable")
    for label in [k for k in frequent.tolist() if right[:, k].max(initial=-1) >= 0][:CORRECT_RECORDS]:
        yield ChosenRecord(int(right[:, label].argmax()), target.labels[label], "That is correct.")
    if wrong.max(initial=-1) >= 0:
        index, label = divmod(int(wrong.argmax()), target.outputs)
        truth = "the record does not have this label"
        if isinstance(target, Classification):
            truth = f"the true class is {short(target.labels[int(predictions.targets[index])], 60)}"
        yield ChosenRecord(index, target.labels[label], f"That is wrong: {truth}.")


def _numbers(target: Regression, predictions: Predictions, fits: ndarray) -> Iterator[ChosenRecord]:
    predicted, truth = target.values(predictions.outputs).astype(np.float64), predictions.targets.astype(np.float64)
    if not fits.any():
        return
    extremes = {
        "The largest prediction": np.where(fits, predicted, -np.inf).argmax(),
        "The smallest prediction": np.where(fits, -predicted, -np.inf).argmax(),
        "The prediction with the largest error": np.where(fits, np.abs(predicted - truth), -np.inf).argmax(),
    }
    for index in dict.fromkeys(int(extreme) for extreme in extremes.values()):
        name = next(name for name, extreme in extremes.items() if extreme == index)
        yield ChosenRecord(index, None, f"{name}; the true value is {metrics.number(truth[index])}.")
