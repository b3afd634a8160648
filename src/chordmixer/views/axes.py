"""Where a value stands on a chart, which values are named along its side, and how wide words are."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Ticks = tuple[tuple[float, str], ...]

FONT = 12
"""Size of all letters in a chart."""


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, in even steps or in even ratios."""

    low: float
    high: float
    title: str
    ticks: Ticks
    log: bool = False

    def share(self, value: float) -> float:
        """How far along a value stands: 0 at the low end, 1 at the high one; NaN where it has no place.

        >>> Axis(1, 100, "", (), log=True).share(10)
        0.5
        """
        if not math.isfinite(value) or (self.log and value <= 0):
            return math.nan
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


def linear(values: Iterable[float], title: str, within: tuple[float, float] = (-math.inf, math.inf)) -> Axis:
    """Round ends around the values, but not beyond `within`, which the values may not pass.

    >>> axis = linear([0.62, 0.97], "accuracy")
    >>> axis.low, axis.high, [label for _, label in axis.ticks]
    (0.6, 1.0, ['0.6', '0.7', '0.8', '0.9', '1.0'])
    """
    known = (
        [v for v in map(float, values) if math.isfinite(v)] or [v for v in within if math.isfinite(v)] or [0.0, 1.0]
    )
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        room = abs(low) / 2 or 0.5
        low, high = max(low - room, within[0]), min(high + room, within[1])
    step = _step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    places = [float(f"{k * step:.12g}") for k in range(first, last + 1)]
    low, high = max(places[0], within[0]), min(places[-1], within[1])
    inside = [p for p in places if low - 1e-9 * step <= p <= high + 1e-9 * step]
    return Axis(low, high, title, tuple((p, tick_label(p, step)) for p in inside))


def logarithmic(values: Iterable[float], title: str) -> Axis:
    """From the least to the greatest value above zero, named at 1, 2 and 5 times powers of ten where these fit.

    >>> [label for _, label in logarithmic([30, 40_000], "length").ticks]
    ['100', '1k', '10k']
    """
    known = [v for v in map(float, values) if math.isfinite(v) and v > 0] or [1.0, 10.0]
    low, high = min(known), max(known)
    if low == high:
        low, high = low / 2, high * 2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), range(1, 10)):
        places = [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]
        if len(places) >= 3:
            break
    else:
        places = [low, high]
    places = places[:: math.ceil(len(places) / 7)]
    return Axis(low, high, title, tuple((p, compact(p)) for p in places), log=True)


def categories(names: Sequence[str], title: str) -> Axis:
    """A place for each name: 0, 1, 2, ..., with half a step of room at both ends."""
    return Axis(-0.5, max(len(names), 1) - 0.5, title, tuple((float(i), name) for i, name in enumerate(names)))


def _step(rough: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten.

    >>> _step(0.07), _step(13.0)
    (0.1, 20.0)
    """
    power = 10.0 ** math.floor(math.log10(rough))
    return next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))


def tick_label(value: float, step: float) -> str:
    """With as many decimals as the step needs.

    >>> tick_label(0.1 + 0.2, 0.1), tick_label(20_000, 10_000), tick_label(-0.0, 0.5), tick_label(2e-6, 1e-6)
    ('0.3', '20k', '0.0', '2e-06')
    """
    if abs(value) < step / 1000:
        value = 0.0
    if step >= 1000:
        return compact(value)
    if step < 1e-4:
        return f"{value:.{max(0, _order(value) - _order(step))}e}" if value else "0"
    return f"{value:,.{max(0, -_order(step))}f}"


def _order(value: float) -> int:
    return math.floor(math.log10(abs(value)) + 1e-9) if value else 0


def compact(value: float) -> str:
    """
    >>> compact(950), compact(1500), compact(2e6), compact(0.05)
    ('950', '1.5k', '2M', '0.05')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def text_width(words: str) -> float:
    """About how wide words are in a chart, rather too much than too little, whatever the reader's font."""
    return FONT * sum(map(_letter_width, words))


def _letter_width(letter: str) -> float:
    if letter in "iIl.,:;'|!fjtr()[] ":
        return 0.36
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.05
    return 0.92 if letter in "MWmw@%" else 0.72 if letter.isupper() else 0.6


def fitted(words: str, width: float) -> str:
    """Words, or as many letters as there is room for.

    >>> fitted("Cyprinidae", 100), fitted("Cyprinidae", 40)
    ('Cyprinidae', 'Cypri…')
    """
    if text_width(words) <= width:
        return words
    while words and text_width(words + "…") > width:
        words = words[:-1]
    return words + "…"


def apart(places: Sequence[float], labels: Sequence[str], gap: float = 6) -> list[int]:
    """Which labels, centred at these places, can stand in a row without touching: every n-th, counted from the last.

    >>> apart([0, 10, 20, 30], ["100", "200", "300", "400"])
    [0, 3]
    """
    for stride in range(1, len(places) + 1):
        kept = [*range(len(places) - 1, -1, -stride)][::-1]
        ends = [(places[i] - text_width(labels[i]) / 2, places[i] + text_width(labels[i]) / 2) for i in kept]
        if all(ends[k][1] + gap <= ends[k + 1][0] for k in range(len(ends) - 1)):
            return kept
    return []
