"""The process that one of several runs trains in: `python -m chordmixer.paper.reproduction.worker FOLDER [CACHE]`.

The folder holds the run's settings, and what an earlier start has left. A process whose parent has died stops as if
it had been asked to: it saves where it is, and leaves.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from chordmixer.terminal import tell
from chordmixer.training import Experiment, train


def main() -> None:
    """Train; a user's mistake is the last line that is said."""
    folder = Path(sys.argv[1])
    threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    try:
        train(Experiment.load(folder, cache=next(iter(sys.argv[2:]), None)), folder, resume=True)
    except ValueError as error:
        tell(" ".join(str(error).split()), stderr=True)
        raise SystemExit(2) from None


def _stop_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
