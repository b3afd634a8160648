"""One command for each table and figure of the paper: run it, and write a page with its number beside ours."""

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
    listing,
    made_parts,
    plan_lines,
    planned,
    read_parts,
)
from chordmixer.paper.reproduction.entries import Figure, RunEntry, find
from chordmixer.paper.reproduction.experiments import (
    Request,
    check_at_once,
    check_rates,
    each,
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
    """Run an entry of `ENTRIES` into the folder `out`, and write its page there and into `results`.

    Trains several `at_once` on one device, and scores `baselines` on the same records. Returns the pages that were
    written, and the test scores of each run that they show, then those of the best baseline; a figure has none.
    """
    entry, folder = _found(request), Path(out)
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
        seen = running.summarise_data(short)
        noted = warnings(request, entry, full, short, seen.classes)
        if at_once > 1:
            noted.append(f"Up to {at_once} runs at once shared the device: each takes less time alone.")
        for warning in noted:
            logger.info(warning)
        runs = runs if request.minutes is None else equal_time(runs, request.minutes, folder)
        trained = running.run_all(runs, journal, resume, baselines, at_once)
        losses = running.validation_losses(trained) if request.rates else {}
        trained = running.best_rates(trained, losses) if losses else trained
        beside = running.differences(trained, entry.metric) if first_rank() else {}
        compared = Comparison(entry, trained, seen, bool(request.data), losses, beside)
        result, scores, device = compared.page(request.name, noted), compared.runs, choose_device(short.training)
    folders = [folder, *([results] if results and results != folder else [])] if first_rank() else []
    place = page.Origin.of(device)
    command = command or f"python: chordmixer.paper.reproduction.reproduce(Request({request.name!r}, ...), ...)"
    return [page.publish(result, place, command, own) for own in folders], scores


def plan(request: Request) -> list[Planned]:
    """What the runs of each model take on this device, with validation and test; a few steps of each are measured."""
    entry = _found(request)
    if isinstance(entry, Figure):
        raise ValueError(f"{request.name} is drawn, not trained, and takes seconds: leave --plan out")
    _, short, runs = _runs(entry, request)
    return planned(runs, made_parts(short) if entry.data.by_rule and not request.data else read_parts(short))


def measure(request: Request, out: Path | str) -> dict[str, int]:
    """The steps that each model makes alone on this device in the request's minutes.

    They are left in `out` for `reproduce`, whose runs may then share the device.
    """
    entry = _found(request)
    if isinstance(entry, Figure):
        raise ValueError(f"{request.name} is drawn, not trained: leave --minutes out")
    runs = each(request.build(entry), request.models, 1, entry.versions)
    limited = equal_time(runs, 1.0 if request.minutes is None else request.minutes, Path(out))
    return {run: own.training.steps for run, own in limited.items()}


def _found(request: Request) -> RunEntry | Figure:
    entry = find(request.name, ENTRIES)
    entry.data.check(request.name, request.data)
    return entry


def _runs(entry: RunEntry, request: Request) -> tuple[Experiment, Experiment, dict[str, Experiment]]:
    """The whole experiment, the one at this scale, and its runs by the names of their folders."""
    full = request.build(entry)
    short = scaled(full, request.scale, by_rule=entry.data.by_rule and not request.data)
    check_rates(request.rates, request.changes)
    return full, short, with_rates(each(short, request.models, request.seeds, entry.versions), request.rates)
