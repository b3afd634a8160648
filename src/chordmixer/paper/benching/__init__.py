"""Benchmark of encoders: time and peak memory at given lengths, each in its own process, beside the paper's table.

A report has three files: JSON with all numbers, Markdown with tables and sentences, and a plot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch

from chordmixer import files
from chordmixer.config import from_dict, to_dict
from chordmixer.models.encoders import ENCODERS, encoder_class
from chordmixer.paper import subprocesses
from chordmixer.paper.benching import measuring, views
from chordmixer.paper.benching.cases import (
    BenchConfig,
    Case,
    Phase,
    PhaseName,
    Reach,
    Result,
    Setting,
    adding,
    chordmixer_result,
    fixed,
    ratio,
    settings,
)
from chordmixer.paper.reproduction.page import Origin
from chordmixer.training.devices import format_bytes
from chordmixer.views.metrics import duration

logger = logging.getLogger(__name__)

__all__ = ["BenchConfig", "Phase", "Reach", "Report", "Result", "Setting"]
__all__ += ["adding", "bench", "fixed", "settings", "words"]

FORMAT = 1
MAX_SPREAD = 0.25  # spread of the rounds above which a time is reported as doubtful
PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
Measured = TypeVar("Measured", bound=Result | Reach)


def bench(
    models: Sequence[str],
    at: Sequence[Setting],
    out: Path | str,
    config: BenchConfig | None = None,
    *,
    longest: bool = False,
    resume: bool = False,
    command: str = "",
) -> Report:
    """Measure encoders at settings and write the report to `out`, a .json file, with .md and .png beside it.

    Each encoder at each setting is verified, then timed, in its own process; a crash or running out of memory or time
    is recorded as the result. With `longest` also search for the longest sequence that each encoder can process. The
    report is written after every measurement. With `resume` earlier measurements are kept, except those that a
    shorter time limit stopped.
    """
    for model in models:
        encoder_class(model)
    path, resolved = Path(out), (config or BenchConfig()).here()
    report = Report(Origin.of(torch.device(resolved.device)), command, resolved, torch.get_num_threads(), tuple(at))
    report = _resumed(path, report, resume)
    base = {model: Case(model, ENCODERS[model], resolved, threads=report.threads) for model in models}
    cases = [replace(base[model], setting=setting) for setting in at for model in models]
    cases += [replace(base[model], phase=phase) for model in models if longest for phase in PHASES]
    cases = [case for case in cases if not report.has(case.key)]
    began = time.monotonic()
    # A spare process takes a core, but no GPU before it gets its case: it is started for GPU measurements only.
    with subprocesses.SpareProcess(measuring.PROCESS, resolved.device == "cuda" and len(cases) > 1) as spare:
        for number, case in enumerate(cases):
            name = " at ".join(case.key) if case.setting else "the longest sequence of " + " in ".join(case.key)
            left = _time_left(began, number, len(cases), resolved.time_limit)
            logger.info(f"{number + 1} of {len(cases)}: {name}; {left}")
            start = time.monotonic()
            measured = measuring.in_subprocess(case, spare.take()) | {"encoder": case.encoder}
            if case.setting:
                measured |= {"setting": case.setting.name, "seconds": time.monotonic() - start}
                result = from_dict(Result, measured, "result")
                report = replace(report, results=_replaced(report.results, result))
                logger.info(f"    {_summary(result)}")
            else:
                reached = from_dict(Reach, measured | {"phase": case.phase}, "reach")
                report = replace(report, reaches=_replaced(report.reaches, reached))
                logger.info(f"    {reached.length:,} tokens, then {reached.failed or 'no longer one was tried'}")
            write(report, path)
    write(report, path, draw=True)
    return report


def _resumed(path: Path, report: Report, resume: bool) -> Report:
    """Add earlier measurements of the same kind to a report; refuse a file with other settings."""
    if path.suffix != ".json":
        raise ValueError(f"--out {path} is not a .json file: give one; .md and .png are put beside it")
    if not path.exists():
        return report
    if not resume:
        raise ValueError(f"{path} is there already: give a new --out, or add --resume to go on with it")
    before = load(path)
    now = {**vars(report.place), **vars(report.config), "threads": report.threads}
    then = {**vars(before.place), **vars(before.config), "threads": before.threads}
    for key in now:
        if key not in ("date", "time_limit") and now[key] != then[key]:
            raise ValueError(f"{path} was measured with {key}={then[key]}, not {now[key]}: give another --out")
    for setting in report.settings:
        if any(old.name == setting.name and old != setting for old in before.settings):
            raise ValueError(f"{path} has other lengths at {setting.name}: give another --out")
    earlier = tuple(setting for setting in before.settings if setting not in report.settings)
    commands = "\n".join(dict.fromkeys([*before.command.splitlines(), *report.command.splitlines()]))
    merged: dict[str, Any] = {
        "settings": (*earlier, *report.settings),
        "results": before.results,
        "reaches": before.reaches,
    }
    return replace(report, command=commands, **merged)


def _replaced(earlier: Sequence[Measured], new: Measured) -> tuple[Measured, ...]:
    """Append a measurement; drop an earlier one of the same case."""
    return (*(measured for measured in earlier if measured.key != new.key), new)


def _time_left(began: float, done: int, total: int, limit: float) -> str:
    """Describe how long the remaining cases may take."""
    left = total - done
    if not done:
        return f"at most {duration(left * limit)} left"
    return f"about {duration((time.monotonic() - began) / done * left)} left"


def _summary(result: Result) -> str:
    parts = [
        f"{name} {phase.milliseconds:,.3g} ms a sequence" + (f", {format_bytes(peak)}" if peak is not None else "")
        for name in PHASES
        if (phase := getattr(result, name))
        for peak in [result.peak(name)]
    ]
    if result.failed:
        parts.append(f"{result.verdict}: {result.message}" if result.message else result.verdict)
    return "; ".join(parts)


@dataclass(frozen=True)
class Report:
    """All measurements of a benchmark, with their settings and origin."""

    place: Origin
    command: str  # one line per command that added to the report
    config: BenchConfig
    threads: int
    settings: tuple[Setting, ...]
    results: tuple[Result, ...] = ()
    reaches: tuple[Reach, ...] = ()

    def has(self, key: tuple[str, str]) -> bool:
        """Whether a case was measured, unless a shorter time limit than the present one stopped it."""
        measured: list[Result | Reach] = [*self.results, *self.reaches]
        return any(r.key == key and (r.limit is None or r.limit >= self.config.time_limit) for r in measured)

    def at(self, setting: Setting) -> list[Result]:
        """The results at a setting, sorted by training time, failed ones last."""
        results = [r for r in self.results if r.setting == setting.name]
        return sorted(results, key=lambda r: (r.training is None, r.time("training") or r.time("inference") or 0.0))


def write(report: Report, path: Path, draw: bool = False) -> None:
    """Write the .json file, the .md page beside it and, with `draw`, the plot if any encoder was timed."""
    values = to_dict(report)
    paper = {"source": views.SOURCE, "table": views.PAPER}
    files.write_json(path, {"format": FORMAT, **values.pop("place"), **values, "paper": paper})
    plotted = [s for s in report.settings if any(r.inference for r in report.at(s))] if draw else []
    if plotted:
        views.plot(plotted, report.results, path.with_suffix(".png"))
    files.write_text(path.with_suffix(".md"), markdown(report, path.with_suffix(".png").name if plotted else ""))


def load(path: Path) -> Report:
    """Read a report that `write` wrote."""
    values = files.read_json(path)
    names = [field.name for field in fields(Report) if field.name != "place"]
    if values.get("format") != FORMAT or not all(name in values for name in names):
        raise ValueError(f"{path} is not a benchmark of this version of chordmixer: give another --out")
    place = {field.name: values[field.name] for field in fields(Origin) if field.name in values}
    return from_dict(Report, {"place": place} | {name: values[name] for name in names}, str(path))


def markdown(report: Report, picture: str = "") -> str:
    """The report as a Markdown page, with a table and sentences for each setting."""
    place, config = report.place, report.config
    threads = "" if config.device == "cuda" else f", {report.threads} thread{'s' * (report.threads > 1)}"
    parts = [
        f"# Time and memory of encoders, {place.date}",
        f"Made on {place.date} on {place.device}{threads} with torch {place.torch_version}, commit {place.commit}; "
        f"{config.precision}, batches of {config.batch}, backend {config.backend}.",
        f"```sh\n{report.command}\n```" if report.command else "",
    ]
    for setting in report.settings:
        results = report.at(setting)
        heading = f"## {setting.name.capitalize()}, longest {setting.longest:,}"
        parts += [heading, views.table(setting, results).markdown(), *words(results, setting)]
    if report.reaches:
        parts += ["## The longest sequence", views.reach_table(report.reaches).markdown()]
    parts += [
        f"![Time and memory]({picture})" if picture else "",
        "## How it was measured",
        "\n".join(_notes(report)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def words(results: Sequence[Result], setting: Setting) -> list[str]:
    """Sentences on which encoders are faster than ChordMixer, doubtful or failed."""
    sentences = []
    if (chord := chordmixer_result(results, setting.name)) is None:
        sentences.append("ChordMixer was not measured here, so nothing is compared with it.")
    else:
        timed = [phase for phase in ("training", "inference") if getattr(chord, phase)]
        sentences += [_faster(results, chord, phase, setting) for phase in timed]
        sentences += _fastest_full_context(results, chord, setting)
    if noisy := [r.encoder for r in results if any(p and p.spread > MAX_SPREAD for p in (r.training, r.inference))]:
        sentences.append(
            f"Doubtful, since the middle half of the rounds spreads over more than {MAX_SPREAD:.0%} of the median: "
            f"{', '.join(noisy)}."
        )
    if failed := [f"{r.encoder} ({r.verdict}: {r.message})" for r in results if r.failed]:
        sentences.append(f"Did not get through: {', '.join(failed)}.")
    return sentences


def _faster(results: Sequence[Result], chord: Result, phase: str, setting: Setting) -> str:
    shares = [(share, r) for r in results if (share := ratio(r.time(phase), chord.time(phase))) and share < 1]
    if not shares:
        return f"In {phase} no other encoder is faster than ChordMixer."
    shares.sort(key=lambda pair: pair[0])
    named = [f"{r.encoder} ({share:.2f} of its time{_limited_context(r, setting)})" for share, r in shares]
    return f"In {phase} these are faster than ChordMixer: {', '.join(named)}."


def _limited_context(result: Result, setting: Setting) -> str:
    field = result.receptive_field
    return f", a token sees {field:,}" if field is not None and field < setting.longest else ""


def _fastest_full_context(results: Sequence[Result], chord: Result, setting: Setting) -> list[str]:
    """A sentence on the fastest encoder with full context that trained on the longest sequence."""
    full = [r for r in results if r.training and not r.failed and not _limited_context(r, setting)]
    if chord not in full or len(full) < 2:
        return []
    first, second = sorted(full, key=lambda r: r.time("training") or 0.0)[:2]
    share = ratio(second.time("training"), first.time("training")) or 0.0
    return [
        f"Of the {len(full)} that train on {setting.longest:,} tokens and see whole sequences, {first.encoder} is "
        f"the fastest in training; {second.encoder}, the next, takes {share:.2f} times as long."
    ]


def _notes(report: Report) -> list[str]:
    cuda = report.config.device == "cuda"
    rounds, seconds = measuring.ROUNDS, measuring.SECONDS
    clock = "CUDA events" if cuda else "the clock on the wall"
    memory = (
        "what torch's allocator held at most, without what CUDA itself takes"
        if cuda
        else "what was resident at most, beyond Python and torch themselves"
    )
    notes = [
        "Each encoder has its default settings, the Adding problem's embedding and head, and a process of its own.",
        "First its outputs are checked on sequences of up to 2,000 tokens: finite, and the same alone and in a batch "
        "to 1e-4 in float32. Then it is timed.",
        f"Time is of batches, divided by their sequences, by {clock}: the median of {rounds} rounds or more, of "
        f"fewer where these take over {seconds:g} s, after one that is not counted. Training is forward, backward "
        "and AdamW.",
        f"Memory is {memory}; where a longest length is named, it includes that of such a sequence alone.",
        "Tokens a second are useful ones, in training where that was possible. Padding is that of rows padded "
        "together; zeros within Fourier transforms are not counted.",
        "A crash, memory that ran out, more time than there was for it: each is a result.",
    ]
    if any(setting.base_length for setting in report.settings):
        notes.append("Lengths of a base length are quantiles of the Adding problem's, short and long in every batch.")
    if any(setting.base_length in views.PAPER for setting in report.settings):
        notes.append(f"The paper: {views.SOURCE} Its S4 stands beside our S4D.")
    return [f"- {note}" for note in notes]
