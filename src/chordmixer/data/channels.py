"""What the numbers of real-valued series are like: the range of each channel, and how many are missing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chordmixer.data.store import Store
from chordmixer.data.tokenizers import NOT_FINITE, Numbers

PIECE = 1 << 20
"""Steps that are looked at together."""


@dataclass(frozen=True)
class Channels:
    """Of all records together, in the units of the files; a number for each channel."""

    least: list[float]
    mean: list[float]
    deviation: list[float]
    """Standard deviation."""
    most: list[float]
    missing: int
    """Numbers of all channels that are NaN or infinite in the files."""
    numbers: int
    """All of them."""


def channels_of(store: Store) -> Channels | None:
    """None where the records are no series. Missing numbers count as what they were stored as, the mean."""
    tokenizer, values = store.tokenizer, store.values
    if not isinstance(tokenizer, Numbers):
        return None
    mean = values.mean(axis=0, dtype=np.float64)
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    squares = sum(((piece - mean) ** 2).sum(axis=0) for piece in pieces)
    scale, offset = np.array(tokenizer.scale or 1.0), np.array(tokenizer.mean or 0.0)
    least, mean, most = (row * scale + offset for row in (values.min(axis=0), mean, values.max(axis=0)))
    deviation = np.sqrt(squares / len(values)) * scale
    return Channels(
        least=least.tolist(),
        mean=mean.tolist(),
        deviation=deviation.tolist(),
        most=most.tolist(),
        missing=store.letters[NOT_FINITE],
        numbers=values.size,
    )
