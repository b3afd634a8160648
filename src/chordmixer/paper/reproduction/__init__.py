"""One command for each table and figure of the paper: run it, and write a page with its number beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from chordmixer.paper.reproduction import comparison, entry_experiments, figures, learning_rates, page, subprocesses
from chordmixer.paper.reproduction.catalogue import ENTRIES
from chordmixer.paper.reproduction.costs import Planned, all_costs, made_parts, planned, read_parts
from chordmixer.paper.reproduction.entries import Figure, RunEntry, find
from chordmixer.paper.reproduction.listing import listing, plan_lines
from chordmixer.paper.reproduction.pacing import paced
from chordmixer.paper.reproduction.running import RunsJournal, differences, first_rank, look, run_all
from chordmixer.terminal import tell
from chordmixer.training import Evaluation
from chordmixer.training.devices import choose_device

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
    say: Callable[[str], None] = tell,
) -> tuple[list[Path], list[Evaluation]]:
    """Run an entry of `ENTRIES` into the folder `out`, and write its page there and into `results`.

    Trains `models` with `seeds` each, with the settings of our recipes or `like` the paper's or its released code's,
    from random weights or those of the run `start`, for `scale` times their epochs or for the steps that each makes
    alone in so many `minutes`, with each of the `rates`, of which the validation records choose one a model, with
    `changes` in `data`, `model` and `training`, several `at_once` on one device, and scores plain `baselines` on the
    same records. Gives the pages that were written, and the test scores of each run that they show, behind them those
    of the best plain baseline; a figure has none.
    """
    entry, folder = find(name, ENTRIES), Path(out)
    entry.data.check(name, data)
    if isinstance(entry, Figure):
        several = (seeds, at_once, *models) != (1, 1, "chordmixer")
        if changes or scale != 1 or minutes or rates or several or like != "ours" or start:
            raise ValueError(
                f"{name} is drawn, not trained: leave out --set, --scale, --minutes, --rates, --seeds, --models, "
                "--at-once, --like and --from"
            )
        result, scores = figures.figure(name, entry, data, say, unverified), []
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        if minutes is not None and scale != 1:
            raise ValueError(
                f"--scale {scale:g} and --minutes {minutes:g} are both the length of a run: leave one of them out"
            )
        full = entry_experiments.build(entry, data, changes, say, like, start, unverified)
        short = entry_experiments.scaled(full, scale, by_rule=entry.data.by_rule and not data)
        learning_rates.check(rates, changes or {})
        experiments = learning_rates.tried(entry_experiments.each(short, models, seeds, entry.versions), rates)
        subprocesses.check(experiments, at_once)
        journal = RunsJournal.open(folder, name, resume)
        seen = look(short)
        warnings = entry_experiments.warnings(entry, full, short, scale, changes or {}, seen.classes, like, minutes)
        warnings += learning_rates.warnings(rates) + subprocesses.warnings(at_once)
        for warning in warnings:
            say(warning)
        experiments = experiments if minutes is None else paced(experiments, minutes, folder, say)
        trained = run_all(experiments, journal, resume, say, baselines, at_once)
        losses = learning_rates.losses(trained) if rates else {}
        trained = learning_rates.chosen(trained, losses) if rates else trained
        beside = differences(trained, entry.metric) if first_rank() else {}
        result = comparison.compare(name, entry, trained, seen, warnings, bool(data), losses, beside)
        scores, device = comparison.evaluations(entry, trained), choose_device(short.training)
    folders = [folder, *([results] if results and results != folder else [])] if first_rank() else []
    place = page.Origin.of(device)
    return [page.publish(result, place, command or _call(name), own) for own in folders], scores


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
    entry = find(name, ENTRIES)
    entry.data.check(name, data)
    if isinstance(entry, Figure):
        raise ValueError(f"{name} is drawn, not trained, and takes seconds: leave --plan out")
    by_rule = entry.data.by_rule and not data
    full = entry_experiments.build(entry, data, changes, like=like, start=start, unverified=unverified)
    experiment = entry_experiments.scaled(full, scale, by_rule)
    learning_rates.check(rates, changes or {})
    experiments = learning_rates.tried(entry_experiments.each(experiment, models, seeds, entry.versions), rates)
    return planned(experiments, made_parts(experiment) if by_rule else read_parts(experiment))


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
    say: Callable[[str], None] = tell,
) -> dict[str, int]:
    """The steps that each model makes alone on this device in so many `minutes`.

    They are left in `out` for `reproduce`, whose runs may then share the device.
    """
    entry = find(name, ENTRIES)
    entry.data.check(name, data)
    if isinstance(entry, Figure):
        raise ValueError(f"{name} is drawn, not trained: leave --minutes out")
    full = entry_experiments.build(entry, data, changes, say, like, start, unverified)
    experiments = entry_experiments.each(full, models, 1, entry.versions)
    return {run: own.training.steps for run, own in paced(experiments, minutes, Path(out), say).items()}


def _call(name: str) -> str:
    return f"python: chordmixer.paper.reproduction.reproduce({name!r}, ...)"
