"""Whether probabilities mean what they say: a reliability diagram before and after the temperature."""

from __future__ import annotations

from numpy import ndarray

from chordmixer.tasks.targets import MultiLabel
from chordmixer.training.answers import Answers
from chordmixer.training.calibration import expected_calibration_error, probabilities, reliability
from chordmixer.training.evaluation import Predictions
from chordmixer.training.intervals import wilson
from chordmixer.views import axes, charts, metrics
from chordmixer.views.page import Html, figure, figures, join, section, table, tag

BINS = 15


def chapter(answers: Answers, predictions: Predictions) -> Html:
    several = isinstance(answers.target, MultiLabel)
    before = probabilities(answers.unweighted(predictions.outputs), several=several)
    stages = [("before", *_stated(before, predictions.targets))]
    if answers.temperature is not None:
        after = answers.probabilities(predictions.outputs)
        stages.append(("after", *_stated(after, predictions.targets)))
    errors = {name: expected_calibration_error(stated, right, BINS) for name, stated, right in stages}
    said = _said(answers.temperature, errors)
    return section("calibration", "Calibration", tag("p", said), figures(_diagram(stages, several)))


def _stated(shares: ndarray, targets: ndarray) -> tuple[ndarray, ndarray]:
    """The probability of each answer, and whether it is right; for several labels a record, of each yes."""
    if targets.ndim == 2:
        return shares.ravel(), (targets > 0.5).ravel()
    return shares.max(axis=1), shares.argmax(axis=1) == targets


def _said(temperature: float | None, errors: dict[str, float]) -> str:
    before = f"{100 * errors['before']:.1f} percentage points"
    if temperature is None:
        return (
            f"Stated probabilities and the share of right answers are {before} apart in the mean (expected "
            "calibration error). No temperature was fitted: the probabilities are the model's own."
        )
    after = f"{100 * errors['after']:.1f}"
    worse = " On the test part it did not help." if errors["after"] > errors["before"] else ""
    return (
        f"Stated probabilities and the share of right answers are {after} percentage points apart in the mean "
        f"(expected calibration error); without the temperature of {metrics.number(temperature)}, which was fitted "
        f"on the validation part, {before}.{worse}"
    )


def _diagram(stages: list[tuple[str, ndarray, ndarray]], several: bool) -> Html:
    plot = charts.Plot(
        axes.linear([0, 1], "stated probability"), axes.linear([0, 1], "share that is right"), height=300
    )
    plot.rule((0, 0), (1, 1))
    names: list[tuple[str, int | None]] = []
    numbers = []
    for k, (name, stated, right) in list(enumerate(stages))[::-1]:
        series = 1 - k if len(stages) > 1 else 0
        rows = reliability(stated, right, BINS)
        points = [(row.confidence, row.right) for row in rows]
        plot.errors([(row.confidence, *wilson(row.right, row.records)) for row in rows], series, cap=2)
        plot.line(points, series)
        plot.dots(points, series, 3)
        title = f"{name} the temperature"
        names.append((title, series))
        cells = [(f"{r.confidence:.3f}", f"{r.right:.3f}", f"{r.records:,}") for r in rows]
        numbers.append(tag("h3", title))
        numbers.append(table(("stated probability", "right", "records"), cells, name=title))
    what = "labels by the probability of a yes" if several else "records by the probability of their answer"
    caption = (
        f"Test {what}, in steps of one {BINS}th, with 95 % intervals; on the dashed line probabilities mean what "
        "they say, below it they are too sure."
    )
    told = "The share of right answers against the stated probability."
    drawn = plot.svg("Reliability diagram", told)
    return figure("Reliability", drawn, caption, charts.legend(names), join(numbers))
