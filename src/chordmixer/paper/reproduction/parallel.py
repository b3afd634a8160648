"""Several runs at once on one device, each in a process of its own: small ones leave most of a GPU idle.

Runs that share a device slow each other down and change nothing else, as long as none ends by the clock.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT, Popen
from typing import TYPE_CHECKING

from chordmixer import files
from chordmixer.paper import subprocesses
from chordmixer.terminal import show_log, tell
from chordmixer.training import Experiment, Interrupted, train
from chordmixer.training.devices import choose_device
from chordmixer.training.progress import Interrupts
from chordmixer.training.run_folder import open_folder
from chordmixer.views.plan import duration

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from chordmixer.paper.reproduction.running import RunsJournal


PROCESS = "chordmixer.paper.reproduction.parallel:train_folder"
LOGS = "logs"
"""The folder of what each process printed, beside the run folders."""
POLL_SECONDS, REPORT_SECONDS = 0.2, 60.0


def check(experiments: Mapping[str, Experiment], at_once: int) -> None:
    """Refuse runs that cannot share a device."""
    if at_once < 1:
        raise ValueError(f"--at-once {at_once} is too few: give 1 or more runs")
    if at_once > 1 and (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ValueError(f"--at-once {at_once} on {ranks} processes is not possible: use one")
    for experiment in experiments.values():
        if at_once > 1 and experiment.training.minutes:
            raise ValueError(
                f"training.minutes={experiment.training.minutes:g} ends a run by the clock, and runs at once slow "
                "each other down: leave it out and give --minutes, which counts the steps of a run alone"
            )


def warnings(at_once: int) -> list[str]:
    """What a page says of runs that shared the device."""
    if at_once == 1:
        return []
    return [f"Up to {at_once} runs at once shared the device: each takes less time alone."]


@dataclass(frozen=True)
class RunProcess:
    """A run that is being trained."""

    name: str
    process: Popen[bytes]
    log: Path
    timing: ExitStack
    """Its seconds, for the journal."""

    def last_line(self) -> str:
        """Of its log; of an empty one, how it ended."""
        return (self._lines() or [subprocesses.exit_reason(self.process.returncode)])[-1]

    def percent(self) -> int | None:
        """Per cent that are done, by its log."""
        shares = [int(line.split("%")[0]) for line in self._lines() if re.match(r"\d+%  ", line)]
        return shares[-1] if shares else None

    def progress(self) -> str:
        """Its name, and how far it is."""
        return self.name if (percent := self.percent()) is None else f"{self.name} {percent} %"

    def _lines(self) -> list[str]:
        return [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]


def train_parallel(experiments: Mapping[str, Experiment], journal: RunsJournal, at_once: int) -> None:
    """Train each into its folder beside the journal, so many at a time, or resume what is there.

    A run that fails stops no other; all failures are reported at the end. A signal is passed on, and all runs save
    their state.
    """
    ParallelRuns(experiments, journal, at_once).train()


class ParallelRuns:
    """The runs that wait, those that are being trained, and the failures."""

    def __init__(self, experiments: Mapping[str, Experiment], journal: RunsJournal, at_once: int) -> None:
        self.experiments, self.journal, self.at_once = experiments, journal, at_once
        self.waiting, self.running, self.failed = [*experiments], list[RunProcess](), list[str]()
        self.done = 0
        self.began = self.reported = time.monotonic()

    def train(self) -> None:
        stopped = False
        with Interrupts() as interrupts:
            try:
                while self.running or (self.waiting and not interrupts.caught):
                    if not interrupts.caught:
                        self._fill()
                    elif not stopped:
                        stopped = True
                        self._pass_on(interrupts.caught)
                    time.sleep(POLL_SECONDS)
                    self._collect()
                    self._report()
            finally:
                for child in self.running:  # only after an error in this process
                    child.process.kill()
        if interrupts.caught:
            raise Interrupted(interrupts.caught)
        if self.failed:
            raise ValueError(
                f"{len(self.failed)} of {len(self.experiments)} runs came to no end, {'; '.join(self.failed)}: the "
                "others are kept; mend that, and go on with --resume"
            )

    def _fill(self) -> None:
        """Start as many as there is room for."""
        while self.waiting and len(self.running) < self.at_once:
            name = self.waiting.pop(0)
            self.running.append(self._start(name))
            logger.info(f"{name} begins, {len(self.waiting)} to come")

    def _start(self, name: str) -> RunProcess:
        experiment, out = self.experiments[name], self.journal.path.parent
        open_folder(experiment, out / name, resume=True).release()
        log, timing = out / LOGS / f"{name}.log", ExitStack()
        log.parent.mkdir(exist_ok=True)
        timing.enter_context(self.journal.timing(name))
        environment = {"PYTHONUNBUFFERED": "1"}
        if choose_device(experiment.training).type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.at_once))
        with files.open_own(log, os.O_TRUNC) as output:
            process = subprocesses.start(
                PROCESS,
                str(out / name),
                *filter(None, [getattr(experiment.data, "cache", None)]),
                environment=environment,
                stdin=DEVNULL,
                stdout=output,
                stderr=STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which passes it on once
            )
        return RunProcess(name, process, log, timing)

    def _pass_on(self, signal: int) -> None:
        logger.info(f"stopping {len(self.running)} runs, which save where they are")
        for child in self.running:
            child.process.send_signal(signal)
        self.waiting.clear()

    def _collect(self) -> None:
        """Runs that have ended."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            child.timing.close()
            self.done += 1
            if child.process.returncode:
                self.failed.append(f"{child.name} ({child.last_line()}; see {child.log})")
            how = "stopped" if child.process.returncode else "has ended"
            logger.info(f"{child.name} {how}, {self.done} of {len(self.experiments)}{self._left()}")

    def _left(self) -> str:
        """The time left, by all that is done so far, shares of unfinished runs included."""
        done = self.done + sum(child.percent() or 0 for child in self.running) / 100
        left = len(self.experiments) - done
        return f"; about {duration((time.monotonic() - self.began) / done * left)} left" if done and left else ""

    def _report(self) -> None:
        if time.monotonic() - self.reported >= REPORT_SECONDS:
            self.reported = time.monotonic()
            names = ", ".join(child.progress() for child in self.running)
            logger.info(f"training {names}; {len(self.waiting)} to come{self._left()}")


def train_folder(folder: str, cache: str | None = None) -> None:
    """In a child: train what the settings of a run folder say, or resume it; a user error is the last line."""
    try:
        with show_log():
            train(Experiment.load(Path(folder), cache=cache), Path(folder), resume=True)
    except ValueError as error:
        tell(" ".join(str(error).split()), stderr=True)
        raise SystemExit(2) from None
