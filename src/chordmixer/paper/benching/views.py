"""Tables and plots of a benchmark, and the paper's own table of memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chordmixer.paper.benching.cases import REFERENCE, Reach, Result, Setting, chordmixer_result, ratio
from chordmixer.training.devices import format_bytes
from chordmixer.views import plots
from chordmixer.views.charts import compact
from chordmixer.views.plots import COLOURS, MARKERS
from chordmixer.views.tables import ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

SOURCE = (
    'Khalitov et al. (ICLR 2023), appendix, "Peak memory and running time comparison": the Adding problem on one '
    "Tesla V100 of 32 GB, padded to the longest of a batch but for Linformer. It does not say whether the time is of "
    "training or of inference, nor the batches; a dash is where it has no number."
)

Cost = tuple[float, float]
"""Peak memory in GB, and milliseconds per sequence."""

PAPER: dict[int, dict[str, Cost]] = {
    200: {
        "lstm": (1.5, 460),
        "tree_lstm": (25.3, 9831),
        "cnn": (1.4, 3.3),
        "tcn": (1.4, 5.1),
        "transformer": (1.9, 9.8),
        "linformer": (1.6, 12.5),
        "reformer": (2.0, 23.3),
        "longformer": (1.7, 11.1),
        "luna": (1.7, 16.6),
        "s4d": (1.4, 3.2),
        "poolformer": (1.4, 3.9),
        "cosformer": (1.5, 8.7),
        "chordmixer": (1.5, 4.9),
    },
    128_000: {"poolformer": (13.6, 378), "cosformer": (22.6, 994), "chordmixer": (23.1, 604)},
}
"""The paper's numbers by base length and encoder. S4D here stands for its S4. At 128,000 it has no other numbers."""


COLUMNS = ["model", "weights", "training, ms", "inference, ms", "training, GB", "inference, GB", "tokens/s", "padded"]
PAPER_COLUMNS = ["paper, ms", "paper, GB"]
NARROW_COLUMNS = ("model", "training, ms", "inference, ms", "training, GB", "tokens/s", "paper, ms")  # fit into 80
REACH_COLUMNS = ["model", "phase", "longest", "time", "memory", "what stopped it"]
PHASES = ("training", "inference")
WIDE_TERMINAL = 120  # terminal width from which on all columns of a table are shown
SHORT_AXIS = 50.0  # ratio of an axis's limits below which ticks between powers of ten are labelled
MIN_LINE_LENGTHS = 3  # number of fixed lengths from which on lines are drawn instead of bars


def result_cells(result: Result, chord: Result | None, base_length: int | None) -> list[str]:
    """Table cells of a result: times and memory with ratios to ChordMixer's, and the failure in place of a number.

    >>> result_cells(Result("lstm", "length 9", parameters=1200, failed="time limit", stage="training"), None, None)
    ['lstm', '1.2k', 'time limit', '-', '-', '-', '-', '-']
    """
    reference = chord or Result(REFERENCE, result.setting)  # a result without numbers
    speed = result.training or result.inference
    cells = [
        result.encoder,
        "-" if result.parameters is None else compact(float(f"{result.parameters:.3g}")),
        *(_number(result.time(phase), reference.time(phase)) for phase in PHASES),
        *(_number(gigabytes(result.peak(phase)), gigabytes(reference.peak(phase))) for phase in PHASES),
        compact(float(f"{speed.tokens_per_second:.3g}")) if speed else "-",
        "-" if result.padded is None else f"{result.padded:.0%}",
    ]
    if result.failed:
        cells[_failed_cell(result)] = result.failed
    if published := PAPER.get(base_length or 0):
        cost, chord_cost = published.get(result.encoder), published[REFERENCE]
        cells += [_number(cost and cost[i], chord_cost[i]) for i in (1, 0)]
    return cells


def gigabytes(number: int | None) -> float | None:
    return None if number is None else number / 1e9


def _failed_cell(result: Result) -> int:
    """Index of the cell that shows the failure: the missing time, or else the memory, of the phase that failed.

    >>> _failed_cell(Result("lstm", "length 9", failed="crashed", stage="verification"))
    2
    """
    phase = "inference" if result.stage.startswith("inference") else "training"
    return (2 if getattr(result, phase) is None else 4) + PHASES.index(phase)


def _number(value: float | None, reference: float | None) -> str:
    """
    >>> _number(12.3456, 4.0), _number(None, 4.0), _number(0.5, None), _number(9831, 4.9)
    ('12.3 (3.1)', '-', '0.5', '9831 (2006)')
    """
    if value is None:
        return "-"
    times = ratio(value, reference)
    return _figures(value, 3) + ("" if times is None else f" ({_figures(times, 2)})")


def _figures(value: float, count: int) -> str:
    """Format with `count` significant figures, without an exponent for large numbers."""
    return f"{value:.0f}" if value >= 10 ** (count - 1) else f"{value:.{count}g}"


def table(setting: Setting, results: Sequence[Result], width: int | None = None) -> ReportTable:
    """Table of all encoders at a setting, with fewer columns on narrow terminals."""
    names = COLUMNS + (PAPER_COLUMNS if setting.base_length in PAPER else [])
    shown = [i for i, name in enumerate(names) if width is None or width >= WIDE_TERMINAL or name in NARROW_COLUMNS]
    chord = chordmixer_result(results, setting.name)
    rows = [[result_cells(result, chord, setting.base_length)[i] for i in shown] for result in results]
    head = [names[i] if width is None else names[i].replace(", ", "\n") for i in shown]
    title = f"{setting.name}, longest {setting.longest:,} (in brackets: times ChordMixer's)"
    return ReportTable(head, rows, title)


def reach_table(reaches: Sequence[Reach]) -> ReportTable:
    """Table of the longest sequences."""
    rows = [
        (
            reach.encoder,
            reach.phase,
            f"{reach.length:,}" if reach.length else "none",
            "-" if reach.seconds is None else f"{reach.seconds:.2f} s",
            "-" if reach.peak is None else format_bytes(reach.peak),
            reach.failed or "no longer one was tried",
        )
        for reach in reaches
    ]
    return ReportTable(REACH_COLUMNS, rows, "The longest sequence, found by doubling", words=(0, 1, 5))


def plot(settings: Sequence[Setting], results: Sequence[Result], path: Path) -> Path:
    """Plot time and memory side by side: lines over length for several fixed lengths, else one bar per model."""
    fixed = [setting for setting in settings if setting.base_length is None]
    lines = len(fixed) >= MIN_LINE_LENGTHS
    rows = [s for s in settings if s not in fixed or not lines]
    models = len({r.encoder for r in results})
    heights = [1.3 + 0.34 * models for _ in rows] + [4.5] * lines
    figure, grid = plots.pyplot().subplots(
        len(heights), 2, figsize=(11, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axes, setting in zip(grid, rows, strict=False):
        shown = [r for r in results if r.setting == setting.name]
        _bars(axes[0], shown, [[r.time(p) for r in shown] for p in PHASES], "milliseconds a sequence")
        _bars(axes[1], shown, [[gigabytes(r.peak(p)) for r in shown] for p in PHASES], "peak memory, GB")
        axes[0].set_title(f"{setting.name}, longest {setting.longest:,}", loc="left", fontsize=11)
    if lines:
        _lines(grid[-1], fixed, results)
    return plots.save(figure, path, dpi=130)


def _bars(axes: Axes, results: Sequence[Result], values: Sequence[Sequence[float | None]], title: str) -> None:
    """Draw two bars per model, sorted by training time; failed ones show the reason."""
    training, infer = values
    order = sorted(range(len(results)), key=lambda i: (training[i] is not None, -(training[i] or infer[i] or inf)))
    known = [v for phase_values in values for v in phase_values if v]
    for shift, (phase, phase_values) in enumerate(zip(PHASES, values, strict=True)):
        bars = [(y, phase_values[i]) for y, i in enumerate(order) if phase_values[i]]
        axes.barh(
            [y + 0.2 - 0.4 * shift for y, _ in bars],
            [value or 0.0 for _, value in bars],
            height=0.4,
            color=COLOURS[shift],
            hatch="//" * shift,
            edgecolor="white",
            label=phase,
        )
    for y, i in enumerate(order):
        if results[i].failed and known:
            end = max((phase_values[i] or 0.0 for phase_values in values), default=0.0) or min(known)
            axes.text(end * 1.08, y, results[i].failed, va="center", fontsize=8, color="#555555")
    axes.set_yticks(range(len(order)), [results[i].encoder for i in order])
    axes.set_ylim(-0.7, len(order) - 0.3)
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == REFERENCE else "normal")
    if known:
        axes.set_xscale("log")
        axes.set_xlim(min(known) / 1.5, max(known) * (4 if any(r.failed for r in results) else 1.5))
        _plain_numbers(axes.xaxis)
    axes.set_xlabel(title)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, loc="upper right")


def _lines(panels: Any, settings: Sequence[Setting], results: Sequence[Result]) -> None:
    """Plot training time per token and memory against length."""
    ordered = sorted(settings, key=lambda s: s.longest)
    by_case = {(r.encoder, r.setting): r for r in results}
    for number, name in enumerate(dict.fromkeys(r.encoder for r in results)):
        cycle, colour = divmod(number, len(COLOURS))
        by_length = [(s.longest, by_case.get((name, s.name))) for s in ordered]
        times = [(n, 1e9 / r.training.tokens_per_second) for n, r in by_length if r and r.training]
        memory = [(n, peak / 1e9) for n, r in by_length if r and (peak := r.peak("training"))]
        for axes, points in zip(panels, (times, memory), strict=True):
            axes.plot(
                *zip(*points, strict=True) if points else ([], []),
                color=COLOURS[colour],
                marker=MARKERS[cycle % len(MARKERS)],
                label=name,
            )
    for axes, title in zip(panels, ("nanoseconds a token, training", "peak memory of training, GB"), strict=True):
        axes.set(xscale="log", yscale="log", xlabel="length", ylabel=title)
        _plain_numbers(axes.xaxis)
        _plain_numbers(axes.yaxis)
        axes.grid(alpha=0.3)
    panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, and with intermediate ones if it is short."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < SHORT_AXIS * low else (1,)))
    axis.set_major_formatter(lambda value, _: compact(value))
    axis.set_minor_formatter(NullFormatter())
