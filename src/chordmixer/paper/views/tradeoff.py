"""Accuracy against speed, with circles as large as the memory: the paper's figure of the Long Range Arena."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from chordmixer.data import Batch, Loader, TokenSampler
from chordmixer.models import Model
from chordmixer.training import Experiment
from chordmixer.training.devices import choose_device, format_bytes
from chordmixer.views import drawing
from chordmixer.views.drawing import COLOURS
from chordmixer.views.runs import Run

SEQUENCES = 32
"""Of the test set in a measured batch."""
SECONDS = 5.0
"""Of measuring, about."""
LARGEST = 4_000.0
"""The area of the circle of the most memory, in square points."""
FAR = 8.0
"""Times the slowest speed from which on the axis of the fastest is logarithmic."""


@dataclass(frozen=True)
class Point:
    """A trained model at work."""

    name: str
    metric: str
    score: float
    speed: float
    """Sequences a second, of the test set, in batches of `SEQUENCES`."""
    memory: int
    """Bytes at the fullest moment of such a batch, with the weights."""


def measure(run: Path, seconds: float = SECONDS, unverified: bool = False) -> Point:
    """The score of a run's test set as it stands in the folder; its speed and memory now, on this device."""
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


def plot(points: Sequence[Point], path: Path) -> Path:
    """A circle a model: up is better, right is faster, small is less memory."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    if not points:
        raise ValueError("no model was measured: a picture needs at least one; give a Point")
    height = max(5.0, 0.6 + 0.29 * len(points))  # the legend has a line for each
    figure, axes = drawing.pyplot().subplots(figsize=(9, height), layout="constrained")
    most, speeds = max(point.memory for point in points), [point.speed for point in points]
    for number, point in enumerate(points):
        again, colour = divmod(number, len(COLOURS))
        axes.scatter(
            point.speed,
            100 * point.score,
            s=LARGEST * point.memory / most,
            color=COLOURS[colour],
            edgecolor="black",
            hatch="/" * (2 * again),
            alpha=0.55,
            zorder=3 - point.memory / most,  # small ones over large ones
            label=f"{point.name}, {format_bytes(point.memory)}",
        )
        if len(points) > len(COLOURS):  # colours come again
            axes.annotate(
                point.name, (point.speed, 100 * point.score), fontsize=7, ha="center", va="center", zorder=4
            )
    if max(speeds) > FAR * min(speeds):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()
    axes.margins(0.15, 0.2)  # room for circles
    legend = figure.legend(loc="outside right upper", frameon=False, labelspacing=1.0)
    for handle in legend.legend_handles:
        handle.set_sizes([90.0])
    axes.set_xlabel(f"sequences a second, in batches of {SEQUENCES}")
    axes.set_ylabel(f"{points[0].metric} of the test set, %")
    axes.set_title("Circles: memory of a batch at test time", fontsize=11)
    axes.grid(alpha=0.3)
    return drawing.save(figure, path)


def _speed(model: Model, batch: Batch, device: torch.device, seconds: float) -> float:
    """The best of several passes: other programs may be in the way of some."""
    best, began = math.inf, time.perf_counter()
    while best == math.inf or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        model(batch.inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return len(batch.indices) / best


def _peak(model: Model, batch: Batch, device: torch.device) -> int:
    """Bytes of a pass: of a GPU as its allocator counts them, of a CPU as the profiler sees tensors come and go."""
    model(batch.inputs)  # compiles, and fills caches that stay
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        model(batch.inputs)
        return torch.cuda.max_memory_allocated(device)
    with _hushed(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        model(batch.inputs)
    held = sum(p.numel() * p.element_size() for p in [*model.parameters(), batch.inputs.values])
    live = most = 0
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return held + most


@contextmanager
def _hushed() -> Iterator[None]:
    """Within it nothing reaches standard error: the profiler's library says there that it starts and stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
