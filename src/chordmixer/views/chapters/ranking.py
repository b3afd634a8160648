"""How well the scores rank: ROC and precision-recall curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from chordmixer.tasks import scores
from chordmixer.tasks.targets import Classification, MultiLabel
from chordmixer.training.evaluation import Predictions
from chordmixer.views import axes, charts, metrics
from chordmixer.views.curves import Curve, mean_curve, precision_recall, roc
from chordmixer.views.page import Html, figure, figures, section, short, table, tag

CURVES = 8
"""One-against-the-rest curves, at most; of more classes the mean is drawn."""

Draw = Callable[[str, ndarray, ndarray, float], Curve]


def chapter(target: Classification | MultiLabel, predictions: Predictions) -> Html:
    several = isinstance(target, MultiLabel)
    outputs = target.unweighted(predictions.outputs)  # as the metrics' areas
    rows = outputs.T if several else scores.log_odds(outputs).T
    true = predictions.targets.T > 0.5 if several else np.arange(target.outputs)[:, None] == predictions.targets
    names = target.labels
    if not several and target.outputs == 2:
        rows, true, names = rows[1:], true[1:], names[1:]
    rows = np.ascontiguousarray(rows)
    roc_areas, precision_areas = scores.areas(rows, true)
    found = {
        "ROC": _curves(roc, names, rows, true, roc_areas),
        "precision-recall": _curves(precision_recall, names, rows, true, precision_areas),
    }
    against = f"positive: {short(names[0], 60)}" if len(names) == 1 else "each against the rest"
    if len(names) > CURVES:
        against = f"the mean over {len(names):,}, each against the rest"
    if not any(len(curve.x) for curve in found["ROC"]):
        said = "The test part holds one class alone: there is nothing to rank."
        return section("ranking", "Ranking", tag("p", said))
    return section(
        "ranking",
        "Ranking",
        figures(_roc(found["ROC"], against), _precision(found["precision-recall"], against, true)),
    )


def _curves(draw: Draw, names: Sequence[str], rows: ndarray, true: ndarray, areas: ndarray) -> list[Curve]:
    known = [draw(short(n, 40), s, t, float(a)) for n, s, t, a in zip(names, rows, true, areas, strict=True)]
    return known if len(known) <= CURVES else [mean_curve("mean over all", known)]


def _roc(curves: Sequence[Curve], against: str) -> Html:
    plot = _square("false positive rate", "true positive rate")
    plot.rule((0, 0), (1, 1))
    caption = f"ROC curve, {against}: true positives found as more false positives are allowed. Dashed: guessing."
    return _figure("ROC curve", plot, curves, caption, "ROC-AUC", ("false positive rate", "true positive rate"))


def _precision(curves: Sequence[Curve], against: str, true: ndarray) -> Html:
    plot = _square("recall", "precision")
    dashed = ""
    if len(curves) == 1 and len(true) == 1:
        share = float(true.mean())
        plot.across(share)
        dashed = f" Dashed: guessing, {metrics.number(share)}."
    caption = f"Precision against recall, {against}: how clean the answers are as more positives are found.{dashed}"
    return _figure("Precision-recall curve", plot, curves, caption, "average precision", ("recall", "precision"))


def _square(x: str, y: str) -> charts.Plot:
    return charts.Plot(axes.linear([0, 1], x), axes.linear([0, 1], y), height=300)


def _figure(
    title: str, plot: charts.Plot, curves: Sequence[Curve], caption: str, area: str, sides: tuple[str, str]
) -> Html:
    for k, curve in enumerate(curves):
        plot.line(curve.thinned().points, k)
    named: list[tuple[str, int | None]] = [
        (f"{c.name}: {area} {metrics.number(c.area)}", k) for k, c in enumerate(curves)
    ]
    places = np.linspace(0, 1, 11)
    heights = [curve.at(places) for curve in curves]
    rows = [(f"{p:.1f}", *(metrics.number(float(h[i])) for h in heights)) for i, p in enumerate(places)]
    numbers = table((sides[0], *(f"{sides[1]}: {c.name}" for c in curves)), rows, name=title)
    told = "; ".join(name for name, _ in named)
    return figure(title, plot.svg(title, told), caption, charts.legend(named, markers=False), numbers)
