"""Output for the terminal: control characters in ids, labels, file names and replies of servers are escaped.

No content of a file can move the cursor, change colours or hide a line.
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
"""Unicode categories that are escaped: control, format (right-to-left overrides), surrogate, private, unassigned."""


def printable(text: str) -> str:
    r"""Escape control characters other than line breaks and tabs.

    >>> printable("gene\x1b[31m7\n")
    'gene\\x1b[31m7\n'
    """
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in "\n\t" and unicodedata.category(c) in UNSAFE else c for c in text)


def tell(line: str, *, stderr: bool = False) -> None:
    """Print a line and flush the output."""
    print(printable(line), file=sys.stderr if stderr else sys.stdout, flush=True)


def rank_count() -> int:
    """The number of processes that torchrun or accelerate has started for this run, or 1."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def first_rank() -> bool:
    """Whether this process is the only one or rank 0, which prints."""
    return os.environ.get("RANK", "0") == "0"


class LogHandler(logging.Handler):
    """Prints log messages by `tell`, in the first rank only; warnings have a prefix.

    A record with `extra={"stderr": True}` is printed to standard error. Errors of the output, such as a full disk,
    are raised.
    """

    stderr = False
    """Whether all messages are printed to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if first_rank():
            prefix = "warning: " if record.levelno >= logging.WARNING else ""
            tell(prefix + record.getMessage(), stderr=self.stderr or getattr(record, "stderr", False))


@contextmanager
def show_log(*, stderr: bool = False) -> Iterator[None]:
    """Print the library's log messages of level INFO and above; the logger is restored afterwards.

    Within another `show_log` no line is printed twice; `stderr` then applies within the inner block.
    """
    logger = logging.getLogger("chordmixer")
    outer = next((handler for handler in logger.handlers if isinstance(handler, LogHandler)), None)
    handler, level = outer or LogHandler(), logger.level
    outer_stderr, handler.stderr = handler.stderr, stderr or handler.stderr
    if outer is None:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        handler.stderr = outer_stderr
        if outer is None:
            logger.removeHandler(handler)


def console(**options: Any) -> Console:
    """A rich console for tables and bars that escapes texts by `printable`; quiet except in the first rank."""
    rich_console: Console = _console_class()(**{"quiet": not first_rank(), **options})
    return rich_console


@lru_cache(maxsize=1)
def _console_class() -> type:
    from rich.console import Console  # loading rich takes time, and most commands do not need it at the start

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole
