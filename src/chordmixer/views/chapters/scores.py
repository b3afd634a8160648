"""How good the model is beside the plain baselines and guessing: overall, and by length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from chordmixer.training.baselines.fitting import CONSTANT
from chordmixer.training.evaluation import Evaluation, LengthBin
from chordmixer.training.intervals import Difference, Score
from chordmixer.training.ladder import DELIVERED
from chordmixer.views import axes, charts, metrics
from chordmixer.views.page import Html, details, figure, figures, items, join, section, short, table, tag
from chordmixer.views.runs import Run
from chordmixer.views.verdict import best_baseline, needed

GUESSING = "one answer for all"
APART = 0.13
"""Between the series of one length bin, as a share of its width."""

Named = tuple[str, Evaluation]
"""A method and its scores."""


def chapter(run: Run) -> Html:
    if run.test is None:
        return section(
            "scores", "Scores", tag("p", "The run has no evaluation-test.json: there are no scores to show.")
        )
    compared: list[Named] = [("this model", run.test)]
    compared += [(short(b.name, 40), b.evaluation) for b in run.baselines]
    metric, best = run.test.headline, best_baseline(run.baselines, run.test.headline)
    drawn = [own for own in compared if not own[0].startswith(CONSTANT)]
    pair = [own for own in compared[1:] if best and own[1] is best.evaluation]
    parts = [] if run.baselines else [tag("p", "The run has no baselines.json: baselines are not shown.")]
    parts += [_table(compared, run.test), _glossary(run, run.test)]
    parts += [_ladder(run, compared)] if run.ladder else []
    guess = run.test.guessing.get(metric, math.nan)
    local = metrics.by_length(metric)
    less = {short(b.name, 40): b.difference for b in run.baselines}
    nothing = run.test.guessing.get(local, math.nan)
    parts.append(figures(_overall(drawn, metric, guess, less), _by_length([compared[0], *pair], local, nothing)))
    parts += [tag("h3", f"{metrics.title(local)} by length, in numbers"), _lengths_table(compared, local)]
    return section("scores", "Scores", *parts)


def _table(compared: Sequence[Named], test: Evaluation) -> Html:
    names = [test.headline, *(name for name in test.scores if name != test.headline)]
    best = {name: _best(name, [e for _, e in compared]) for name in names}
    rows: list[Sequence[object]] = []
    for title, evaluation in compared:
        own = [evaluation.scores.get(name) for name in names]
        cells = [metrics.cell(s, best=s is not None and s.value == best[n]) for n, s in zip(names, own, strict=True)]
        rows.append((title, *cells))
    if not _has_constant(compared):
        guesses = [test.guessing.get(name, math.nan) for name in names]
        rows.append((GUESSING, *(metrics.number(g) if math.isfinite(g) else metrics.UNDEFINED for g in guesses)))
    caption = (
        f"All scores are of the {test.records:,} records of the {test.split} part, each with its 95 % interval where "
        f"the records are enough for one. Bold: the best of each metric. {metrics.UNDEFINED}: undefined."
    )
    grid = table(("", *map(metrics.name, names)), rows, name="scores of all methods", stacked=True)
    return join([tag("p", caption), grid])


def _ladder(run: Run, compared: Sequence[Named]) -> Html:
    """From the baseline to the answer, with what each step adds and what that says of the data."""
    assert run.test is not None, "it has scores"
    metric, scores = run.test.headline, {name: evaluation.scores for name, evaluation in compared}
    rows = []
    for step in run.ladder:
        own = run.test.scores if step.name == DELIVERED else scores.get(short(step.name, 40), {})
        name = f"both together ({DELIVERED})" if step.name == DELIVERED else short(step.name, 40)
        rows.append((name, metrics.cell(own.get(metric)), _less(step.gain)))
    grid = table(("", metrics.name(metric), "adds to the row above"), rows, name="what each step adds")
    said = " ".join(needed(run.ladder))
    return join([tag("h3", "What the data need"), tag("p", said), grid])


def _has_constant(compared: Sequence[Named]) -> bool:
    """Whether a baseline among them is a constant answer already."""
    return any(name.startswith(CONSTANT) for name, _ in compared)


def _best(name: str, evaluations: Sequence[Evaluation]) -> float:
    values = [e.scores[name].value for e in evaluations if name in e.scores and math.isfinite(e.scores[name].value)]
    return (min if name in metrics.LESS_IS_BETTER else max)(values, default=math.nan)


def _glossary(run: Run, test: Evaluation) -> Html:
    methods = {"this model": f"what the run answers ({short(test.encoder, 60)})."}
    methods |= {short(b.name, 40): short(b.sentence, 300) + "." for b in run.baselines}
    if not any(b.name.startswith(CONSTANT) for b in run.baselines):
        methods |= {GUESSING: "the best constant answer, chosen on the test part itself."}
    numbers = {metrics.name(m): metrics.MEANINGS[m] for m in test.scores if m in metrics.MEANINGS}
    lists = [items(join([tag("b", name), ": ", said]) for name, said in m.items()) for m in (methods, numbers)]
    rules = [metrics.INTERVALS, *([metrics.DIFFERENCES] if run.baselines else [])]
    return details("What these rows, columns and intervals are", *lists, *(tag("p", rule) for rule in rules))


def _overall(compared: Sequence[Named], metric: str, guess: float, less: Mapping[str, Difference | None]) -> Html:
    """A row a method, the model on top; `less` are its differences to the others."""
    title = metrics.title(metric)
    known = [(name, e.scores[metric]) for name, e in compared if metric in e.scores]
    values = [v for _, s in known for v in (s.value, *metrics.ends(s))]
    names = [name for name, _ in known]
    y = axes.categories(names[::-1], "")
    plot = charts.Plot(axes.linear([*values, guess], title, metrics.within(metric)), y, height=62 + 30 * len(known))
    plot.across(guess, standing=True)
    for i, (_, score) in enumerate(known):
        place = len(known) - 1.0 - i
        plot.errors([(place, *metrics.ends(score))], i, lying=True, cap=5)
        plot.dots([(score.value, place)], i, 4.5)
    told = "; ".join(f"{name} {metrics.sentence(score)}" for name, score in known)
    dashed = f" Dashed: {GUESSING}, {metrics.number(guess)}." if math.isfinite(guess) else ""
    caption = f"{title} on all test records with 95 % intervals.{dashed}"
    rows = [(name, metrics.number(s.value), metrics.spread(s), _less(less.get(name))) for name, s in known]
    numbers = table(("method", title, "95 % interval", "model less this"), rows, name=f"{title} overall")
    return figure(f"{title} overall", plot.svg(f"{title} of each method", told), caption, numbers=numbers)


def _less(difference: Difference | None) -> Html:
    """A paired difference with its interval below."""
    return metrics.cell(Score(difference.value, difference.low, difference.high)) if difference else join([])


def _by_length(compared: Sequence[Named], metric: str, guess: float) -> Html:
    """The model and the best baseline; more lines than two cannot be told apart with their intervals."""
    title = metrics.title(metric)
    bins = compared[0][1].by_length
    shown = [(name, _scores_of(evaluation, metric)) for name, evaluation in compared]
    values = [v for _, own in shown for s in own.values() for v in (s.value, *metrics.ends(s))]
    x = axes.categories([str(row.percentile) for row in bins], "length percentile")
    plot = charts.Plot(x, axes.linear([*values, guess], title, metrics.within(metric)), height=270)
    plot.across(guess)
    for k, (_, own) in enumerate(shown):
        shift = APART * (k - (len(shown) - 1) / 2)
        placed = [(i + shift, own[row.percentile]) for i, row in enumerate(bins) if row.percentile in own]
        plot.errors([(place, *metrics.ends(s)) for place, s in placed], k, cap=1.5)
        plot.line(_with_gaps(bins, own, shift), k)
        plot.dots([(place, s.value) for place, s in placed], k, 2.6)
    caption = (
        f"{title} by length: each place holds the records longer than the percentile before it and not longer than "
        "its own. Bars are 95 % intervals; a point without one has too few records. A gap is a place where it is "
        "undefined, such as one with a single class. All methods are in the table below."
    )
    dashed = [(GUESSING, None)] if math.isfinite(guess) else []
    told = f"{title} of {', '.join(name for name, _ in shown)} in {len(bins)} bins of length."
    drawn = plot.svg(f"{title} by length percentile", told)
    names: list[tuple[str, int | None]] = [(name, k) for k, (name, _) in enumerate(shown)]
    return figure(f"{title} by length", drawn, caption, charts.legend([*names, *dashed]))


def _lengths_table(compared: Sequence[Named], metric: str) -> Html:
    shown = [_scores_of(evaluation, metric) for _, evaluation in compared]
    rows = [
        (
            str(row.percentile),
            f"{row.shortest:,} to {row.longest:,}",
            *(metrics.cell(own.get(row.percentile)) for own in shown),
            f"{row.records:,}",
        )
        for row in compared[0][1].by_length
    ]
    head = ("percentile", "length", *(name for name, _ in compared), "records")
    return table(head, rows, name=f"{metrics.name(metric)} by length")


def _scores_of(evaluation: Evaluation, metric: str) -> dict[int, Score]:
    """By percentile, those that are defined."""
    found = {row.percentile: row.scores[metric] for row in evaluation.by_length if metric in row.scores}
    return {p: score for p, score in found.items() if math.isfinite(score.value)}


def _with_gaps(bins: Sequence[LengthBin], own: dict[int, Score], shift: float) -> list[tuple[float, float]]:
    values = [own[row.percentile].value if row.percentile in own else math.nan for row in bins]
    return [(i + shift, value) for i, value in enumerate(values)]
