"""Sections of a report on single predictions: confusion, ROC curves, calibration, predicted against true numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from chordmixer.tasks import scores
from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.evaluation import Predictions, length_bins
from chordmixer.training.intervals import wilson
from chordmixer.training.labels import OutputLabels, expected_calibration_error, probabilities, reliability
from chordmixer.views import charts, metrics
from chordmixer.views.page import Html, Section, figure, figures, join, section, short, tag
from chordmixer.views.tables import UNDEFINED, ReportTable

MAX_MATRIX_CLASSES = 20  # maximum number of classes of a confusion matrix
MAX_PAIRS = 20  # maximum number of confusions in a table
MAX_LABELS = 200  # maximum number of classes or labels with a row of their own
MAX_CURVES = 8  # maximum number of one-against-the-rest curves; with more classes the mean is drawn
MAX_POINTS = 200  # maximum number of points of a curve: more than a screen shows
BINS = 15  # number of bins of the reliability diagram
MAX_DOTS = 500  # maximum number of records drawn one by one; more are counted in squares
SQUARES = 40  # number of squares along each axis


# --- Confusion, and labels one by one ---


def confusion_section(output_labels: OutputLabels, predictions: Predictions) -> Section:
    """Build the section with a confusion matrix, or the most frequent confusions, and a table of classes."""
    if isinstance(output_labels.target, MultiLabel):
        return section("classes", "Labels", *_labels(output_labels.target, predictions))
    assert isinstance(output_labels.target, Classification)
    predicted = output_labels.target.decided(predictions.outputs)
    counts = scores.confusion(predicted, predictions.targets, output_labels.target.outputs)
    labels = output_labels.target.labels
    confusion = _matrix(labels, counts) if len(labels) <= MAX_MATRIX_CLASSES else _pairs(labels, counts)
    right = (predicted == predictions.targets).mean()
    lead = f"{metrics.DECISION} {right:.1%} of the predictions are correct: the accuracy in the table of scores."
    return section("classes", "Confusion", tag("p", lead), confusion, tag("h3", "Each class"), _each(labels, counts))


def _matrix(labels: list[str], counts: ndarray) -> Html:
    total = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shares, cells = counts / total, [[f"{count:,}" for count in row] for row in counts.tolist()]
    summary = f"{counts.trace():,} of {counts.sum():,} records are on the diagonal, where prediction and truth agree."
    drawn = charts.heat_map(labels, labels, shares, cells, "Confusion matrix", summary, ("true", "predicted"))
    rows = [(short(label, 60), *cells[i]) for i, label in enumerate(labels)]
    head = ("true \\ predicted", *(short(label, 60) for label in labels))
    caption = f"Rows are true classes, columns predicted ones; the shade is the share of the row. {summary}"
    return figure("Confusion matrix", drawn, caption, numbers=ReportTable(head, rows, "confusion matrix").html())


def _pairs(labels: list[str], counts: ndarray) -> Html:
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(place), len(labels)) for place in order if wrong.flat[place]]
    rows = [
        (short(labels[i], 60), short(labels[j], 60), f"{counts[i, j]:,}", f"{counts[i, j] / counts[i].sum():.1%}")
        for i, j in pairs
    ]
    said = f"{len(labels):,} classes are too many for a matrix; these are the most frequent confusions."
    head = ("true", "predicted", "records", "share of the true class")
    return join([tag("p", said), ReportTable(head, rows, "most frequent confusions", words=(0, 1)).html()])


def _each(labels: list[str], counts: ndarray) -> Html:
    """Recall, precision and F1 of the largest classes."""
    hits, true, called = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
    order = np.argsort(-true, kind="stable")
    rows = [(short(labels[k], 60), f"{true[k]:,}", *_ratios(hits[k], true[k], called[k])) for k in order[:MAX_LABELS]]
    more = (
        [tag("p", f"{len(labels) - MAX_LABELS:,} smaller classes are left out.")] if len(labels) > MAX_LABELS else []
    )
    return join([ReportTable(("class", "records", "recall", "precision", "F1"), rows, "each class").html(), *more])


def _labels(target: MultiLabel, predictions: Predictions) -> Iterator[Html]:
    true = predictions.targets > 0.5
    predicted = target.decided(predictions.outputs)
    areas = scores.areas(np.ascontiguousarray(predictions.outputs.T), true.T)
    order = np.argsort(-true.sum(axis=0), kind="stable")[:MAX_LABELS]
    yield tag("p", metrics.DECISION)
    head = ("label", "records with it", "ROC-AUC", "average precision", "recall", "precision", "F1")
    rows = []
    for k in order:
        hits, existing, called = ((true & predicted)[:, k].sum(), true[:, k].sum(), predicted[:, k].sum())
        known = [metrics.number(float(area[k])) if np.isfinite(area[k]) else UNDEFINED for area in areas]
        rows.append((short(target.labels[k], 60), f"{existing:,}", *known, *_ratios(hits, existing, called)))
    yield ReportTable(head, rows, "each label").html()
    if target.outputs > MAX_LABELS:
        yield tag("p", f"{target.outputs - MAX_LABELS:,} rarer labels are left out.")


def _ratios(hits: int, true: int, called: int) -> Iterator[str]:
    """Recall, precision and F1; `UNDEFINED` where the denominator is zero."""
    for part, total in ((hits, true), (hits, called), (2 * hits, true + called)):
        yield metrics.number(float(part / total)) if total else UNDEFINED


# --- ROC and precision-recall curves ---


@dataclass(frozen=True)
class Curve:
    """Points in order of x; empty if the curve is undefined."""

    name: str
    x: ndarray
    y: ndarray
    area: float = float("nan")  # ROC-AUC or average precision

    @property
    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.x.tolist(), self.y.tolist(), strict=True))

    def thinned(self, most: int = MAX_POINTS) -> Curve:
        """Return the curve with at most `most` points, evenly along its length; the first and the last stay."""
        if len(self.x) <= most:
            return self
        steps = np.abs(np.diff(self.x)) + np.abs(np.diff(self.y))
        distance = np.append(0, np.cumsum(steps))
        kept = np.unique(np.searchsorted(distance, np.linspace(0, distance[-1], most)).clip(max=len(distance) - 1))
        return Curve(self.name, self.x[kept], self.y[kept], self.area)

    def at(self, positions: Sequence[float] | ndarray) -> ndarray:
        """The value of y where x first reaches each given value; NaN for an empty curve."""
        if not len(self.x):
            return np.full(len(positions), np.nan)
        return np.asarray(self.y[np.searchsorted(self.x, positions).clip(max=len(self.x) - 1)])


Draw = Callable[[str, ndarray, ndarray, float], Curve]


def roc(name: str, values: ndarray, positive: ndarray, area: float = float("nan")) -> Curve:
    """False positive rate (x) against true positive rate (y), from the strictest threshold on."""
    from sklearn.metrics import roc_curve

    if positive.all() or not positive.any():
        return Curve(name, np.empty(0), np.empty(0))
    x, y, _ = roc_curve(positive, values, drop_intermediate=False)
    return Curve(name, x, y, area)


def precision_recall(name: str, values: ndarray, positive: ndarray, area: float = float("nan")) -> Curve:
    """Recall (x) against precision (y), from the strictest threshold on."""
    from sklearn.metrics import precision_recall_curve

    if not positive.any():
        return Curve(name, np.empty(0), np.empty(0))
    precision, recall, _ = precision_recall_curve(positive, values)
    precision[-1] = precision[-2]  # at recall 0, where scikit-learn has 1 whatever the predictions
    return Curve(name, recall[::-1], precision[::-1], area)


def mean_curve(name: str, curves: Iterable[Curve]) -> Curve:
    """The mean height over all curves that are not empty, at even steps from 0 to 1."""
    known = [curve for curve in curves if len(curve.x)]
    if not known:
        return Curve(name, np.empty(0), np.empty(0))
    grid = np.linspace(0, 1, 101)
    heights = np.mean([curve.at(grid) for curve in known], axis=0)
    return Curve(name, grid, heights, float(np.mean([curve.area for curve in known])))


def ranking_section(target: Classification | MultiLabel, predictions: Predictions) -> Section:
    """Build the section of ROC and precision-recall curves: each class against the rest, or the mean of many."""
    is_multilabel = isinstance(target, MultiLabel)
    outputs = target.unweighted(predictions.outputs)  # as the metrics' areas
    rows = outputs.T if is_multilabel else scores.log_odds(outputs).T
    true = predictions.targets.T > 0.5 if is_multilabel else np.arange(target.outputs)[:, None] == predictions.targets
    names = target.labels
    if not is_multilabel and target.outputs == 2:
        rows, true, names = rows[1:], true[1:], names[1:]
    rows = np.ascontiguousarray(rows)
    roc_areas, precision_areas = scores.areas(rows, true)
    against = f"positive: {short(names[0], 60)}" if len(names) == 1 else "each against the rest"
    if len(names) > MAX_CURVES:
        against = f"the mean over {len(names):,}, each against the rest"
    roc_curves = _curves(roc, names, rows, true, roc_areas)
    if not any(len(curve.x) for curve in roc_curves):
        return section("ranking", "Ranking", tag("p", "The test records have one class: there is nothing to rank."))
    precision_curves = _curves(precision_recall, names, rows, true, precision_areas)
    drawn = figures(_roc_figure(roc_curves, against), _precision_figure(precision_curves, against, true))
    return section("ranking", "Ranking", drawn)


def _curves(draw: Draw, names: Sequence[str], rows: ndarray, true: ndarray, areas: ndarray) -> list[Curve]:
    curves = [draw(short(n, 40), s, t, float(a)) for n, s, t, a in zip(names, rows, true, areas, strict=True)]
    return curves if len(curves) <= MAX_CURVES else [mean_curve("mean over all", curves)]


def _roc_figure(curves: Sequence[Curve], against: str) -> Html:
    plot = _unit_square("false positive rate", "true positive rate")
    plot.rule((0, 0), (1, 1))
    return _curve_figure("ROC curve", plot, curves, f"ROC curve, {against}. Dashed: random ranking.", "ROC-AUC")


def _precision_figure(curves: Sequence[Curve], against: str, true: ndarray) -> Html:
    plot, dashed_note = _unit_square("recall", "precision"), ""
    if len(curves) == 1 and len(true) == 1:
        share = float(true.mean())
        plot.across(share)
        dashed_note = f" Dashed: random ranking, {metrics.number(share)}."
    caption = f"Precision-recall curve, {against}.{dashed_note}"
    return _curve_figure("Precision-recall curve", plot, curves, caption, "average precision")


def _unit_square(x: str, y: str) -> charts.Plot:
    return charts.Plot(charts.linear([0, 1], x), charts.linear([0, 1], y), height=300)


def _curve_figure(title: str, plot: charts.Plot, curves: Sequence[Curve], caption: str, area: str) -> Html:
    for k, curve in enumerate(curves):
        plot.line(curve.thinned().points, k)
    named: list[tuple[str, int | None]] = [
        (f"{c.name}: {area} {metrics.number(c.area)}", k) for k, c in enumerate(curves)
    ]
    grid = np.linspace(0, 1, 11)
    heights = [curve.at(grid) for curve in curves]
    rows = [(f"{p:.1f}", *(metrics.number(float(h[i])) for h in heights)) for i, p in enumerate(grid)]
    head = (plot.x_axis.title, *(f"{plot.y_axis.title}: {c.name}" for c in curves))
    numbers = ReportTable(head, rows, title).html()
    description = "; ".join(name for name, _ in named)
    return figure(title, plot.svg(title, description), caption, charts.legend(named, markers=False), numbers)


# --- Calibration ---


def calibration_section(labels: OutputLabels, predictions: Predictions) -> Section:
    """Build the section on probabilities and observed frequencies, before and after temperature scaling."""
    is_multilabel = isinstance(labels.target, MultiLabel)
    before = probabilities(labels.unweighted(predictions.outputs), multi_label=is_multilabel)
    stages = [("before temperature scaling", *_outcomes(before, predictions.targets))]
    if labels.temperature is not None:
        after = labels.probabilities(predictions.outputs)
        stages.append(("after temperature scaling", *_outcomes(after, predictions.targets)))
    errors = [100 * expected_calibration_error(predicted, right, BINS) for _, predicted, right in stages]
    summary = f"Expected calibration error on the test records: {errors[-1]:.1f} percentage points"
    if labels.temperature is None:
        summary += ". No temperature was fitted: the probabilities are the model's own."
    else:
        summary += (
            f"; {errors[0]:.1f} without temperature scaling (temperature {metrics.number(labels.temperature)}, "
            "fitted on the validation records)."
        )
        summary += " On the test records the scaling does not help." if errors[-1] > errors[0] else ""
    return section(
        "calibration", "Calibration", tag("p", summary), figures(_reliability_diagram(stages, is_multilabel))
    )


def _outcomes(shares: ndarray, targets: ndarray) -> tuple[ndarray, ndarray]:
    """The probability of each prediction and whether it is correct; with several labels, for each label."""
    if targets.ndim == 2:
        return shares.ravel(), (targets > 0.5).ravel()
    return shares.max(axis=1), shares.argmax(axis=1) == targets


def _reliability_diagram(stages: list[tuple[str, ndarray, ndarray]], is_multilabel: bool) -> Html:
    plot = _unit_square("predicted probability", "observed frequency")
    plot.rule((0, 0), (1, 1))
    names: list[tuple[str, int | None]] = []
    numbers = []
    for k, (title, predicted, right) in list(enumerate(stages))[::-1]:
        series = 1 - k if len(stages) > 1 else 0
        rows = reliability(predicted, right, BINS)
        points = [(row.confidence, row.right) for row in rows]
        plot.errors([(row.confidence, *wilson(row.right, row.records)) for row in rows], series, cap=2)
        plot.line(points, series)
        plot.dots(points, series, 3)
        names.append((title, series))
        cells = [(f"{r.confidence:.3f}", f"{r.right:.3f}", f"{r.records:,}") for r in rows]
        head = ("predicted probability", "observed frequency", "records")
        numbers += [tag("h3", title[0].upper() + title[1:]), ReportTable(head, cells, title).html()]
    what = "labels by their probability" if is_multilabel else "records by the probability of the predicted class"
    caption = (
        f"Test {what}, in {BINS} bins, with 95 % intervals. On the dashed line probabilities are calibrated; below "
        "it they are too high."
    )
    drawn = plot.svg("Reliability diagram", "The share of correct predictions against the predicted probability.")
    return figure("Reliability diagram", drawn, caption, charts.legend(names), join(numbers))


# --- Numbers ---


def regression_section(target: Regression, predictions: Predictions) -> Section:
    """Build the section on predicted and true numbers, and errors by length."""
    predicted = target.values(predictions.outputs).astype(np.float64)
    truth = predictions.targets.astype(np.float64)
    drawn = [_scatter(predicted, truth), _residuals(predicted - truth, predictions.lengths, target.tolerance)]
    return section("numbers", "Predicted and true", figures(*drawn))


def _scatter(predicted: ndarray, truth: ndarray) -> Html:
    both = [*truth, *predicted]
    x, y = charts.linear(both, "true"), charts.linear(both, "predicted")
    plot = charts.Plot(x, y, height=300)
    if len(truth) > MAX_DOTS:
        edges = np.linspace(x.low, x.high, SQUARES + 1)
        plot.squares(edges.tolist(), edges.tolist(), np.histogram2d(truth, predicted, (edges, edges))[0])
        key = "The shade of a square is its number of records"
    else:
        plot.dots(zip(truth.tolist(), predicted.tolist(), strict=True), 0, 2)
        key = "One dot per record"
    plot.rule((x.low, x.low), (x.high, x.high))
    caption = f"{key}; {len(truth):,} records in total. On the dashed line the prediction is exact."
    groups = [g for g in np.array_split(np.argsort(truth, kind="stable"), 10) if len(g)]
    rows = [
        (
            f"{metrics.number(truth[g].min())} to {metrics.number(truth[g].max())}",
            f"{len(g):,}",
            metrics.number(float(predicted[g].mean())),
            metrics.number(float(np.abs(predicted[g] - truth[g]).mean())),
        )
        for g in groups
    ]
    title = "Predicted against true"
    numbers = ReportTable(("true", "records", "mean prediction", "mean absolute error"), rows, title).html()
    description = "Predicted against true values of the test records."
    return figure(title, plot.svg(title, description), caption, numbers=numbers)


def _residuals(errors: ndarray, lengths: ndarray, tolerance: float | None) -> Html:
    """Plot the median error and the range of the middle 80 % in each length bin."""
    masks = {percentile: mask for percentile, mask in length_bins(lengths) if mask.any()}
    bins = [(percentile, int(lengths[mask].max()), int(mask.sum())) for percentile, mask in masks.items()]
    spans = [np.percentile(errors[mask], [10, 50, 90]).tolist() for mask in masks.values()]
    tolerances = [-tolerance, tolerance] if tolerance else []
    x = charts.categories([str(percentile) for percentile, *_ in bins], "length percentile")
    y = charts.linear([0, *(v for span in spans for v in span), *tolerances], "predicted minus true")
    plot = charts.Plot(x, y, height=300)
    for value in (0.0, *tolerances):
        plot.across(value)
    plot.errors([(float(i), low, high) for i, (low, _, high) in enumerate(spans)], 0, cap=4)
    plot.dots([(float(i), median) for i, (_, median, _) in enumerate(spans)], 0)
    dashed_lines = f"zero, and the {tolerance} within which a prediction counts as correct" if tolerance else "zero"
    caption = (
        f"Errors by length: the median, and the range of the middle 80 % of the records. Dashed: {dashed_lines}."
    )
    rows = [
        (str(percentile), f"{longest:,}", f"{count:,}", *map(metrics.number, (median, low, high)))
        for (percentile, longest, count), (low, median, high) in zip(bins, spans, strict=True)
    ]
    head = ("percentile", "longest", "records", "median", "10 %", "90 %")
    drawn = plot.svg("Errors by length", "Median error and the range of the middle 80 % by length percentile.")
    return figure("Errors by length", drawn, caption, numbers=ReportTable(head, rows, "errors by length").html())
