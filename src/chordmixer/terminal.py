"""Output for the terminal: control characters in ids, labels, file names and replies of servers become escapes.

No content of a file can move the cursor, colour or hide a line.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def console(**options: Any) -> Console:
    """A rich console for tables and bars, with its own colours and `printable` texts."""
    made: Console = _console_class()(**options)
    return made


@lru_cache(maxsize=1)
def _console_class() -> type:
    from rich.console import Console  # rich takes a while to load, and most commands need none of it at first

    class PrintableConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole
