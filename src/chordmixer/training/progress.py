"""Progress of a run: a bar or lines on the terminal, metrics.jsonl, TensorBoard; and signals that stop it."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from chordmixer import files
from chordmixer.data.loading import TokenSampler

logger = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Seconds between lines where there is no terminal."""
FORECAST_AFTER, LONG_RUN = 20.0, 900.0
"""Seconds after which the remaining time is estimated, and the estimate in seconds above which it is announced."""


def tensorboard_writer() -> Any:
    """TensorBoard's writer class."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(
            "tensorboard=true needs the tensorboard package: pip install 'chordmixer[tensorboard]'"
        ) from None
    return SummaryWriter


def introduction(task: str, sampler: TokenSampler, network: str, epochs: int) -> Iterator[str]:
    """A line that describes the run at its start.

    >>> print(*introduction("adding", TokenSampler([3, 9], tokens=9, sequences=1), "a network", epochs=5))
    adding: 2 training sequences of 3 to 9 tokens; a network; 2 batches an epoch, 5 epochs
    """
    ranks = f" x {sampler.ranks}" if sampler.ranks > 1 else ""
    passes = f"{epochs:,} epoch{'' if epochs == 1 else 's'}"
    yield (
        f"{task}: {len(sampler.lengths):,} training sequences of {min(sampler.lengths):,} to "
        f"{max(sampler.lengths):,} tokens; {network}{ranks}; {len(sampler):,} batches an epoch, {passes}"
    )


class Throughput:
    """Logs the throughput every ten seconds, for work on a stream of unknown length."""

    def __init__(self) -> None:
        self.records, self.tokens = 0, 0
        self.start = self.logged = time.monotonic()

    def done(self, records: int, tokens: int) -> None:
        """Count finished records and tokens."""
        self.records, self.tokens = self.records + records, self.tokens + tokens
        now = time.monotonic()
        if now - self.logged >= EVERY_SECONDS:
            self.logged = now
            rate = self.tokens / (now - self.start)
            logger.info(f"{self.records:,} records, {self.tokens:,} tokens done, {rate:,.0f} tokens/s")


class Journal:
    """Writes metrics.jsonl, one line per event, and optionally TensorBoard files."""

    def __init__(self, folder: Path, tensorboard: bool = False) -> None:
        self.path = folder / "metrics.jsonl"
        self.lines = 0
        self.board: Any = None
        if tensorboard:
            self.board = tensorboard_writer()(str(folder / "tensorboard"))

    def keep(self, lines: int) -> None:
        """Keep this number of lines; remove those that a killed process wrote after its checkpoint."""
        written = self.path.read_bytes().splitlines(True) if self.path.exists() else []
        self.lines = min(lines, len(written))
        if len(written) > lines:
            files.write_bytes(self.path, b"".join(written[:lines]))

    def write(self, step: int, split: str, **numbers: float) -> None:
        files.append_text(self.path, json.dumps(files.finite({"step": step, "split": split, **numbers})) + "\n")
        self.lines += 1
        if self.board:
            for name, value in numbers.items():
                self.board.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        if self.board:
            self.board.close()


class Display:
    """Shows progress: a bar on a terminal, otherwise a line every ten seconds; only on the main rank."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.start = 0.0
        self.tokens = 0
        self.forecast = False
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            console=console,
        )
        self.line = self.bar.add_task("starting", total=1.0)

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self.bar.start()
        self.began = self.printed = time.monotonic()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def update(self, done: float, epoch: int, step: int, loss: float, tokens: int) -> None:
        """Show a step; `done` is the finished share of the run."""
        if self.quiet:
            return
        self.tokens += tokens
        elapsed = max(time.monotonic() - self.began, 1e-9)
        left = elapsed / max(done - self.start, 1e-9) * (1 - done)
        if not self.forecast and elapsed > FORECAST_AFTER:
            self.forecast = True
            if left > LONG_RUN:
                self.say(
                    f"at this pace {_clock(left)} are left: Ctrl-C stops the run, --resume goes on with it, on a GPU "
                    "too; --minutes M, or --set training.epochs=N, makes a new one shorter"
                )
        text = (
            f"epoch {epoch + 1}  step {step}  loss {loss:.4f}  {_short(self.tokens / elapsed)} tokens/s  "
            f"{_clock(left)} left"
        )
        if self.console.is_terminal:
            self.bar.update(self.line, completed=done, description=text)
        elif time.monotonic() - self.printed > EVERY_SECONDS:
            self.printed = time.monotonic()
            self.say(f"{done:4.0%}  {text}")

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def _clock(seconds: float) -> str:
    rounded = int(seconds)
    hours, minutes = divmod(rounded // 60, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rounded % 60:02d}s"


# --- Signals ---


class Interrupted(SystemExit):
    """The run was stopped by a signal, after a checkpoint; the exit code is 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupts:
    """Catches the first SIGTERM or SIGINT, so that the step is finished and saved; a second one ends the process."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.caught = 0

    def __enter__(self) -> Self:
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._catch) for number in self.SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.caught = number
        signal.signal(number, signal.SIG_DFL)
