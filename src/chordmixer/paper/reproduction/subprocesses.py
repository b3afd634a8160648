"""Several runs at once on one device, each in a process of its own: small ones leave most of a GPU idle.

Company slows a run down and changes nothing else, as long as its end is not a matter of time (`pacing`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chordmixer import files
from chordmixer.training import Experiment, Interrupted
from chordmixer.training.devices import choose_device
from chordmixer.training.interrupts import Interrupts
from chordmixer.training.opening import open_folder
from chordmixer.views.plan import duration

if TYPE_CHECKING:
    from chordmixer.paper.reproduction.running import RunsJournal

Say = Callable[[str], None]

PROCESS = [sys.executable, "-m", "chordmixer.paper.reproduction.worker"]
LOGS = "logs"
"""Beside the run folders: what each process said."""
LOOK, TELL = 0.2, 60.0
"""Seconds from one look at the processes to the next, and from one line about them to the next."""


def check(experiments: Mapping[str, Experiment], at_once: int) -> None:
    """Refuse what runs in company cannot do."""
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
    """What a page says of runs in company."""
    if at_once == 1:
        return []
    return [f"Up to {at_once} runs at once shared the device: each takes less time alone."]


def train_together(experiments: Mapping[str, Experiment], journal: RunsJournal, at_once: int, say: Say) -> None:
    """Train each into its folder beside the journal, so many at a time, or go on with what is there.

    A run that fails holds up no other; what went wrong is said when all have ended. A signal is handed on, and all of
    them save where they are.
    """
    Together(experiments, journal, at_once, say).train()


@dataclass(frozen=True)
class Started:
    """A run that is being trained."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    timing: ExitStack
    """Its seconds, for the journal."""

    def last_words(self) -> str:
        """Of its log, or else how it ended."""
        lines = self._lines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"

    def share(self) -> int | None:
        """Per cent that it said to have done."""
        shares = [int(line.split("%")[0]) for line in self._lines() if re.match(r"\d+%  ", line)]
        return shares[-1] if shares else None

    def progress(self) -> str:
        """Its name, and how far it said to be."""
        share = self.share()
        return self.name if share is None else f"{self.name} {share} %"

    def _lines(self) -> list[str]:
        return [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]


class Together:
    """The runs that wait, those that are being trained, and what became of the others."""

    def __init__(self, experiments: Mapping[str, Experiment], journal: RunsJournal, at_once: int, say: Say) -> None:
        self.experiments, self.journal, self.at_once, self.say = experiments, journal, at_once, say
        self.waiting, self.running, self.failed = [*experiments], list[Started](), list[str]()
        self.done = 0
        self.began = self.told = time.monotonic()

    def train(self) -> None:
        stopped = False
        with Interrupts() as interrupts:
            try:
                while self.running or (self.waiting and not interrupts.caught):
                    if not interrupts.caught:
                        self._begin()
                    elif not stopped:
                        stopped = True
                        self._hand_on(interrupts.caught)
                    time.sleep(LOOK)
                    self._collect()
                    self._tell()
            finally:
                for child in self.running:  # only where something went wrong here
                    child.process.kill()
        if interrupts.caught:
            raise Interrupted(interrupts.caught)
        if self.failed:
            raise ValueError(
                f"{len(self.failed)} of {len(self.experiments)} runs came to no end, {'; '.join(self.failed)}: the "
                "others are kept; mend that, and go on with --resume"
            )

    def _begin(self) -> None:
        """As many as there is room for."""
        while self.waiting and len(self.running) < self.at_once:
            name = self.waiting.pop(0)
            self.running.append(self._start(name))
            self.say(f"{name} begins, {len(self.waiting)} to come")

    def _start(self, name: str) -> Started:
        experiment, out = self.experiments[name], self.journal.path.parent
        open_folder(experiment, out / name, resume=True).release()
        log, timing = out / LOGS / f"{name}.log", ExitStack()
        log.parent.mkdir(exist_ok=True)
        timing.enter_context(self.journal.timing(name))
        with files.open_own(log, os.O_TRUNC) as said:
            process = subprocess.Popen(
                [*PROCESS, str(out / name), *filter(None, [getattr(experiment.data, "cache", None)])],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is for this process, which hands it on once
                env=os.environ | self._environment(experiment),
            )
        return Started(name, process, log, timing)

    def _environment(self, experiment: Experiment) -> dict[str, str]:
        """Modules are found where this process finds them, and a CPU's cores are shared out."""
        own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        if choose_device(experiment.training).type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            own["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.at_once))
        return own

    def _hand_on(self, signal: int) -> None:
        self.say(f"stopping {len(self.running)} runs, which save where they are")
        for child in self.running:
            child.process.send_signal(signal)
        self.waiting.clear()

    def _collect(self) -> None:
        """Those that have ended."""
        for child in [child for child in self.running if child.process.poll() is not None]:
            self.running.remove(child)
            child.timing.close()
            self.done += 1
            if child.process.returncode:
                self.failed.append(f"{child.name} ({child.last_words()}; see {child.log})")
            how = "stopped" if child.process.returncode else "has ended"
            self.say(f"{child.name} {how}, {self.done} of {len(self.experiments)}{self._left()}")

    def _left(self) -> str:
        """By all that is done so far, parts of runs among it."""
        done = self.done + sum(child.share() or 0 for child in self.running) / 100
        left = len(self.experiments) - done
        return f"; about {duration((time.monotonic() - self.began) / done * left)} left" if done and left else ""

    def _tell(self) -> None:
        """How far they are, now and then."""
        if time.monotonic() - self.told >= TELL:
            self.told = time.monotonic()
            names = ", ".join(child.progress() for child in self.running)
            self.say(f"training {names}; {len(self.waiting)} to come{self._left()}")
