"""STUDY/study.html: the best settings, the search over time, the importance of each setting, and all trials."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import accumulate
from statistics import median_high
from typing import Any

from chordmixer import files
from chordmixer.tuning.results import BEST, StudyResult, TrialResult, best_toml, percent_lower
from chordmixer.version import __version__
from chordmixer.views import charts
from chordmixer.views.page import Html, document, figure, figures, items, section, short, tag
from chordmixer.views.tables import UNDEFINED, ReportTable

PLOTTED_SETTINGS = 4
"""Number of settings, by importance, with a plot of the loss against their values."""
CLIP_DISTANCE = 3.0
"""Upper end of the loss axis, in distances of the typical loss from the best one; higher losses are clipped to it."""


def write_study(study: StudyResult) -> None:
    """Write best.toml and study.html, if at least one trial is finished."""
    if study.finished:
        files.write_text(study.config, best_toml(study))
        files.write_text(study.page, study_page(study))


def study_page(study: StudyResult) -> Html:
    """Build the page as a single HTML document without external resources."""
    name = short(study.folder.resolve().name, 80)
    sections = {
        "best": section("best", "Best settings", *_best(study)),
        "search": section("search", "Search", _search(study)),
        "importance": section("importance", "Importance of the settings", *_importance(study)),
        "trials": section("trials", "Trials", *_trials(study)),
    }
    titles = {"best": "Best settings", "search": "Search", "importance": "Importance", "trials": "Trials"}
    contents = tag("nav", items(tag("a", titles[key], href=f"#{key}") for key in sections), aria_label="Contents")
    foot = tag("footer", tag("p", f"Written by chordmixer {__version__}.", class_="quiet"))
    body = tag("main", tag("h1", f"Study {name}"), *_lead(study), contents, *sections.values())
    return document(f"Study {name}", body, foot)


def _lead(study: StudyResult) -> Iterator[Html]:
    best, default = study.best, study.default
    summary = f"The best of {len(study.trials):,} trials has a validation loss of {best.loss:.4g}"
    if default is None:
        yield tag("p", f"{summary}. The default settings have no finished trial.", class_="lead")
    elif best.default:
        yield tag("p", f"{summary}: these are the default settings. No other trial was better.", class_="lead")
    else:
        lower = percent_lower(best.loss, default.loss)
        yield tag(
            "p", f"{summary}, {lower} lower than the {default.loss:.4g} of the default settings.", class_="lead"
        )
    yield tag(
        "p",
        f"{study.minutes:.1f} minutes. A trial trains for {study.steps:,} steps, a full run for "
        f"{study.full_steps:,}. Losses are those of the best weights on the validation records, which also choose "
        "the settings: a full run, tested on records that were not used here, shows what they are worth.",
    )


def _value(value: Any) -> str:
    """
    >>> _value(True), _value(0.00123456), _value("attention")
    ('yes', '0.00123', 'attention')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _best(study: StudyResult) -> Iterator[Html]:
    best, default = study.best, study.default
    rows = []
    for name, value in best.values.items():
        before = UNDEFINED if default is None else _value(default.values.get(name))
        changed = default is not None and _value(value) != before
        rows.append((tag("code", name), tag("b", _value(value)) if changed else _value(value), before))
    yield ReportTable(("setting", "best", "default"), rows, "Best settings").html(stacked=True)
    yield tag("p", f"They are in {BEST}. Train with the same files and options as this study:")
    yield tag("pre", tag("code", f"chordmixer train FILES --config {shlex.quote(str(study.config))} --out RUN"))


# --- Search ---


def _search(study: StudyResult) -> Html:
    ended = sorted(study.finished, key=lambda trial: trial.minute)
    lowest = [*accumulate((trial.loss for trial in ended), min)]
    return figures(_by_trial(study, study.finished), _over_time(study, [trial.minute for trial in ended], lowest))


def _by_trial(study: StudyResult, shown: Sequence[TrialResult]) -> Html:
    """The loss of each finished trial, and the lowest so far."""
    points = [(float(trial.number), trial.loss) for trial in shown]
    losses = [loss for _, loss in points]
    lowest = [(number, loss) for (number, _), loss in zip(points, accumulate(losses, min), strict=True)]
    axis = _loss_axis(study, losses)
    plot = charts.Plot(charts.linear([0, *(float(trial.number) for trial in study.trials)], "trial"), axis)
    if study.default is not None:
        plot.across(study.default.loss)
    plot.line(_steps(lowest), 1, solid=True)
    plot.dots(_within(axis, points), 0, 3)
    summary = "Validation loss of the finished trials, and the lowest so far."
    above = sum(loss > axis.high for loss in losses)
    clipped_note = f" {above} above the frame, drawn at its edge." if above else ""
    key = charts.legend([("trial", 0), ("lowest so far", 1), ("default", None)])
    return figure("Loss by trial", plot.svg("Validation loss by trial", summary), summary + clipped_note, key)


def _over_time(study: StudyResult, times: Sequence[float], lowest: Sequence[float]) -> Html:
    """The lowest loss over the minutes of the study."""
    points = [*zip(times, lowest, strict=True)]
    ends = [*points, (max(study.minutes, times[-1]), lowest[-1])]
    plot = charts.Plot(charts.linear([0, *(x for x, _ in ends)], "minutes"), _loss_axis(study, lowest))
    if study.default is not None:
        plot.across(study.default.loss)
    plot.line(_steps(ends), 1, solid=True)
    summary = f"The lowest validation loss so far over {study.minutes:.1f} minutes; dashed: the default settings"
    rows = [(f"{x:.1f}", f"{y:.4g}") for x, y in points]
    numbers = ReportTable(("minutes", "lowest loss"), rows, "lowest loss").html()
    return figure("Loss over time", plot.svg("Lowest loss over time", summary), f"{summary}.", numbers=numbers)


def _steps(points: Sequence[charts.Point]) -> list[charts.Point]:
    """Insert points so that the line is horizontal between two trials and falls where a better one ends."""
    line = list(points[:1])
    for x, y in points[1:]:
        line += [(x, line[-1][1]), (x, y)]
    return line


def _loss_axis(study: StudyResult, losses: Sequence[float]) -> charts.Axis:
    """Loss axis up to `CLIP_DISTANCE` times the distance of the typical or default loss from the best one.

    A trial that diverged would otherwise compress all others.
    """
    best, default = study.best.loss, study.default or study.best
    distance = max(median_high(losses), default.loss) - best
    limit = best + CLIP_DISTANCE * distance if distance > 0 else max(losses)
    return charts.linear([loss for loss in (*losses, default.loss) if loss <= limit], "loss")


def _within(axis: charts.Axis, points: Sequence[charts.Point]) -> list[charts.Point]:
    """Points with the losses clipped to the upper end of the axis."""
    return [(x, min(y, axis.high)) for x, y in points]


# --- Importance ---


def _importance(study: StudyResult) -> Iterator[Html]:
    if not study.importances:
        yield tag("p", "Too few trials are finished to tell which settings matter.")
        return
    shares = {name: round(100 * share) for name, share in study.importances.items()}
    names = [name.partition(".")[2] for name in shares]
    summary = f"Share of the variance of the losses that a setting explains, in %, over {len(study.finished)} trials"
    drawn = charts.horizontal_bars(names, [*shares.values()], "Importance of the settings", summary)
    caption = f"{summary} (fANOVA). Few trials give a rough estimate."
    chosen = list(shares)[:PLOTTED_SETTINGS]
    yield figures(figure("Importance", drawn, caption), *(_scatter(study, name) for name in chosen))


def _scatter(study: StudyResult, name: str) -> Html:
    """Plot the loss of each finished trial against its value of a setting; choices are on the vertical axis."""
    pairs = [(trial.values[name], trial.loss) for trial in study.finished]
    title, losses = name.partition(".")[2], _loss_axis(study, [loss for _, loss in pairs])
    first = pairs[0][0]
    if isinstance(first, float):
        points = [(float(value), loss) for value, loss in pairs]
        axis = _value_axis([x for x, _ in points], title)
    else:
        choices = sorted({value for value, _ in pairs})
        points = [(float(choices.index(value)), loss) for value, loss in pairs]
        names = [_value(value).replace("maximum", "max") for value in choices]  # a long name would be cut
        axis = charts.categories(names, title)
    plot = charts.Plot(axis, losses, height=220)
    points = _within(losses, points)
    if isinstance(first, str):
        plot = charts.Plot(losses, axis, height=220)
        points = [(loss, index) for index, loss in points]
    plot.dots(points, 0, 3)
    summary = f"Validation loss of the finished trials by {title}"
    return figure(title, plot.svg(f"Loss by {title}", summary), f"{summary}.")


def _value_axis(values: Sequence[float], title: str) -> charts.Axis:
    """Axis of a setting, logarithmic if its values differ more than tenfold."""
    spread_out = min(values) > 0 and max(values) > 10 * min(values)
    return charts.logarithmic(values, title) if spread_out else charts.linear(values, title)


# --- Trials ---


def _trials(study: StudyResult) -> Iterator[Html]:
    """Table of all trials: the finished ones by loss, then the others."""
    names = list(study.best.values)
    others = [trial for trial in study.trials if trial not in study.finished]
    ordered = [*sorted(study.finished, key=lambda trial: trial.loss), *others]
    rows = [
        (
            f"{trial.number}\u00a0(default)" if trial.default else f"{trial.number}",
            trial.state if trial in others else f"{trial.loss:.4g}",
            f"{trial.seconds:,.0f}",
            *(_value(trial.values.get(name, UNDEFINED)) for name in names),
        )
        for trial in ordered
    ]
    head = ("trial", "loss", "seconds", *(name.partition(".")[2] for name in names))
    yield ReportTable(head, rows, "Trials").html()
    reasons = [f"Trial {trial.number}: {trial.state}, {trial.reason}." for trial in ordered if trial.reason]
    if reasons:
        yield items(short(line, 300) for line in reasons)
