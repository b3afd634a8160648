"""SIGTERM and SIGINT: finish the step, save, leave with the code that shells expect."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Self


class Interrupted(SystemExit):
    """The run was asked to stop, and has saved where it was; leaves with 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Interrupts:
    """Remembers the first signal; a second one acts at once, as if nobody listened."""

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
