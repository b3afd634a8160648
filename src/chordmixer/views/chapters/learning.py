"""How the training went: the losses and the validation metric over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.views import axes, charts, metrics
from chordmixer.views.curves import grouped, smoothed
from chordmixer.views.page import Html, figure, figures, section, table, tag
from chordmixer.views.runs import Run

DRAWN = 300
"""Points of a line, at most."""
ROWS = 40
SMOOTH = 20
"""The running mean takes the n-th part of all points."""

Points = list[tuple[float, float]]


def chapter(run: Run) -> Html:
    training = _points(run, "training", "loss")
    validation = _points(run, "validation", "loss")
    if not training and not validation:
        return section("training", "Training", tag("p", "The run has no metrics.jsonl: there are no curves to show."))
    drawn = [_losses(training, validation)]
    metric = run.test.headline if run.test else next(iter(_metrics(run)), "")
    scored = _points(run, "validation", metric) if metric else []
    if scored:
        drawn.append(_metric(metric, scored))
    return section("training", "Training", tag("p", _kept(run, validation)), figures(*drawn))


def _points(run: Run, split: str, key: str) -> Points:
    rows = [row for row in run.journal if row.get("split") == split and key in row]
    return [(float(row["step"]), float(row[key])) for row in rows]


def _metrics(run: Run) -> list[str]:
    rows = [row for row in run.journal if row.get("split") == "validation"]
    return [key for key in (rows[0] if rows else {}) if key in metrics.NAMES]


def _kept(run: Run, validation: Points) -> str:
    last = max((int(row.get("step", 0)) for row in run.journal), default=0)
    known = [(loss, step) for step, loss in validation if math.isfinite(loss)]
    if not known:
        return f"{last:,} steps, without a validation."
    loss, step = min(known)
    best = f"the weights kept are those of step {step:,.0f}, where the validation loss was lowest ({loss:.4g})"
    metric = run.test.headline if run.test else ""
    scored = dict(_points(run, "validation", metric))
    if isinstance(run.target, Classification | MultiLabel) and scored:
        value, loss, step = max((scored.get(at, -math.inf), -own, at) for own, at in known)
        best = (
            f"the weights kept are those of step {step:,.0f}, where {metrics.name(metric)} on the validation records "
            f"was highest ({metrics.number(value)}), and of several such the loss lowest ({-loss:.4g})"
        )
    count = f"{len(validation):,} validation" + ("s" if len(validation) > 1 else "")
    tried = f" Before that it {run.trials.line()}." if run.trials else ""
    return f"{last:,} steps and {count}; {best}.{tried}"


def _losses(training: Points, validation: Points) -> Html:
    steps, losses = (
        (np.array(column, dtype=np.float64) for column in zip(*training, strict=True))
        if training
        else (np.empty(0),) * 2
    )
    window = max(1, len(losses) // SMOOTH)
    x = axes.linear([0, *(step for step, _ in training + validation)], "step")
    raw, smooth = (_pairs(*grouped(steps, values, DRAWN)) for values in (losses, smoothed(losses, window)))
    shown = [loss for _, loss in raw + validation]
    plot = charts.Plot(x, _loss_axis(shown))
    plot.line(raw, 0, faint=True)
    plot.line(smooth, 0)
    plot.line(validation, 1)
    plot.dots(validation, 1, 2.5)
    told = f"Training loss as a running mean over {window:,} of its points" if window > 1 else "Training loss"
    thin = "each point" if len(losses) <= DRAWN else "means of neighbours"
    caption = f"{told} (thin: {thin}); validation loss at each validation."
    head, rows = ("step", "training loss, smoothed"), [(f"{s:,.0f}", f"{v:.4g}") for s, v in _some(smooth)]
    numbers = table(head, rows, name="training loss") + table(
        ("step", "validation loss"), [(f"{s:,.0f}", f"{v:.4g}") for s, v in _some(validation)], name="validation loss"
    )
    names = [
        (name, k) for k, (name, points) in enumerate((("training", training), ("validation", validation))) if points
    ]
    return figure(
        "Loss", plot.svg("Loss over the steps", caption), caption, charts.legend(names, markers=False), Html(numbers)
    )


def _loss_axis(values: Sequence[float]) -> axes.Axis:
    """In even ratios where the loss falls by more than a hundredfold."""
    above = [v for v in values if math.isfinite(v)]
    if above and min(above) > 0 and max(above) > 100 * min(above):
        return axes.logarithmic(above, "loss (logarithmic)")
    return axes.linear([v for v in values if math.isfinite(v)], "loss")


def _metric(metric: str, scored: Points) -> Html:
    name = metrics.name(metric)
    values = [value for _, value in scored]
    plot = charts.Plot(
        axes.linear([0, *(step for step, _ in scored)], "step"), axes.linear(values, name, metrics.within(metric))
    )
    plot.line(scored, 1)
    plot.dots(scored, 1, 2.5)
    known = [v for v in values if math.isfinite(v)]
    best = f", {metrics.number(max(known))} at best" if known else ""
    caption = f"{metrics.title(metric)} of the validation part over the steps{best}."
    rows = [(f"{step:,.0f}", metrics.number(value)) for step, value in _some(scored)]
    numbers = table(("step", name), rows, name=f"validation {name}")
    return figure(
        f"Validation {name}", plot.svg(f"Validation {name} over the steps", caption), caption, numbers=numbers
    )


def _pairs(x: np.ndarray, y: np.ndarray) -> Points:
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _some(points: Points) -> Points:
    """Enough of them for a table, first and last among them."""
    kept = {round(place) for place in np.linspace(0, len(points) - 1, ROWS)} if points else set()
    return [points[i] for i in sorted(kept)]
