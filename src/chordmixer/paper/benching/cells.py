"""The numbers of a result as words for the cells of a table."""

from __future__ import annotations

from chordmixer.paper.benching import published
from chordmixer.paper.benching.results import OURS, Reach, Result, ratio
from chordmixer.training.devices import format_bytes
from chordmixer.views.axes import compact

COLUMNS = [
    *("model", "weights", "training, ms", "inference, ms", "training, GB", "inference, GB"),
    *("tokens/s", "padded"),
]
PAPER = ["paper, ms", "paper, GB"]
NARROW = ("model", "training, ms", "inference, ms", "training, GB", "tokens/s", "paper, ms")
"""The columns that a terminal of 80 has room for."""
REACH = ["model", "phase", "longest", "time", "memory", "what stopped it"]
PHASES = ("training", "inference")


def header(base_length: int | None) -> list[str]:
    """Names of the cells of `row`."""
    return COLUMNS + (PAPER if published.compares(base_length) else [])


def row(result: Result, ours: Result | None, base_length: int | None) -> list[str]:
    """An encoder's numbers, each time and memory with its ratio to ChordMixer's; what stopped it, in its place.

    >>> row(Result("lstm", "length 9", parameters=1200, failed="time limit", stage="training"), None, None)
    ['lstm', '1.2k', 'time limit', '-', '-', '-', '-', '-']
    """
    beside = ours or Result(OURS, result.setting)  # one without numbers
    speed = result.training or result.inference
    found = [
        result.encoder,
        "-" if result.parameters is None else compact(float(f"{result.parameters:.3g}")),
        *(_number(result.time(phase), beside.time(phase)) for phase in PHASES),
        *(_number(gigabytes(result.peak(phase)), gigabytes(beside.peak(phase))) for phase in PHASES),
        compact(float(f"{speed.tokens_per_second:.3g}")) if speed else "-",
        "-" if result.padded is None else f"{result.padded:.0%}",
    ]
    if result.failed:
        found[_place(result)] = result.failed
    if published.compares(base_length):
        theirs, chord = published.cost(base_length, result.encoder), published.cost(base_length, OURS)
        found += [_number(theirs and theirs[i], chord and chord[i]) for i in (1, 0)]
    return found


def reach(found: Reach) -> list[str]:
    """The cells of the columns `REACH`.

    >>> reach(Reach("lstm", "training", 2048, 1.5, 3_000_000, "out of memory"))
    ['lstm', 'training', '2,048', '1.50 s', '3 MB', 'out of memory']
    """
    return [
        found.encoder,
        found.phase,
        f"{found.length:,}" if found.length else "none",
        "-" if found.seconds is None else f"{found.seconds:.2f} s",
        "-" if found.peak is None else format_bytes(found.peak),
        found.failed or "no longer one was tried",
    ]


def gigabytes(number: int | None) -> float | None:
    return None if number is None else number / 1e9


def _place(result: Result) -> int:
    """The first cell that has no number for what stopped it: a time, or the memory of the longest sequence.

    >>> _place(Result("lstm", "length 9", failed="crashed", stage="verification"))
    2
    """
    phase = "inference" if result.stage.startswith("inference") else "training"
    return (2 if getattr(result, phase) is None else 4) + PHASES.index(phase)


def _number(value: float | None, ours: float | None) -> str:
    """
    >>> _number(12.3456, 4.0), _number(None, 4.0), _number(0.5, None), _number(9831, 4.9)
    ('12.3 (3.1)', '-', '0.5', '9831 (2006)')
    """
    if value is None:
        return "-"
    times = ratio(value, ours)
    return _figures(value, 3) + ("" if times is None else f" ({_figures(times, 2)})")


def _figures(value: float, count: int) -> str:
    """So many, and no power of ten for large numbers."""
    return f"{value:.0f}" if value >= 10 ** (count - 1) else f"{value:.{count}g}"
