"""Pictures for files: no window is ever opened, and a file is whole or not there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from chordmixer import files

COLOURS = ("#1f5fbf", "#c4501b", "#2f8f4e", "#8a4fb0", "#8c8c1f", "#444444")
"""Readable side by side, in print, and without red against green."""
MARKERS = "osD^"
"""The next one when all colours are taken."""


def pyplot() -> Any:
    """matplotlib's, imported when something is drawn."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save(figure: Any, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG, and let it go."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    pyplot().close(figure)
    files.write_bytes(path, drawn.getvalue())
    return path
