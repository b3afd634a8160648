"""Time and peak memory of any encoder at any lengths, beside the paper's table; each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Literal

import torch

from chordmixer.config import from_dict
from chordmixer.models.encoders import ENCODERS, encoder_class
from chordmixer.paper.benching import subprocesses
from chordmixer.paper.benching.cases import BenchConfig, Case, Setting, adding, fixed, settings
from chordmixer.paper.benching.report import Report, load, words, write
from chordmixer.paper.benching.results import Phase, Reach, Result
from chordmixer.paper.reproduction.page import Origin
from chordmixer.terminal import tell
from chordmixer.training.devices import format_bytes
from chordmixer.views.plan import duration

__all__ = [
    "BenchConfig",
    "Phase",
    "Reach",
    "Report",
    "Result",
    "Setting",
    "adding",
    "bench",
    "fixed",
    "settings",
    "words",
]

PHASES: tuple[Literal["inference", "training"], ...] = ("inference", "training")


def bench(
    models: Sequence[str],
    at: Sequence[Setting],
    out: Path | str,
    config: BenchConfig | None = None,
    *,
    longest: bool = False,
    resume: bool = False,
    command: str = "",
    say: Callable[[str], None] = tell,
) -> Report:
    """Measure encoders at settings into `out`, a .json file; .md and .png lie beside it.

    Each encoder at each setting is verified, then timed, in a process of its own: one that crashes, or runs out of
    memory or time, has that as its result. With `longest` the longest sequence that each can take is searched for.
    What is there is written after every encoder; with `resume` it is not measured again, but where it was stopped
    sooner than it would be now.
    """
    for model in models:
        encoder_class(model)
    path, known = Path(out), (config or BenchConfig()).here()
    report = Report(Origin.of(torch.device(known.device)), command, known, torch.get_num_threads(), tuple(at))
    report = _opened(path, report, resume)
    work: list[tuple[str, Setting | Literal["inference", "training"]]] = [
        *((model, setting) for setting in at for model in models),
        *((model, phase) for model in models if longest for phase in PHASES),
    ]
    work = [(model, what) for model, what in work if not report.has(model, what)]
    began = time.monotonic()
    with subprocesses.Ahead(one=known.device == "cuda" and len(work) > 1) as ahead:
        for number, (model, what) in enumerate(work):
            left = _left(began, number, len(work), known.time_limit)
            say(f"{number + 1} of {len(work)}: {_named(model, what)}; {left}")
            case = Case(model, ENCODERS[model], known, threads=report.threads)
            if isinstance(what, Setting):
                result = _timed(replace(case, setting=what), ahead.next())
                report = report.plus(result)
                say(f"    {_short(result)}")
            else:
                reached = _reached(replace(case, phase=what), ahead.next())
                report = report.plus(reached)
                say(f"    {reached.length:,} tokens, then {reached.failed or 'no longer one was tried'}")
            write(report, path)
    write(report, path, draw=True)
    return report


def _opened(path: Path, report: Report, resume: bool) -> Report:
    """With what was measured before."""
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
    kept = tuple(setting for setting in before.settings if setting not in report.settings)
    commands = "\n".join(dict.fromkeys([*before.command.splitlines(), *report.command.splitlines()]))
    return replace(
        report,
        command=commands,
        settings=(*kept, *report.settings),
        results=before.results,
        reaches=before.reaches,
    )


def _timed(case: Case, process: Popen[bytes] | None) -> Result:
    assert case.setting is not None
    began = time.monotonic()
    said = subprocesses.run(case, process)
    about = {"encoder": case.encoder, "setting": case.setting.name, "seconds": time.monotonic() - began}
    return from_dict(Result, said | about, "result")


def _reached(case: Case, process: Popen[bytes] | None) -> Reach:
    return from_dict(Reach, subprocesses.run(case, process) | {"encoder": case.encoder, "phase": case.phase}, "reach")


# --- What is said meanwhile ---


def _named(model: str, what: Setting | str) -> str:
    return f"{model} at {what.name}" if isinstance(what, Setting) else f"the longest sequence of {model} in {what}"


def _left(began: float, done: int, all_of_them: int, limit: float) -> str:
    """How long the rest may take.

    >>> _left(0.0, 0, 4, 300.0)
    'at most 20 min left'
    """
    left = all_of_them - done
    if not done:
        return f"at most {duration(left * limit)} left"
    return f"about {duration((time.monotonic() - began) / done * left)} left"


def _short(result: Result) -> str:
    parts = [
        f"{name} {own.milliseconds:,.3g} ms a sequence" + (f", {format_bytes(peak)}" if peak is not None else "")
        for name in PHASES
        if (own := getattr(result, name))
        for peak in [result.peak(name)]
    ]
    if result.failed:
        parts.append(f"{result.verdict}: {result.message}" if result.message else result.verdict)
    return "; ".join(parts)
