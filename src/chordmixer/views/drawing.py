"""Pictures for files: no window is ever opened, and a file is whole or not there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from chordmixer import files

COLOURS = ("#1f5fbf", "#c4501b", "#2f8f4e", "#8a4fb0", "#8c8c1f", "#444444")
"""Readable side by side, in print, and without red against green."""
MARKERS = "osD^"
"""The next one when all colours are taken."""
FULL = 99.5
"""Percentile of the sizes from which on a colour is full, so that a few large numbers leave the rest visible."""


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


def strongest(rows: ndarray, most: int) -> ndarray:
    """At most so many rows: of several neighbours, for each column, the number that is farthest from zero.

    >>> strongest(np.array([[1], [-3], [0], [2], [1]]), most=3).ravel().tolist()
    [-3, 2, 1]
    """
    share = -(-len(rows) // most)
    if share == 1:
        return rows
    short = -len(rows) % share
    filled = np.concatenate([rows, np.zeros((short, *rows.shape[1:]), rows.dtype)])
    grouped = filled.reshape(-1, share, *rows.shape[1:])
    at = np.abs(grouped).argmax(axis=1)[:, None]
    chosen: ndarray = np.take_along_axis(grouped, at, axis=1)[:, 0]
    return chosen


def full_colour(values: ndarray) -> float:
    """The size from which on a colour is full: of the `FULL` percentile, or the largest where most are zero.

    >>> full_colour(np.array([0.0, 0.0, -2.0])), full_colour(np.zeros(3))
    (1.98, 1.0)
    """
    sizes = np.abs(values)
    return float(np.percentile(sizes, FULL)) or float(sizes.max()) or 1.0
