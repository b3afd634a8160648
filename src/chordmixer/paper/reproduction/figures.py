"""The figures that need no training: each is drawn from what was given, with its numbers in words."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chordmixer.data.inspection import inspect
from chordmixer.data.reading import Reading, file_label
from chordmixer.data.store_cache import cache_folder, gather
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.paper.reproduction.entries import Figure
from chordmixer.paper.reproduction.page import PageContent, table
from chordmixer.paper.views import attention as matrices
from chordmixer.paper.views import reach as walks
from chordmixer.paper.views import tradeoff as circles
from chordmixer.recipes import load
from chordmixer.training import Experiment
from chordmixer.training.devices import format_bytes
from chordmixer.views import inspection as histograms

LENGTHS = (40, 240, 1006)
"""Of the paper's three examples."""

Say = Callable[[str], None]
Drawn = tuple[list[str], dict[str, Any], dict[str, bytes]]
"""Lines of Markdown, numbers, and pictures by name."""


def figure(name: str, entry: Figure, paths: Sequence[str], say: Say, unverified: bool = False) -> PageContent:
    """Draw an entry."""
    body, numbers, pictures = load(entry.draw)(paths, say, unverified)
    return PageContent(name, entry, body, numbers, differences=list(entry.differences), pictures=pictures)


def reach(paths: Sequence[str], say: Say, unverified: bool = False) -> Drawn:
    """Where a random walk ends."""
    walked = walks.reach()
    numbers = {"length": walked.length, "hops": walked.hops, "mean": walked.mean, "deviation": walked.deviation}
    rows = [["mean", f"{walked.mean:.2e}", "2e-4"], ["standard deviation", f"{walked.deviation:.2e}", "3e-5"]]
    body = table([f"after {walked.hops} hops, N = {walked.length:,}", "here", "the paper"], rows)
    return body, numbers, {"": _png(lambda path: walks.plot(walked, path))}


def attention(paths: Sequence[str], say: Say, unverified: bool = False) -> Drawn:
    """What blocks of a trained model make of three sequences."""
    run = Path(paths[0])
    experiment = Experiment.load(run, unverified=unverified)
    if experiment.task != "adding":
        raise ValueError(
            f"{run} is a run of {experiment.task}, whose marked positions nobody knows: give one of adding"
        )
    if not (run / "model.safetensors").exists():
        raise ValueError(f"{run} has no model yet: its training is not finished; go on with it first")
    shown, track = matrices.examples(run, LENGTHS, unverified=unverified), experiment.model.network.track_size
    rows, found = [], []
    for example in shown:
        for layer, matrix in example.layers[1:]:
            places = matrices.ranks(matrix, track, example.marked)
            rows.append([example.title, layer, " and ".join(f"{place:,}" for place in places)])
            found.append({"sequence": example.title, "layer": layer, "marked": example.marked, "ranks": places})
    body = [
        f"Base length {experiment.data.base_length:,}. The place of the two marked positions among all positions, "
        "by how far the top track is from the median: 1 stands out most.",
        "",
        *table(["sequence", "matrix", "place of the marked"], rows),
    ]
    return body, {"sequences": found}, {"": _png(lambda path: matrices.plot(shown, track, path))}


def lengths(paths: Sequence[str], say: Say, unverified: bool = False) -> Drawn:
    """A histogram a data set."""
    rows, found, pictures = [], [], {}
    for number, path in enumerate(paths, 1):
        store, _ = gather([path], Reading(on_unmatched="reject"), TokenizerConfig(), cache_folder(), say)
        seen, name = inspect(store), file_label(path)
        pictures[f"{number}-{name}"] = _png(lambda at, seen=seen: histograms.plot(seen, at))  # type: ignore[misc]
        marks = [seen.percentiles[p] for p in (0, 50, 90, 99, 100)]
        rows.append([name, f"{seen.records:,}", *(f"{mark:,}" for mark in marks)])
        found.append({"name": name, "records": seen.records, "percentiles": seen.percentiles})
    return (
        table(["data set", "records", "shortest", "median", "90 %", "99 %", "longest"], rows),
        {"sets": found},
        pictures,
    )


def tradeoff(paths: Sequence[str], say: Say, unverified: bool = False) -> Drawn:
    """Trained runs at work: a circle each."""
    points = []
    for path in paths:
        say(f"measuring {path}")
        points.append(circles.measure(Path(path), unverified=unverified))
    metrics = {point.metric for point in points}
    if len(metrics) > 1:
        raise ValueError(f"the runs are scored by {' and '.join(sorted(metrics))}: give runs of one task")
    rows = [
        [point.name, f"{100 * point.score:.2f}", f"{point.speed:,.1f}", format_bytes(point.memory)]
        for point in points
    ]
    body = table(["model", f"{points[0].metric}, %", "sequences a second", "memory of a batch"], rows)
    return body, {"models": [asdict(p) for p in points]}, {"": _png(lambda path: circles.plot(points, path))}


def _png(draw: Callable[[Path], Path]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return draw(Path(folder) / "picture.png").read_bytes()
