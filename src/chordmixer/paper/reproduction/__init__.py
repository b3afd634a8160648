"""One command for each table and figure of the paper: run it, and write a page with its number beside ours."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chordmixer.paper.reproduction import comparison, figures, page, parallel, running
from chordmixer.paper.reproduction.catalogue import ENTRIES
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
from chordmixer.paper.reproduction.experiments import build, check_rates, each, scaled, warnings, with_rates
from chordmixer.terminal import first_rank
from chordmixer.training import Evaluation
from chordmixer.training.devices import choose_device
from chordmixer.training.experiment import Experiment

logger = logging.getLogger(__name__)

__all__ = ["ENTRIES", "Figure", "RunEntry", "all_costs", "listing", "measure", "plan", "plan_lines", "reproduce"]


def reproduce(
    name: str,
    out: Path | str,
    data: Sequence[str] = (),
    *,
    models: Sequence[str] = ("chordmixer",),
    seeds: int = 1,
    scale: float = 1.0,
    minutes: float | None = None,
    rates: Sequence[float] = (),
    like: str = "ours",
    start: Path | None = None,
    unverified: bool = False,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    at_once: int = 1,
    baselines: bool = True,
    results: Path | None = None,
    command: str = "",
) -> tuple[list[Path], list[Evaluation]]:
    """Run an entry of `ENTRIES` into the folder `out`, and write its page there and into `results`.

    Trains `models` with `seeds` each, with the settings of our recipes or `like` the paper's or its released code's,
    from random weights or those of the run `start`, for `scale` times their epochs or for the steps that each makes
    alone in so many `minutes`, with each of the `rates`, of which the validation records choose one a model, with
    `changes` in `data`, `model` and `training`, several `at_once` on one device, and scores `baselines` on the same
    records. Returns the pages that were written, and the test scores of each run that they show, followed by those of
    the best baseline; a figure has none.
    """
    entry, folder = _found(name, data), Path(out)
    if isinstance(entry, Figure):
        several = (seeds, at_once, *models) != (1, 1, "chordmixer")
        if changes or scale != 1 or minutes or rates or several or like != "ours" or start:
            raise ValueError(
                f"{name} is drawn, not trained: leave out --set, --scale, --minutes, --rates, --seeds, --models, "
                "--at-once, --like and --from"
            )
        result, scores = figures.figure(name, entry, data, unverified), []
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        if minutes is not None and scale != 1:
            raise ValueError(
                f"--scale {scale:g} and --minutes {minutes:g} are both the length of a run: leave one of them out"
            )
        full = build(entry, data, changes, like, start, unverified)
        short, runs = _runs(entry, full, data, models, seeds, scale, rates, changes)
        parallel.check(runs, at_once)
        journal = running.RunsJournal.open(folder, name, resume)
        seen = running.look(short)
        noted = warnings(entry, full, short, scale, changes or {}, seen.classes, like, minutes, rates)
        noted += parallel.warnings(at_once)
        for warning in noted:
            logger.info(warning)
        runs = runs if minutes is None else equal_time(runs, minutes, folder)
        trained = running.run_all(runs, journal, resume, baselines, at_once)
        losses = running.validation_losses(trained) if rates else {}
        trained = running.best_rates(trained, losses) if rates else trained
        beside = running.differences(trained, entry.metric) if first_rank() else {}
        result = comparison.compare(name, entry, trained, seen, noted, bool(data), losses, beside)
        scores, device = comparison.evaluations(entry, trained), choose_device(short.training)
    folders = [folder, *([results] if results and results != folder else [])] if first_rank() else []
    place = page.Origin.of(device)
    command = command or f"python: chordmixer.paper.reproduction.reproduce({name!r}, ...)"
    return [page.publish(result, place, command, own) for own in folders], scores


def plan(
    name: str,
    data: Sequence[str] = (),
    scale: float = 1.0,
    changes: Mapping[str, Any] | None = None,
    like: str = "ours",
    start: Path | None = None,
    *,
    models: Sequence[str] = ("chordmixer",),
    seeds: int = 1,
    rates: Sequence[float] = (),
    unverified: bool = False,
) -> list[Planned]:
    """What the runs of each model take on this device, with validation and test; a few steps of each are measured."""
    entry = _found(name, data)
    if isinstance(entry, Figure):
        raise ValueError(f"{name} is drawn, not trained, and takes seconds: leave --plan out")
    full = build(entry, data, changes, like=like, start=start, unverified=unverified)
    short, runs = _runs(entry, full, data, models, seeds, scale, rates, changes)
    return planned(runs, made_parts(short) if entry.data.by_rule and not data else read_parts(short))


def measure(
    name: str,
    out: Path | str,
    data: Sequence[str] = (),
    *,
    models: Sequence[str] = ("chordmixer",),
    minutes: float = 1.0,
    like: str = "ours",
    start: Path | None = None,
    unverified: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """The steps that each model makes alone on this device in so many `minutes`.

    They are left in `out` for `reproduce`, whose runs may then share the device.
    """
    entry = _found(name, data)
    if isinstance(entry, Figure):
        raise ValueError(f"{name} is drawn, not trained: leave --minutes out")
    full = build(entry, data, changes, like, start, unverified)
    runs = each(full, models, 1, entry.versions)
    return {run: own.training.steps for run, own in equal_time(runs, minutes, Path(out)).items()}


def _found(name: str, data: Sequence[str]) -> RunEntry | Figure:
    entry = find(name, ENTRIES)
    entry.data.check(name, data)
    return entry


def _runs(
    entry: RunEntry,
    full: Experiment,
    data: Sequence[str],
    models: Sequence[str],
    seeds: int,
    scale: float,
    rates: Sequence[float],
    changes: Mapping[str, Any] | None,
) -> tuple[Experiment, dict[str, Experiment]]:
    """The experiment at this scale, and its runs by the names of their folders."""
    short = scaled(full, scale, by_rule=entry.data.by_rule and not data)
    check_rates(rates, changes or {})
    return short, with_rates(each(short, models, seeds, entry.versions), rates)
