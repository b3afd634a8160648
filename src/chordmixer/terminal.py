"""Output for the terminal: control characters in ids, labels, file names and replies of servers become escapes.

No content of a file can move the cursor, colour or hide a line.
"""

from __future__ import annotations

import logging
import os
import sys
import unicodedata
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are escaped: control, formatting such as right-to-left overrides, halves, unassigned."""


def printable(text: str) -> str:
    r"""The text with control characters as escapes; line breaks and tabs stay.

    >>> printable("gene\x1b[31m7\n")
    'gene\\x1b[31m7\n'
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in "\n\t" and unicodedata.category(c) in UNSAFE else c for c in text)


def tell(line: str, *, stderr: bool = False) -> None:
    """Print a line, and flush it."""
    print(printable(line), file=sys.stderr if stderr else sys.stdout, flush=True)


def rank_count() -> int:
    """Processes of this run: what torchrun or accelerate has started, else one."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def first_rank() -> bool:
    """Whether this process prints, where torchrun started several."""
    return os.environ.get("RANK", "0") == "0"


class LogHandler(logging.Handler):
    """Prints log messages by `tell`, in the first rank only; warnings have a prefix.

    A record with `extra={"stderr": True}` goes to standard error. An error of the output, such as a full disk, is
    raised and not swallowed.
    """

    stderr = False
    """Whether all of them go to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if first_rank():
            prefix = "warning: " if record.levelno >= logging.WARNING else ""
            tell(prefix + record.getMessage(), stderr=self.stderr or getattr(record, "stderr", False))


@contextmanager
def show_log(*, stderr: bool = False) -> Iterator[None]:
    """Print what the library logs from level INFO on; the logger is restored afterwards.

    Within another `show_log` no line is printed twice; `stderr` then holds for the inner one.
    """
    logger = logging.getLogger("chordmixer")
    outer = next((handler for handler in logger.handlers if isinstance(handler, LogHandler)), None)
    handler, level = outer or LogHandler(), logger.level
    before, handler.stderr = handler.stderr, stderr or handler.stderr
    if outer is None:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        handler.stderr = before
        if outer is None:
            logger.removeHandler(handler)


def console(**options: Any) -> Console:
    """A rich console for tables and bars, with its own colours and `printable` texts; quiet but in the first rank."""
    made: Console = _console_class()(**{"quiet": not first_rank(), **options})
    return made


@lru_cache(maxsize=1)
def _console_class() -> type:
    from rich.console import Console  # rich takes a while to load, and most commands need none of it at first

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole
