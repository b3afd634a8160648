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

KINDS = (".bedgraph", ".bedGraph", ".tsv", ".html")
SHOWN = 20  # records on a page of `explain`
RIGHT = 3  # correct predictions that a report explains, each of another class; then one wrong prediction
LEAST = 16  # minimum number of blocks that a test record is hidden in: records too long for that are left out
WORK, TOKENS = 15e9, 150_000
"""Maximum number of multiplications and of predicted tokens for a report: about three seconds of one core."""
SERIES = 100_000  # approximate multiplications per sample of the baseline of series
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

    check_output(out, paths, KINDS, force=force)
    engine = open_run(run, device, batch_tokens, using=using, unverified=unverified)
    account = Account()
    entries = read(paths, (reading or Reading()).unlabelled, account)
    shown = islice(entries, SHOWN) if Path(out).suffix == ".html" else entries
    how: dict[str, Any] = {"method": method, "target": target, "blocks": blocks, "over_length": over_length}
    found = explain(engine, shown, on_bad=on_bad, account=account, **how)
    if chosen := speed.threads_line():
        logger.info(chosen)
    if Path(out).suffix == ".html":
        _write_page(Path(out), engine, found, entries, method)
    else:
        column = "sample" if engine.tokenizer.dtype.kind == "f" else "letter"
        lines = tsv(found, column) if Path(out).suffix == ".tsv" else bedgraph(found)
        with files.explaining_no_room(Path(out), "more", ""), files.replacing(Path(out), sweeping=True) as file:
            file.writelines(line.encode() for line in lines)
    return account


def bedgraph(found: Iterable[Explanation]) -> Iterator[str]:
    """Half-open intervals from 0, in the order of the records; neighbours of equal value are one line."""
    before = set()
    for own in found:
        name = own.entry.id
        if not name or any(c.isspace() or not c.isprintable() for c in name):
            raise ValueError(f"id {name!r} cannot stand in a bedGraph: it needs one word; write .tsv, or rename it")
        if name in before:
            raise ValueError(
                f"id {name} occurs twice: a bedGraph has one record of a name; write .tsv, or rename one"
            )
        before.add(name)
        values = own.by_letter
        for a, b in pairwise(runs(values).tolist()):
            yield f"{name}\t{a}\t{b}\t{values[a]:.6g}\n"


def tsv(found: Iterable[Explanation], column: str = "letter") -> Iterator[str]:
    """A header, then one line per position, from 1; a tab or line break of a text is written as an escape."""
    yield f"id\tposition\t{column}\tvalue\n"
    for own in found:
        name, values = _cell(own.entry.id), own.by_letter.tolist()
        for place, (sample, value) in enumerate(zip(_samples(own), values, strict=True), 1):
            yield f"{name}\t{place}\t{sample}\t{value:.6g}\n"


def _samples(own: Explanation) -> Iterator[str]:
    """Letters, or the numbers of all channels, separated by commas."""
    if own.letters is not None:
        return map(_cell, own.letters)
    rows: ndarray = np.asarray(own.sequence).reshape(len(own.values), -1)
    return (",".join(f"{value:.6g}" for value in row) for row in rows.tolist())


def _cell(text: str) -> str:
    return text.translate({9: "\\t", 10: "\\n", 13: "\\r"})


def _write_page(
    out: Path,
    engine: Engine,
    found: Iterator[Explanation],
    rest: Iterator[Entry],
    method: Method,
) -> None:
    pictures = [Picture.of(own) for own in found]
    more = sum(1 for _ in rest)
    if more:
        logger.info(
            f"{more:,} more records are not shown: a page has the first {SHOWN}; a .tsv or .bedgraph file has all"
        )
    title = f"Explanations of the predictions of {engine.folder.resolve().name}"
    files.write_text(out, explanations.document(title, METHODS[method], pictures, more))


# --- Test records of a run ---


class ChosenRecord(NamedTuple):
    """A test record to explain."""

    record: int
    label: str | None  # the class or label to explain; None: the number
    said: str


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
    longest = allowed // ((RIGHT + 1) * (LEAST + 1))
    chosen = [*choose(engine.labels, predictions, predictions.lengths <= longest)]
    tokens = task.tokens("test")
    total = sum(len(tokens[own.record]) for own in chosen)
    blocks = min(BLOCKS, allowed // max(total, 1) - 1)
    pictures = []
    for own in chosen:
        name = predictions.names[own.record]
        entry = Entry(name, from_tokens(tokens[own.record], engine.tokenizer), f"test record {name}")
        pictures += [
            Picture.of(found, own.said) for found in explain(engine, [entry], target=own.label, blocks=blocks)
        ]
    made = Explained(tuple(pictures), (*_notes(predictions.lengths, longest, blocks, bool(chosen)),))
    with RunLock(folder, WAIT):
        files.write_recorded(folder, {EXPLANATIONS: files.json_bytes(to_dict(made))})
    return made


def affordable(engine: Engine) -> int:
    """The number of tokens that may be predicted."""
    cost = 0
    for own in engine.members:
        if own.network:
            parts: list[nn.Module | None] = [own.model.encoder, own.model.stem]
            weights = sum(p.numel() for part in parts if part is not None for p in part.parameters())
            cost += weights * (2 if own.both_strands else 1)
        if own.combined is not None and own.combined.using != "network" and own.tokenizer.dtype.kind == "f":
            cost += SERIES
    return int(min(TOKENS / len(engine.members), WORK / max(cost, 1)))


def _notes(lengths: ndarray, longest: int, blocks: int, some: bool) -> Iterator[str]:
    if some:
        yield (
            f"Each record was cut into at most {blocks} parts; each part was hidden in turn, and the prediction "
            "repeated."
        )
    if left_out := int((lengths > longest).sum()):
        yield (
            f"{left_out:,} of {len(lengths):,} test records are longer than {longest:,} tokens and left out; "
            "chordmixer explain has no such limit."
        )


def choose(answers: OutputLabels, predictions: Predictions, fits: ndarray) -> Iterator[ChosenRecord]:
    """Of records that fit: the most confident correct predictions of three classes, and the most confident error.

    Labels are treated like classes. Of numbers: the largest and the smallest prediction, and the largest error.
    """
    target = answers.target
    if isinstance(target, Regression):
        yield from _numbers(target, predictions, fits)
        return
    shares, decided = answers.probabilities(predictions.outputs), target.decided(predictions.outputs)
    true, given = predictions.targets > 0.5, decided
    if isinstance(target, Classification):
        classes = np.arange(target.outputs)
        true, given = predictions.targets[:, None] == classes, decided[:, None] == classes
    right = np.where(true & given & fits[:, None], shares, -1)
    wrong = np.where(~true & given & fits[:, None], shares, -1)
    frequent = np.argsort(-true.sum(axis=0), kind="stable")
    for label in [k for k in frequent.tolist() if right[:, k].max(initial=-1) >= 0][:RIGHT]:
        yield ChosenRecord(int(right[:, label].argmax()), target.labels[label], "That is correct.")
    if wrong.max(initial=-1) >= 0:
        index, label = divmod(int(wrong.argmax()), target.outputs)
        known = "the record does not have this label"
        if isinstance(target, Classification):
            known = f"the true class is {short(target.labels[int(predictions.targets[index])], 60)}"
        yield ChosenRecord(index, target.labels[label], f"That is wrong: {known}.")


def _numbers(target: Regression, predictions: Predictions, fits: ndarray) -> Iterator[ChosenRecord]:
    given, truth = target.values(predictions.outputs).astype(np.float64), predictions.targets.astype(np.float64)
    if not fits.any():
        return
    found = {
        "The largest prediction": np.where(fits, given, -np.inf).argmax(),
        "The smallest prediction": np.where(fits, -given, -np.inf).argmax(),
        "The prediction with the largest error": np.where(fits, np.abs(given - truth), -np.inf).argmax(),
    }
    for index in dict.fromkeys(int(own) for own in found.values()):
        name = next(name for name, own in found.items() if own == index)
        yield ChosenRecord(index, None, f"{name}; the true value is {metrics.number(truth[index])}.")
