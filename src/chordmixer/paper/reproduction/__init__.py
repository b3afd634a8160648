"""Reproduce a table or figure of the paper with one command, and write a page that compares its numbers with ours."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from chordmixer.paper.reproduction import figures, page, running
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.comparison import Comparison
from chordmixer.paper.reproduction.costs import (
    Planned,
    all_costs,
    equal_time,
    generated_parts,
    listing,
    plan_lines,
    plan_runs,
    read_parts,
)
from chordmixer.paper.reproduction.entries import Figure, RunEntry, find
from chordmixer.paper.reproduction.experiments import (
    Request,
    check_at_once,
    check_rates,
    expand,
    scaled,
    warnings,
    with_rates,
)
from chordmixer.terminal import first_rank
from chordmixer.training.devices import choose_device
from chordmixer.training.evaluation import Evaluation
from chordmixer.training.experiment import Experiment

logger = logging.getLogger(__name__)

__all__ = ["ENTRIES", "Figure", "Request", "RunEntry"]
__all__ += ["all_costs", "listing", "measure", "plan", "plan_lines", "reproduce"]


def reproduce(
    request: Request,
    out: Path | str,
    *,
    resume: bool = False,
    at_once: int = 1,
    baselines: bool = True,
    results: Path | None = None,
    command: str = "",
) -> tuple[list[Path], list[Evaluation]]:
    """Run an entry of `ENTRIES` in the folder `out`, and write its page there and to `results`.

    Trains up to `at_once` runs at a time on one device, and scores `baselines` on the same records. Returns the paths
    of the pages, and the test evaluations of the runs and of the best baseline; a figure has none.
    """
    entry, folder = _checked_entry(request), Path(out)
    if isinstance(entry, Figure):
        if at_once != 1 or request != Request(request.name, request.data, unverified=request.unverified):
            raise ValueError(
                f"{request.name} is drawn, not trained: leave out --set, --scale, --minutes, --rates, --seeds, "
                "--models, --at-once, --like and --from"
            )
        result, scores = figures.figure(request.name, entry, request.data, request.unverified), []
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        if request.minutes is not None and request.scale != 1:
            raise ValueError(
                f"--scale {request.scale:g} and --minutes {request.minutes:g} are both the length of a run: leave "
                "one of them out"
            )
        full, short, runs = _runs(entry, request)
        check_at_once(runs, at_once)
        journal = running.RunsJournal.open(folder, request.name, resume)
        data = running.summarise_data(short)
        notes = warnings(request, entry, full, short, data.classes)
        if at_once > 1:
            notes.append(f"Up to {at_once} runs at once shared the device: each takes less time alone.")
        for warning in notes:
            logger.info(warning)
        runs = runs if request.minutes is None else equal_time(runs, request.minutes, folder)
        trained = running.run_all(runs, journal, resume, baselines, at_once)
        losses = running.validation_losses(trained) if request.rates else {}
        trained = running.best_rates(trained, losses) if losses else trained
        differences = running.differences(trained, entry.metric) if first_rank() else {}
        comparison = Comparison(entry, trained, data, bool(request.data), losses, differences)
        result, scores, device = comparison.page(request.name, notes), comparison.runs, choose_device(short.training)
    folders = [folder, *([results] if results and results != folder else [])] if first_rank() else []
    origin = page.Origin.of(device)
    command = command or f"python: chordmixer.paper.reproduction.reproduce(Request({request.name!r}, ...), ...)"
    return [page.publish(result, origin, command, target) for target in folders], scores


def plan(request: Request) -> list[Planned]:
    """Forecast the runs of each model on this device, with validation and test, by measuring a few steps."""
    entry = _checked_entry(request)
    if isinstance(entry, Figure):
        raise ValueError(f"{request.name} is drawn, not trained, and takes seconds: leave --plan out")
    _, short, runs = _runs(entry, request)
    return plan_runs(runs, generated_parts(short) if entry.data.by_rule and not request.data else read_parts(short))


def measure(request: Request, out: Path | str) -> dict[str, int]:
    """Measure how many steps each model makes alone on this device in the request's minutes.

    The step times are stored in `out` for `reproduce`, whose runs may then share the device.
    """
    entry = _checked_entry(request)
    if isinstance(entry, Figure):
        raise ValueError(f"{request.name} is drawn, not trained: leave --minutes out")
    runs = expand(request.build(entry), request.models, 1, entry.versions)
    limited = equal_time(runs, 1.0 if request.minutes is None else request.minutes, Path(out))
    return {name: run.training.steps for name, run in limited.items()}


def _checked_entry(request: Request) -> RunEntry | Figure:
    """Find the entry of a request and check its data paths."""
    entry = find(request.name, ENTRIES)
    entry.data.check(request.name, request.data)
    return entry


def _runs(entry: RunEntry, request: Request) -> tuple[Experiment, Experiment, dict[str, Experiment]]:
    """The experiment at full length, the one at the requested scale, and its runs by folder name."""
    full = request.build(entry)
    short = scaled(full, request.scale, by_rule=entry.data.by_rule and not request.data)
    check_rates(request.rates, request.changes)
    return full, short, with_rates(expand(short, request.models, request.seeds, entry.versions), request.rates)
