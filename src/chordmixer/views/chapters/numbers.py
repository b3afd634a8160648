"""Answers that are numbers: predicted against true, and how far off they are by length."""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from chordmixer.tasks.targets import Regression
from chordmixer.training.evaluation import PERCENTILES, Predictions
from chordmixer.views import axes, charts, metrics
from chordmixer.views.page import Html, figure, figures, section, table

DOTS = 500
"""Records, at most, that are drawn one by one; more are counted in squares."""
SQUARES = 40


def chapter(target: Regression, predictions: Predictions) -> Html:
    answers = target.values(predictions.outputs).astype(np.float64)
    truth = predictions.targets.astype(np.float64)
    drawn = [_against(answers, truth), _residuals(answers - truth, predictions.lengths, target.tolerance)]
    return section("numbers", "Predicted and true", figures(*drawn))


def _against(answers: ndarray, truth: ndarray) -> Html:
    both = [*truth, *answers]
    x, y = axes.linear(both, "true"), axes.linear(both, "predicted")
    plot = charts.Plot(x, y, height=300)
    if len(truth) > DOTS:
        edges = np.linspace(x.low, x.high, SQUARES + 1)
        plot.squares(edges.tolist(), edges.tolist(), np.histogram2d(truth, answers, (edges, edges))[0])
        how = "Each square is shaded by how many records it holds"
    else:
        plot.dots(zip(truth.tolist(), answers.tolist(), strict=True), 0, 2)
        how = "A dot a record"
    plot.rule((x.low, x.low), (x.high, x.high))
    caption = f"{how}, {len(truth):,} in all; on the dashed line the prediction is right."
    told = "Predicted against true values of the test records."
    return figure(
        "Predicted against true", plot.svg("Predicted against true", told), caption, numbers=_tenths(answers, truth)
    )


def _tenths(answers: ndarray, truth: ndarray) -> Html:
    """Records in the order of their true value, in ten groups."""
    groups = [g for g in np.array_split(np.argsort(truth, kind="stable"), 10) if len(g)]
    rows = [
        (
            f"{metrics.number(truth[g].min())} to {metrics.number(truth[g].max())}",
            f"{len(g):,}",
            metrics.number(float(answers[g].mean())),
            metrics.number(float(np.abs(answers[g] - truth[g]).mean())),
        )
        for g in groups
    ]
    return table(("true", "records", "mean prediction", "mean absolute error"), rows, name="predicted against true")


def _residuals(errors: ndarray, lengths: ndarray, tolerance: float | None) -> Html:
    """The middle error and the span of the middle 80 % in each length bin."""
    edges = np.percentile(lengths, PERCENTILES, method="higher").tolist()
    named = dict(zip(edges, PERCENTILES, strict=True))  # of several at one length the last, as in the scores
    found = []
    for low, (high, percentile) in zip([0, *named], named.items(), strict=False):
        inside = (lengths > low) & (lengths <= high)
        if inside.any():
            found.append(
                (
                    percentile,
                    int(lengths[inside].max()),
                    int(inside.sum()),
                    *np.percentile(errors[inside], [10, 50, 90]).tolist(),
                )
            )
    x = axes.categories([str(row[0]) for row in found], "length percentile")
    spans = [v for row in found for v in row[3:]]
    plot = charts.Plot(
        x,
        axes.linear([0, *spans, *([-tolerance, tolerance] if tolerance else [])], "predicted minus true"),
        height=300,
    )
    plot.across(0)
    if tolerance:
        plot.across(tolerance)
        plot.across(-tolerance)
    plot.errors([(float(i), row[3], row[5]) for i, row in enumerate(found)], 0, cap=4)
    plot.dots([(float(i), row[4]) for i, row in enumerate(found)], 0)
    counted = (
        f" Dashed: zero, and the {tolerance} within which an answer counts as right."
        if tolerance
        else " Dashed: zero."
    )
    caption = f"Errors by length: the median, and the span of the middle 80 % of the records.{counted}"
    rows = [
        (str(p), f"{longest:,}", f"{count:,}", *(metrics.number(v) for v in (middle, low, high)))
        for p, longest, count, low, middle, high in found
    ]
    head = ("percentile", "longest", "records", "median", "10 %", "90 %")
    drawn = plot.svg("Errors by length", "Median error and the span of the middle 80 % by length percentile.")
    return figure("Errors by length", drawn, caption, numbers=table(head, rows, name="errors by length"))
