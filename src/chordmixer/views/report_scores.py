"""Sections of a report on scores: all methods overall and by length, the members of an ensemble, the worst errors."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from chordmixer.tasks.targets import Classification, MultiLabel, Regression
from chordmixer.training.baselines.fitting import CONSTANT_NAMES
from chordmixer.training.ensemble import folder_of
from chordmixer.training.evaluation import Evaluation, Predictions
from chordmixer.training.intervals import Difference, Score
from chordmixer.training.labels import OutputLabels
from chordmixer.training.results import DELIVERED
from chordmixer.views import charts, metrics
from chordmixer.views.page import Html, Section, details, figure, figures, items, join, section, short, tag
from chordmixer.views.runs import Run
from chordmixer.views.tables import CONSTANT, ReportTable, bin_cells, score_cell
from chordmixer.views.verdict import best_baseline, ensemble_sentences, ladder_sentences

MODEL = "this model"
SERIES_SHIFT = 0.13  # distance between the series of a length bin, as a share of its width
MAX_ERRORS = 20  # maximum number of rows of the table of the worst errors
MEMBERS = {
    "folds": "Every record of training and validation is predicted by the member that was not trained on it. That "
    "member chose its weights, and its share of the baseline, on the same fold, so these scores are slightly too "
    "good; the test records are in no fold.",
    "replicates": "The members differ only in the seed of the initial weights and of the order of the records. Each "
    "chose its weights, and its share of the baseline, on the same validation records.",
}

Named = tuple[str, Evaluation]
"""The name of a method and its scores."""


def scores_section(run: Run) -> Section:
    """Build the section with the scores of all methods on the test records, overall and by length."""
    if run.test is None:
        return section(
            "scores", "Scores", tag("p", "The run has no evaluation-test.json: there are no scores to show.")
        )
    methods: list[Named] = [(MODEL, run.test)]
    methods += [(short(b.name, 40), b.evaluation) for b in run.baselines]
    metric, best = run.test.headline, best_baseline(run.baselines, run.test.headline)
    drawn = [method for method in methods if not method[0].startswith(CONSTANT_NAMES)]
    best_method = [method for method in methods[1:] if best and method[1] is best.evaluation]
    parts = [] if run.baselines else [tag("p", "The run has no baselines.json: baselines are not shown.")]
    parts += [_score_table(methods, run.test), _glossary(run, run.test)]
    parts += [_ladder(run, run.test, methods)] if run.ladder else []
    local = metrics.by_length(metric)
    differences = {short(b.name, 40): b.difference for b in run.baselines}
    guess, local_guess = (run.test.guessing.get(name, math.nan) for name in (metric, local))
    overall = _overall(drawn, metric, guess, differences)
    parts.append(figures(overall, _by_length([methods[0], *best_method], local, local_guess)))
    parts += [tag("h3", f"{metrics.title(local)} by length: all methods"), _length_table(methods, local)]
    return section("scores", "Scores", *parts)


def _score_table(methods: Sequence[Named], test: Evaluation) -> Html:
    names = [test.headline, *(name for name in test.scores if name != test.headline)]
    best = {name: _best(name, [e for _, e in methods]) for name in names}
    rows: list[Sequence[object]] = []
    for title, evaluation in methods:
        scores = [evaluation.scores.get(name) for name in names]
        cells = [score_cell(s, best=s is not None and s.value == best[n]) for n, s in zip(names, scores, strict=True)]
        rows.append((title, *cells))
    if not any(name.startswith(CONSTANT_NAMES) for name, _ in methods):
        rows.append((CONSTANT, *(score_cell(Score(test.guessing.get(name, math.nan))) for name in names)))
    caption = (
        f"Scores on the {test.records:,} {test.split} records, with 95 % intervals where there are enough records. "
        "Bold: the best value of each metric."
    )
    grid = ReportTable(("", *map(metrics.name, names)), rows, "scores of all methods")
    return join([tag("p", caption), grid.html(stacked=True)])


def _best(name: str, evaluations: Sequence[Evaluation]) -> float:
    values = [e.scores[name].value for e in evaluations if name in e.scores and math.isfinite(e.scores[name].value)]
    return (min if name in metrics.LESS_IS_BETTER else max)(values, default=math.nan)


def _ladder(run: Run, test: Evaluation, methods: Sequence[Named]) -> Html:
    """Table of the steps from the baseline to the delivered prediction, with what each adds and sentences on it."""
    scores = {name: evaluation.scores for name, evaluation in methods}
    rows = []
    for step in run.ladder:
        step_scores = test.scores if step.name == DELIVERED else scores.get(short(step.name, 40), {})
        name = f"network and baseline combined ({DELIVERED})" if step.name == DELIVERED else short(step.name, 40)
        rows.append((name, score_cell(step_scores.get(test.headline)), _difference(step.gain)))
    grid = ReportTable(("", metrics.name(test.headline), "gain over the row above"), rows, "what each step adds")
    summary = " ".join(ladder_sentences(run.ladder))
    return join([tag("h3", "What the data need"), tag("p", summary), grid.html()])


def _difference(difference: Difference | None) -> object:
    return score_cell(Score(difference.value, difference.low, difference.high)) if difference else ""


def _glossary(run: Run, test: Evaluation) -> Html:
    methods = {MODEL: f"the predictions of this run ({short(test.encoder, 60)})."}
    methods |= {short(b.name, 40): short(b.sentence, 300) + "." for b in run.baselines}
    if not any(b.name.startswith(CONSTANT_NAMES) for b in run.baselines):
        methods |= {CONSTANT: "the best constant prediction, chosen on the test records themselves."}
    meanings = {metrics.name(m): metrics.MEANINGS[m] for m in test.scores if m in metrics.MEANINGS}
    lists = [items(join([tag("b", name), ": ", said]) for name, said in m.items()) for m in (methods, meanings)]
    rules = [metrics.INTERVALS, *([metrics.DIFFERENCES] if run.baselines else [])]
    return details("Methods, metrics and intervals explained", *lists, *(tag("p", rule) for rule in rules))


def _overall(
    methods: Sequence[Named], metric: str, guess: float, differences: Mapping[str, Difference | None]
) -> Html:
    """Plot a row per method, the model on top; `differences` are those of the model to the others."""
    title = metrics.title(metric)
    scores = [(name, e.scores[metric]) for name, e in methods if metric in e.scores]
    values = [v for _, s in scores for v in (s.value, *metrics.ends(s))]
    y = charts.categories([name for name, _ in scores][::-1], "")
    x = charts.linear([*values, guess], title, metrics.within(metric))
    plot = charts.Plot(x, y, height=62 + 30 * len(scores))
    plot.across(guess, vertical=True)
    for i, (_, score) in enumerate(scores):
        row = len(scores) - 1.0 - i
        plot.errors([(row, *metrics.ends(score))], i, horizontal=True, cap=5)
        plot.dots([(score.value, row)], i, 4.5)
    description = "; ".join(f"{name} {metrics.sentence(score)}" for name, score in scores)
    dashed_note = f" Dashed: {CONSTANT}, {metrics.number(guess)}." if math.isfinite(guess) else ""
    caption = f"{title} on all test records with 95 % intervals.{dashed_note}"
    rows = [(name, *metrics.texts(s), _difference(differences.get(name))) for name, s in scores]
    numbers = ReportTable(("method", title, "95 % interval", "model minus method"), rows, f"{title} overall")
    return figure(
        f"{title} overall", plot.svg(f"{title} of each method", description), caption, numbers=numbers.html()
    )


def _by_length(methods: Sequence[Named], metric: str, guess: float) -> Html:
    """Plot the model and the best baseline by length; more lines with intervals would be hard to distinguish."""
    title = metrics.title(metric)
    bins = methods[0][1].by_length
    by_method = [(name, _length_scores(evaluation, metric)) for name, evaluation in methods]
    values = [v for _, scores in by_method for s in scores.values() for v in (s.value, *metrics.ends(s))]
    x = charts.categories([str(row.percentile) for row in bins], "length percentile")
    plot = charts.Plot(x, charts.linear([*values, guess], title, metrics.within(metric)), height=270)
    plot.across(guess)
    for k, (_, scores) in enumerate(by_method):
        shift = SERIES_SHIFT * (k - (len(by_method) - 1) / 2)
        placed = [(i + shift, scores[row.percentile]) for i, row in enumerate(bins) if row.percentile in scores]
        plot.errors([(place, *metrics.ends(s)) for place, s in placed], k, cap=1.5)
        gaps = [scores[row.percentile].value if row.percentile in scores else math.nan for row in bins]
        plot.line([(i + shift, value) for i, value in enumerate(gaps)], k)
        plot.dots([(place, s.value) for place, s in placed], k, 2.6)
    caption = (
        f"{title} by length: each bin holds the records above the previous percentile, up to its own. Bars are 95 % "
        "intervals; bins with too few records have none. Gaps are bins where the metric is undefined, such as bins "
        "with a single class. The table below has all methods."
    )
    dashed = [(CONSTANT, None)] if math.isfinite(guess) else []
    description = f"{title} of {', '.join(name for name, _ in by_method)} in {len(bins)} length bins."
    drawn = plot.svg(f"{title} by length percentile", description)
    names: list[tuple[str, int | None]] = [(name, k) for k, (name, _) in enumerate(by_method)]
    return figure(f"{title} by length", drawn, caption, charts.legend([*names, *dashed]))


def _length_table(methods: Sequence[Named], metric: str) -> Html:
    by_method = [_length_scores(evaluation, metric) for _, evaluation in methods]
    rows = [
        (*bin_cells(row), *(score_cell(scores.get(row.percentile)) for scores in by_method))
        for row in methods[0][1].by_length
    ]
    head = ("percentile", "length", "records", *(name for name, _ in methods))
    return ReportTable(head, rows, f"{metrics.name(metric)} by length").html()


def _length_scores(evaluation: Evaluation, metric: str) -> dict[int, Score]:
    """The defined scores by percentile."""
    scores = {row.percentile: row.scores[metric] for row in evaluation.by_length if metric in row.scores}
    return {p: score for p, score in scores.items() if math.isfinite(score.value)}


# --- Members of an ensemble ---


def members_section(run: Run) -> Section:
    """Build the section with the scores of each member, their spread, and the scores of the ensemble."""
    ensemble = run.ensemble
    assert ensemble is not None, "it is an ensemble"
    name, held_out_name = metrics.name(ensemble.metric), "fold held out" if ensemble.kind == "folds" else "validation"
    rows: list[Sequence[object]] = [
        (f"member {member.number}", short(member.answers, 60), score_cell(member.validation), score_cell(member.test))
        for member in ensemble.members
    ]
    spreads = [[metrics.number(value) for value in ensemble.spread(part)] for part in ("validation", "test")]
    rows += [(title, "", *cells) for title, *cells in zip(("mean", "standard deviation"), *spreads, strict=True)]
    scores = [
        score_cell(scored.scores.get(ensemble.metric) if scored else None) for scored in (run.held_out, run.test)
    ]
    rows.append(("ensemble", f"the {ensemble.title}", *scores))
    head = ("", "predicted by", f"{name}, {held_out_name}", f"{name}, test")
    last = (
        "The last row is all folds together, each predicted by its own member, and on the test records the mean."
        if ensemble.kind == "folds"
        else "The last row is the mean of all members."
    )
    command = f"chordmixer report {shlex.quote(str(folder_of(run.folder, 0)))}"
    return section(
        "members",
        "Members",
        *(tag("p", line) for line in ensemble_sentences(run)),
        ReportTable(head, rows, "members", words=(0, 1)).html(stacked=True),
        tag("p", f"{last} {MEMBERS[ensemble.kind]}"),
        tag("p", "Each member is a run with a report of its own: ", tag("code", command), "."),
    )


# --- The worst errors ---

Errors = tuple[str, ReportTable | None]
"""A sentence, and a table of records by id, so that a reader can look them up."""


def errors_section(
    output_labels: OutputLabels | None, target: Regression | Classification | MultiLabel, predictions: Predictions
) -> Section:
    """Build the section with the worst errors on test records."""
    if isinstance(target, Regression):
        lead, table = _largest_errors(target, predictions)
    elif output_labels is None:
        lead, table = "The run has no labels.json: its errors cannot be named.", None
    elif isinstance(target, MultiLabel):
        lead, table = _wrong_labels(output_labels, target, predictions)
    else:
        lead, table = _wrong_classes(output_labels, target, predictions)
    return section("errors", "Worst errors", tag("p", lead), table.html() if table else "")


def _wrong_classes(output_labels: OutputLabels, target: Classification, predictions: Predictions) -> Errors:
    shares = output_labels.probabilities(predictions.outputs)
    predicted, truth = target.decided(predictions.outputs), predictions.targets
    wrong = np.flatnonzero(predicted != truth)
    if not len(wrong):
        return "All test records are classified correctly.", None
    order = wrong[np.argsort(-shares[wrong, predicted[wrong]], kind="stable")][:MAX_ERRORS]
    rows = [
        (
            short(predictions.names[i], 80),
            short(target.labels[predicted[i]], 60),
            f"{shares[i, predicted[i]]:.3f}",
            short(target.labels[truth[i]], 60),
            f"{shares[i, truth[i]]:.3f}",
            f"{predictions.lengths[i]:,}",
        )
        for i in order
    ]
    lead = f"{len(wrong):,} of {len(truth):,} test records are misclassified; {_first(order, wrong)} most confident:"
    head = ("id", "predicted", "its probability", "true", "its probability", "length")
    return lead, ReportTable(head, rows, "worst errors", words=(0, 1, 3))


def _wrong_labels(output_labels: OutputLabels, target: MultiLabel, predictions: Predictions) -> Errors:
    shares, truth = output_labels.probabilities(predictions.outputs), predictions.targets > 0.5
    distance = np.where(target.decided(predictions.outputs) != truth, np.abs(shares - 0.5), -1)
    wrong = np.flatnonzero(distance.ravel() >= 0)
    if not len(wrong):
        return "All labels of the test records are predicted correctly.", None
    order = wrong[np.argsort(-distance.ravel()[wrong], kind="stable")][:MAX_ERRORS]
    rows = []
    for i, k in (divmod(int(index), target.outputs) for index in order):
        name, label = short(predictions.names[i], 80), short(target.labels[k], 60)
        truth_cell = "yes" if truth[i, k] else "no"
        rows.append((name, label, f"{shares[i, k]:.3f}", truth_cell, f"{predictions.lengths[i]:,}"))
    lead = f"{len(wrong):,} of {truth.size:,} labels are predicted wrongly; {_first(order, wrong)} most confident:"
    return lead, ReportTable(("id", "label", "probability", "true", "length"), rows, "worst errors", words=(0, 1, 3))


def _largest_errors(target: Regression, predictions: Predictions) -> Errors:
    predicted, truth = target.values(predictions.outputs).astype(np.float64), predictions.targets.astype(np.float64)
    order = np.argsort(-np.abs(predicted - truth), kind="stable")[:MAX_ERRORS]
    rows = [
        (
            short(predictions.names[i], 80),
            *(metrics.number(value) for value in (truth[i], predicted[i], predicted[i] - truth[i])),
            f"{predictions.lengths[i]:,}",
        )
        for i in order
    ]
    lead = f"The {len(order):,} test records with the largest errors:"
    return lead, ReportTable(("id", "true", "predicted", "difference", "length"), rows, "worst errors")


def _first(order: np.ndarray, wrong: np.ndarray) -> str:
    return "the" if len(order) == len(wrong) else f"the {len(order):,}"
