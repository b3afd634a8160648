"""The figures that need no training: each is drawn from data or trained runs, with its numbers in a table."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch.profiler import ProfilerActivity, profile

from chordmixer.data import Batch, Loader, TokenSampler
from chordmixer.data.inspection import inspect
from chordmixer.data.reading import Reading, file_label
from chordmixer.data.store_cache import cache_folder, gather
from chordmixer.data.tokenizers import TokenizerConfig
from chordmixer.models import Model
from chordmixer.paper.reproduction import attention as matrices
from chordmixer.paper.reproduction.entries import Figure
from chordmixer.paper.reproduction.page import PageContent, png, table
from chordmixer.recipes import load
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device, format_bytes
from chordmixer.views import plots
from chordmixer.views.plots import COLOURS
from chordmixer.views.runs import Run

logger = logging.getLogger(__name__)

LENGTHS = (40, 240, 1006)  # sequence lengths of the paper's three examples in figure 8
POSITIONS, BINS = 5000, 60  # positions in the paper's random walk, and bins of its histogram
SEQUENCES, SECONDS = 32, 5.0  # test sequences in a measured batch, and approximate duration of measuring
MAX_CIRCLE_AREA = 4_000.0  # in square points, of the model that needs most memory
LOG_SPEED_RATIO = 8.0  # ratio of fastest to slowest above which the axis of speed is logarithmic

FigureContent = tuple[list[str], dict[str, Any], dict[str, bytes]]
"""Lines of Markdown, numbers for JSON, and pictures (PNG) by name."""


def figure(name: str, entry: Figure, paths: Sequence[str], unverified: bool = False) -> PageContent:
    """Draw the figure of an entry."""
    body, numbers, pictures = load(entry.draw)(paths, unverified)
    return PageContent(name, entry, body, numbers, differences=list(entry.differences), pictures=pictures)


def reach(paths: Sequence[str], unverified: bool = False) -> FigureContent:
    """Figure 10: where a random walk in a Chord network ends."""
    hops, probabilities = random_walk(POSITIONS)
    mean, deviation = float(probabilities.mean()), float(probabilities.std())
    rows = [["mean", f"{mean:.2e}", "2e-4"], ["standard deviation", f"{deviation:.2e}", "3e-5"]]
    body = table([f"after {hops} hops, N = {POSITIONS:,}", "here", "the paper"], rows)
    numbers = {"length": POSITIONS, "hops": hops, "mean": mean, "deviation": deviation}
    return body, numbers, {"": png(partial(plot_walk, hops, probabilities))}


def attention(paths: Sequence[str], unverified: bool = False) -> FigureContent:
    """Figure 8: outputs of the first and last block of a trained model for three sequences."""
    run = Path(paths[0])
    experiment = Experiment.load(run, unverified=unverified)
    if experiment.task != "adding":
        raise ValueError(
            f"{run} is a run of {experiment.task}, whose marked positions nobody knows: give one of adding"
        )
    if not (run / "model.safetensors").exists():
        raise ValueError(f"{run} has no model yet: its training is not finished; go on with it first")
    examples, track = matrices.examples(run, experiment, LENGTHS), experiment.model.network.track_size
    rows, sequences = [], []
    for example in examples:
        for layer, matrix in example.layers[1:]:
            places = matrices.ranks(matrix, track, example.marked)
            rows.append([example.title, layer, " and ".join(f"{place:,}" for place in places)])
            sequences.append({"sequence": example.title, "layer": layer, "marked": example.marked, "ranks": places})
    body = [
        f"Base length {experiment.data.base_length:,}. The place of the two marked positions among all positions, "
        "by how far the top track is from the median: 1 stands out most.",
        "",
        *table(["sequence", "matrix", "place of the marked"], rows),
    ]
    return body, {"sequences": sequences}, {"": png(partial(matrices.plot, examples, track))}


def lengths(paths: Sequence[str], unverified: bool = False) -> FigureContent:
    """Figure 7 and table 6: a histogram of lengths for each data set."""
    rows, sets, pictures = [], [], {}
    for number, path in enumerate(paths, 1):
        store, _ = gather([path], Reading(on_unmatched="reject"), TokenizerConfig(), cache_folder())
        summary, name = inspect(store), file_label(path)
        pictures[f"{number}-{name}"] = png(partial(plots.plot_histogram, summary))
        quantiles = [summary.percentiles[p] for p in (0, 50, 90, 99, 100)]
        rows.append([name, f"{summary.records:,}", *(f"{quantile:,}" for quantile in quantiles)])
        sets.append({"name": name, "records": summary.records, "percentiles": summary.percentiles})
    head = ["data set", "records", "shortest", "median", "90 %", "99 %", "longest"]
    return table(head, rows), {"sets": sets}, pictures


def tradeoff(paths: Sequence[str], unverified: bool = False) -> FigureContent:
    """Figure 11: speed, memory and score of trained runs."""
    points = []
    for path in paths:
        logger.info(f"measuring {path}")
        points.append(measure_run(Path(path), unverified=unverified))
    metrics = {point.metric for point in points}
    if len(metrics) > 1:
        raise ValueError(f"the runs are scored by {' and '.join(sorted(metrics))}: give runs of one task")
    rows = [
        [point.name, f"{100 * point.score:.2f}", f"{point.speed:,.1f}", format_bytes(point.memory)]
        for point in points
    ]
    body = table(["model", f"{points[0].metric}, %", "sequences a second", "memory of a batch"], rows)
    return body, {"models": [asdict(p) for p in points]}, {"": png(partial(plot_tradeoff, points))}


def random_walk(length: int) -> tuple[int, ndarray]:
    """Hops (the paper's ceil(log2 N + 1), of 0, 1, 2, 4, ... positions on a circle) and distribution of the end.

    >>> hops, probabilities = random_walk(5000)
    >>> hops, f"{probabilities.mean():.2e}", f"{probabilities.std():.2e}"
    (14, '2.00e-04', '3.04e-05')
    """
    steps = [0, *(1 << k for k in range((length - 1).bit_length()))]
    probabilities = np.eye(1, length)[0]
    for _ in steps:
        probabilities = np.mean([np.roll(probabilities, step) for step in steps], axis=0)
    return len(steps), probabilities


def plot_walk(hops: int, probabilities: ndarray, path: Path) -> Path:
    """Plot a histogram of the probabilities of all positions, with the mean, which is the uniform probability."""
    figure, axes = plots.pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    mean, deviation = probabilities.mean(), probabilities.std()
    axes.hist(probabilities, BINS, color=COLOURS[0])
    axes.axvline(mean, color=COLOURS[1], label=f"mean {mean:.3g} (1 / N: all positions alike)")
    spread = f"± deviation {deviation:.3g}"
    axes.axvspan(mean - deviation, mean + deviation, color=COLOURS[1], alpha=0.15, label=spread)
    axes.ticklabel_format(axis="x", scilimits=(-3, 3))
    axes.set_xlabel(f"probability of being at a position after {hops} hops from one start")
    axes.set_ylabel("positions")
    axes.set_title(f"Random walk in a Chord network of N = {len(probabilities):,} positions")
    axes.grid(alpha=0.3)
    axes.legend()
    return plots.save(figure, path)


@dataclass(frozen=True)
class Point:
    """Score, speed and memory of a trained model."""

    name: str
    metric: str
    score: float
    speed: float  # test sequences per second, in batches of `SEQUENCES`
    memory: int  # peak bytes for such a batch, including weights


def measure_run(run: Path, seconds: float = SECONDS, unverified: bool = False) -> Point:
    """Read the test score of a run from its folder, and measure its speed and memory on this device."""
    scored = Run.load(run, unverified).test
    if scored is None:
        raise ValueError(f"{run} has no evaluation-test.json: its training is not finished; go on with it first")
    experiment = Experiment.load(run, unverified=unverified)
    records, device = experiment.build_task().records("test"), choose_device(experiment.training)
    chosen = range(min(SEQUENCES, len(records.lengths)))
    tokens = sum(records.lengths[i] for i in chosen)
    sampler = TokenSampler(records.lengths, max(tokens, *records.lengths), SEQUENCES, shuffle=False)
    batch = Loader(records, sampler, device=device).batch([*chosen])
    model = Model.from_pretrained(run, device=device.type)
    half = experiment.training.precision == "bf16"
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
        memory = _peak(model, batch, device)
        speed = _speed(model, batch, device, seconds)
    return Point(scored.encoder, scored.headline, scored.scores[scored.headline].value, speed, memory)


def plot_tradeoff(points: Sequence[Point], path: Path) -> Path:
    """Plot score over speed, one circle per model; the area of a circle is proportional to memory."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    height = max(5.0, 0.6 + 0.29 * len(points))  # the legend has a line for each
    figure, axes = plots.pyplot().subplots(figsize=(9, height), layout="constrained")
    most_memory, speeds = max(point.memory for point in points), [point.speed for point in points]
    for number, point in enumerate(points):
        cycle, colour = divmod(number, len(COLOURS))
        axes.scatter(
            point.speed,
            100 * point.score,
            s=MAX_CIRCLE_AREA * point.memory / most_memory,
            color=COLOURS[colour],
            edgecolor="black",
            hatch="/" * (2 * cycle),
            alpha=0.55,
            zorder=3 - point.memory / most_memory,  # small circles in front
            label=f"{point.name}, {format_bytes(point.memory)}",
        )
        if len(points) > len(COLOURS):  # colours repeat
            place = (point.speed, 100 * point.score)
            axes.annotate(point.name, place, fontsize=7, ha="center", va="center", zorder=4)
    if max(speeds) > LOG_SPEED_RATIO * min(speeds):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()
    axes.margins(0.15, 0.2)  # space for the circles
    legend = figure.legend(loc="outside right upper", frameon=False, labelspacing=1.0)
    for handle in legend.legend_handles:
        handle.set_sizes([90.0])
    axes.set_xlabel(f"sequences a second, in batches of {SEQUENCES}")
    axes.set_ylabel(f"{points[0].metric} of the test set, %")
    axes.set_title("Circles: memory of a batch at test time", fontsize=11)
    axes.grid(alpha=0.3)
    return plots.save(figure, path)


def _speed(model: Model, batch: Batch, device: torch.device, seconds: float) -> float:
    """Sequences per second in the fastest of several passes, since other programs may slow down some."""
    best, began = math.inf, time.perf_counter()
    while best == math.inf or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        model(batch.inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return len(batch.indices) / best


def _peak(model: Model, batch: Batch, device: torch.device) -> int:
    """Peak bytes of a pass: by the allocator on a GPU, by allocations and frees in the profiler on a CPU."""
    model(batch.inputs)  # warm-up: compiles and fills caches
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        model(batch.inputs)
        return torch.cuda.max_memory_allocated(device)
    with _silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        model(batch.inputs)
    static = sum(p.numel() * p.element_size() for p in [*model.parameters(), batch.inputs.values])
    live = peak = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return static + peak


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard standard error within the context; the profiler's library prints there when it starts and stops."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as devnull:
            os.dup2(devnull.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
