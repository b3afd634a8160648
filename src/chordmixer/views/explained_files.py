"""`explain` on files: values by position as .bedgraph or .tsv, or one page with pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer import files
from chordmixer.data.entries import Account, Entry
from chordmixer.data.reading import Reading, read
from chordmixer.training import outputs, speed
from chordmixer.training.attribution import runs
from chordmixer.training.combination import Using
from chordmixer.training.ensemble_inference import open_run
from chordmixer.training.explanation import BLOCKS, Explanation, Method, explain
from chordmixer.training.inference import OnBad, OverLength, Trained
from chordmixer.training.rows import to_stderr, unlabelled
from chordmixer.views import explanations
from chordmixer.views.explanations import Picture

KINDS = (".bedgraph", ".bedGraph", ".tsv", ".html")
SHOWN = 20
"""Records with a place on a page."""


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
    say: Callable[[str], None] = to_stderr,
) -> Account:
    """Write where in each record the answer of a run came from; the ending of `out` says how.

    `.bedgraph`: a line for each stretch of one value, with the record's id, start (from 0), end and value. `.tsv`: a
    line for each position (from 1), with its letter or sample. `.html`: a page on the first 20 records.
    """
    outputs.check(out, paths, KINDS, False, force)
    engine = open_run(run, device, batch_tokens, using=using, unverified=unverified)
    account = Account()
    entries = read(paths, unlabelled(reading or Reading()), account)
    shown = islice(entries, SHOWN) if Path(out).suffix == ".html" else entries
    how: dict[str, Any] = {"method": method, "target": target, "blocks": blocks, "over_length": over_length}
    found = explain(engine, shown, on_bad=on_bad, account=account, say=say, **how)
    if chosen := speed.threads_line():
        say(chosen)
    if Path(out).suffix == ".html":
        _write_page(Path(out), engine, found, entries, method, say)
    else:
        column = "sample" if engine.tokenizer.dtype.kind == "f" else "letter"
        lines = tsv(found, column) if Path(out).suffix == ".tsv" else bedgraph(found)
        with files.explaining_no_room(Path(out), "more", ""), files.replacing(Path(out), sweeping=True) as file:
            file.writelines(line.encode() for line in lines)
    return account


def bedgraph(found: Iterable[Explanation]) -> Iterator[str]:
    """Lines from 0, half-open, in the order of the records; neighbours of one value are one line."""
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
    """A header, then a line a position, from 1; a tab or line break of a text is written as an escape."""
    yield f"id\tposition\t{column}\tvalue\n"
    for own in found:
        name, values = _cell(own.entry.id), own.by_letter.tolist()
        for place, (sample, value) in enumerate(zip(_samples(own), values, strict=True), 1):
            yield f"{name}\t{place}\t{sample}\t{value:.6g}\n"


def _samples(own: Explanation) -> Iterator[str]:
    """Letters, or the numbers of all channels with commas between them."""
    if own.letters is not None:
        return map(_cell, own.letters)
    rows: ndarray = np.asarray(own.sequence).reshape(len(own.values), -1)
    return (",".join(f"{value:.6g}" for value in row) for row in rows.tolist())


def _cell(text: str) -> str:
    r"""
    >>> _cell("a\tb")
    'a\\tb'
    """
    return text.translate({9: "\\t", 10: "\\n", 13: "\\r"})


def _write_page(
    out: Path,
    engine: Trained,
    found: Iterator[Explanation],
    rest: Iterator[Entry],
    method: Method,
    say: Callable[[str], None],
) -> None:
    pictures = [Picture.of(own) for own in found]
    more = sum(1 for _ in rest)
    if more:
        say(f"{more:,} more records are not shown: a page has the first {SHOWN}; a .tsv or .bedgraph file has all")
    title = f"Where the answers of {engine.folder.resolve().name} came from"
    how = {
        "occlusion": "Each part of a record was hidden in turn, and the run was asked again.",
        "gradients": "Estimated by the gradients of the run's network, in one pass; a baseline has no part in it.",
    }
    files.write_text(out, explanations.document(title, [how[method]], pictures, more))
