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

SCATTERED = 4
"""Settings whose losses are plotted, the most important first."""
FAR = 3.0
"""Losses further above the best than this many times the distance of a typical one are drawn at the upper edge."""


def write_study(found: StudyResult) -> None:
    """Write best.toml and study.html, once a trial is finished."""
    if found.finished:
        files.write_text(found.config, best_toml(found))
        files.write_text(found.page, study_page(found))


def study_page(found: StudyResult) -> Html:
    """One page, which loads nothing."""
    name = short(found.folder.resolve().name, 80)
    sections = {
        "best": section("best", "Best settings", *_best(found)),
        "search": section("search", "Search", _search(found)),
        "importance": section("importance", "Importance of the settings", *_importance(found)),
        "trials": section("trials", "Trials", *_trials(found)),
    }
    titles = {"best": "Best settings", "search": "Search", "importance": "Importance", "trials": "Trials"}
    contents = tag("nav", items(tag("a", titles[key], href=f"#{key}") for key in sections), aria_label="Contents")
    foot = tag("footer", tag("p", f"Written by chordmixer {__version__}.", class_="quiet"))
    body = tag("main", tag("h1", f"Study {name}"), *_lead(found), contents, *sections.values())
    return document(f"Study {name}", body, foot)


def _lead(found: StudyResult) -> Iterator[Html]:
    best, default = found.best, found.default
    told = f"The best of {len(found.trials):,} trials has a validation loss of {best.loss:.4g}"
    if default is None:
        yield tag("p", f"{told}. The default settings have no finished trial.", class_="lead")
    elif best.default:
        yield tag("p", f"{told}: these are the default settings. No other trial was better.", class_="lead")
    else:
        lower = percent_lower(best.loss, default.loss)
        yield tag("p", f"{told}, {lower} lower than the {default.loss:.4g} of the default settings.", class_="lead")
    yield tag(
        "p",
        f"{found.minutes:.1f} minutes. A trial trains for {found.steps:,} steps, a full run for "
        f"{found.full_steps:,}. Losses are those of the best weights on the validation records, which also choose "
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


def _best(found: StudyResult) -> Iterator[Html]:
    best, default = found.best, found.default
    rows = []
    for name, value in best.values.items():
        before = UNDEFINED if default is None else _value(default.values.get(name))
        changed = default is not None and _value(value) != before
        rows.append((tag("code", name), tag("b", _value(value)) if changed else _value(value), before))
    yield ReportTable(("setting", "best", "default"), rows, "Best settings").html(stacked=True)
    yield tag("p", f"They are in {BEST}. Train with the same files and options as this study:")
    yield tag("pre", tag("code", f"chordmixer train FILES --config {shlex.quote(str(found.config))} --out RUN"))


# --- Search ---


def _search(found: StudyResult) -> Html:
    ended = sorted(found.finished, key=lambda trial: trial.minute)
    lowest = [*accumulate((trial.loss for trial in ended), min)]
    return figures(_by_trial(found, found.finished), _over_time(found, [trial.minute for trial in ended], lowest))


def _by_trial(found: StudyResult, shown: Sequence[TrialResult]) -> Html:
    """The loss of each finished trial, and the lowest so far."""
    points = [(float(trial.number), trial.loss) for trial in shown]
    losses = [loss for _, loss in points]
    lowest = [(number, loss) for (number, _), loss in zip(points, accumulate(losses, min), strict=True)]
    axis = _loss_axis(found, losses)
    plot = charts.Plot(charts.linear([0, *(float(trial.number) for trial in found.trials)], "trial"), axis)
    if found.default is not None:
        plot.across(found.default.loss)
    plot.line(_steps(lowest), 1, solid=True)
    plot.dots(_within(axis, points), 0, 3)
    told = "Validation loss of the finished trials, and the lowest so far."
    above = sum(loss > axis.high for loss in losses)
    beyond = f" {above} above the frame, drawn at its edge." if above else ""
    key = charts.legend([("trial", 0), ("lowest so far", 1), ("default", None)])
    return figure("Loss by trial", plot.svg("Validation loss by trial", told), told + beyond, key)


def _over_time(found: StudyResult, times: Sequence[float], lowest: Sequence[float]) -> Html:
    """The lowest loss over the minutes of the study."""
    points = [*zip(times, lowest, strict=True)]
    ends = [*points, (max(found.minutes, times[-1]), lowest[-1])]
    plot = charts.Plot(charts.linear([0, *(x for x, _ in ends)], "minutes"), _loss_axis(found, lowest))
    if found.default is not None:
        plot.across(found.default.loss)
    plot.line(_steps(ends), 1, solid=True)
    told = f"The lowest validation loss so far over {found.minutes:.1f} minutes; dashed: the default settings"
    rows = [(f"{x:.1f}", f"{y:.4g}") for x, y in points]
    numbers = ReportTable(("minutes", "lowest loss"), rows, "lowest loss").html()
    return figure("Loss over time", plot.svg("Lowest loss over time", told), f"{told}.", numbers=numbers)


def _steps(points: Sequence[charts.Point]) -> list[charts.Point]:
    """A line that falls only where a better trial ends."""
    found = list(points[:1])
    for x, y in points[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found


def _loss_axis(found: StudyResult, losses: Sequence[float]) -> charts.Axis:
    """Up to `FAR` times the distance of the typical trial or the default: one that diverged would flatten all."""
    best, default = found.best.loss, found.default or found.best
    reach = max(median_high(losses), default.loss) - best
    most = best + FAR * reach if reach > 0 else max(losses)
    return charts.linear([loss for loss in (*losses, default.loss) if loss <= most], "loss")


def _within(axis: charts.Axis, points: Sequence[charts.Point]) -> list[charts.Point]:
    """Points with a loss beyond the axis at its end."""
    return [(x, min(y, axis.high)) for x, y in points]


# --- Importance ---


def _importance(found: StudyResult) -> Iterator[Html]:
    if not found.importances:
        yield tag("p", "Too few trials are finished to tell which settings matter.")
        return
    shares = {name: round(100 * share) for name, share in found.importances.items()}
    names = [name.partition(".")[2] for name in shares]
    told = f"Share of the variance of the losses that a setting explains, in %, over {len(found.finished)} trials"
    drawn = charts.horizontal_bars(names, [*shares.values()], "Importance of the settings", told)
    caption = f"{told} (fANOVA). Few trials give a rough estimate."
    chosen = list(shares)[:SCATTERED]
    yield figures(figure("Importance", drawn, caption), *(_scatter(found, name) for name in chosen))


def _scatter(found: StudyResult, name: str) -> Html:
    """The loss of each finished trial by its value of a setting; names stand at the side, where they have room."""
    given = [(trial.values[name], trial.loss) for trial in found.finished]
    title, losses = name.partition(".")[2], _loss_axis(found, [loss for _, loss in given])
    first = given[0][0]
    if isinstance(first, float):
        points = [(float(value), loss) for value, loss in given]
        axis = _value_axis([x for x, _ in points], title)
    else:
        choices = sorted({value for value, _ in given})
        points = [(float(choices.index(value)), loss) for value, loss in given]
        names = [_value(value).replace("maximum", "max") for value in choices]  # a long name would be cut
        axis = charts.categories(names, title)
    plot = charts.Plot(axis, losses, height=220)
    points = _within(losses, points)
    if isinstance(first, str):
        plot = charts.Plot(losses, axis, height=220)
        points = [(loss, place) for place, loss in points]
    plot.dots(points, 0, 3)
    told = f"Validation loss of the finished trials by {title}"
    return figure(title, plot.svg(f"Loss by {title}", told), f"{told}.")


def _value_axis(values: Sequence[float], title: str) -> charts.Axis:
    """Logarithmic where the values are orders of magnitude apart."""
    apart = min(values) > 0 and max(values) > 10 * min(values)
    return charts.logarithmic(values, title) if apart else charts.linear(values, title)


# --- Trials ---


def _trials(found: StudyResult) -> Iterator[Html]:
    """All trials, the best first, then those that were not finished."""
    names = list(found.best.values)
    others = [trial for trial in found.trials if trial not in found.finished]
    ordered = [*sorted(found.finished, key=lambda trial: trial.loss), *others]
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
